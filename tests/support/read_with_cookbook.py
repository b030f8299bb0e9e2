"""Prints what tinker-cookbook's readers find below a directory, as JSON. It runs where
tinker-cookbook is installed.

    .venv-cookbook/bin/python tests/support/read_with_cookbook.py DIRECTORY

The output also has the same episodes as cookbook's own writers write them (`rewritten`, `redrawn`).
"""

import dataclasses
import json
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.rollout_logging import serialize_rollout_summaries
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition
from tinker_cookbook.stores.registry import RunRegistry
from tinker_cookbook.stores.storage import storage_from_uri
from tinker_cookbook.stores.training_store import TrainingRunStore
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter

Record = dict[str, Any]


def grouped(records: list[Record]) -> Iterator[list[Record]]:
    for _, group in groupby(records, key=lambda record: record["group_idx"]):
        yield list(group)


def rewritten(records: list[Record]) -> list[Record]:
    """Write the same summaries from cookbook's own types with cookbook's own writer."""
    groups = [TrajectoryGroup(
        [Trajectory(
            [Transition(
                ob=tinker.ModelInput.from_ints([0] * step["ob_len"]),
                ac=TokensWithLogprobs([0] * step["ac_len"], None),
                reward=step["reward"],
                episode_done=step["episode_done"],
                metrics=step["metrics"],
                logs=step["logs"],
            ) for step in record["steps"]],
            final_ob=tinker.ModelInput.empty(),
        ) for record in group],
        [record["final_reward"] for record in group],
        [record["trajectory_metrics"] for record in group],
    ) for group in grouped(records)]  # fmt: skip
    return serialize_rollout_summaries(
        split=records[0]["split"],
        iteration=records[0]["iteration"],
        trajectory_groups_P=groups,
        taglist_P=[group[0]["tags"] for group in grouped(records)],
        sampling_client_steps_P=[group[0]["sampling_client_step"] for group in grouped(records)],
    )


def redrawn(title: str, records: list[Record], groups: int) -> Record:
    """Write the transcript of the first groups, with the calls of cookbook's ProblemEnv."""
    with logtree.init_trace(title) as trace:
        for group in list(grouped(records))[:groups]:
            with logtree.scope_header("Group Rollout"):
                for record in group:
                    draw(record["steps"][0])
    return trace.to_dict()


def draw(step: Record) -> None:
    metrics, logs = step["metrics"], step["logs"]
    with logtree.scope_header("Prompt"):
        question = {"role": "user", "content": logs["question"]}
        logtree.log_formatter(ConversationFormatter(messages=[question]))
    with logtree.scope_header("Policy Response"):
        completion = {"role": "assistant", "content": logs["response"]}
        logtree.log_formatter(ConversationFormatter(messages=[completion]))
    with logtree.scope_header("Reward"):
        components = {
            "reference_answer": logs["reference_answer"],
            "format_valid": bool(metrics["format"]),
            "correct": bool(metrics["correct"]),
            "reward": f"{step['reward']:.3f}",
        }
        logtree.table_from_dict(components, caption="Reward components")


def read(store: TrainingRunStore) -> Record:
    contents: Record = {
        "config": store.read_config(),
        "metrics": store.read_metrics(),
        "checkpoints": [record.to_dict() for record in store.read_checkpoint_records()],
        "iterations": [dataclasses.asdict(info) for info in store.list_iterations()],
    }
    for part in ("rollouts", "rewritten", "logtrees", "redrawn"):
        contents[part] = {}
    for info in store.list_iterations():
        names = ["train"] * info.has_train_rollouts + [f"eval_{name}" for name in info.eval_labels]
        for name in names:
            key = f"{info.iteration}/{name}"
            records = store.read_rollouts(info.iteration, name)
            contents["rollouts"][key] = records
            contents["rewritten"][key] = rewritten(records)
            if name in store.list_logtrees(info.iteration):
                tree = store.read_logtree(info.iteration, name)
                contents["logtrees"][key] = tree
                sections = [n for n in tree["root"]["children"] if n["tag"] == "section"]
                contents["redrawn"][key] = redrawn(tree["title"], records, len(sections))
    return contents


if __name__ == "__main__":
    registry = RunRegistry([storage_from_uri(sys.argv[1])])
    runs = {
        info.run_id: dataclasses.asdict(info) | read(registry.get_training_store(info.run_id))
        for info in registry.get_runs()
    }
    print(json.dumps(runs))
