"""Many small files in one file of the cache: to open one for each costs more than to parse them.

Only what is small and has kept still for a while goes in, and a file counts as long as its stamp
is as it was; all others go by `reading.py`. Each has its rows in the columns of all of them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.errors import NotFound
from sweeper.metrics.tables.cache import Cache, Kept
from sweeper.metrics.tables.columns import Columns, Odd, join
from sweeper.metrics.tables.reading import Reader, chosen, parse_file
from sweeper.metrics.tables.sources import Files, Source

_SMALL = 1 << 16
"""Bytes up to which a file is packed."""
_ROOM = 1 << 24
"""Numbers that a pack holds at most, absent ones counted."""


class PackedReader:
    """Reads as `Reader` does; to be saved at the end. `adding`: whether files that are in no pack
    yet are put into one. Who reads a few does better to leave it, since a pack is written whole."""

    def __init__(self, cache: Cache) -> None:
        self.adding = True
        self._cache = cache
        self._reader = Reader(cache)
        self._packs: dict[str, _Pack] = {}

    def columns(self, files: Files, path: str, keys: Sequence[str] | None = None) -> Columns | None:
        """See `Reader.columns`."""
        source = files.source(path)
        if source is not None and belongs(source):
            wanted = None if keys is None else list(dict.fromkeys(("step", *keys)))
            found = self._pack(files).columns(source, wanted, self.adding)
            if found is not None:
                return found
        return self._reader.columns(files, path, keys, source)

    def keys(self, files: Files, path: str) -> Sequence[str]:
        """See `Reader.keys`."""
        source = files.source(path)
        found = None
        if source is not None and belongs(source):
            found = self._pack(files).keys(source, self.adding)
        return self._reader.keys(files, path) if found is None else found

    def save(self) -> None:
        """Keep what was packed."""
        for pack in self._packs.values():
            pack.save()

    def _pack(self, files: Files) -> "_Pack":
        if files.prefix not in self._packs:
            self._packs[files.prefix] = _Pack(self._cache, f"small files in {files.prefix}")
        return self._packs[files.prefix]


def belongs(source: Source) -> bool:
    """Whether a file is one for a pack."""
    stamp = source.stamp
    return stamp.size <= _SMALL and source.settled and not stamp.is_fleeting


class _Member(NamedTuple):
    """A file in a pack: its stamp, its rows, its keys (`shape`), what could not be read."""

    stamp: list[int]
    start: int
    rows: int
    shape: int
    malformed: int
    torn: int


_Values = tuple[list[int], int, int, int, int, int]
"""A member as JSON has it."""


class _Loaded(NamedTuple):
    """A pack with some columns. `odd`: the odd values of each member that has any, by its start."""

    members: Mapping[str, _Values]
    shapes: Sequence[Sequence[str]]
    columns: Columns
    odd: Mapping[int, dict[str, Odd]]


class _Pack:
    def __init__(self, cache: Cache, name: str) -> None:
        self._cache, self._name = cache, name
        self._loaded: dict[tuple[str, ...] | None, _Loaded | None] = {}
        self._new: dict[str, tuple[Source, Columns]] = {}
        self._hint: Sequence[str] = ()

    def columns(self, source: Source, keys: list[str] | None, add: bool) -> Columns | None:
        """The rows of a small file, which with `add` is in the pack from now on; None when it is
        not, or has changed in this moment."""
        found = self._find(source, keys)
        if found is not None:
            loaded, member = found
            return _cut(loaded, member, keys)
        if source.name not in self._new:
            if not add:
                return None
            try:
                stamp, data = source.view(0)
            except NotFound:
                return None
            if stamp != source.stamp or len(data) != stamp.size:
                return None
            columns = parse_file(source.name, data, None, self._hint)
            self._hint = tuple(columns.values)
            self._new[source.name] = source, columns
        known, columns = self._new[source.name]
        if known.stamp != source.stamp:
            return None
        return columns if keys is None else chosen(columns, keys)

    def keys(self, source: Source, add: bool) -> Sequence[str] | None:
        """The keys of a small file; None as for `columns`."""
        found = self._find(source, [])
        if found is not None:
            loaded, member = found
            return loaded.shapes[member.shape]
        columns = self.columns(source, None, add)
        return None if columns is None else tuple(columns.values)

    def save(self) -> None:
        """Keep the new ones and those of old that are still as they were."""
        if not self._new:
            return
        files = [(s.name, [*s.stamp], columns) for s, columns in self._new.values()]
        old = self._load(None)
        if old is not None:
            for name, values in old.members.items():
                if name not in self._new:
                    member = _Member(*values)
                    files.append((name, member.stamp, _cut(old, member, None)))
        self._new = {}
        self._loaded.clear()
        kept = _packed(files)
        if kept is not None:
            self._cache.save(self._name, kept)

    def _find(self, source: Source, keys: list[str] | None) -> tuple[_Loaded, _Member] | None:
        loaded = self._load(keys)
        values = None if loaded is None else loaded.members.get(source.name)
        if loaded is None or values is None or tuple(values[0]) != source.stamp:
            return None
        return loaded, _Member(*values)

    def _load(self, keys: list[str] | None) -> _Loaded | None:
        wanted = None if keys is None else tuple(keys)
        if wanted not in self._loaded:
            kept = self._cache.load(self._name, keys)
            self._loaded[wanted] = None if kept is None else _loaded(kept)
        return self._loaded[wanted]


def _packed(files: Sequence[tuple[str, list[int], Columns]]) -> Kept | None:
    """Files as one; None when they are too many, or have too little in common."""
    shapes: dict[tuple[str, ...], int] = {}
    members: dict[str, _Member] = {}
    start = 0
    for name, stamp, columns in files:
        shape = shapes.setdefault(tuple(columns.values), len(shapes))
        counts = columns.malformed, columns.torn
        members[name] = _Member(stamp, start, columns.rows, shape, *counts)
        start += columns.rows
    keys = {key for shape in shapes for key in shape}
    if start * len(keys) > _ROOM:
        return None
    about = {"members": members, "shapes": list(shapes)}
    return Kept(about, join([columns for _, _, columns in files]), True)


def _loaded(kept: Kept) -> _Loaded:
    members: dict[str, _Values] = kept.about["members"]
    odd: dict[int, dict[str, Odd]] = {}
    if kept.columns.odd:
        starts = sorted((m[1], m[2]) for m in members.values())
        for key, found in kept.columns.odd.items():
            place = 0
            for row in sorted(found):
                while row >= sum(starts[place]):
                    place += 1
                start = starts[place][0]
                odd.setdefault(start, {}).setdefault(key, {})[row - start] = found[row]
    return _Loaded(members, kept.about["shapes"], kept.columns, odd)


def _cut(loaded: _Loaded, member: _Member, keys: list[str] | None) -> Columns:
    """The rows of one file."""
    start, end = member.start, member.start + member.rows
    names = loaded.shapes[member.shape] if keys is None else keys
    values = {key: loaded.columns.values[key][start:end] for key in names}
    odd = loaded.odd.get(start, {}) if member.rows else {}
    return Columns(member.rows, values, odd, member.malformed, member.torn)
