"""The verb that shows the prompts and answers of a model."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import written
from support.verbs import ask

import sweeper
from sweeper.cli import main
from sweeper.results.conversations import groups_of, turns_logged


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    folder = tmp_path / "root"
    monkeypatch.setenv("SWEEPER_ROOT", str(folder))
    _, run, _ = written.three_runs(folder)
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
    """Return the transcript of the first group, in the shape of tinker-cookbook's logtree."""
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "out loud"}]
    prompt = section("Prompt", talk("user", "why?"))
    episodes = [prompt, section("Reply", talk("assistant", "said 00 \x1b[31m"))]
    episodes += [prompt, section("Reply", talk("assistant", parts))]
    return {"tag": "body", "children": ["text", section("Group Rollout", *episodes)]}


@pytest.mark.parametrize("key", ["iteration", "group_idx", "traj_idx", "total_reward", "steps"])
@pytest.mark.parametrize("value", [[0], 2**70])
def test_values_of_other_types_are_printed(root: Path, capsys: Any, key: str, value: Any):
    [path] = root.glob("s/runs/*/iteration_000000/train_rollout_summaries.jsonl")
    first, *others = map(json.loads, path.read_text().splitlines())
    path.write_text(written.dump([first | {key: value}, *others]))
    run = path.parts[-3].partition(".")[0]
    assert main(["rollouts", run, "--full"]) == 0
    assert "4 of 4 rollouts" in capsys.readouterr().out
    assert len(ask(capsys, "rollouts", run)["rollouts"]) == 4


def test_answers_to_items_are_a_table_and_those_that_failed_are_shown(root, capsys):
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


def test_what_one_run_solves_and_another_fails_is_shown_with_both_answers(root, capsys):
    scores = {"k1": (1, 0), "k2": (1, 1), "k3": (0, 0), "k4": (0, 1), "k5": (1, None)}
    for place, name in enumerate(("lr=1,seed=0", "lr=2,seed=0")):
        folder = root / "s" / "runs" / f"{sweeper.Registry(str(root)).run(f's/{name}').id}.1"
        rows = [
            {"item": item, "sample": n, "score": both[place], "task": "sums",
             "text": f"{name} says {item}\x1b[31m", "prompt": f"{item}?", "answer": "1"}
            for item, both in scores.items() for n in range(2)
        ]  # fmt: skip
        if place == 0:  # one of its answers to k6 is wrong, so k6 is not solved
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
    assert (
        "lr=2,seed=0: lr=2,seed=0 says k1" in shown
        and "1 of 1 such items (both runs answered 5 items)" in shown
    )
    assert main(given) == 0
    assert "lr=1,seed=0 says k1" in capsys.readouterr().out


def test_ambiguous_rollout_texts_are_marked(root, capsys):
    """Groups with equal rewards, with texts of unknown rollouts, and with a single rollout."""
    sweep = written.Written(root, "rl", {"lr": [1]})
    run = sweep.run({"lr": 1}, 0)
    sweep.save()
    folder = root / "rl" / "runs" / f"{run}.1" / "iteration_000000"
    folder.mkdir()
    records = [
        {
            "group_idx": g, "traj_idx": i, "total_reward": 0.5, "iteration": 0,
            "steps": [{"ac_len": 4}],
        }
        for g, i in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))
    ]  # fmt: skip
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
    of_group = "(in the group's conversations: see --full)"
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
def test_rollouts_are_chosen_and_read(capsys):
    def places(*arguments: str) -> list[tuple[int, int]]:
        rollouts = ask(capsys, "rollouts", "s/lr=2", *arguments)["rollouts"]
        return [(rollout["group_idx"], rollout["traj_idx"]) for rollout in rollouts]

    assert places() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert places("--best", "-n", "2") == [(1, 1), (1, 0)]
    assert places("--worst", "-n", "1", "--page", "2") == [(0, 1)]
    assert places("--group", "1") == places("--min-reward", "1") == [(1, 0), (1, 1)]
    assert places("--max-length", "0") == [(0, 0), (1, 0)]
    assert places("--search", "OUT LOUD") == [(0, 1)] and places("--search", "said 10") == [(1, 0)]
    assert places("--iteration", "-1", "--name", "train", "-n", "0") == places()
    assert main(["rollouts", "s/lr=2", "--iteration", "4"]) == 5
    assert main(["rollouts", "s/lr=1"]) == 5 and main(["rollouts", "s/lr=2", "--full"]) == 0
    shown = capsys.readouterr().out
    assert "user: why?" in shown and "[thinking] hm" in shown and "\x1b" not in shown
    assert main(["rollouts", "s/lr=2"]) == 0
    shown = capsys.readouterr().out
    assert "said 11\n" in shown and "\x1b" not in shown


def test_iterations_of_a_run_are_shown_in_one_form(root, capsys):
    """The first iteration has a transcript, the second only the logs of its turns."""
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


def test_episodes_are_shown_turn_by_turn_and_found_by_task(root, capsys):
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


def test_an_invalid_transcript_is_skipped():
    assert groups_of("no tree", [[{}]]) == groups_of({"root": [1]}, [[{}]]) == {}
    assert turns_logged({"steps": [1, {"logs": 2}]}) == turns_logged({}) == []


def test_a_trajectory_with_an_invalid_index_is_shown(root, capsys):
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


def test_rollouts_of_a_sweep_include_all_its_runs(root, capsys):
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
    assert main(["rollouts", "s/lr=1"]) == 0  # as in tinker-cookbook's asynchronous training
    shown = capsys.readouterr().out
    assert "text" not in shown.splitlines()[0] and "no text: neither the turns" in shown
    assert main(["rollouts", "s/lr=1", "--full"]) == 0
    assert "ended_at: 2026-11-30 00:53:20+00:00" in capsys.readouterr().out
