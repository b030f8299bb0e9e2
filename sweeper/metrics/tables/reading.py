"""Reads a metrics file as columns through the cache. Cached columns are valid while the file's
stamp is unchanged. If a file has grown and its old bytes are unchanged, only its new bytes are
parsed."""

import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.files import MetricsFile
from sweeper.metrics.rows import parse
from sweeper.metrics.sources import Files, Source, Stamp, begins_with
from sweeper.metrics.tables.cache import Cache, wait_for_writers
from sweeper.metrics.tables.columns import Columns, join, parse_columns, read_columns
from sweeper.store.opening import open_store

_SHARE = 1 << 26
"""The number of bytes for which it is worthwhile to start a separate process."""
_PROCESSES = 4


class _CachedState(NamedTuple):
    """The state of a file when its columns were cached. If `fleeting` is True, the file had just
    changed, and its next change may leave the stamp unchanged. The first `rows` rows, which end at
    byte `offset`, need not be parsed again. `checksum` is that of the bytes before `offset`; None
    if these bytes need not be compared later. `pieces` is as in `Source`."""

    stamp: Stamp
    fleeting: bool
    offset: int
    rows: int
    checksum: int | None
    pieces: list[list[int]]


class Reader:
    """A reader of columns, with a cache in `folder` (None: no cache). `parsed` counts the parsed
    bytes; cached bytes are not parsed. Call `save` at the end to write new data to the cache."""

    def __init__(self, folder: Folder | None) -> None:
        self.parsed = 0
        self._folder = folder
        self._caches: dict[tuple[str, str], Cache] = {}
        self._hint: tuple[str, ...] = ()
        self._fillers: dict[str, subprocess.Popen[bytes]] = {}

    def fill(self, wanted: Iterable[tuple[Files, str]], share: int = _SHARE) -> None:
        """Start processes that read and cache the later files in `wanted`, while this process reads
        the first files. There is at most one process per `share` bytes of uncached local files.
        `columns` waits for the process that reads the requested file. A file that is not cached
        after this wait is read in this process."""
        sizes: list[tuple[Files, str, int]] = []
        for files, path in wanted:
            source, cache = files.source(path), self.cache(files)
            if source is None or source.pieces or cache is None:
                continue
            if not _is_current(_cached_state(cache, source), source):
                sizes.append((files, path, source.stamp.size))
        total = sum(size for _, _, size in sizes)
        shares = min(len(os.sched_getaffinity(0)), _PROCESSES, total // share)
        if shares < 2 or self._folder is None:
            return
        parts: list[list[tuple[Files, str]]] = [[] for _ in range(shares)]
        # The other processes read less, because they have to start.
        own_bytes = (total + (shares - 1) * share) // shares
        begin = -own_bytes
        for files, path, size in sizes:
            place = 1 + begin * (shares - 1) // (total - own_bytes) if begin >= 0 else 0
            parts[place].append((files, path))
            begin += size
        for part in parts[1:]:
            with suppress(OSError):  # no process could be started
                filler = self._filler(self._folder, part)
                self._fillers |= {path: filler for _, path in part}

    @staticmethod
    def _filler(folder: Folder, part: Sequence[tuple[Files, str]]) -> "subprocess.Popen[bytes]":
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps([(files.prefix, path) for files, path in part]).encode())
            file.seek(0)
            return subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, folder.root, folder.top],
                stdin=file,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def columns(self, files: Files, path: str, keys: Sequence[str] | None = None) -> Columns | None:
        """Return the columns `keys` and `step` of the file at `path`; all columns if `keys` is
        None. Return None if the file does not exist. Raises `StoreError`."""
        wanted = None if keys is None else list(dict.fromkeys(("step", *keys)))
        filler = self._fillers.pop(path, None)
        if filler is not None and filler.returncode is None:
            filler.wait()
            for cache in self._caches.values():
                cache.open_segments()
        source = files.source(path)
        while source is not None:
            try:
                return self._columns(source, self.cache(files), wanted)
            except NotFound:  # the parts were joined or removed in the meantime
                again = Files(files.store, files.prefix).source(path)
                if again is None or again.stamp == source.stamp:
                    return None
                source = again
        return None

    def keys(self, files: Files, path: str) -> Sequence[str]:
        """Return the keys in the file at `path`, in order of appearance; empty if the file does not
        exist."""
        source, cache = files.source(path), self.cache(files)
        if (
            source is not None
            and cache is not None
            and _is_current(_cached_state(cache, source), source)
        ):
            return cache.keys(path)
        columns = self.columns(files, path)
        return () if columns is None else tuple(columns.values)

    def has(self, files: Files, path: str) -> bool:
        """Return whether columns of the file at `path` are cached, even if the file has changed
        since."""
        cache = self.cache(files)
        return cache is not None and cache.about(path) is not None

    def save(self) -> None:
        """Save new data in the cache."""
        for cache in self._caches.values():
            cache.save()

    def cache(self, files: Files, kind: str = "metrics") -> Cache | None:
        """Return the cache for the files below the folder of `files`; None without cache folder."""
        place = kind, files.prefix
        if self._folder is not None and place not in self._caches:
            self._caches[place] = Cache(self._folder, files, kind)
        return self._caches.get(place)

    def _columns(self, source: Source, cache: Cache | None, keys: Sequence[str] | None) -> Columns:
        state = None if cache is None else _cached_state(cache, source)
        if cache is not None and state is not None and _is_current(state, source):
            columns = cache.columns(source.name, keys)
            if columns is not None:
                return columns
        if cache is not None or keys is None or not MetricsFile(source.name).by_line:
            return self._read(source, cache, state).chosen(keys)
        data = source.read(0)[1]
        self.parsed += len(data)
        return parse_columns(data, keys)

    def _read(self, source: Source, cache: Cache | None, state: _CachedState | None) -> Columns:
        """Read all rows and cache them. `state` describes the cached rows. The cached rows are not
        parsed again if the file still begins with the same bytes."""
        name, before = source.name, None
        begin = state.offset if state and state.rows and begins_with(source, state.pieces) else 0
        stamp, data = source.read(begin)
        if cache is not None and state is not None and _has_grown(state, stamp, data, begin):
            before = cache.columns(name)
        if before is None and begin:
            begin, (stamp, data) = 0, source.read(0)
        fleeting = cache is not None and not cache.folder.may_keep(stamp)
        if before is None or state is None:
            # The checksum serves to compare the bytes later. That never happens to pieces, and
            # rarely to files that have not changed for long.
            compared = not source.pieces and (fleeting or not source.settled)
            offset, rows, checksum = 0, 0, 0 if compared else None
            columns = read_columns(name, data, self._hint)
        else:
            offset, rows, checksum = state.offset, state.rows, state.checksum
            data = data[offset - begin :]
            # An incomplete last line that has changed may have contributed keys of its own.
            added = parse_columns(data, None, before.values)
            columns = join((before.where(slice(rows)), added)).tidy()
        self.parsed += len(data)
        self._hint = tuple(columns.values)
        end = data.rfind(b"\n") + 1
        # New lines of a CSV file need its header.
        count = 0 if not MetricsFile(name).by_line else columns.rows - len(parse(data[end:]).rows)
        if checksum is not None:
            checksum = zlib.crc32(memoryview(data)[:end], checksum)
        new = _CachedState(stamp, fleeting, offset + end, count, checksum, source.pieces)
        # Recently changed pieces are not compared by their bytes.
        whole = offset + len(data) == stamp.size and not (source.pieces and fleeting)
        if cache is not None and whole and new != state:
            cache.put(name, [*new], columns)
        return columns


