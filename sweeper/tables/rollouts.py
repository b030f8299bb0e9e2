"""What was sampled: `iteration_NNNNNN/<name>_rollout_summaries.jsonl`, in the shape that
tinker-cookbook's recipes and ours write, as columns; a row a trajectory.

The numbers of a run's rollouts are kept in the cache, each file told by its stamp; the texts are
read from the files when they are asked for.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sweeper.errors import NotFound
from sweeper.metrics import Row, as_float, parse
from sweeper.tables.cache import Cache, Kept
from sweeper.tables.columns import Columns, absent, columns_of, join, present
from sweeper.tables.frames import Part
from sweeper.tables.sources import Files, Stamp

__all__ = [
    "COLUMNS",
    "LABELS",
    "SummaryFile",
    "flat",
    "read_rollouts",
    "rollout_parts",
    "summary_files",
]

COLUMNS = (
    *("iteration", "group_idx", "traj_idx", "total_reward", "final_reward", "turns"),
    *("ob_len", "ac_len", "final_ob_len", "sampling_client_step", "attempt"),
)
"""Columns of numbers that every row has; those of metrics follow. `ob_len` and `ac_len` are the
tokens of all turns."""
LABELS = ("name", "split", "tags")
"""Columns of texts: the file's name ("train", "eval_test"), the split, the tags."""

_FOLDER = re.compile(r"iteration_(\d+)")
_SUFFIX = "_rollout_summaries.jsonl"


class SummaryFile(NamedTuple):
    """One file of summaries; `path` from the store's root on."""

    path: str
    iteration: int
    name: str
    attempt: int

    @property
    def transcript(self) -> str:
        """Where the conversations lie, if anywhere."""
        return self.path.removesuffix(_SUFFIX) + "_logtree.json"


def summary_files(files: Files, folders: Sequence[str]) -> list[SummaryFile]:
    """The files of a run, by iteration and name; of an iteration that several attempts wrote, the
    later attempt's. `folders`: one an attempt, oldest first."""
    found: dict[tuple[int, str], SummaryFile] = {}
    for attempt, folder in enumerate(folders, start=1):
        for inner, name in _names(files, folder):
            matched = _FOLDER.fullmatch(inner)
            if matched and name.endswith(_SUFFIX):
                base, iteration = name.removesuffix(_SUFFIX), int(matched[1])
                path = f"{folder}/{inner}/{name}" if folder else f"{inner}/{name}"
                found[iteration, base] = SummaryFile(path, iteration, base, attempt)
    return [found[key] for key in sorted(found)]


def _names(files: Files, folder: str) -> Iterator[tuple[str, str]]:
    """Folder and name of each file one level down."""
    top = files.store.local_path(folder)
    if top is None:
        for inner in files.below(folder):
            for entry in files.inside(inner):
                yield inner.rpartition("/")[2], entry.path.rpartition("/")[2]
        return
    try:
        inner = [name for name in os.listdir(top) if name.startswith("iteration_")]
    except OSError:
        return
    for name in inner:
        try:
            found = os.listdir(os.path.join(top, name))
        except OSError:
            continue
        yield from ((name, one) for one in found)


