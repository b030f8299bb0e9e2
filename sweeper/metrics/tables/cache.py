"""Keep columns of many files in a few Parquet files, *segments*, which are written once.

A segment has checksums of its pages, and its name has that of its footer. One that is damaged is
removed, and counts as missing. A file that was read again is in a newer segment, which takes the
place of the older one; segments with little that still counts are merged. Processes share the
folder without locks: what one has written, others find.
"""

import importlib
import json
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypedDict

import numpy as np

from sweeper.metrics.cache_folder import Folder, hash_of
from sweeper.metrics.tables.columns import Columns, Floats, Odd, absent, join

_ROOM = 1 << 20
"""Numbers of a segment at which it is written."""
_SMALL = 16
"""So many segments may be less than half full; more are merged."""
WORTH = 1 << 15
"""Numbers from which on it takes longer to parse them again than to load pyarrow."""
_METADATA = b"sweeper"


def _pyarrow(module: str = "pyarrow.parquet") -> Any:
    """Return a module of pyarrow, which has no types to speak of. It takes a while to load, so only
    what is large loads it."""
    return importlib.import_module(module)


class _Member(NamedTuple):
    """A file in a segment: its rows, which keys it has (`shape`), what could not be read, and what
    the reader says of it."""

    start: int
    rows: int
    shape: int
    malformed: int
    torn: int
    about: Any


class _Header(TypedDict):
    """What a segment says of itself: its files by name; the keys that some of them have, and of
    those the keys with odd values; the keys of its columns."""

    members: dict[str, list[Any]]
    shapes: list[tuple[list[str], list[str]]]
    keys: list[str]


