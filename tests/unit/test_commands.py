"""The verbs that read what was recorded, by their command lines."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sweeper
from sweeper.cli import main
from sweeper.commands.show import facts
from sweeper.results.conversations import groups_of, turns_logged


@pytest.fixture
def root(tmp_path: Path, written: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    folder = tmp_path / "root"
    monkeypatch.setenv("SWEEPER_ROOT", str(folder))
    sweep = written.Written(folder, "s", {"lr": [1, 2]})
    for rate in (1, 2):
        rows = [{"step": 0, "test/nll": 3.0}, {"step": 1, "test/nll": float(rate), "x": "t"}]
        run = sweep.run({"lr": rate}, 0, rows, checkpoints=written.checkpoint("c"))
    sweep.run({"lr": 3}, 0, "bad\n", "failed", reason="oom")
    sweep.save()
    inner = folder / "s" / "runs" / f"{run}.1" / "iteration_000000"
    inner.mkdir()
    records = [
        {"group_idx": g, "traj_idx": i, "total_reward": g + i / 2, "iteration": 0,
         "steps": [{"ac_len": 4 * i, "logs": {"response": f"said {g}{i} \x1b[31m"}}]}
        for g in range(2) for i in range(2)
    ]  # fmt: skip
    (inner / "train_rollout_summaries.jsonl").write_text(written.dump(records))
    (inner / "train_logtree.json").write_text(json.dumps({"root": tree()}))
    return folder


def section(title: str, *children: Any) -> dict[str, Any]:
    head = {"tag": "h2", "attrs": {}, "children": [title]}
    body = {"tag": "div", "attrs": {}, "children": list(children)}
    return {"tag": "section", "attrs": {}, "children": [head, body]}


def talk(role: str, content: Any) -> dict[str, Any]:
    data = {"type": "conversation", "messages": [{"role": role, "content": content}]}
    return {"tag": "div", "attrs": {}, "children": [], "data": data}


def tree() -> dict[str, Any]:
    """The transcript of the first group, in the shape of tinker-cookbook's logtree."""
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "out loud"}]
    prompt = section("Prompt", talk("user", "why?"))
    episodes = [prompt, section("Reply", talk("assistant", "said 00 \x1b[31m"))]
    episodes += [prompt, section("Reply", talk("assistant", parts))]
    return {"tag": "body", "children": ["text", section("Group Rollout", *episodes)]}


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("root")
def test_ls_takes_selectors(capsys: pytest.CaptureFixture[str]):
    def names(*arguments: str) -> list[str]:
        return [run["name"] for run in ask(capsys, "ls", *arguments)["runs"]]

    every = ["lr=1,seed=0", "lr=2,seed=0", "lr=3,seed=0"]
    assert names() == names("s") == names("s/*") == names("lr=*") == every
    assert names("s/lr=2") == names("lr=2") == names("--where", "lr = 2") == [every[1]]
    assert names("--state", "failed") == [every[2]]
    assert names("lr=1,seed=0", "s/lr=3") == [every[0], every[2]]
    assert names("lr=1", "--state", "failed") == []
    listed = ask(capsys, "ls", "lr=2", "--metric", "x", "--metric", "test/nll")["runs"][0]
    assert (listed["value"], listed["metrics"]) == (2.0, {"x": None, "test/nll": 2.0})
    assert main(["ls", "nothing"]) == 5
    assert main(["ls", "--where", "lr ="]) == 2
    assert "lr=1,seed=0" in (main(["ls"]), capsys.readouterr().out)[1]


