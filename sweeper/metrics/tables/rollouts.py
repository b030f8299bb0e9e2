"""Rollout summaries as columns: what `flat` makes of each record, many at a time; and the cache.

The summaries of a run are kept in groups of files that were read at once; each group counts while
its files are as they were, and those before it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sweeper.errors import NotFound
from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.rollout_files import (
    COLUMNS,
    LABELS,
    SummaryFile,
    flat,
    labels_of,
    metric_column,
    summary_files,
)
from sweeper.metrics.rows import parse
from sweeper.metrics.sources import Files, Source
from sweeper.metrics.tables.cache import WORTH, Cache
from sweeper.metrics.tables.columns import (
    ABSENT,
    Columns,
    Floats,
    columns_of,
    decode_lines,
    is_text,
    join,
    present,
)
from sweeper.metrics.tables.frames import Part

_AT_ONCE = 1 << 25
"""Bytes that are read before they are made columns."""
_GROUPS = 8
"""Groups of a run's files from which on they are joined."""
_RECORDED = tuple(key for key in COLUMNS if key not in ("turns", "ob_len", "ac_len", "attempt"))
"""Columns that a record has as they are."""
_EXACT = 2.0**53


class Summaries(NamedTuple):
    """Rows of numbers, of which the columns named in `LABELS` number the texts in `labels`; and of
    each file its rows, and how many of its lines could not be read."""

    columns: Columns
    labels: dict[str, list[str]]
    rows: list[int]
    malformed: list[int]


class Recorded(NamedTuple):
    """Where the rollouts of a run are: in its folders, one per attempt, oldest first, and perhaps
    in a cache."""

    files: Files
    folders: Sequence[str]
    cache: Cache | None

    def group(self, number: int) -> str:
        """Return the name of a group in the cache."""
        return f"{self.folders[-1]} {number}"


def rollout_cache(folder: Folder, files: Files) -> Cache:
    """Return the cache of rollouts below these files."""
    least = WORTH if files.local is not None else 0
    return Cache(folder, f"rollouts in {files.prefix}", least)


def read_rollouts(recorded: Recorded, keys: Sequence[str] | None = None) -> Summaries:
    """Read all summaries of a run, with these columns (None: all). Raises `StoreError`."""
    files, folders, cache = recorded
    if not folders:  # it has not started
        return join_summaries([])
    listed = [(file, files.source(file.path)) for file in summary_files(files, folders)]
    now = [(file, source) for file, source in listed if source is not None]
    wanted = None if keys is None else list(dict.fromkeys((*keys, *LABELS)))
    parts: list[Summaries] = []
    done = 0
    while cache is not None:
        group = _kept_group(cache, recorded.group(len(parts)), now[done:], wanted)
        if group is None:
            break
        parts.append(group)
        done += len(group.rows)
    if done < len(now):
        if len(parts) >= _GROUPS:  # they become one
            done, parts = 0, []
        parts.append(_read_group(recorded, now[done:], len(parts)))
    return join_summaries(parts, wanted)


_Sources = Sequence[tuple[SummaryFile, Source]]


def _described(files: _Sources) -> list[list[Any]]:
    return [[file.path, file.attempt, [*source.stamp]] for file, source in files]


def _kept_group(
    cache: Cache, name: str, files: _Sources, keys: Sequence[str] | None
) -> Summaries | None:
    """Return a group from the cache, if these files begin with its files, as they were."""
    while True:
        about = cache.about(name)
        if about and about["files"] and about["files"] == _described(files[: len(about["files"])]):
            columns = cache.columns(name, keys)
            if columns is not None:
                return Summaries(columns, about["labels"], about["rows"], about["malformed"])
        if not files or not cache.refresh():
            return None


def _read_group(recorded: Recorded, files: _Sources, number: int) -> Summaries:
    """Read files, and keep those that are in no danger of changing unnoticed."""
    batch: list[tuple[SummaryFile, bytes]] = []
    parts: list[Summaries] = []
    steady: list[bool] = []
    size = 0
    for file, source in files:
        try:
            stamp, data = source.read(0)
            steady.append(stamp == source.stamp and not stamp.is_fleeting)
        except NotFound:
            data = b""
            steady.append(False)
        batch.append((file, data))
        size += len(data)
        if size > _AT_ONCE:
            parts.append(read_summaries(batch))
            batch, size = [], 0
    if batch:
        parts.append(read_summaries(batch))
    group = join_summaries(parts)
    steady_count = [*steady, False].index(False)
    if recorded.cache is not None and steady_count:
        rows, malformed = group.rows[:steady_count], group.malformed[:steady_count]
        about = {
            "files": _described(files[:steady_count]),
            "labels": group.labels,
            "rows": rows,
            "malformed": malformed,
        }
        columns = replace(group.columns.part(0, sum(rows)), malformed=sum(malformed))
        recorded.cache.put(recorded.group(number), about, columns)
    return group


