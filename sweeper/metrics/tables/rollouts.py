"""Reads rollout summaries as columns. The rows of a run's first files, by iteration, are cached
together. Cached rows are valid while these files are unchanged."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from operator import attrgetter
from typing import NamedTuple

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
from sweeper.metrics.tables.cache import Cache
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
"""The number of bytes that are read before they are converted to columns."""
_RECORDED = tuple(key for key in COLUMNS if key not in ("turns", "ob_len", "ac_len", "attempt"))
"""Columns that a record contains directly."""
_EXACT = 2.0**53
_TEXTS = LABELS[0]
"""The column with the index of a row's strings in `Summaries.texts`. No metric has this name."""


class Summaries(NamedTuple):
    """Summaries of rollouts. `texts` has each distinct tuple of values of the columns `LABELS`. The
    column `_TEXTS` has, for each row, the index of its tuple in `texts`. For each file, `rows` has
    the number of rows, and `malformed` the number of unreadable lines."""

    columns: Columns
    texts: list[tuple[str, ...]]
    rows: list[int]
    malformed: list[int]


class Recorded(NamedTuple):
    """What is needed to read a run's rollouts: the store's files, the run's folders (one per
    attempt, oldest first), and the cache (None: no cache)."""

    files: Files
    folders: Sequence[str]
    cache: Cache | None


def read_rollouts(recorded: Recorded, keys: Sequence[str] | None = None) -> Summaries:
    """Read the columns `keys` (None: all) of all summaries of a run. Cached rows are used if their
    files are unchanged and no other file of the run precedes them now. Raises `StoreError`."""
    files, folders, cache = recorded
    if not folders:  # the run has not started
        return join_summaries([])
    listed = [(file, files.source(file.path)) for file in summary_files(files, folders)]
    sources = [(file, source) for file, source in listed if source is not None]
    now = [[file.path, file.attempt, [*source.stamp]] for file, source in sources]
    about = cache.about(folders[-1]) if cache is not None else None
    parts: list[Summaries] = []
    if cache is not None and about and about["files"] == now[: len(about["files"])]:
        all_read = about["files"] == now
        columns = cache.columns(folders[-1], (*keys, _TEXTS) if all_read and keys else None)
        if columns is not None:
            texts = [*map(tuple, about["texts"])]
            parts = [Summaries(columns, texts, about["rows"], about["malformed"])]
    done = len(parts[0].rows) if parts else 0
    if done < len(now):
        fresh, steady = _read_files(sources[done:], cache and cache.folder)
        parts.append(fresh)
        if cache is not None and steady:
            whole, count = join_summaries(parts), done + steady
            rows, malformed = whole.rows[:count], whole.malformed[:count]
            about = {"files": now[:count], "texts": whole.texts, "rows": rows}
            columns = whole.columns.where(slice(sum(rows)))
            columns = replace(columns, malformed=sum(malformed))
            cache.put(folders[-1], {**about, "malformed": malformed}, columns)
    return join_summaries(parts, keys)


def _read_files(
    files: Sequence[tuple[SummaryFile, Source]], folder: Folder | None
) -> tuple[Summaries, int]:
    """Read files. Also return how many files at the beginning of `files` can be cached. A file that
    has just changed cannot be cached, because its next change may leave its stamp unchanged."""
    batch: list[tuple[SummaryFile, bytes]] = []
    parts: list[Summaries] = []
    steady: list[bool] = []
    size = 0
    for file, source in files:
        try:
            stamp, data = source.read(0)
            steady.append(stamp == source.stamp and folder is not None and folder.may_keep(stamp))
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
    return join_summaries(parts), [*steady, False].index(False)


def join_summaries(parts: Sequence[Summaries], keys: Sequence[str] | None = None) -> Summaries:
    """Join summaries one after the other. If `keys` is not None, return only these columns and
    `_TEXTS`. The indices in `_TEXTS` are adjusted to the joined texts."""
    numbered: dict[tuple[str, ...], int] = {}
    joined: list[Columns] = []
    for part in parts:
        codes = [numbered.setdefault(texts, len(numbered)) for texts in part.texts]
        new = np.array(codes, float)[part.columns.column(_TEXTS).astype(np.intp)]
        joined.append(replace(part.columns, values={**part.columns.values, _TEXTS: new}))
    columns = join(joined)
    if keys is None:
        columns = columns.tidy()
        place = {key: number for number, key in enumerate((*COLUMNS, _TEXTS))}
        keys = sorted(columns.values, key=lambda key: (place.get(key, len(place)), key))
    else:
        keys = list(dict.fromkeys((*keys, _TEXTS)))
    rows = [*chain.from_iterable(part.rows for part in parts)]
    malformed = [*chain.from_iterable(part.malformed for part in parts)]
    return Summaries(columns.chosen(keys), [*numbered], rows, malformed)


