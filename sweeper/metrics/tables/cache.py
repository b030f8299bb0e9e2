"""Keeps columns in the cache: a header (JSON), then one column after the other, each with a
checksum. A file that cannot be read, or does not fit its checksums, counts as missing."""

import json
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np

from sweeper.metrics.tables.cache_dir import Folder
from sweeper.metrics.tables.columns import Columns, Floats, Odd, absent

_MAGIC = b"sweepcol"
_PREFIX = struct.Struct("<8sIIQ")
_GUESS = 1 << 13
_AT_ONCE = 1 << 30


class Kept(NamedTuple):
    """What a cache file holds: `about`, what the writer said of it; the columns that were asked
    for; whether they are `whole`, or only those of some keys were ever kept; the names of all."""

    about: dict[str, Any]
    columns: Columns
    whole: bool
    keys: Sequence[str] = ()


class _Header(TypedDict):
    """What a file says of itself: its name, what the writer said, whether it is whole, its rows,
    the keys of its columns, their checksums, and the values that are no numbers, by row."""

    name: str
    about: dict[str, Any]
    whole: bool
    rows: int
    malformed: int
    torn: int
    keys: list[str]
    sums: list[int]
    odd: dict[str, list[tuple[int, object]]]


class Cache:
    """The columns kept for one root, in a folder of the cache."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        """Whether anything is kept of `name`."""
        return os.path.exists(self._folder.file(name))

    def load(self, name: str, keys: Iterable[str] | None = None) -> Kept | None:
        """What is kept of `name`, with these keys (None: all); None when there is nothing, or not
        all of them."""
        try:
            descriptor = os.open(self._folder.file(name), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return _read(descriptor, name, keys)
        except (OSError, ValueError, KeyError, TypeError, struct.error):
            return None
        finally:
            os.close(descriptor)

    def save(self, name: str, kept: Kept) -> None:
        """Keep something instead of what was kept of `name` before."""
        self._folder.save(name, _encode(name, kept))


def _encode(name: str, kept: Kept) -> list[bytes | memoryview]:
    columns = kept.columns
    data = [np.ascontiguousarray(c, "<f8").data.cast("B") for c in columns.values.values()]
    header: _Header = {
        "name": name,
        "about": kept.about,
        "whole": kept.whole,
        "rows": columns.rows,
        "malformed": columns.malformed,
        "torn": columns.torn,
        "keys": list(columns.values),
        "sums": [zlib.crc32(column) for column in data],
        "odd": {key: list(found.items()) for key, found in columns.odd.items()},
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    size = _PREFIX.size + len(text) + sum(map(len, data))
    return [_PREFIX.pack(_MAGIC, len(text), zlib.crc32(text), size), text, *data]


def _read(descriptor: int, name: str, keys: Iterable[str] | None) -> Kept | None:
    start = os.read(descriptor, _GUESS)
    magic, length, checksum, size = _PREFIX.unpack_from(start)
    if magic != _MAGIC:
        return None
    text = start[_PREFIX.size : _PREFIX.size + length]
    if len(text) < length:
        text += os.pread(descriptor, length - len(text), _PREFIX.size + len(text))
    if zlib.crc32(text) != checksum or os.fstat(descriptor).st_size != size:
        return None
    header: _Header = json.loads(text)
    if header["name"] != name:
        return None
    rows: int = header["rows"]
    if keys is None:
        wanted = None if not header["whole"] else list(header["keys"])
    else:
        wanted = list(keys)
        if not header["whole"] and not set(header["keys"]).issuperset(wanted):
            wanted = None
    if wanted is None:
        return None
    found = _values(descriptor, _PREFIX.size + length, header, wanted)
    if found is None:
        return None
    odd: dict[str, Odd] = {key: dict(header["odd"][key]) for key in wanted if key in header["odd"]}
    columns = Columns(rows, found, odd, header["malformed"], header["torn"])
    return Kept(header["about"], columns, header["whole"], header["keys"])


def _values(
    descriptor: int, begin: int, header: _Header, wanted: Sequence[str]
) -> dict[str, Floats] | None:
    """Columns of a cache file, which begin at `begin`; None when one is damaged."""
    rows: int = header["rows"]
    places = {key: place for place, key in enumerate(header["keys"])}
    width = rows * 8
    together = None  # in one go, when most are wanted
    if len(wanted) > len(places) // 2 and width * len(places) <= _AT_ONCE:
        together = os.pread(descriptor, width * len(places), begin)
    values: dict[str, Floats] = {}
    for key in wanted:
        place = places.get(key)
        if place is None:
            values[key] = absent(rows)
            continue
        if together is None:
            data = os.pread(descriptor, width, begin + place * width)
        else:
            data = memoryview(together)[place * width : (place + 1) * width]
        if len(data) != width or zlib.crc32(data) != header["sums"][place]:
            return None
        values[key] = np.frombuffer(data, "<f8")
    return values
