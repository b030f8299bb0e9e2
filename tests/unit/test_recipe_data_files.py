"""Checks of the data files of our recipes while planning."""

import json

import pytest

import sweeper
from sweeper.errors import GridError
from sweeper.recipes import data_files, rl, sft, tasks
from sweeper.recipes import eval as evaluation

ROW = {"prompt": "2+2=", "answer": "4"}
PAIR = {"prompt": "2+2=", "chosen": "4", "rejected": "5"}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def plan(recipe, **values):
    grid = {"name": "checked", "recipe": recipe, "service": "local", "base": {"seed": 0, **values}}
    return sweeper.plan(grid | {"grid": {"max_steps": [1]} if recipe != "eval" else {}})


@pytest.mark.parametrize("recipe", ["sft", "rl", "distill", "dpo", "reward"])
def test_a_plan_names_a_data_file_that_is_missing_and_a_line_that_cannot_be_read(tmp_path, recipe):
    """Otherwise every run of the sweep would fail with this error."""
    gone = str(tmp_path / "gone.jsonl")
    with pytest.raises(GridError, match=r"data: .*gone\.jsonl: cannot be read: No such file"):
        plan(recipe, data=gone)
    good = PAIR if recipe in ("dpo", "reward") else ROW
    wrong = good | {"tools": []}
    path = write(tmp_path / "data.jsonl", *[good] * 3, wrong)
    with pytest.raises(GridError, match=r'data: .*data\.jsonl:4: "tools" would not be seen'):
        plan(recipe, data=path)
    with pytest.raises(GridError, match=r"test_size=64 leaves nothing to train on: .* has 3 "):
        plan(recipe, data=write(tmp_path / "few.jsonl", *[good] * 3))
    many = [good | {"prompt": f"{number}"} for number in range(5)]
    assert plan(recipe, data=write(tmp_path / "data.jsonl", *many), test_size=2).notes == ()


def test_a_plan_checks_suites_and_functions(tmp_path):
    path = write(tmp_path / "suite.jsonl", ROW, {"prompt": 3})
    with pytest.raises(GridError, match=r"suite: .*suite\.jsonl:2: the question must be a text"):
        plan("eval", suite=f"arithmetic,{path}")
    with pytest.raises(GridError, match=r"suite: unknown suite 'gone\.jsonl'"):
        plan("eval", suite="gone.jsonl")
    score = tmp_path / "score.py"
    with pytest.raises(GridError, match=r"reward_function: .*: no file"):
        plan("rl", reward_function=f"{score}:score")
    score.write_text("def score(question, response, answer):\n    return 1.0 +\n")
    with pytest.raises(GridError, match=r"reward_function: .*: not valid Python \(line 2\)"):
        plan("rl", reward_function=f"{score}:score")
    score.write_text("def score(question, response, answer):\n    return 1.0\n")
    with pytest.raises(GridError, match=r"grader: .*: the file has no function 'grade'"):
        plan("eval", grader=f"{score}:grade")
    assert plan("rl", reward_function=f"{score}:score").notes == ()


def test_a_plan_says_which_keys_are_not_used_and_which_folders_are_missing(tmp_path):
    rows = [ROW | {"prompt": f"{n}", "source": "book"} for n in range(5)]
    path = write(tmp_path / "data.jsonl", *rows)
    parent = str(tmp_path / "parent")
    assert plan("sft", data=path, test_size=2, load_checkpoint_path=parent).notes == (
        f"{path}: keys that are not used: source",
        f"load_checkpoint_path={parent} does not exist yet: a run needs a checkpoint there",
    )


def test_of_a_large_file_only_the_beginning_is_checked_and_the_plan_says_so(tmp_path):
    most = data_files.MOST_LINES
    path = write(tmp_path / "data.jsonl", *[ROW] * most, {"prompt": 3})
    assert data_files.check(path, tasks.conversation) == (
        None,
        (f"{path}: large, so only its first {most:,} lines were checked",),
    )
    rows, more = data_files.sample(path, tasks.conversation)
    assert len(rows) == most
    assert 1 < more < 1.3


def test_a_file_that_has_changed_is_read_again(tmp_path):
    path = write(tmp_path / "data.jsonl", {"prompt": 3})
    values = {"data": path, "test_size": 1}
    [line] = sft.lacks(values)
    assert line.startswith(f"data: {path}:1: expected ")
    write(tmp_path / "data.jsonl", ROW, ROW | {"prompt": "3"})
    assert sft.lacks(values) == []


def test_values_of_earlier_stages_are_not_checked():
    later = "${from.config.data}"
    assert rl.lacks({"data": later, "reward_function": later}) == []
    assert evaluation.lacks({"suite": later}) == []
    assert sft.notes({"load_checkpoint_path": later}) == []
