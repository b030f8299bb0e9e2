"""What was sampled: `iteration_NNNNNN/<name>_rollout_summaries.jsonl`, in the shape that
tinker-cookbook's recipes and ours write, as columns; a row a trajectory.

The numbers of a run's rollouts are kept in the cache, each file told by its stamp; the texts are
read from the files when they are asked for.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sweeper.errors import NotFound, StoreError
from sweeper.metrics.tables.cache import Cache, Kept
from sweeper.metrics.tables.columns import Columns, join, present
from sweeper.metrics.tables.frames import Part
from sweeper.metrics.tables.sources import Files, Stamp
from sweeper.metrics.tables.summaries import SummaryReader
from sweeper.metrics.tables.summary_rows import COLUMNS, LABELS, SUFFIX, SummaryFile

_FOLDER = re.compile(r"iteration_(\d+)")
_AT_ONCE = 1 << 25
"""Bytes that are read before they are made columns."""


def summary_files(files: Files, folders: Sequence[str]) -> list[SummaryFile]:
    """The files of a run, by iteration and name; of an iteration that several attempts wrote, the
    later attempt's. `folders`: one an attempt, oldest first."""
    found: dict[tuple[int, str], SummaryFile] = {}
    for attempt, folder in enumerate(folders, start=1):
        for inner, name in _names(files, folder):
            matched = _FOLDER.fullmatch(inner)
            if matched and name.endswith(SUFFIX):
                base, iteration = name.removesuffix(SUFFIX), int(matched[1])
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
    inner = [name for name in _listed(top) if name.startswith("iteration_")]
    for name in inner:
        yield from ((name, one) for one in _listed(os.path.join(top, name)))