def join_summaries(parts: Sequence[Summaries], keys: Sequence[str] | None = None) -> Summaries:
    """Join summaries, one after the other, their texts numbered anew; with these columns only."""
    numbers: dict[str, dict[str, int]] = {label: {} for label in LABELS}
    joined: list[Columns] = []
    for part in parts:
        values = dict(part.columns.values)
        for label, numbered in numbers.items():
            codes = [numbered.setdefault(text, len(numbered)) for text in part.labels[label]]
            if codes != [*range(len(codes))] and part.columns.rows:
                values[label] = np.array(codes, float)[values[label].astype(np.intp)]
        joined.append(replace(part.columns, values=values))
    columns = join(joined).chosen(keys)
    if keys is None:
        columns = columns.tidy()
    place = {key: number for number, key in enumerate(COLUMNS)}
    names = sorted(columns.values, key=lambda k: (place.get(k, len(place)), k in LABELS, k))
    return Summaries(
        replace(columns, values={key: columns.values[key] for key in names}),
        {label: [*numbered] for label, numbered in numbers.items()},
        [*chain.from_iterable(part.rows for part in parts)],
        [*chain.from_iterable(part.malformed for part in parts)],
    )


def read_summaries(files: Sequence[tuple[SummaryFile, bytes]]) -> Summaries:
    """Return the rows of these files, one file after the other: all at once if they are plain, else
    each by itself, record by record if need be."""
    quick = _read_quickly(files)
    if quick is not None:
        return quick
    if len(files) > 1:
        return join_summaries([read_summaries([file]) for file in files])
    [(file, data)] = files
    parsed = parse(data)
    malformed = parsed.malformed + parsed.torn
    columns = columns_of([flat(row, file) for row in parsed.rows])
    texts = [labels_of(row, file) for row in parsed.rows]
    return _labelled(columns, texts, [len(parsed.rows)], [malformed])


def _labelled(
    columns: Columns, texts: Sequence[tuple[str, str, str]], rows: list[int], malformed: list[int]
) -> Summaries:
    """Number the texts of each row."""
    different: dict[tuple[str, str, str], int] = {}
    row_codes = np.array([different.setdefault(text, len(different)) for text in texts], np.intp)
    values, labels = dict(columns.values), dict[str, list[str]]()
    for number, label in enumerate(LABELS):
        numbered: dict[str, int] = {}
        codes = [numbered.setdefault(text[number], len(numbered)) for text in different]
        values[label], labels[label] = np.array(codes, float)[row_codes], [*numbered]
    columns = replace(columns, values=values, malformed=sum(malformed))
    return Summaries(columns, labels, rows, malformed)


class _Turn(msgspec.Struct, gc=False):
    ob_len: float = ABSENT
    ac_len: float = ABSENT
    metrics: dict[str, float] = msgspec.field(default_factory=dict[str, float])


class _Record(msgspec.Struct, gc=False):
    """A plain record: nothing but numbers where numbers belong."""

    steps: list[_Turn] = msgspec.field(default_factory=list[_Turn])
    trajectory_metrics: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    iteration: float | None = math.nan  # that of the file
    group_idx: float | None = ABSENT
    traj_idx: float | None = ABSENT
    total_reward: float | None = ABSENT
    final_reward: float | None = ABSENT
    final_ob_len: float | None = ABSENT
    sampling_client_step: float | None = ABSENT
    split: str | msgspec.UnsetType = msgspec.UNSET
    tags: tuple[str, ...] = ()


_DECODER = msgspec.json.Decoder(_Record)


