"""Reads rollout summaries: `iteration_NNNNNN/<name>_rollout_summaries.jsonl`, one record per
trajectory, as tinker-cookbook's and sweeper's recipes write them. Does not use numpy, since views
read only a few records."""

import functools
import operator
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sweeper.common.json_values import list_of, table_of
from sweeper.errors import StoreError
from sweeper.metrics.rows import as_float
from sweeper.metrics.sources import Files
from sweeper.sweep.run_record import RUN_KEY

COLUMNS = (
    *("iteration", "group_idx", "traj_idx", "total_reward", "final_reward", "turns"),
    *("ob_len", "ac_len", "final_ob_len", "sampling_client_step", "attempt"),
)
"""Columns of numbers that any row may have; columns of metrics follow. `ob_len` and `ac_len` are
the numbers of tokens in all turns."""
LABELS = ("name", "split", "tags")
"""Columns of strings: the file's name ("train", "eval_test"), the split, the tags."""

_SUFFIX = "_rollout_summaries.jsonl"
_FOLDER = re.compile(r"iteration_(\d+)")
_RESERVED = frozenset((*COLUMNS, *LABELS, *RUN_KEY))


class SummaryFile(NamedTuple):
    """A file of rollout summaries. `path` is relative to the store's root."""

    path: str
    iteration: int
    name: str
    attempt: int

    @property
    def transcript(self) -> str:
        """The path of the file with the rollouts' conversations. The file may not exist."""
        return self.path.removesuffix(_SUFFIX) + "_logtree.json"


def summary_files(files: Files, folders: Sequence[str]) -> list[SummaryFile]:
    """Return the summary files of a run, sorted by iteration and name. If several attempts wrote
    files of the same iteration and name, return only the latest attempt's file. `folders` has one
    folder per attempt, oldest first. Raises `StoreError`."""
    files_by_place: dict[tuple[int, str], SummaryFile] = {}
    for attempt, folder in enumerate(folders, start=1):
        for inner, name in _names(files, folder):
            matched = _FOLDER.fullmatch(inner)
            if matched and name.endswith(_SUFFIX):
                base, iteration = name.removesuffix(_SUFFIX), int(matched[1])
                path = f"{folder}/{inner}/{name}" if folder else f"{inner}/{name}"
                files_by_place[iteration, base] = SummaryFile(path, iteration, base, attempt)
    return [files_by_place[key] for key in sorted(files_by_place)]


def _names(files: Files, folder: str) -> Iterator[tuple[str, str]]:
    """Yield (subfolder's name, file's name) for each file in a subfolder of `folder`."""
    top = files.store.local_path(folder)
    if top is None:
        for inner in files.below(folder):
            for entry in files.inside(inner):
                yield inner.rpartition("/")[2], entry.path.rpartition("/")[2]
        return
    for inner in _listed(top):
        if inner.startswith("iteration_"):
            yield from ((inner, name) for name in _listed(os.path.join(top, inner)))


def _listed(folder: str) -> list[str]:
    """Return the names in `folder`; empty if it is not a folder. Raises `StoreError`."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from error


def flat(record: Mapping[str, object], file: SummaryFile) -> dict[str, object]:
    """Return a summary as one row of numbers. The row has each metric of the trajectory, and the
    mean of each metric of its turns (over the turns that have it). If a trajectory and its turns
    have a metric of the same name, the trajectory's metric is used."""
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
    """Return the name of a metric's column, which differs from all names in `COLUMNS`, `LABELS` and
    `RUN_KEY`."""
    return f"metrics.{key}" if key in _RESERVED else key


def _total(steps: Iterable[Mapping[str, object]], key: str) -> float:
    numbers = [step[key] for step in steps if as_float(step.get(key)) is not None]
    whole = [number for number in numbers if isinstance(number, int)]
    if len(whole) == len(numbers):
        return _sum(whole)
    # An integer may be too large for a float, and `as_float` then makes it infinite.
    return _sum(float(as_float(number) or 0) for number in numbers)


def _sum(numbers: Iterable[float]) -> float:
    """Return exactly the sum that numpy computes when it adds columns. From Python 3.12 on, `sum`
    rounds differently."""
    return functools.reduce(operator.add, numbers, 0)


def labels_of(record: Mapping[str, object], file: SummaryFile) -> tuple[str, str, str]:
    """Return the values of the columns `LABELS`."""
    tags = ",".join(str(tag) for tag in list_of(record.get("tags")))
    return file.name, str(record.get("split", file.name)), tags