def flat(record: Mapping[str, Any], file: SummaryFile) -> dict[str, Any]:
    """A summary as one row of numbers and labels. A metric of the trajectory keeps its name; one of
    its turns is the mean over those that have it (where both are, the trajectory's counts)."""
    steps = [_dict(step) for step in _list(record.get("steps"))]
    row: dict[str, Any] = {
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
        for key, value in _dict(step.get("metrics")).items():
            if (number := as_float(value)) is not None:
                means.setdefault(key, []).append(number)
    for key, numbers in means.items():
        row[_metric(key)] = sum(numbers) / len(numbers)
    for key, value in _dict(record.get("trajectory_metrics")).items():
        row[_metric(key)] = value
    return {key: value for key, value in row.items() if value is not None}


def _metric(key: str) -> str:
    return f"metrics.{key}" if key in COLUMNS or key in LABELS or key in ("run", "sweep") else key


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _total(steps: Iterable[Mapping[str, Any]], key: str) -> float:
    return sum(step[key] for step in steps if as_float(step.get(key)) is not None)


def labels_of(record: Mapping[str, Any], file: SummaryFile) -> list[str]:
    """The texts of `LABELS`."""
    tags = ",".join(str(tag) for tag in _list(record.get("tags")))
    return [file.name, str(record.get("split", file.name)), tags]


class Rollouts(NamedTuple):
    """Rows of numbers; `labels` holds the texts that the columns of that name number."""

    columns: Columns
    labels: dict[str, list[str]]


def read_rollouts(
    cache: Cache | None, files: Files, folders: Sequence[str], keys: Sequence[str] | None = None
) -> Rollouts:
    """All summaries of a run. Of files that the cache knows nothing is read."""
    if not folders:  # it has not started
        return Rollouts(Columns(0, {label: absent(0) for label in LABELS}), {})
    name = f"rollouts {folders[-1]}"
    now = [(file, files.source(file.path)) for file in summary_files(files, folders)]
    told = [[f.path, f.attempt, list(s.stamp)] for f, s in now if s is not None]
    wanted = None if keys is None else list(dict.fromkeys((*keys, *LABELS)))
    if cache is not None:
        kept = cache.load(name, wanted)
        if kept is not None and kept.about["files"] == told:
            return Rollouts(kept.columns, kept.about["labels"])
    old = None if cache is None else cache.load(name)
    known = {} if old is None else _segments(old)
    labels: dict[str, list[str]] = {label: [] for label in LABELS}
    if old is not None:
        labels = old.about["labels"]
    parts: list[Columns] = []
    steady = True
    for file, source in now:
        if source is None:
            continue
        part = known.get((file.path, file.attempt, source.stamp))
        if part is None:
            try:
                stamp, data = source.read(0)
                part = _parsed(data, file, labels)
                steady &= stamp == source.stamp and not stamp.is_fleeting
            except NotFound:
                part, steady = Columns(), False
        parts.append(part)
    made, labels = _numbered_anew(join(parts), labels)
    if cache is not None and steady:
        about = {"files": told, "labels": labels, **_outlined(parts)}
        cache.save(name, Kept(about, made, True))
    return Rollouts(made, labels)


def _numbered_anew(
    columns: Columns, labels: Mapping[str, list[str]]
) -> tuple[Columns, dict[str, list[str]]]:
    """The texts numbered as they appear, whichever files were read before: nobody can tell by their
    order what was in the cache."""
    values, kept = dict(columns.values), {label: list[str]() for label in labels}
    for label in labels:
        codes, first, place = np.unique(
            columns.column(label), return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        kept[label] = [labels[label][int(code)] for code in codes[order]]
        values[label] = np.argsort(order)[place].astype(np.float64)
    return Columns(columns.rows, values, columns.odd, columns.malformed), kept


def _outlined(parts: Sequence[Columns]) -> dict[str, Any]:
    """What tells the parts in what they are joined to: of each its rows, its keys (one of
    `shapes`), and what could not be read."""
    shapes: dict[tuple[str, ...], int] = {}
    told = [
        [part.rows, shapes.setdefault(tuple(part.values), len(shapes)), part.malformed]
        for part in parts
    ]
    return {"parts": told, "shapes": list(shapes)}


def _segments(kept: Kept) -> dict[tuple[str, int, Stamp], Columns]:
    """The parts again, by their files."""
    found: dict[tuple[str, int, Stamp], Columns] = {}
    start, about = 0, kept.about
    for (path, attempt, stamp), part in zip(about["files"], about["parts"], strict=True):
        rows, shape, malformed = part
        own = _slice(kept.columns, start, start + rows, about["shapes"][shape])
        found[path, attempt, Stamp(*stamp)] = replace(own, malformed=malformed)
        start += rows
    return found


def _slice(columns: Columns, start: int, end: int, keys: Sequence[str]) -> Columns:
    values = {key: columns.values[key][start:end] for key in keys}
    odd = {
        key: {row - start: value for row, value in found.items() if start <= row < end}
        for key, found in columns.odd.items()
    }
    return Columns(end - start, values, {key: found for key, found in odd.items() if found})


def _parsed(data: bytes, file: SummaryFile, labels: dict[str, list[str]]) -> Columns:
    found = parse(data)
    rows: list[Row] = []
    for record in found.rows:
        row = flat(record, file)
        for label, text in zip(LABELS, labels_of(record, file), strict=True):
            if text not in labels[label]:
                labels[label].append(text)
            row[label] = labels[label].index(text)
        rows.append(row)
    made = columns_of(rows)
    return Columns(made.rows, made.values, made.odd, found.malformed + found.torn)


def rollout_parts(
    cache: Cache | None,
    files: Files,
    folders: Sequence[str],
    common: Mapping[str, str],
    iteration: int | None = None,
    keys: Sequence[str] | None = None,
) -> list[Part]:
    """The rollouts of a run, one part for each combination of texts. `iteration` counts from the
    last one if it is negative."""
    asked = None if keys is None else [*keys, "iteration"]
    found, labels = read_rollouts(cache, files, folders, asked)
    if iteration is not None and found.rows:
        steps = found.column("iteration")
        known = np.unique(steps[present(steps)])
        inside = -len(known) <= iteration < 0
        wanted = iteration if iteration >= 0 else known[iteration] if inside else math.nan
        found = found.where(steps == wanted)
    coded = np.stack([found.column(label) for label in LABELS])
    parts: list[Part] = []
    for codes in np.unique(coded, axis=1).T if found.rows else ():
        mask = (coded == codes[:, None]).all(axis=0)
        own = found.where(mask)
        values = {
            k: v for k, v in own.values.items() if k not in LABELS and (keys is None or k in keys)
        }
        texts = {label: labels[label][int(code)] for label, code in zip(LABELS, codes, strict=True)}
        bad = 0 if parts else found.malformed
        parts.append(Part({**common, **texts}, Columns(own.rows, values, own.odd, bad)))
    return parts
