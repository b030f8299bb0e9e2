"""Caches columns of many files in a few Parquet files, called segments, which are written once and
have checksums. A damaged segment counts as missing. Newer segments override older ones, and
segments with little valid data are merged."""

import importlib
import json
import os
import threading
import time
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sweeper.metrics.cache_folder import Folder, hash_of
from sweeper.metrics.sources import Files
from sweeper.metrics.tables.columns import Columns, join

_ROOM = 1 << 21
"""A segment is written as soon as there are this many new values."""
_SMALL = 16
"""If this many segments or more are less than half full of valid data, they are merged."""
_WORTH = 1 << 15
"""For fewer values than this, parsing again is faster than importing pyarrow."""
_METADATA = b"sweeper"

_writers: list[threading.Thread] = []


def wait_for_writers(but: int = 0) -> None:
    """Wait for the threads that write segments, except for the newest `but` threads."""
    while len(_writers) > but:
        _writers.pop(0).join()


def _pyarrow(module: str = "pyarrow.parquet") -> Any:
    """Import a module of pyarrow as `Any`, since pyarrow's types are incomplete. The import is
    slow, so this function is called only to read or write a segment."""
    return importlib.import_module(module)


class _Member(NamedTuple):
    """A file whose rows are cached in a segment (a Parquet file) from the segment's row `start` on.
    `malformed` and `torn` count lines as in `metrics.rows.Parsed`. `about` is from `Cache.put`."""

    start: int
    rows: int
    keys: list[str]
    malformed: int
    torn: int
    about: Any