def _listed(folder: str) -> list[str]:
    """The names in a folder; none where there is none. Raises `StoreError`."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from error


class Rollouts(NamedTuple):
    """Rows of numbers; `labels` holds the texts that the columns of that name number."""

    columns: Columns
    labels: dict[str, list[str]]


def cached_as(folders: Sequence[str]) -> str:
    """The name under which the rollouts of a run are in the cache."""
    return f"rollouts {folders[-1]}"


class Recorded(NamedTuple):
    """Where the rollouts of a run are: in its folders, one an attempt, oldest first, and perhaps in
    a cache. `reader` has learnt from the summaries that it read before."""

    files: Files
    folders: Sequence[str]
    cache: Cache | None
    reader: SummaryReader


def read_rollouts(recorded: Recorded, keys: Sequence[str] | None = None) -> Rollouts:
    """All summaries of a run. Of files that the cache knows nothing is read."""
    files, folders, cache, reader = recorded
    if not folders:  # it has not started
        return Rollouts(Columns(), {label: [] for label in LABELS})
    name = cached_as(folders)
    listed = [(file, files.source(file.path)) for file in summary_files(files, folders)]
    now = [(file, source) for file, source in listed if source is not None]
    told = [[file.path, file.attempt, list(source.stamp)] for file, source in now]
    wanted = None if keys is None else list(dict.fromkeys((*keys, *LABELS)))
    old = None
    if cache is not None and cache.has(name):
        kept = cache.load(name, wanted)
        if kept is not None and kept.about["files"] == told:
            return Rollouts(kept.columns, kept.about["labels"])
        old = cache.load(name)
    known = {} if old is None else _segments(old)
    gathered, steady = _Gathered(reader), True
    for file, source in now:
        part = known.get((file.path, file.attempt, source.stamp))
        if part is not None and old is not None:
            gathered.add_known(part, old.about["labels"])
            continue
        try:
            stamp, data = source.read(0)
            steady &= stamp == source.stamp and not stamp.is_fleeting
        except NotFound:
            data, steady = b"", False
        gathered.add(file, data)
    made = gathered.result()
    if cache is not None and steady:
        about = {"files": told, "labels": made.labels, "parts": gathered.outlined}
        cache.save(name, Kept(about, made.columns, True))
    return made


class _Gathered:
    """The summaries of a run in the making, file by file: read, or known already."""

    def __init__(self, reader: SummaryReader) -> None:
        self._reader = reader
        self._parts: list[Columns] = []
        self._texts: dict[str, dict[str, int]] = {label: {} for label in LABELS}
        self._unread: list[tuple[SummaryFile, bytes]] = []
        self._size = 0
        self._is_known = False
        self.outlined: list[tuple[int, int]] = []
        """Of each file its rows, and how many lines of it could not be read."""

    def add_known(self, part: Columns, labels: Mapping[str, list[str]]) -> None:
        """A file as it was read before; `labels` has its texts, and others."""
        self._read()
        self._is_known = True
        self.outlined.append((part.rows, part.malformed))
        self._append(part, labels)

    def add(self, file: SummaryFile, data: bytes) -> None:
        """A file that is to be read."""
        self._unread.append((file, data))
        self._size += len(data)
        if self._size > _AT_ONCE:
            self._read()

    def _read(self) -> None:
        if self._unread:
            found = self._reader.read(self._unread)
            self._unread, self._size = [], 0
            self.outlined += zip(found.rows, found.malformed, strict=True)
            self._append(replace(found.columns, malformed=sum(found.malformed)), found.labels)

    def _append(self, part: Columns, labels: Mapping[str, list[str]]) -> None:
        values = dict(part.values)
        for label, known in self._texts.items():
            codes = [known.setdefault(text, len(known)) for text in labels[label]]
            if codes != [*range(len(codes))] and part.rows:
                values[label] = np.array(codes, float)[part.column(label).astype(np.intp)]
        self._parts.append(replace(part, values=values))

    def result(self) -> Rollouts:
        """All of them. By the order of keys and texts nobody can tell what was known before."""
        self._read()
        columns = self._parts[0] if len(self._parts) == 1 else join(self._parts)
        labels = {label: [*known] for label, known in self._texts.items()}
        if self._is_known:
            columns, labels = _numbered_anew(columns, labels)
        columns = columns.tidy()
        first = {key: place for place, key in enumerate(COLUMNS)}
        last = len(first)
        keys = sorted(columns.values, key=lambda key: (first.get(key, last), key in LABELS, key))
        return Rollouts(replace(columns, values={k: columns.values[k] for k in keys}), labels)


def _numbered_anew(
    columns: Columns, labels: Mapping[str, list[str]]
) -> tuple[Columns, dict[str, list[str]]]:
    """The texts numbered as they appear."""
    values, kept = dict(columns.values), {label: list[str]() for label in labels}
    for label in labels:
        codes, first, place = np.unique(
            columns.column(label), return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        kept[label] = [labels[label][int(code)] for code in codes[order]]
        values[label] = np.argsort(order)[place].astype(np.float64)
    return replace(columns, values=values), kept


def _segments(kept: Kept) -> dict[tuple[str, int, Stamp], Columns]:
    """The parts again, by their files."""
    found: dict[tuple[str, int, Stamp], Columns] = {}
    start, about = 0, kept.about
    for (path, attempt, stamp), (rows, malformed) in zip(
        about["files"], about["parts"], strict=True
    ):
        own = _slice(kept.columns, start, start + rows)
        found[path, attempt, Stamp(*stamp)] = replace(own, malformed=malformed)
        start += rows
    return found


def _slice(columns: Columns, start: int, end: int) -> Columns:
    values = {key: column[start:end] for key, column in columns.values.items()}
    odd = {
        key: {row - start: value for row, value in found.items() if start <= row < end}
        for key, found in columns.odd.items()
    }
    return Columns(end - start, values, {key: found for key, found in odd.items() if found})


def rollout_parts(
    recorded: Recorded,
    common: Mapping[str, str],
    iteration: int | None = None,
    keys: Sequence[str] | None = None,
) -> list[Part]:
    """The rollouts of a run, one part for each combination of texts, which carries `common` beside
    them. `iteration` counts from the last one if it is negative."""
    asked = None if keys is None else [*keys, "iteration"]
    found, labels = read_rollouts(recorded, asked)
    if iteration is not None and found.rows:
        steps = found.column("iteration")
        known = np.unique(steps[present(steps)])
        inside = -len(known) <= iteration < 0
        wanted = iteration if iteration >= 0 else known[iteration] if inside else math.nan
        found = found.where(steps == wanted)
    if not found.rows:
        return []
    counts = [max(1, len(labels[label])) for label in LABELS]
    coded = np.zeros(found.rows)  # the texts of a row as one number
    for label, count in zip(LABELS, counts, strict=True):
        coded = coded * count + found.column(label)
    parts: list[Part] = []
    for code in np.unique(coded).tolist():
        own = found if (mask := coded == code).all() else found.where(mask)
        values = {
            k: v for k, v in own.values.items() if k not in LABELS and (keys is None or k in keys)
        }
        texts = {label: labels[label][int(own.values[label][0])] for label in LABELS}
        bad = 0 if parts else found.malformed
        parts.append(Part({**common, **texts}, Columns(own.rows, values, own.odd, bad)))
    return parts
