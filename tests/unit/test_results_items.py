"""Answers by item, in each of the formats that programs write."""

import json

import pytest

from sweeper.results.items import Answered, ItemFile, by_task, item_files, parse_answers


def test_files_of_items_are_listed_with_the_latest_last():
    paths = {
        "e/runs/step100_a/gsm8k/trajectories.jsonl": 5,
        "e/runs/step100_a/gsm8k/result.json": 5,
        "e/runs/step90_b/gsm8k/trajectories.jsonl": 5,
        "e/runs/step90_b/gsm8k/result.json": 5,
        "e/runs/step90_b/metadata.json": 5,
        "e/runs/step110_c/gsm8k/trajectories.jsonl": 5,  # no result: unfinished or killed
        "iteration_000002/eval_test_rollout_summaries.jsonl": 5,
        "iteration_000010/eval_test_rollout_summaries.jsonl": 5,
        "items.jsonl": 5,
        "metrics.jsonl": 5,
    }
    files = [(file.kind, file.task, file.path, file.note) for file in item_files(paths.items())]
    assert files == [
        ("items", "", "items.jsonl", ""),
        ("store", "gsm8k", "e/runs/step90_b/gsm8k/trajectories.jsonl",
         "e/runs/step90_b/metadata.json"),
        ("store", "gsm8k", "e/runs/step100_a/gsm8k/trajectories.jsonl", ""),
        ("summaries", "test", "iteration_000002/eval_test_rollout_summaries.jsonl", ""),
        ("summaries", "test", "iteration_000010/eval_test_rollout_summaries.jsonl", ""),
    ]  # fmt: skip


def of(kind: str, *rows: object, task: str = "") -> list[Answered]:
    file = ItemFile(kind, task, (), "", 0)
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return by_task(parse_answers(data, file), file)


def test_a_file_of_items_keeps_the_last_step_of_each_task():
    tasks = of(
        "items",
        {"item": "a", "score": 0, "task": "x", "step": 10},
        {"item": "a", "score": True, "task": "x", "step": 20, "prompt": "Why?", "cluster": "p1"},
        {"item": "a", "score": 0.5, "task": "x", "step": 20},
        {"item": 7, "score": 1, "task": "y", "step": 10},
        {"item": "b", "score": "good"},
        {"score": 1},
        {"item": "b", "score": float("nan")},
    )
    assert [(task.task, dict(task.scores), dict(task.answers)) for task in tasks] == [
        ("x", {"a": 0.75}, {"a": 2}),
        ("y", {"7": 1.0}, {"7": 1}),
    ]
    assert tasks[0].prompts == {"a": "Why?"} and tasks[0].clusters == {"a": "p1"}


def test_an_eval_store_scores_rewards_above_zero_and_counts_errors():
    turns = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    (answered,) = of(
        "store",
        {"idx": 0, "example_id": "q-1", "reward": 0.2, "turns": turns},
        {"idx": 1, "example_id": "q-2", "reward": 0.0, "error": "timeout (300s)", "turns": []},
        {"idx": 2, "reward": -1.0},
        {"example_id": "q-3", "reward": None},
        task="gsm8k",
    )
    assert (answered.task, dict(answered.scores)) == ("gsm8k", {"q-1": 1.0, "q-2": 0.0, "2": 0.0})
    assert answered.errors == 1 and answered.prompts == {"q-1": "2 + 2?"} and not answered.training


def test_all_turns_of_an_item_are_one_answer():
    turns = [{"item": "o/door", "question": "Open it.", "response": "ls"}, {"response": "open"}]
    row = {"total_reward": 0.5, "steps": [{"logs": logs} for logs in turns]}
    file = ItemFile("summaries", "test", (), "x", 1)
    (answer,) = parse_answers(json.dumps(row).encode() + b"\n", file)
    assert (answer.item, answer.text, answer.score) == ("o/door", "ls\nopen", 0.5)
    assert answer.prompt == "Open it."


@pytest.mark.parametrize("judged", [True, False])
def test_summaries_are_grouped_by_question(judged: bool):
    def row(reward: float, right: float, **logs: str) -> dict[str, object]:
        metrics = {"correct": right} if judged or reward else {}
        return {"total_reward": reward, "steps": [{"logs": logs, "metrics": metrics}]}

    (answered,) = of(
        "summaries",
        row(0.25, 1.0, question="ba"),
        row(0.0, 0.0, question="ba"),
        row(1.0, 1.0, problem="cb"),
        row(1.0, 1.0),
        task="train",
    )
    assert dict(answered.scores) == {"ba": 0.5 if judged else 0.125, "cb": 1.0}
    assert answered.answers == {"ba": 2, "cb": 1} and answered.training