class _Segment:
    """A segment: a Parquet file with the columns of many files. The constructor raises `OSError` or
    `ValueError` if the segment is damaged."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            file.seek(-8, os.SEEK_END)
            file.seek(-8 - int.from_bytes(file.read(4), "little"), os.SEEK_END)
            if f"{zlib.crc32(file.read()):08x}" != path.split(".")[-2]:
                raise ValueError(f"{path}: its footer is damaged")
        self._footer = _pyarrow().read_metadata(path)
        header = json.loads(self._footer.metadata[_METADATA])
        self.members = {
            name: _Member(start, rows, header["shapes"][shape], *rest)
            for name, (start, rows, shape, *rest) in header["members"].items()
        }
        self._places: dict[str, int] = {key: place for place, key in enumerate(header["keys"])}
        self._whole = Columns(self._footer.num_rows, {}, {})

    def columns(self, member: _Member, keys: Iterable[str] | None) -> Columns:
        """Return the columns `keys` of one file (None: all columns of the file)."""
        names = member.keys if keys is None else list(keys)
        new = [key for key in names if key in self._places and key not in self._whole.values]
        if new:
            self._load(new)
        rows = slice(member.start, member.start + member.rows)
        columns = self._whole.where(rows, names)
        return replace(columns, malformed=member.malformed, torn=member.torn)

    def _load(self, keys: list[str]) -> None:
        names = [str(self._places[key]) for key in keys]
        # Open the file each time, since there may be too many segments to keep all of them open.
        with _pyarrow().ParquetFile(
            self.path, metadata=self._footer, page_checksum_verification=True
        ) as file:
            table = file.read(columns=names, use_threads=False)
        values, odd = dict(self._whole.values), dict(self._whole.odd)
        for key, name in zip(keys, names, strict=True):
            values[key] = table.column(name).to_numpy()
            cells: dict[str, object] = json.loads(self._footer.metadata.get(name.encode(), "{}"))
            odd[key] = {int(row): value for row, value in cells.items()}
        self._whole = Columns(self._whole.rows, values, odd)


class Cache:
    """The cached columns of all metrics files, or of all rollouts, below a folder of a store."""

    def __init__(self, folder: Folder, files: Files, kind: str) -> None:
        self.folder = folder
        self._prefix = f"{hash_of(f'{kind} in {files.prefix}')}."
        self._least = _WORTH if files.local is not None else 0
        self._segments: dict[str, _Segment] = {}
        self._where: dict[str, _Segment] = {}
        self._new: dict[str, tuple[Any, Columns]] = {}
        self._new_keys: dict[str, None] = {}
        self._new_numbers = 0
        self._sent: set[str] = set()
        self.open_segments()

    def open_segments(self) -> None:
        """Open the segments that this process or others have written since the last call."""
        wait_for_writers()
        self._sent.clear()
        names: list[str] = []
        with suppress(OSError):
            names = sorted(os.listdir(self.folder.path))
        for name in names:
            if name.startswith(self._prefix) and name not in self._segments:
                path = os.path.join(self.folder.path, name)
                try:
                    segment = _Segment(path)
                except FileNotFoundError:
                    continue
                except (OSError, ValueError, KeyError, TypeError, IndexError):
                    _remove([path])
                    continue
                self._segments[name] = segment
                self._where.update(dict.fromkeys(segment.members, segment))

    def _segment(self, name: str) -> _Segment | None:
        if name in self._sent:
            self.open_segments()
        return self._where.get(name)

    def about(self, name: str) -> Any:
        """Return the `about` value that was cached with a file; None if the file is not cached."""
        if name in self._new:
            return self._new[name][0]
        segment = self._segment(name)
        return None if segment is None else segment.members[name].about

    def keys(self, name: str) -> list[str]:
        """Return the keys of a file that is cached."""
        if name in self._new:
            return [*self._new[name][1].values]
        return self._where[name].members[name].keys

    def columns(self, name: str, keys: Iterable[str] | None = None) -> Columns | None:
        """Return the cached columns `keys` of a file; all columns if `keys` is None. Return None if
        the file is not cached."""
        if name in self._new:
            return self._new[name][1].chosen(keys)
        segment = self._segment(name)
        if segment is None:
            return None
        try:
            return segment.columns(segment.members[name], keys)
        except (OSError, ValueError, KeyError):
            self._where = {n: other for n, other in self._where.items() if other is not segment}
            _remove([segment.path])
            return None

    def put(self, name: str, about: object, columns: Columns) -> None:
        """Cache the columns of a file, replacing earlier ones. `about` is any JSON value."""
        # Files with different keys would leave most of a segment empty.
        if len(self._new_keys | dict.fromkeys(columns.values)) > 2 * len(columns.values) + 16:
            self.flush()
        self._new[name] = about, columns
        self._new_keys |= dict.fromkeys(columns.values)
        self._new_numbers += columns.rows * len(columns.values)
        if self._new_numbers >= _ROOM:
            self.flush()

    def flush(self, instead_of: Sequence[str] = ()) -> None:
        """If there is new data, start a thread that writes the data as a segment, and then removes
        the segments at the paths `instead_of`."""
        wait_for_writers(but=1)
        if self._new:
            arguments = self.folder, f"{self._prefix}{time.time_ns():016x}", self._new, instead_of
            self._sent.update(self._new)
            self._new, self._new_keys, self._new_numbers = {}, {}, 0
            writer = threading.Thread(target=_write, args=arguments)
            # If no thread can be started, the data is not cached, and is read again next time.
            with suppress(RuntimeError):
                writer.start()
                _writers.append(writer)

    def save(self) -> None:
        """Write new data. If at least `_SMALL` segments are less than half full of valid data,
        merge these. If the files are local and have fewer than `_WORTH` new values, do nothing."""
        if self._new_numbers < self._least:
            return
        live = dict.fromkeys(self._segments.values(), 0)
        for name, segment in self._where.items():
            if name not in self._new and name not in self._sent:
                member = segment.members[name]
                live[segment] += 1 + member.rows * len(member.keys)
        small = {segment for segment, numbers in live.items() if numbers < _ROOM // 2}
        if len(small) < _SMALL:
            self.flush()
            return
        for name, segment in [*self._where.items()]:
            if segment in small and name not in self._new and name not in self._sent:
                columns = self.columns(name)
                if columns is not None:
                    self.put(name, segment.members[name].about, columns)
        self.flush([segment.path for segment in small])


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _write(
    folder: Folder, name: str, files: dict[str, tuple[Any, Columns]], instead_of: Sequence[str]
) -> None:
    """Write the columns of `files` as a segment whose name begins with `name`."""
    with suppress(OSError, ValueError, MemoryError, RecursionError):
        data = _encoded(files)
        length = int.from_bytes(data[-8:-4], "little")
        if folder.write(f"{name}.{zlib.crc32(data[-8 - length :]):08x}.parquet", [data]):
            _remove(instead_of)


def _encoded(files: dict[str, tuple[Any, Columns]]) -> memoryview:
    """Encode the columns of `files` as the bytes of a segment."""
    whole = join([columns for _, columns in files.values()])
    shapes: dict[tuple[str, ...], int] = {}
    members: dict[str, list[Any]] = {}
    start = 0
    for name, (about, columns) in files.items():
        shape = shapes.setdefault((*columns.values,), len(shapes))
        members[name] = [start, columns.rows, shape, columns.malformed, columns.torn, about]
        start += columns.rows
    header = {"members": members, "shapes": [*shapes], "keys": [*whole.values]}
    names = [str(place) for place in range(len(whole.values))]
    metadata = {_METADATA: json.dumps(header)} | {
        name: json.dumps(whole.odd[key])
        for key, name in zip(whole.values, names, strict=True)
        if key in whole.odd
    }
    pq, pa = _pyarrow(), _pyarrow("pyarrow")
    # `pa.array` would load pandas.
    arrays = [
        pa.Array.from_buffers(pa.float64(), whole.rows, [None, pa.py_buffer(column)])
        for column in map(np.ascontiguousarray, whole.values.values())
    ]
    # Columns that may have nulls take longer to write and to read.
    fields = [pa.field(name, pa.float64(), nullable=False) for name in names]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(arrays, schema=pa.schema(fields, metadata)),
        sink,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
        row_group_size=max(1, whole.rows),
    )
    return memoryview(sink.getvalue())