def test_values_that_are_near_each_other_are_told_apart(
    tmp_path: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
):
    rates = [0.00012345, 0.00012346]
    sweep = written.Written(tmp_path, "s", {"lr": rates})
    for rate in rates:
        sweep.run({"lr": rate}, 0, "bad\n", "failed", reason="oom")
    sweep.save()
    assert main(["ls", "s", "--by", "lr", "--root", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{rate} " in printed and f"lr={rate}: oom" in printed for rate in rates)


def scored(root: Path, written: ModuleType) -> None:
    """Write a sweep of two models and two ranks with the scores of two checkpoints."""
    sweep = written.Written(root, "m", {"model": ["a", "b"], "rank": [4, 8]})
    for model, rank in ((model, rank) for model in ("a", "b") for rank in (8, 4)):
        for seed in (0, 1):
            score = rank / 10 + seed / 20
            rows = [
                {"step": 0, "test/nll": 9.0, "eval/gsm8k/score": 0.1, "eval/gsm8k/num_items": 5},
                {"step": 10, "test/nll": 1 + rank + seed, "eval/gsm8k/score": score},
            ]
            items = {"name": "items", "batch": 0}  # of an evaluation while training
            checkpoint = {"name": "000010", "batch": 10, "sampler_path": "tinker://x"}
            sweep.run({"model": model, "rank": rank}, seed, rows, checkpoints=[items, checkpoint])
    sweep.save()


def test_ls_by_several_keys_has_the_best_cell_of_each(
    tmp_path: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
):
    scored(tmp_path, written)
    table = ask(capsys, "ls", "m", "--by", "model,rank", "--root", str(tmp_path))
    assert [(row["value"], row["states"]["m"], row["best"]["value"]) for row in table["rows"]] == [
        ([model, rank], {"succeeded": 2}, rank + 1.5) for model in ("a", "b") for rank in (8, 4)
    ]
    [a, b] = ask(capsys, "ls", "m", "--by", "model", "--root", str(tmp_path))["rows"]
    assert (a["value"], a["best"]) == ("a", {"cell": "model=a,rank=4", "value": 5.5, "runs": 2})
    assert b["best"]["cell"] == "model=b,rank=4"
    assert main(["ls", "m", "--by", "model,rnk", "--root", str(tmp_path)]) == 5
    assert "did you mean 'rank'?" in capsys.readouterr().err
    assert main(["ls", "m", "--by", "model,model", "--root", str(tmp_path)]) == 2


def test_ls_by_checkpoint_and_suite_has_the_scores(
    tmp_path: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
):
    scored(tmp_path, written)
    table = ask(capsys, "ls", str(tmp_path / "m"), "--by", "checkpoint,suite")
    assert (table["by"], table["columns"]) == ("checkpoint,suite", ["gsm8k"])
    assert [row["value"] for row in table["rows"]] == ["step 0", "000010"] * 8
    assert table["rows"][0]["run"] == "model=a,rank=8,seed=0"
    assert table["rows"][0]["scores"]["gsm8k"] == {
        **{"score": 0.1, "runs": 1, "items": 5, "errors": 0}
    }
    sweep = written.Written(tmp_path, "e", {"rank": [4]})  # of the recipe eval
    rows = [{"step": step, "eval/gsm8k/score": step / 10} for step in (1, 2)]
    items = {"name": "items", "batch": 0, "parent_path": "tinker://x/sampler_weights/000010"}
    sweep.run({"rank": 4}, 0, rows, checkpoints=[items])
    sweep.save()
    [row] = ask(capsys, "ls", "e", "--by", "checkpoint,suite", "--root", str(tmp_path))["rows"]
    assert (row["value"], row["scores"]["gsm8k"]["score"]) == ("000010", 0.2)
    sweep = written.Written(tmp_path, "t", {"rank": [4]})  # trains, and has saved no weights
    started = {"name": "suites", "batch": 0, "parent_path": "tinker://x/weights/000010"}
    sweep.run({"rank": 4}, 0, rows, checkpoints=[started])
    sweep.save()
    rows = ask(capsys, "ls", "t", "--by", "checkpoint,suite", "--root", str(tmp_path))["rows"]
    assert [row["value"] for row in rows] == ["step 1", "step 2"]
    table = ask(capsys, "ls", "m", "--by", "model,rank,suite", "--root", str(tmp_path))
    assert [(row["value"], row["scores"]["gsm8k"]["score"]) for row in table["rows"]] == [
        ([model, rank], pytest.approx(rank / 10 + 0.025)) for model in ("a", "b") for rank in (8, 4)
    ]


@pytest.mark.usefixtures("root")
def test_show_has_everything(capsys: pytest.CaptureFixture[str]):
    answer = ask(capsys, "show", "s/lr=2")
    assert answer["run"]["config"] == {"lr": 2, "seed": 0}
    assert answer["attempts"][0]["events"] == ["intent", "submitted", "claimed", "succeeded"]
    assert answer["last_metrics"]["test/nll"] == {"step": 1, "value": 2.0}
    assert answer["checkpoints"][0]["name"] == "final"
    assert any(file["path"].endswith("metrics.jsonl") for file in answer["files"])
    assert ask(capsys, "show", "s/lr=3")["skipped"]["malformed lines"] == 1
    assert main(["show", "s/lr=3"]) == 0
    shown = capsys.readouterr().out
    assert (
        "oom" in shown and "1 malformed line of the run's metrics files could not be read" in shown
    )


def test_what_show_prints_of_a_configuration_is_a_condition(
    root: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
):
    """Also of what is nested, by the keys and the values that it prints."""
    sweep = written.Written(root, "nested", {"a": [1, 2]})
    kinds: dict[str, list[Any]] = {
        "batch_size": [8, 16], "rate": [1.23456789e-4, 3e-05], "none": [None, 1],
        "name": ["add", "copy it, (twice)"], "shuffle": [True, False],
        "deep": [{"er": 1}, {"er": 2.5}],
    }  # fmt: skip
    for n in range(2):
        built = {key: values[n] for key, values in kinds.items()}
        sweep.run({"a": n}, 0, config={"dataset_builder": built, "lr": 1.23451e-4 + n * 3e-9})
    sweep.save()
    for name in ("a=0,seed=0", "a=1,seed=0"):
        assert main(["show", f"nested/{name}"]) == 0
        shown = capsys.readouterr().out.partition("\nconfiguration\n")[2].partition("\n\n")[0]
        rows = [line.split(None, 1) for line in shown.splitlines()[2:]]
        assert len(rows) == 3 + len(kinds)
        for key, value in rows:
            quoted = f"'{value.strip()}'" if "(" in value else value.strip()
            matches = ask(capsys, "ls", "nested", "--where", f"{key}={quoted}")["runs"]
            assert name in [run["name"] for run in matches], (key, value)
            assert len(matches) == (2 if key == "seed" else 1), (key, value)
    assert main(["compare", "nested"]) == 0
    assert re.search(r"^lr +0.000123451 +0.000123454$", capsys.readouterr().out, re.MULTILINE)


def test_what_is_false_is_a_fact():
    recorded = {"git": {"dirty": False, "commit": None}, "live": False, "patches": [], "n": 0}
    assert dict(facts(recorded)) == {"git.dirty": "False", "live": "False", "n": "0"}


@pytest.mark.usefixtures("root")
def test_a_metric_that_nobody_has_recorded_is_told(capsys: pytest.CaptureFixture[str]):
    assert main(["ls", "--metric", "test/nl"]) == 5
    assert capsys.readouterr().err == (
        "sweeper: no run has recorded 'test/nl'; did you mean 'test/nll'?\n"
    )
    assert main(["ls", "lr=3", "--metric", "test/nl"]) == 0  # which has recorded nothing at all


@pytest.mark.usefixtures("root")
def test_diff_shows_what_differs(capsys: pytest.CaptureFixture[str]):
    assert [run["name"] for run in ask(capsys, "compare", "lr=2", "lr=1")["runs"]] == [
        "lr=2,seed=0",
        "lr=1,seed=0",
    ]
    comparison = ask(capsys, "compare", "s/lr=1", "s/lr=2")
    assert comparison["config"] == {"lr": [1, 2]}
    assert comparison["last_metrics"] == {"test/nll": [1.0, 2.0]}
    assert main(["compare", "s/lr=1"]) == 2
    capsys.readouterr()
    assert main(["compare", "s"]) == 0
    assert "oom" in capsys.readouterr().out
    for typed in (("lr=2", "lr=1"), ("s/lr=3", "lr=1", "lr=2"), ("lr=1", "lr=2")):
        assert main(["compare", *typed]) == 0
        heads = re.findall(r"^key +(.*)$", capsys.readouterr().out, re.MULTILINE)
        names = [f"s/{name.removeprefix('s/')},seed=0" for name in typed]
        assert len(heads) == (3 if "s/lr=3" in typed else 2)
        assert [head.split() for head in heads] == [names] * len(heads)


@pytest.mark.usefixtures("root")
def test_sql_answers(capsys: pytest.CaptureFixture[str]):
    query = (
        'select name, min("test/nll") n from runs join metrics using (run) group by 1 order by 1'
    )
    answer = ask(capsys, "sql", query, "--where", "lr < 3")
    assert answer["columns"] == ["name", "n"]
    assert answer["rows"] == [["lr=1,seed=0", 1.0], ["lr=2,seed=0", 2.0]]
    assert ask(capsys, "sql", "select count(*) from runs", "--run", "lr=1")["rows"] == [[1]]
    assert ask(capsys, "sql", "select [1, 2] l, date '2026-01-02' d, 'nan'::double n")["rows"] == [
        [[1, 2], "2026-01-02", "NaN"]
    ]
    assert main(["sql", "drop table runs"]) == 2


@pytest.mark.usefixtures("root")
def test_a_query_says_nothing_beside_its_answer():
    """As a process of its own: what DuckDB says at Python's end counts too."""
    command = [sys.executable, "-m", "sweeper", "sql", "select count(*) n from runs"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["n", "─", "3"]
    assert done.stderr == ""


def test_answers_to_items_are_a_table_and_those_that_failed_are_shown(
    root: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
):
    place = next((root / "s" / "runs").iterdir())
    rows = [
        {"item": "k1", "sample": n, "score": n % 2, "task": "sums", "text": f"{n}\x1b[31m",
         "prompt": "1+0=", "answer": "1"}
        for n in range(3)
    ] + [{"item": "k2", "score": None, "text": "hello", "task": "sums"}]  # fmt: skip
    (place / "items.jsonl").write_text(written.dump(rows))
    run = place.name.partition(".")[0]
    query = "select task, item, sample, score, text, answer from items order by item, sample"
    assert ask(capsys, "sql", query)["rows"] == [
        ["sums", "k1", 0, 0.0, "0\x1b[31m", "1"],
        ["sums", "k1", 1, 1.0, "1\x1b[31m", "1"],
        ["sums", "k1", 2, 0.0, "2\x1b[31m", "1"],
        ["sums", "k2", 0, None, "hello", ""],
    ]
    frame = sweeper.Registry(str(root)).items(run)
    assert frame.groupby("item")["score"].mean().to_dict() == {
        "k1": pytest.approx(1 / 3),
        "k2": pytest.approx(float("nan"), nan_ok=True),
    }
    answer = ask(capsys, "rollouts", run, "--failed", "--page", "2", "-n", "1")
    assert (answer["count"], [row["sample"] for row in answer["items"]]) == (2, [2])
    assert main(["rollouts", run, "--failed", "--search", "1+0", "--full"]) == 0
    shown = capsys.readouterr().out
    assert "user: 1+0=\nassistant: 0" in shown and "right: 1" in shown and "\x1b" not in shown


def test_what_one_run_solves_and_another_fails_is_shown_with_both_answers(
    root: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
):
    scores = {"k1": (1, 0), "k2": (1, 1), "k3": (0, 0), "k4": (0, 1), "k5": (1, None)}
    for place, name in enumerate(("lr=1,seed=0", "lr=2,seed=0")):
        folder = root / "s" / "runs" / f"{sweeper.Registry(str(root)).run(f's/{name}').id}.1"
        rows = [
            {"item": item, "sample": n, "score": both[place], "task": "sums",
             "text": f"{name} says {item}\x1b[31m", "prompt": f"{item}?", "answer": "1"}
            for item, both in scores.items() for n in range(2)
        ]  # fmt: skip
        if place == 0:  # one of its answers to k6 is wrong: that is not solved
            rows += [{"item": "k6", "score": score, "task": "sums"} for score in (1, 0)]
        else:
            rows += [{"item": "k6", "score": 0, "task": "sums"}]
        (folder / "items.jsonl").write_text(written.dump(rows))
    answer = ask(capsys, "rollouts", "s/lr=1,seed=0", "--against", "s/lr=2,seed=0")
    assert (answer["count"], answer["shared"]) == (1, 5)
    [pair] = answer["items"]
    assert (pair["solved"]["item"], pair["failed"]["item"]) == ("k1", "k1")
    back = ask(capsys, "rollouts", "s/lr=2,seed=0", "--against", "s/lr=1,seed=0")
    assert [pair["solved"]["item"] for pair in back["items"]] == ["k4"]
    given = ["rollouts", "s/lr=1,seed=0", "--against", "s/lr=2,seed=0"]
    assert main([*given, "--full"]) == 0
    shown = capsys.readouterr().out
    assert "user: k1?\nassistant: lr=1,seed=0 says k1" in shown and "\x1b" not in shown
    assert "lr=2,seed=0: lr=2,seed=0 says k1" in shown and "1 of 1 such items (5 items" in shown
    assert main(given) == 0
    assert "lr=1,seed=0 says k1" in capsys.readouterr().out


def test_words_that_may_be_another_s_are_marked(
    root: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
):
    """Of the first group two answers have the same reward; of the second nothing tells whose each
    is; of the third there was only one."""
    sweep = written.Written(root, "rl", {"lr": [1]})
    run = sweep.run({"lr": 1}, 0)
    sweep.save()
    folder = root / "rl" / "runs" / f"{run}.1" / "iteration_000000"
    folder.mkdir()
    records = [
        {
            "group_idx": g,
            "traj_idx": i,
            "total_reward": 0.5,
            "iteration": 0,
            "steps": [{"ac_len": 4}],
        }
        for g, i in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))
    ]
    (folder / "train_rollout_summaries.jsonl").write_text(written.dump(records))
    prompt = section("Prompt", talk("user", "why?"))
    replies = [section("Reply", talk("assistant", f"reply {n}")) for n in range(5)]
    groups = [
        section("Group Rollout", prompt, replies[0], prompt, replies[1]),
        section("Group Rollout", prompt, replies[2], replies[3]),
        section("Group Rollout", prompt, replies[4]),
    ]
    transcript = {"root": {"tag": "body", "children": groups}}
    (folder / "train_logtree.json").write_text(json.dumps(transcript))
    assert main(["rollouts", "rl"]) == 0
    head, _, *lines = capsys.readouterr().out.splitlines()
    texts = [line[head.index("text") :].strip() for line in lines[:5]]
    of_group = "(of the group; see --full)"
    assert texts == ["? reply 0", "? reply 1", of_group, of_group, "reply 4"]
    unsure = "from this trajectory, or from another one of equal reward in its group"
    assert lines[5:] == ["", f"?: {unsure}", "", "5 of 5 rollouts"]
    assert main(["rollouts", "rl", "--full"]) == 0
    first, second, third, _, last = capsys.readouterr().out.split("\u2500\u2500 ")[1:]
    for shown, reply in ((first, "reply 0"), (second, "reply 1")):
        assert f"note: {unsure}\nuser: why?\nassistant: {reply}\n" in shown
    assert "note: all conversations of its group: the transcript does not" in third
    assert "assistant: reply 2\nassistant: reply 3\n" in third
    assert "note: " not in last and "assistant: reply 4\n" in last
    assert main(["rollouts", "rl", "--group", "2"]) == 0
    assert "?" not in capsys.readouterr().out


@pytest.mark.usefixtures("root")
def test_rollouts_are_chosen_and_read(capsys: pytest.CaptureFixture[str]):
    def places(*arguments: str) -> list[tuple[int, int]]:
        rollouts = ask(capsys, "rollouts", "s/lr=2", *arguments)["rollouts"]
        return [(rollout["group_idx"], rollout["traj_idx"]) for rollout in rollouts]

    assert places() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert places("--best", "-n", "2") == [(1, 1), (1, 0)]
    assert places("--worst", "-n", "1", "--page", "2") == [(0, 1)]
    assert places("--group", "1") == places("--min-reward", "1") == [(1, 0), (1, 1)]
    assert places("--max-length", "0") == [(0, 0), (1, 0)]
    assert places("--search", "OUT LOUD") == [(0, 1)]
    assert places("--search", "said 10") == [(1, 0)]
    assert places("--iteration", "-1", "--name", "train", "-n", "0") == places()
    assert main(["rollouts", "s/lr=2", "--iteration", "4"]) == 5
    assert main(["rollouts", "s/lr=1"]) == 5
    assert main(["rollouts", "s/lr=2", "--full"]) == 0
    shown = capsys.readouterr().out
    assert "user: why?" in shown and "[thinking] hm" in shown and "\x1b" not in shown
    assert main(["rollouts", "s/lr=2"]) == 0
    shown = capsys.readouterr().out
    assert "said 11\n" in shown and "\x1b" not in shown


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("verb", ["show"])
def test_a_verb_for_one_run_names_those_that_fit(
    capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert main([verb, "s"]) == 2
    message = "'s' matches 3 runs (s/lr=1,seed=0, s/lr=2,seed=0, s/lr=3,seed=0): name one of them"
    assert message in capsys.readouterr().err
    assert main([verb, "none"]) == 5


def test_iterations_of_a_run_are_shown_in_one_form(
    root: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the first there is a transcript, of the second only what its turns logged."""
    from datetime import UTC, datetime

    from sweeper.recipes.rollouts import Group, Problem, Rollout, summaries, transcript

    problem = Problem([{"role": "user", "content": "2+2"}], [1, 2, 3], "4", 0, 2)
    answers = [("4", 1.0), ("5", 0.0)]
    group = Group(problem, [Rollout([4], [0.1], t, True, r, r == 1.0) for t, r in answers])
    run = written.Written(root, "rl", {"lr": [1]})
    identity = run.run({"lr": 1}, 0, [{"step": 0, "test/nll": 3.0}])
    run.save()
    for iteration in range(2):
        folder = root / "rl" / "runs" / f"{identity}.1" / f"iteration_{iteration:06d}"
        folder.mkdir()
        lines = summaries([group], "train", iteration, "t")
        (folder / "train_rollout_summaries.jsonl").write_text(lines)
        if iteration == 0:
            tree = transcript("t", [group], datetime.now(UTC))
            (folder / "train_logtree.json").write_text(tree)
    assert main(["rollouts", "rl", "--full"]) == 0
    shown = capsys.readouterr().out.split("\n\n")[:4]
    first, second = ([block.splitlines()[1:] for block in part] for part in (shown[:2], shown[2:]))
    expected = ["user: 2+2", "assistant: 4", "reference_answer: 4", "format: 1", "correct: 1"]
    assert second[0] == expected
    assert [line for line in first[0] if line != "format_valid: True"] == expected
    assert second[1][1] == first[1][1] == "assistant: 5"


def test_episodes_are_shown_turn_by_turn_and_found_by_task(
    root: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    from sweeper.recipes.rollouts import Group, Problem, Rollout, Turn, summaries

    turns = (
        Turn([], 1, "ls", True, "key\x1b[2J", {}),
        Turn([1, 2], 1, "open", False, "opened", {"stop/max_turns": 1.0}),
    )
    groups = [
        Group(
            Problem([{"role": "user", "content": "Go."}], [1], "", 0, 0, f"ours/{name}"),
            [Rollout([4, 5], [0.1, 0.2], "", True, 0.5, False, turns)],
        )
        for name in ("door", "lamp")
    ]
    run = written.Written(root, "rl", {"lr": [1]})
    identity = run.run({"lr": 1}, 0, [{"step": 0, "test/nll": 3.0}])
    run.save()
    folder = root / "rl" / "runs" / f"{identity}.1" / "iteration_000000"
    folder.mkdir()
    (folder / "train_rollout_summaries.jsonl").write_text(summaries(groups, "train", 0, "t"))
    for task, count in (("lamp", 1), ("ours/door", 1), ("t", 2), ("other", 0)):
        assert main(["rollouts", "rl", "--task", task]) == 0
        assert f"{count} of {count} rollouts" in capsys.readouterr().out
    assert main(["rollouts", "rl", "--task", "lamp", "--full"]) == 0
    shown = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert "reward 0.5, 2 tokens" in shown[0]
    assert shown[1:7] == [
        *("item: ours/lamp", "user: Go.", "assistant: ls"),
        *("output: key", "assistant: open", "output: opened"),
    ]
    assert "stop/max_turns: 1" in shown


@pytest.mark.parametrize(
    ("record", "step"),
    [
        ({"batch": 60}, "60"),
        ({"batch": 60, "epoch": 0}, "60"),
        ({"batch": 3, "epoch": 1}, "epoch 1, 3"),
        ({"batch": 0, "epoch": 1}, "after 1 epoch"),  # as tinker-cookbook has its last
        ({"batch": 0, "epoch": 2}, "after 2 epochs"),
    ],
)
def test_where_in_the_training_a_checkpoint_was_made(
    root: Path,
    written: ModuleType,
    capsys: pytest.CaptureFixture[str],
    record: dict[str, int],
    step: str,
) -> None:
    sweep = written.Written(root, "sl", {"lr": [1]})
    sweep.run({"lr": 1}, 0, [{"step": 0}], checkpoints=[{"name": "final", **record}])
    sweep.save()
    assert main(["show", "sl"]) == 0
    shown = capsys.readouterr().out.partition("\ncheckpoints\n")[2].splitlines()
    assert re.split(r"\s{3,}", shown[2])[:2] == ["final", step]


def test_status_has_a_line_for_a_sweep_and_for_a_run(
    root: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """However long its command is, and what a run said last."""
    command = ["python", "train.py", *(f"--option{n} {{value{n}}}\n" for n in range(40))]
    recipe = {"reference": " ".join(command), "kind": "command", "command": command}
    sweep = written.Written(root, "long", {"lr": [1]}, recipe=recipe)
    sweep.run({"lr": 1}, 0, [], "failed", reason="error", detail="no " * 100)
    sweep.save()
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and max(map(len, lines)) <= 120
    assert "python train.py --option0" in "\n".join(lines) and "..." in "\n".join(lines)
    assert main(["status", "long"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("lr=1,seed=0") and lines[2].endswith("...")
    assert not lines[3] and len(lines[2]) <= 160


def test_a_transcript_that_is_none_is_passed_over():
    assert groups_of("no tree", [[{}]]) == groups_of({"root": [1]}, [[{}]]) == {}
    assert turns_logged({"steps": [1, {"logs": 2}]}) == turns_logged({}) == []


def test_tables_are_written_for_others(root: Path, capsys: pytest.CaptureFixture[str]):
    out = root.parent / "out.csv"
    (root / "alone").mkdir()
    (root / "alone" / "metrics.jsonl").write_text(
        '{"step": 0, "test/nll": NaN}\n{"step": 1, "y": 2}\n'
    )
    assert main(["export", "./alone", "--format", "csv", "--out", str(out)]) == 0
    head, *rows = out.read_text().splitlines()
    assert head == '"run","sweep","root","step","test/nll","y"'
    assert [row.split(",")[3:] for row in rows] == [["0", "nan", ""], ["1", "", "2"]]
    parquet = root.parent / "out.parquet"
    assert main(["export", "--format", "parquet", "--table", "runs", "--out", str(parquet)]) == 0
    import pandas

    assert list(pandas.read_parquet(parquet)["lr"].dropna()) == [1, 2, 3]
    capsys.readouterr()
    assert main(["export", "--format", "csv", "--out", str(root / "no" / "x")]) == 6
    assert sorted(path.name for path in root.parent.iterdir() if ".tmp" in path.name) == []


def test_a_csv_has_nothing_that_a_spreadsheet_would_compute(
    tmp_path: Path, written: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    """A metric's text, its key and a setting come from whoever wrote the folder: a spreadsheet that
    opens the export must not start what they name. A machine gets all of it as it was."""
    import csv

    formulas = ["=cmd|'/C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1"]
    innocent = ["plain", "1e-4", "-0.5", "+7", "a=b", ""]
    sweep = written.Written(tmp_path / "root", "s", {"lr": [1]})
    rows = [{"step": i, "=key": text} for i, text in enumerate([*formulas, *innocent])]
    sweep.run({"lr": 1}, 0, rows)
    sweep.save()
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    out = tmp_path / "out.csv"
    export = ["export", "s", "--root", str(tmp_path / "root"), "--format", "csv", "--out", str(out)]

    def read(key: str) -> list[str]:
        with open(out, newline="") as file:
            return [row[key] for row in csv.DictReader(file)]

    assert main(export) == 0
    assert read("'=key") == [f"'{text}" for text in formulas] + innocent
    assert main([*export, "--raw"]) == 0
    assert read("=key") == formulas + innocent


def test_gc_removes_what_nobody_needs_and_only_when_told(
    root: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
):
    sweep = written.Written(root, "again")
    run = sweep.run({"a": 1}, 0, [{"step": 0}], "preempted")
    sweep.run({"a": 1}, 0, [{"step": 0}], attempt=2)
    sweep.document["provenance"]["snapshot"] = "a" * 32
    sweep.save()
    for attempt, iteration in ((1, 0), (1, 1), (2, 1)):
        inner = root / "again" / "runs" / f"{run}.{attempt}" / f"iteration_{iteration:06}"
        inner.mkdir()
        for name in ("train_rollout_summaries.jsonl", "train_logtree.json"):
            (inner / name).write_text("{}\n")
    home = root.parent / "home"
    used, unused = (home / "snapshots" / f"{letter * 32}-0123abcd" for letter in "ab")
    gone = home / "cache" / "v1" / "x"
    for folder in (used, unused, gone):
        folder.mkdir(parents=True)
        (folder / "root").write_text("/no/such/root")
    dead, alive = (root / "s" / f".tmp-{pid}-0a0b0c0d" for pid in (2**22 + 1, os.getpid()))
    before = time.time() - 7200
    for path in (dead, alive):
        path.write_text("half")
        os.utime(path, (before, before))
    plain = [item["path"] for item in ask(capsys, "store", "gc", "--days", "-1")["items"]]
    assert {str(gone), str(unused), str(dead)} <= set(plain) and str(used) not in plain
    listed = [str(item["path"]) for item in ask(capsys, "store", "gc")["items"]]
    assert str(unused) not in listed and str(alive) not in listed and str(dead) in listed
    assert main(["store", "gc", "--delete", "--attempts"]) == 0
    assert not dead.exists() and alive.exists() and unused.exists()
    assert gone.exists()  # its root may be on a disk that is not mounted
    left = sorted(
        str(p.relative_to(root / "again" / "runs")) for p in root.glob("again/runs/*/*/*")
    )
    files = ("train_logtree.json", "train_rollout_summaries.jsonl")
    places = ((1, 0), (2, 1))
    assert left == [f"{run}.{a}/iteration_{i:06}/{name}" for a, i in places for name in files]


def test_a_trajectory_whose_place_is_no_number_is_shown_all_the_same(
    root: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written.Written(root, "odd", {"lr": [1]})
    identity = run.run({"lr": 1}, 0, [{"step": 0, "test/nll": 3.0}])
    run.save()
    folder = root / "odd" / "runs" / f"{identity}.1" / "iteration_000000"
    folder.mkdir()
    record = {"group_idx": {"of": 1}, "traj_idx": [0], "total_reward": 1.0,
              "steps": [{"logs": {"response": "still here"}}]}  # fmt: skip
    (folder / "train_rollout_summaries.jsonl").write_text(json.dumps(record) + "\n")
    assert main(["rollouts", "odd", "--full"]) == 0
    assert "still here" in capsys.readouterr().out


def test_rollouts_of_a_sweep_are_those_of_its_runs(
    root: Path, written: ModuleType, capsys: pytest.CaptureFixture[str]
):
    unanswered = {"group_idx": 0, "traj_idx": 0, "total_reward": 9.0, "iteration": 0}
    unanswered |= {"trajectory_metrics": {"ended_at": 1796000000.0}, "steps": [{"ac_len": 1}]}
    (run,) = ask(capsys, "ls", "s/lr=1")["runs"]
    inner = root / "s" / "runs" / f"{run['id']}.1" / "iteration_000000"
    inner.mkdir()
    (inner / "train_rollout_summaries.jsonl").write_text(written.dump([unanswered]))
    answer = ask(capsys, "rollouts", "s", "--best", "-n", "2")
    assert answer["count"] == 5 and len(answer["runs"]) == 3
    assert answer["rollouts"][0]["run"] == run["id"]
    assert [rollout["total_reward"] for rollout in answer["rollouts"]] == [9.0, 1.5]
    assert main(["rollouts", "s", "--best"]) == 0
    head, _, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "run" and first.startswith("lr=1,seed=0")
    out = str(root.parent / "traces.jsonl")
    assert main(["rollouts", "s", "--export", out]) == 0
    assert {json.loads(line)["run"] for line in Path(out).read_text().splitlines()} == {
        "lr=1,seed=0",
        "lr=2,seed=0",
    }
    capsys.readouterr()
    assert main(["rollouts", "s/lr=1"]) == 0  # as tinker-cookbook's asynchronous training
    shown = capsys.readouterr().out
    assert "text" not in shown.splitlines()[0] and "no text: neither the turns" in shown
    assert main(["rollouts", "s/lr=1", "--full"]) == 0
    assert "ended_at: 2026-11-30 00:53:20+00:00" in capsys.readouterr().out
