import importlib.util
import itertools
import json
import statistics

import pytest

from sweeper.recipes import eval as evaluation
from sweeper.recipes import scores, settings, sft, suites, tasks
from sweeper.recipes.service import RecipeError


def items(tmp_path, *rows, grader="exact"):
    path = tmp_path / "suite.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return suites.load_suites(evaluation.Config(), str(path), grader)


def test_the_key_of_an_item_depends_on_its_content_only(tmp_path):
    first = items(tmp_path, {"prompt": "a", "answer": "b"}, {"prompt": "c", "answer": 3})
    again = items(
        tmp_path,
        {"question": "c", "answer": "3", "id": "x", "cluster": "y"},
        {"messages": [{"role": "user", "content": "a"}], "answer": "b"},
    )
    assert [item.key for item in again] == [item.key for item in first][::-1]
    others = items(
        tmp_path,
        {"prompt": "a", "answer": "B"},
        {"prompt": "a ", "answer": "b"},
        {"prompt": "a", "answer": "b", "choices": ["b", "c"]},
        {"messages": [{"role": "system", "content": "a"}], "answer": "b"},
    )
    assert not {item.key for item in others} & {item.key for item in first}


def test_copies_are_asked_once(tmp_path, capsys):
    assert len(items(tmp_path, *[{"prompt": "a", "answer": "b"}] * 3)) == 1
    assert "2 of 3 items are copies: each item is asked only once" in capsys.readouterr().out


def test_an_item_of_two_suites_counts_in_the_score_of_each(tmp_path):
    rows = [json.dumps({"prompt": str(number), "answer": "b"}) + "\n" for number in range(3)]
    for name, first in (("one", 0), ("two", 1)):
        (tmp_path / f"{name}.jsonl").write_text("".join(rows[first : first + 2]))
    both = f"{tmp_path}/one.jsonl,{tmp_path}/two.jsonl"
    loaded = suites.load_suites(evaluation.Config(), both, "exact")
    scored = scores.measures([(item, [{"score": n / 2}]) for n, item in enumerate(loaded)])
    assert [scored[f"eval/{name}/num_items"] for name in ("one", "two")] == [2, 2]
    assert [scored[f"eval/{name}/score"] for name in ("one", "two")] == [0.25, 0.75]
    assert scored["test/num_items"] == 3


def test_ungraded_questions_and_unused_keys_are_printed(tmp_path, capsys):
    items(tmp_path, {"prompt": "a", "answer": "b"}, {"prompt": "c", "target": "d"})
    printed = capsys.readouterr().out
    assert "suite.jsonl: keys that are not used: target\n" in printed
    assert "1 of 2 items have no right answer: they are asked, but not graded\n" in printed


def test_choices_are_appended_to_the_question(tmp_path):
    [item] = items(tmp_path, {"question": "Sky?", "choices": ["red", "blue"], "answer": "B"})
    assert item.grader == "choice"
    assert item.messages[-1]["content"] == "Sky?\nA) red\nB) blue"


def test_a_task_asks_the_questions_that_training_holds_out():
    config = evaluation.Config(task="addition", digits=2, test_size=20)
    loaded = suites.load_suites(config, None, "exact")
    train = settings.Settings(task="addition", digits=2, test_size=20, seed=5)
    assert [item.messages for item in loaded] == [c[:-1] for c in settings.load_data(train).test]
    names = [item.suite for item in suites.load_suites(config, "arithmetic, sorting", "exact")]
    assert [(name, len(list(group))) for name, group in itertools.groupby(names)] == [
        ("addition-1", 20),
        ("addition-2", 20),
        ("sorting-5-8", 20),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "expected an object"),
        ({"answer": "b"}, 'expected "prompt", "question" or "messages"'),
        ({"prompt": 3, "answer": "b"}, "the question must be a text"),
        ({"prompt": "a", "answer": "b", "system": "c"}, '"system" would not be seen by the model'),
        (
            {"messages": [{"role": "user", "content": "a", "trainable": False}]},
            'messages[0] has "trainable", which would be lost',
        ),
        ({"prompt": "a", "answer": True}, '"answer" must be a text or a number'),
        ({"prompt": "a", "answer": "b", "choices": "c"}, '"choices" must be a list of texts'),
        ({"prompt": "a", "answer": "b", "grader": "f"}, "unknown grader 'f'"),
        ({"prompt": "a", "answer": "b", "grader": "x.py:f"}, "only the configuration may"),
        ({"prompt": "a", "answer": "b", "grader": "numeric"}, "the answer 'b' has no number"),
        ({"prompt": "a", "answer": "b", "task": []}, '"task" must be a text'),
        (
            {"messages": [{"role": "assistant", "content": "a"}]},
            'the last message must not have the role "assistant"',
        ),
    ],
)
def test_a_malformed_item_is_refused_with_its_line(tmp_path, row, message):
    with pytest.raises(RecipeError) as caught:
        items(tmp_path, {"prompt": "a", "answer": "b"}, row)
    assert str(caught.value).startswith(f"{tmp_path}/suite.jsonl:2: ")
    assert message in str(caught.value)