def read_summaries(files: Sequence[tuple[SummaryFile, bytes]]) -> Summaries:
    """Return the rows of these files, one file after the other. Files are parsed together if all
    their records are regular (see `_Record`), else file by file and, if necessary, record by
    record."""
    quick = _read_quickly(files)
    if quick is not None:
        return quick
    if len(files) > 1:
        return join_summaries([read_summaries([file]) for file in files])
    [(file, data)] = files
    parsed = parse(data)
    columns = columns_of([flat(row, file) for row in parsed.rows])
    texts = [labels_of(row, file) for row in parsed.rows]
    return _labelled(columns, texts, [len(parsed.rows)], [parsed.malformed + parsed.torn])


def _labelled(
    columns: Columns, texts: Sequence[tuple[str, ...]], rows: list[int], malformed: list[int]
) -> Summaries:
    """Add the column `_TEXTS`. `texts` has each row's values of the columns `LABELS`."""
    numbered: dict[tuple[str, ...], int] = {}
    codes = np.array([numbered.setdefault(text, len(numbered)) for text in texts], np.float64)
    values = {**columns.values, _TEXTS: codes}
    columns = replace(columns, values=values, malformed=sum(malformed))
    return Summaries(columns, [*numbered], rows, malformed)


class _Turn(msgspec.Struct, gc=False):
    ob_len: float = ABSENT
    ac_len: float = ABSENT
    metrics: dict[str, float] = msgspec.field(default_factory=dict[str, float])


class _Record(msgspec.Struct, gc=False):
    """A regular record: every field of the record has the expected type."""

    steps: list[_Turn] = msgspec.field(default_factory=list[_Turn])
    trajectory_metrics: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    iteration: float | None = math.nan  # NaN: the iteration of the file
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
    """Read the rows of files in one pass; return None if the files need the slower parser."""
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
        return None  # another metric may have the same column
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
    """Yield each key, and a column of its numbers."""
    for key in dict.fromkeys(chain.from_iterable(rows)):
        yield key, np.array([row.get(key, ABSENT) for row in rows], np.float64)


def _added(
    numbers: Floats, record_of: NDArray[np.intp], size: int
) -> tuple[Floats, NDArray[np.intp]]:
    """Return two arrays: the sum and the count of each record's numbers. `record_of` has the index
    of the record for each number."""
    mask = present(numbers)
    records = record_of[mask]
    # Without records, `bincount` returns integers.
    total = np.bincount(records, numbers[mask], size).astype(np.float64)
    return total, np.bincount(records, minlength=size)


def rollout_parts(
    recorded: Recorded,
    common: Mapping[str, str],
    iteration: int | None = None,
    keys: Sequence[str] | None = None,
) -> list[Part]:
    """Return the rollouts of a run, in one part for each combination of values of `LABELS`. Each
    part also has the values `common`. If `iteration` is not None, return only the rollouts of this
    iteration. A negative number counts from the end: -1 is the last iteration."""
    wanted = None if keys is None else [*keys, "iteration"]
    columns, texts, _, _ = read_rollouts(recorded, wanted)
    if iteration is not None and columns.rows:
        steps = columns.column("iteration")
        iterations = np.unique(steps[present(steps)])
        inside = -len(iterations) <= iteration < 0
        chosen = iteration if iteration >= 0 else iterations[iteration] if inside else math.nan
        columns = columns.where(steps == chosen)
    names = [key for key in (columns.values if keys is None else keys) if key not in LABELS]
    parts: list[Part] = []
    for code in np.unique(columns.column(_TEXTS)).tolist():
        labels = dict(zip(LABELS, texts[int(code)], strict=True))
        rows = columns.where(columns.column(_TEXTS) == code, names)
        malformed = 0 if parts else columns.malformed
        parts.append(Part({**common, **labels}, replace(rows, malformed=malformed)))
    return parts