class _Segment:
    """A segment on disk. Raises `OSError` and `ValueError` if it is damaged."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            file.seek(-8, os.SEEK_END)
            file.seek(-8 - int.from_bytes(file.read(4), "little"), os.SEEK_END)
            if f"{zlib.crc32(file.read()):08x}" != path.split(".")[-2]:
                raise ValueError(f"{path}: its footer is damaged")
        self._footer = _pyarrow().read_metadata(path)
        self._metadata: dict[bytes, bytes] = self._footer.metadata
        header: _Header = json.loads(self._metadata[_METADATA])
        self.members = {name: _Member(*values) for name, values in header["members"].items()}
        self.shapes = header["shapes"]
        self._places = {key: str(place) for place, key in enumerate(header["keys"])}
        self._values: dict[str, Floats] = {}
        self._odd: dict[str, Odd] = {}

    def columns(self, member: _Member, keys: Iterable[str] | None) -> Columns:
        """Return the rows of one file, with these keys (None: all of its keys)."""
        all_keys, odd_keys = self.shapes[member.shape]
        names = all_keys if keys is None else list(keys)
        self._load([key for key in names if key in self._places and key not in self._values])
        rows = slice(member.start, member.start + member.rows)
        values = {
            key: self._values[key][rows] if key in self._places else absent(member.rows)
            for key in names
        }
        odd = {key: self._odd_of(key, member) for key in odd_keys if key in values}
        return Columns(member.rows, values, odd, member.malformed, member.torn)

    def _load(self, keys: Sequence[str]) -> None:
        if keys:
            places = [self._places[key] for key in keys]
            with _pyarrow().ParquetFile(
                self.path, metadata=self._footer, page_checksum_verification=True
            ) as file:  # not kept open: there may be many
                table = file.read(columns=places, use_threads=False)
            for key, place in zip(keys, places, strict=True):
                self._values[key] = table.column(place).to_numpy()

    def _odd_of(self, key: str, member: _Member) -> Odd:
        if key not in self._odd:
            cells: dict[str, object] = json.loads(self._metadata[_odd_name(self._places[key])])
            self._odd[key] = {int(row): value for row, value in cells.items()}
        odd, start = self._odd[key], member.start
        return {row: odd[start + row] for row in range(member.rows) if start + row in odd}


def _odd_name(place: str) -> bytes:
    """Return the name under which the odd values of a column are in the metadata."""
    return b"odd " + place.encode()


class Cache:
    """What is kept of the files below one folder of a root. `name` tells the folder. Fewer numbers
    than `least` are not written."""

    def __init__(self, folder: Folder, name: str, least: int = WORTH) -> None:
        self._folder, self._least = folder, least
        self._prefix = f"{hash_of(name)}."
        self._segments: dict[str, _Segment] = {}
        self._where: dict[str, _Segment] = {}
        self._new: dict[str, tuple[Any, Columns]] = {}
        self._new_keys: dict[str, None] = {}
        self._new_numbers = 0
        self._changed = -1
        self.refresh()

    def refresh(self) -> bool:
        """Find what other processes have written meanwhile. Returns whether there may be more."""
        try:
            changed = os.stat(self._folder.path).st_mtime_ns
            if changed == self._changed:
                return False
            names = {
                name for name in os.listdir(self._folder.path) if name.startswith(self._prefix)
            }
        except OSError:
            return False
        self._changed = changed
        for name in sorted(names - self._segments.keys()):
            self._open(name)
        return True

    def _open(self, name: str) -> None:
        path = os.path.join(self._folder.path, name)
        try:
            segment = _Segment(path)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            self._remove(path)
            return
        self._segments[name] = segment
        self._where.update(dict.fromkeys(segment.members, segment))

    def _remove(self, path: str) -> None:
        self._segments.pop(os.path.basename(path), None)
        with suppress(OSError):
            os.unlink(path)

    def about(self, name: str) -> Any:
        """Return what the reader said of a file; None if nothing is kept of it."""
        if name in self._new:
            return self._new[name][0]
        segment = self._where.get(name)
        return None if segment is None else segment.members[name].about

    def keys(self, name: str) -> Sequence[str]:
        """Return the keys of a file of which something is kept."""
        if name in self._new:
            return [*self._new[name][1].values]
        segment = self._where[name]
        return segment.shapes[segment.members[name].shape][0]

    def columns(self, name: str, keys: Iterable[str] | None = None) -> Columns | None:
        """Return what is kept of a file, with these keys (None: all); None if there is nothing."""
        if name in self._new:
            return self._new[name][1].chosen(keys)
        segment = self._where.get(name)
        if segment is None:
            return None
        try:
            return segment.columns(segment.members[name], keys)
        except (OSError, ValueError, KeyError):
            self._where = {n: other for n, other in self._where.items() if other is not segment}
            self._remove(segment.path)
            return None

    def put(self, name: str, about: object, columns: Columns) -> None:
        """Keep columns of a file instead of what was kept before. `about` is a JSON value."""
        # Files of different keys would leave most of a segment empty.
        if len(self._new_keys | dict.fromkeys(columns.values)) > 2 * len(columns.values) + 16:
            self.flush()
        self._new[name] = about, columns
        self._new_keys |= dict.fromkeys(columns.values)
        self._new_numbers += columns.rows * len(columns.values)
        if self._new_numbers >= _ROOM:
            self.flush()

    def flush(self) -> None:
        """Write a segment with what is new."""
        if self._new:
            data, checksum = _encoded(self._new)
            name = f"{self._prefix}{time.time_ns():016x}{os.urandom(2).hex()}.{checksum}.parquet"
            if self._folder.write(name, [data]):
                self._open(name)
            self._new, self._new_keys, self._new_numbers = {}, {}, 0

    def save(self) -> None:
        """Write what is new, and merge segments if many hold little that counts."""
        if self._new_numbers < self._least:
            return
        self.flush()
        live = dict.fromkeys(self._segments.values(), 0)
        for name, segment in self._where.items():
            member = segment.members[name]
            live[segment] += 1 + member.rows * len(segment.shapes[member.shape][0])
        small = {segment for segment, numbers in live.items() if numbers < _ROOM // 2}
        if len(small) <= _SMALL:
            return
        for name, segment in [*self._where.items()]:
            if segment in small and (columns := self.columns(name)) is not None:
                self.put(name, segment.members[name].about, columns)
        self.flush()
        for segment in small:
            self._remove(segment.path)


def _encoded(files: dict[str, tuple[Any, Columns]]) -> tuple[memoryview, str]:
    """Return files as the bytes of a segment, and the checksum of its footer."""
    whole = join([columns for _, columns in files.values()])
    shapes: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    members: dict[str, list[Any]] = {}
    start = 0
    for name, (about, columns) in files.items():
        shape = shapes.setdefault((tuple(columns.values), tuple(columns.odd)), len(shapes))
        counts = columns.malformed, columns.torn
        members[name] = [*_Member(start, columns.rows, shape, *counts, about)]
        start += columns.rows
    keys = [*whole.values]
    header: _Header = {"members": members, "shapes": [*shapes], "keys": keys}  # pyright: ignore[reportAssignmentType]
    metadata = {_METADATA: json.dumps(header)}
    for place, key in enumerate(keys):
        if key in whole.odd:
            metadata[_odd_name(str(place))] = json.dumps(whole.odd[key])
    pq, pa = _pyarrow(), _pyarrow("pyarrow")
    # `pa.array` would load pandas.
    arrays = [
        pa.Array.from_buffers(pa.float64(), whole.rows, [None, pa.py_buffer(column)])
        for column in map(np.ascontiguousarray, whole.values.values())
    ]
    names = [str(place) for place in range(len(keys))]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(arrays, names=names, metadata=metadata),
        sink,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
        row_group_size=max(1, whole.rows),
    )
    data = memoryview(sink.getvalue())
    length = int.from_bytes(data[-8:-4], "little")
    return data, f"{zlib.crc32(data[-8 - length :]):08x}"