def _cached_state(cache: Cache, source: Source) -> _CachedState | None:
    about = cache.about(source.name)
    return None if about is None else _CachedState(Stamp(*about[0]), *about[1:])


def _is_current(state: _CachedState | None, source: Source) -> bool:
    """Return whether a file is certainly unchanged since it was cached."""
    return state is not None and state.stamp == source.stamp and not state.fleeting


def _has_grown(state: _CachedState, stamp: Stamp, data: bytes, begin: int) -> bool:
    """Return whether a file still begins with the lines that `state` covers. `data` are the file's
    bytes from `begin` on."""
    if not state.rows or stamp.size < state.stamp.size or len(data) != stamp.size - begin:
        return False
    return begin > 0 or state.checksum == zlib.crc32(memoryview(data)[: state.offset])


def _main(root: str, folder: str) -> None:
    """Cache the files that standard input names in JSON, as a list of (prefix, path) pairs."""
    reader, store = Reader(Folder(root, folder)), open_store(root)
    folders: dict[str, Files] = {}
    for prefix, path in json.load(sys.stdin):
        files = folders.setdefault(prefix, Files(store, prefix))
        with suppress(StoreError):
            reader.columns(files, path)
    reader.save()
    wait_for_writers()


if __name__ == "__main__":
    _main(*sys.argv[1:])