def test_an_unknown_suite_is_refused():
    with pytest.raises(
        RecipeError, match="unknown suite 'gsm': neither a file nor one of addition"
    ):
        suites.load_suites(evaluation.Config(), "gsm", "exact")


def test_pass_at_k_counts_draws_with_a_right_answer():
    right = [True, False, False, True, False]
    for k in range(1, 6):
        draws = list(itertools.combinations(right, k))
        expected = sum(any(draw) for draw in draws) / len(draws)
        assert scores.pass_at(k, 5, 2) == pytest.approx(expected)


def test_the_samples_of_an_item_count_as_one_observation():
    rows = [[{"score": s} for s in item] for item in ((1, 1, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1))]
    measured = scores.scores_of(rows)
    assert measured["score"] == pytest.approx(0.5)
    assert measured["stderr"] == pytest.approx(statistics.stdev([0.5, 0, 1]) / 3**0.5)
    assert measured["pass@1"] == pytest.approx(0.5)
    assert measured["pass@4"] == pytest.approx(2 / 3)
    assert set(measured) == {"score", "stderr", "num_items", "pass@1", "pass@2", "pass@4"}


def test_held_out_questions_do_not_need_the_training_part():
    task = tasks.sorting(3, 4)
    assert tasks.held_out(task, 9) == tasks.generate(task, 5, 9, seed=3).test


def test_a_plan_checks_and_counts_the_suites_of_training_runs(tmp_path):
    suite = tmp_path / "suite.jsonl"
    suite.write_text('{"prompt": "2+2=", "answer": "4"}\n{"prompt": "2+3="}\n')
    names = [str(suite), "cookbook:gsm8k"]
    values = {"eval.suites": [*names, "nowhere.jsonl"], "eval.grader": "numeric"}
    lacking = sft.lacks(values)
    assert [line.partition(": ")[0] for line in lacking] == ["eval.suites"] * len(lacking)
    assert any("unknown suite 'nowhere.jsonl'" in line for line in lacking)
    if importlib.util.find_spec("tinker_cookbook") is None:
        assert any("cookbook:gsm8k needs tinker-cookbook" in line for line in lacking)
    assert sft.notes(values) == ["the estimate leaves out the tokens of cookbook:gsm8k"]
    (tmp_path / "more").mkdir()
    other = tmp_path / "more" / "suite.jsonl"
    other.write_text(suite.read_text())
    assert sft.lacks(values | {"eval.suites": [str(suite), str(other)]}) == []
    assert len(suites.load_suites(settings.Problems(), f"{suite},{other}", "exact")) == 2
    other.write_text('{"prompt": "2+2=", "answer": "4"}\n{"prompt": "2+4="}\n')
    same = f"{suite} and {other} have the same name, so their scores would be mixed: rename one"
    assert sft.lacks(values | {"eval.suites": [str(suite), str(other)]}) == [f"eval.suites: {same}"]
    with pytest.raises(RecipeError, match="have the same name"):
        suites.load_suites(settings.Problems(), f"{suite},{other}", "exact")
    suite.write_text("{}\n")
    assert f'eval.suites: {suite}:1: expected "prompt"' in sft.lacks(values)[0]
    # Evaluations before steps 0, 4 and 8 and at the end; infrequent ones before step 0 and at the
    # end.
    suite.write_text('{"prompt": "2+2=", "answer": "4"}\n{"prompt": "2+3=", "answer": "5"}\n')
    given = {"eval.suites": names, "eval.every": 4, "eval.items": 1, "max_steps": 10}
    sampled = [
        sft.estimate(values)["tiny/qwen3"]["sample"]
        for values in ({}, given, given | {"eval.infrequent.every": 0})
    ]
    answer = len("4") + 1
    assert sampled[1] - sft.estimate({"max_steps": 10})["tiny/qwen3"]["sample"] == 4 * answer
    assert sampled[2] - sampled[1] == 2 * 2 * answer
