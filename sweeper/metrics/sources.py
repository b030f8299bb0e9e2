"""Finds the files of runs for readers: their size, stamp and bytes. The stamp of a local file
consists of size, times and inode. On a remote store one listing gives all stamps, and a growing
file may be stored in parts (`<path>.parts/<offset>`)."""

import os
import time
from typing import NamedTuple, Protocol

from sweeper.errors import NotFound, StoreError
from sweeper.store.base import Entry, Store
from sweeper.store.local import open_regular

MOMENT = 2_000_000_000
"""Nanoseconds after a change during which a file's time is unreliable. The kernel's clock for
file times is coarse, so a second change within one tick would not change the time."""


class Stamp(NamedTuple):
    """Properties that show whether a file has changed: its size, its modification time
    (nanoseconds, or a store's equivalent), its inode (0: no inode) and its ctime (nanoseconds). A
    copied or unpacked file may have the size and the modification time of the file that it
    replaces, but users cannot set the ctime."""

    size: int
    time: int
    inode: int
    changed: int = 0

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        """Return the stamp of a local file."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)

    def is_fleeting(self, now: int) -> bool:
        """Return whether a local file changed within `MOMENT` before `now`. Its next change may
        leave the same stamp, so values read from the file must not be cached."""
        return self.inode != 0 and now - max(self.time, self.changed) < MOMENT


def _number_of(value: object) -> int:
    """Return a hash below 2**63 of the `repr` of a value."""
    import hashlib  # import late: local files do not need it

    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def stamp_of(path: str) -> Stamp | None:
    """Return the stamp of a local file or folder; None if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Stamp.of(status)


def _status(path: str) -> os.stat_result | None:
    """Return the properties of a local file; None if it does not exist. Raises `StoreError`."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error


class Source(Protocol):
    """A file, which may be stored in parts."""

    name: str
    stamp: Stamp
    pieces: list[list[int]]
    """For a file on a remote store, the offset, size and stamp of each of its objects. Objects are
    never modified, so the same objects mean the same bytes."""

    @property
    def settled(self) -> bool:
        """Whether the file is probably complete."""
        ...

    def read(self, start: int, most: int | None = None) -> tuple[Stamp, bytes]:
        """Return at most `most` bytes from `start` on, and the stamp of the file at that moment.
        Raises `NotFound` if the file was removed."""
        ...


def begins_with(source: Source, pieces: list[list[int]]) -> bool:
    """Return whether a file on a remote store still begins with the objects in `pieces` (as in
    `Source.pieces`). Bytes read from them are then still valid. False if `pieces` is empty."""
    return bool(pieces) and source.pieces[: len(pieces)] == pieces


_STILL = 600_000_000_000
"""A local file that has not changed for this many nanoseconds will probably not grow."""


class _Local:
    def __init__(self, name: str, path: str, stamp: Stamp) -> None:
        self.name, self.stamp = name, stamp
        self.pieces: list[list[int]] = []
        self._path = path

    @property
    def settled(self) -> bool:
        return time.time_ns() - self.stamp.time > _STILL

    def read(self, start: int, most: int | None = None) -> tuple[Stamp, bytes]:
        try:
            # `open` is slower: making its object takes longer than reading a small file.
            file = open_regular(self._path)
            try:
                stamp = Stamp.of(os.fstat(file))
                size = max(0, stamp.size - start)
                data = _read(file, start, size if most is None else min(size, most))
            finally:
                os.close(file)
        except FileNotFoundError as error:
            raise NotFound(f"{self._path}: no such file") from error
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror or error}") from error
        return stamp, data


def _read(file: int, start: int, size: int) -> bytes:
    """Read `size` bytes from `start` on, or fewer at the end of the file."""
    data = os.pread(file, size, start)
    while len(data) < size and (more := os.pread(file, size - len(data), start + len(data))):
        data += more
    return data


class _Remote:
    """A file on a remote store: one object, or the file's parts from offset 0 to the first gap."""

    def __init__(self, store: Store, name: str, pieces: list[tuple[int, Entry]]) -> None:
        self.name = name
        self._store, self._pieces = store, pieces
        end = max(offset + entry.size for offset, entry in pieces)
        self.pieces = [[offset, entry.size, entry.stamp] for offset, entry in pieces]
        changed = pieces[0][1].stamp if len(pieces) == 1 else _number_of(self.pieces)
        self.stamp = Stamp(end, changed, 0)

    @property
    def settled(self) -> bool:
        return self._pieces[0][1].path == self.name

    def read(self, start: int, most: int | None = None) -> tuple[Stamp, bytes]:
        data, at = b"", start
        last = self.stamp.size if most is None else start + most
        for offset, entry in self._pieces:
            end = min(offset + entry.size, last)
            if end > at:
                data += self._store.read_range(entry.path, at - offset, end - offset)
                at = end
        return self.stamp, data


