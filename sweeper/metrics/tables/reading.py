"""From a metrics file to its columns, through the cache: only bytes that are new are parsed.

What is kept of a file counts while its stamp is as it was. A file that has grown is continued, if
all bytes before the end that was kept are still the same: by a checksum, or on a remote store by
the objects that it is made of. Anything else is parsed again. The times of a file are only as fine
as the kernel's clock: one that changed moments before it was last read is compared by its bytes.
"""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sweeper.errors import NotFound
from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.files import MetricsFile
from sweeper.metrics.rows import parse
from sweeper.metrics.sources import Files, Source, Stamp, begins_with
from sweeper.metrics.tables.cache import WORTH, Cache
from sweeper.metrics.tables.columns import (
    Columns,
    join,
    line_end,
    parse_columns,
    read_columns,
)


class _Mark(NamedTuple):
    """What tells the version of a file that columns were made of: its stamp, and whether that was
    too new to rely on; the end (`offset`) and the number of its whole lines; a checksum of the
    bytes before that end, if they may be compared; the `pieces` of one on a remote store."""

    stamp: Stamp
    fleeting: bool
    offset: int
    rows: int
    checksum: int | None
    pieces: list[list[int]]


class Reader:
    """Reads columns; `folder` None: without a cache. `parsed` counts the bytes that were not in
    it. What is read is kept once it is saved."""

    def __init__(self, folder: Folder | None) -> None:
        self.parsed = 0
        self._folder = folder
        self._caches: dict[str, Cache] = {}
        self._hint: tuple[str, ...] = ()

    def columns(
        self,
        files: Files,
        path: str,
        keys: Sequence[str] | None = None,
    ) -> Columns | None:
        """Return the rows of the file at `path`, with these keys and `step` (None: all keys); None
        if there is no such file. Raises `StoreError`."""
        wanted = None if keys is None else list(dict.fromkeys(("step", *keys)))
        source = files.source(path)
        while source is not None:
            try:
                return self._columns(source, self.cache(files), wanted)
            except NotFound:  # parts that have become one file meanwhile, or gone
                again = Files(files.store, files.prefix).source(path)
                if again is None or again.stamp == source.stamp:
                    return None
                source = again
        return None

    def keys(self, files: Files, path: str) -> Sequence[str]:
        """Return the keys in the file at `path`, in order of appearance; none if there is no
        file."""
        source, cache = files.source(path), self.cache(files)
        if source is not None and cache is not None and _is_kept(cache, source):
            return cache.keys(path)
        columns = self.columns(files, path)
        return () if columns is None else tuple(columns.values)

    def has(self, files: Files, path: str) -> bool:
        """Return whether anything is kept of the file at `path`."""
        cache = self.cache(files)
        return cache is not None and cache.about(path) is not None

    def flush(self) -> None:
        """Write what was read."""
        for cache in self._caches.values():
            cache.flush()

    def save(self) -> None:
        """Keep what was read for the next time, in few files."""
        for cache in self._caches.values():
            cache.save()

    def cache(self, files: Files) -> Cache | None:
        """Return the cache of these files."""
        if self._folder is None:
            return None
        if files.prefix not in self._caches:
            least = WORTH if files.local is not None else 0
            self._caches[files.prefix] = Cache(self._folder, f"metrics in {files.prefix}", least)
        return self._caches[files.prefix]

    def _columns(self, source: Source, cache: Cache | None, keys: Sequence[str] | None) -> Columns:
        if cache is None:
            return self._uncached(source, keys)
        if _is_kept(cache, source):
            columns = cache.columns(source.name, keys)
            if columns is not None:
                return columns
        columns = self._continued(source, cache)
        if columns is None:
            columns = self._fresh(source, cache)
        return columns.chosen(keys)

    def _uncached(self, source: Source, keys: Sequence[str] | None) -> Columns:
        data = source.read(0)[1]
        self.parsed += len(data)
        if keys is not None and not MetricsFile(source.name).is_csv:
            return parse_columns(data, keys)
        columns = read_columns(source.name, data, self._hint)
        self._hint = tuple(columns.values)
        return columns.chosen(keys)

    def _fresh(self, source: Source, cache: Cache) -> Columns:
        stamp, data = source.read(0)
        self.parsed += len(data)
        columns = read_columns(source.name, data, self._hint)
        self._hint = tuple(columns.values)
        # Fleeting pieces are not compared by their bytes.
        if len(data) == stamp.size and not (source.pieces and stamp.is_fleeting):
            end = line_end(data)
            # What has kept still will hardly be compared by its bytes.
            compared = not source.pieces and (stamp.is_fleeting or not source.settled)
            checksum = zlib.crc32(memoryview(data)[:end]) if compared else None
            _keep(cache, source, stamp, columns, (end, data[end:], checksum))
        return columns

    def _continued(self, source: Source, cache: Cache) -> Columns | None:
        """Return what was kept with what is new; None if nothing was kept, or the file is another,
        or was rewritten."""
        mark = _mark(cache, source)
        if mark is None or not _may_go_on(mark, source):
            return None
        begin = mark.offset if mark.pieces else 0
        stamp, data = source.read(begin)
        if stamp.size < mark.stamp.size or len(data) != stamp.size - begin:
            return None
        if mark.checksum not in (None, zlib.crc32(memoryview(data)[: mark.offset])):
            return None
        cached = cache.columns(source.name)
        if cached is None:
            return None
        new = data[mark.offset - begin :]
        self.parsed += len(new)
        later = parse_columns(new, None, cached.values)
        before = replace(cached.part(0, mark.rows), malformed=cached.malformed)
        # What stood on a last line that is another now may have had keys of its own.
        columns = join((before, later)).tidy()
        end = line_end(new)
        checksum = mark.checksum
        if checksum is not None:
            checksum = zlib.crc32(memoryview(new)[:end], checksum)
        _keep(cache, source, stamp, columns, (mark.offset + end, new[end:], checksum))
        return columns


def _keep(
    cache: Cache,
    source: Source,
    stamp: Stamp,
    columns: Columns,
    end: tuple[int, bytes, int | None],
) -> None:
    """Keep columns. `end`: where the whole lines end, what follows, and the checksum of what is
    before. What follows is a row if it lacks only its newline."""
    offset, tail, checksum = end
    rows = columns.rows
    if tail.strip() and not MetricsFile(source.name).is_csv:
        rows -= len(parse(tail).rows)
    mark = _Mark(stamp, stamp.is_fleeting, offset, rows, checksum, source.pieces)
    if mark != _mark(cache, source):
        cache.put(source.name, [*mark], columns)


def _mark(cache: Cache, source: Source) -> _Mark | None:
    about = cache.about(source.name)
    return None if about is None else _Mark(Stamp(*about[0]), *about[1:])


def _is_kept(cache: Cache, source: Source) -> bool:
    """Return whether the cache has a file as it is now. Another process may just have read it."""
    while True:
        mark = _mark(cache, source)
        if mark is not None and mark.stamp == source.stamp and not mark.fleeting:
            return True
        if not cache.refresh():
            return False


def _may_go_on(mark: _Mark, source: Source) -> bool:
    """Return whether there are rows to go on from, and something to compare what is before the end
    by: for a file on a remote store, that it begins with the same objects."""
    if not mark.rows or bool(mark.pieces) != bool(source.pieces):
        return False
    if MetricsFile(source.name).is_csv:  # its new lines need its header
        return False
    return begins_with(source, mark.pieces) if mark.pieces else mark.checksum is not None