def _read_quickly(files: Sequence[tuple[SummaryFile, bytes]]) -> Summaries | None:
    """Return the rows of files in which all records are plain; None if any is not."""
    if any(data and not data.endswith(b"\n") for _, data in files):
        return None
    whole = b"".join(data for _, data in files)
    records = decode_lines(whole, _DECODER) if is_text(whole) else None
    if records is None:
        return None
    rows = [data.count(b"\n") for _, data in files]
    values = {key: _numbers(records, key) for key in _RECORDED}
    iterations = np.repeat([float(file.iteration) for file, _ in files], rows)
    column = values["iteration"]
    values["iteration"] = np.where(np.isnan(column) & present(column), iterations, column)
    values["attempt"] = np.repeat([float(file.attempt) for file, _ in files], rows)
    turns = np.fromiter(map(len, map(attrgetter("steps"), records)), np.intp, len(records))
    values["turns"] = turns.astype(float)
    steps = [*chain.from_iterable(map(attrgetter("steps"), records))]
    record_of = np.repeat(np.arange(len(records)), turns)
    for key in ("ob_len", "ac_len"):
        values[key] = _added(_numbers(steps, key), record_of, len(records))[0]
    of_turns = [*map(attrgetter("metrics"), steps)]
    of_records = [*map(attrgetter("trajectory_metrics"), records)]
    keys = dict.fromkeys(chain.from_iterable(chain(of_turns, of_records)))
    if any(key.startswith("metrics.") for key in keys):
        return None  # its column may be that of another metric too
    for key, numbers in _by_key(of_turns):
        total, having = _added(numbers, record_of, len(records))
        values[metric_column(key)] = np.where(having > 0, total / np.maximum(having, 1), ABSENT)
    for key, numbers in _by_key(of_records):
        before = values.get(metric_column(key), ABSENT)
        values[metric_column(key)] = np.where(present(numbers), numbers, before)
    if any((np.abs(column) >= _EXACT).any() for column in values.values()):
        return None  # an integer may not be exact
    names = chain.from_iterable(map(repeat, (file.name for file, _ in files), rows))
    texts = [
        (name, name if record.split is msgspec.UNSET else record.split, ",".join(record.tags))
        for record, name in zip(records, names, strict=True)
    ]
    return _labelled(Columns(len(records), values), texts, rows, [0] * len(files))


def _numbers(records: Sequence[object], key: str) -> Floats:
    cells: list[float | None] = [*map(attrgetter(key), records)]
    if None in cells:
        cells = [ABSENT if cell is None else cell for cell in cells]
    return np.array(cells, np.float64)


def _by_key(rows: Sequence[dict[str, float]]) -> Iterator[tuple[str, Floats]]:
    """Yield each key with its numbers by row."""
    for key in dict.fromkeys(chain.from_iterable(rows)):
        yield key, np.array([row.get(key, ABSENT) for row in rows], np.float64)


def _added(
    numbers: Floats, record_of: NDArray[np.intp], size: int
) -> tuple[Floats, NDArray[np.intp]]:
    """Return for each record the sum of its numbers, and how many they are."""
    there = present(numbers)
    records = record_of[there]
    total = np.bincount(records, numbers[there], size).astype(np.float64)  # of none it has integers
    return total, np.bincount(records, minlength=size)


def rollout_parts(
    recorded: Recorded,
    common: Mapping[str, str],
    iteration: int | None = None,
    keys: Sequence[str] | None = None,
) -> list[Part]:
    """Return the rollouts of a run, one part for each combination of texts, which carries `common`
    beside them. `iteration` counts from the last one if it is negative."""
    wanted = None if keys is None else [*keys, "iteration"]
    columns, labels, _, _ = read_rollouts(recorded, wanted)
    if iteration is not None and columns.rows:
        steps = columns.column("iteration")
        iterations = np.unique(steps[present(steps)])
        inside = -len(iterations) <= iteration < 0
        chosen = iteration if iteration >= 0 else iterations[iteration] if inside else math.nan
        columns = columns.where(steps == chosen)
    if not columns.rows:
        return []
    coded = np.zeros(columns.rows)  # the texts of a row as one number
    for label in LABELS:
        coded = coded * max(1, len(labels[label])) + columns.column(label)
    parts: list[Part] = []
    for code in np.unique(coded).tolist():
        rows = columns if (mask := coded == code).all() else columns.where(mask)
        texts = {label: labels[label][int(rows.values[label][0])] for label in LABELS}
        names = [k for k in rows.values if k not in LABELS and (keys is None or k in keys)]
        malformed = 0 if parts else columns.malformed
        parts.append(Part({**common, **texts}, replace(rows.chosen(names), malformed=malformed)))
    return parts