class Files:
    """The files below the folder `prefix` of a store. A remote store is listed only once, at the
    first request."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.store, self.prefix = store, prefix
        self.local = store.local_path(prefix)
        self._entries: dict[str, Entry] | None = None
        self._inside: dict[str, list[Entry]] = {}
        self._below: dict[str, list[str]] = {}

    def entries(self) -> dict[str, Entry]:
        """Return all files by path, from one listing."""
        if self._entries is None:
            self._entries = {entry.path: entry for entry in self.store.list(self.prefix)}
            for path, entry in self._entries.items():
                folder = path.rpartition("/")[0]
                self._inside.setdefault(folder, []).append(entry)
            for folder in self._inside:
                self._below.setdefault(folder.rpartition("/")[0], []).append(folder)
        return self._entries

    def inside(self, folder: str) -> list[Entry]:
        """Return the files directly in a folder, from the listing of `entries`."""
        self.entries()
        return self._inside.get(folder, [])

    def below(self, folder: str) -> list[str]:
        """Return the subfolders of a folder that directly contain files, from the listing of
        `entries`."""
        self.entries()
        return [inner for inner in self._below.get(folder, []) if inner != folder]

    def source(self, path: str) -> Source | None:
        """Return the file at `path` (relative to the store's root), or its parts; None if it does
        not exist."""
        if self.local is not None:
            return self._local(path)
        whole = self.entries().get(path)
        if whole is not None:
            return _Remote(self.store, path, [(0, whole)])
        return self._parts(path, self.inside(f"{path}.parts"))

    def stamp(self, path: str) -> Stamp | None:
        """Return the stamp of the file at `path`; None if it does not exist."""
        if self.local is not None:
            status = _status(self._full(path))
            if status is not None:
                return Stamp.of(status)
            source = self._local_parts(path)
        else:
            source = self.source(path)
        return None if source is None else source.stamp

    def _full(self, path: str) -> str:
        return f"{self.local}/{path[len(self.prefix) :].lstrip('/')}"

    def _local(self, path: str) -> Source | None:
        full = self._full(path)
        status = _status(full)
        return self._local_parts(path) if status is None else _Local(path, full, Stamp.of(status))

    def _local_parts(self, path: str) -> Source | None:
        """Return the parts of a local file; None if no part starts at offset 0."""
        folder = f"{self._full(path)}.parts"
        stamps: dict[str, Stamp] = {}
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror or error}") from error
        for name in names:
            stamp = stamp_of(f"{folder}/{name}")
            if stamp is not None:
                stamps[f"{path}.parts/{name}"] = stamp
        entries = [Entry(part, s.size, _number_of(s)) for part, s in stamps.items()]
        source = self._parts(path, entries)
        if source is not None:
            times = [max(stamp.time, stamp.changed) for stamp in stamps.values()]
            size, version = source.stamp.size, _number_of(source.pieces)
            source.stamp = Stamp(size, max(times), version, max(times))
        return source

    def _parts(self, path: str, entries: list[Entry]) -> Source | None:
        """Return the parts of a file, from offset 0 up to the first gap; None if no part starts at
        offset 0."""
        numbered = [
            (int(name), entry)
            for entry in entries
            if (name := entry.path.rpartition("/")[2]).isdecimal()
        ]
        pieces: list[tuple[int, Entry]] = []
        end = 0
        for offset, entry in sorted(numbered, key=lambda piece: piece[0]):
            if offset > end:
                break
            if offset + entry.size > end:
                pieces.append((offset, entry))
                end = offset + entry.size
        return _Remote(self.store, path, pieces) if pieces else None


_MOST_LISTED = 512


class ListedOnce:
    """The files of attempts on a remote store. The folder of an ended attempt no longer changes, so
    it is listed only once for all followers in a launcher. Threads may share this object."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[str, Files] = {}

    def files(self, folder: str, *, ended: bool) -> Files:
        """Return the files of an attempt's folder."""
        if not (ended and self._store.is_remote):
            return Files(self._store, folder)
        while len(self._files) >= _MOST_LISTED and folder not in self._files:
            self._files.pop(next(iter(self._files)), None)
        return self._files.setdefault(folder, Files(self._store, folder))
