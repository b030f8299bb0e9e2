"""A rollout summary as one row of numbers and labels: its columns, and what each holds. Pure.

`summaries` reads many at a time, to the same values.
"""

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sweeper.common.json_values import list_of, table_of
from sweeper.metrics.rows import as_float
from sweeper.sweep.run_record import RUN_KEY

COLUMNS = (
    *("iteration", "group_idx", "traj_idx", "total_reward", "final_reward", "turns"),
    *("ob_len", "ac_len", "final_ob_len", "sampling_client_step", "attempt"),
)
"""Columns of numbers that every row has; those of metrics follow. `ob_len` and `ac_len` are the
tokens of all turns."""
LABELS = ("name", "split", "tags")
"""Columns of texts: the file's name ("train", "eval_test"), the split, the tags."""
SUFFIX = "_rollout_summaries.jsonl"

_RESERVED = frozenset((*COLUMNS, *LABELS, *RUN_KEY))


class SummaryFile(NamedTuple):
    """One file of summaries; `path` from the store's root on."""

    path: str
    iteration: int
    name: str
    attempt: int

    @property
    def transcript(self) -> str:
        """Where the conversations lie, if anywhere."""
        return self.path.removesuffix(SUFFIX) + "_logtree.json"


def flat(record: Mapping[str, object], file: SummaryFile) -> dict[str, object]:
    """A summary as one row of numbers and labels. A metric of the trajectory keeps its name; one of
    its turns is the mean over those that have it (where both are, the trajectory's counts)."""
    steps = [table_of(step) for step in list_of(record.get("steps"))]
    row: dict[str, object] = {
        "iteration": record.get("iteration", file.iteration),
        "group_idx": record.get("group_idx"),
        "traj_idx": record.get("traj_idx"),
        "total_reward": record.get("total_reward"),
        "final_reward": record.get("final_reward"),
        "turns": len(steps),
        "ob_len": _total(steps, "ob_len"),
        "ac_len": _total(steps, "ac_len"),
        "final_ob_len": record.get("final_ob_len"),
        "sampling_client_step": record.get("sampling_client_step"),
        "attempt": file.attempt,
    }
    means: dict[str, list[float]] = {}
    for step in steps:
        for key, value in table_of(step.get("metrics")).items():
            if (number := as_float(value)) is not None:
                means.setdefault(key, []).append(number)
    for key, numbers in means.items():
        row[metric_column(key)] = _sum(numbers) / len(numbers)
    for key, value in table_of(record.get("trajectory_metrics")).items():
        row[metric_column(key)] = value
    return {key: value for key, value in row.items() if value is not None}


def metric_column(key: str) -> str:
    return f"metrics.{key}" if key in _RESERVED else key


def _total(steps: Iterable[Mapping[str, object]], key: str) -> float:
    found = [step[key] for step in steps if as_float(step.get(key)) is not None]
    whole = [number for number in found if isinstance(number, int)]
    if len(whole) == len(found):
        return _sum(whole)
    return _sum(float(as_float(number) or 0) for number in found)  # an integer may be too large


def _sum(numbers: Iterable[float]) -> float:
    """One after the other, as columns are added: `sum` is more exact from Python 3.12 on."""
    return functools.reduce(operator.add, numbers, 0)


def labels_of(record: Mapping[str, object], file: SummaryFile) -> tuple[str, str, str]:
    """The texts of `LABELS`."""
    tags = ",".join(str(tag) for tag in list_of(record.get("tags")))
    return file.name, str(record.get("split", file.name)), tags
