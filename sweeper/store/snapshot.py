"""A view of a remote store at one moment, for readers of many files. Each sweep is listed once,
files of the same name are read ahead, and contents are cached by their stamps."""

import bisect
import contextlib
import posixpath
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from sweeper.errors import NotFound, StoreError
from sweeper.store import packed
from sweeper.store.base import AT_ONCE, Entry, FarStore, each

_LARGEST = 1 << 20
"""Maximum size of a file that is read ahead, in bytes."""
_AHEAD = 64 << 20
"""Maximum number of bytes that are read ahead and not used yet."""
_WINDOW = 256
"""Maximum number of files that are read in parallel."""
_GROWTH = 4
"""Factor by which the number of files grows from one round of reading ahead to the next. The first
round reads one file, since the caller may not need any other."""
_LISTINGS = 8
"""Maximum number of sweeps that are listed in parallel."""


class Contents(Protocol):
    """A cache that later processes also use. It has the contents of small files, by path and stamp,
    and the listings of sweeps."""

    gates: tuple[str, ...]
    """Folders of a sweep. Every change of the sweep changes the listing of at least one of these
    folders."""

    def get(self, path: str, stamp: tuple[int, int]) -> bytes | None:
        """Return the content that a file had with this stamp, or None if it is not cached."""
        ...

    def put(self, path: str, stamp: tuple[int, int], data: bytes) -> None:
        """Cache the content of a file."""
        ...

    def listing(self, top: str, gate: Sequence[Entry]) -> Sequence[Entry] | None:
        """Return the cached listing of the sweep `top`; None if it is missing or outdated. `gate`
        is the current listing of the subfolders that the attribute `gates` names."""
        ...

    def put_listing(self, top: str, gate: Sequence[Entry], listing: Sequence[Entry]) -> None:
        """Cache the listing of the sweep `top`. `gate` must have been listed before `listing`."""
        ...


class Snapshot:
    """A `Store` (see `sweeper.store.base`) that shows each sweep as it was at the first read. After
    a write to a sweep, the underlying store is read instead. Threads may share a snapshot."""

    is_remote = True
    at_once = AT_ONCE

    def __init__(self, store: FarStore, contents: Contents | None = None) -> None:
        self.root = store.root
        self._store, self._contents = store, contents
        self._lock = threading.RLock()
        self._listings: dict[str, dict[str, Entry]] = {}
        self._folders: dict[str, set[str]] = {}
        self._ordered: dict[str, list[str]] = {}
        self._kinds: dict[tuple[str, str], deque[str]] = {}
        self._windows: dict[tuple[str, str], int] = {}
        self._ahead: dict[str, bytes] = {}
        self._bytes = 0
        self._done: set[str] = set()
        self._changed: set[str] = set()
        self._packs: dict[str, dict[str, packed.Packed]] = {}
        self._expected: deque[str] = deque()
        self._listed_at_once = 1

    def create(self, path: str, data: bytes) -> None:
        self._forget(path)
        self._store.create(path, data)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._forget(path)
        self._store.replace(path, data, durable=durable)

    def append(self, path: str, data: bytes) -> None:
        self._store.append(path, data)

    def upload(self, path: str, source: str) -> None:
        self._forget(path)
        self._store.upload(path, source)

    def remove(self, paths: Iterable[str]) -> None:
        removed = list(paths)
        for path in removed:
            self._forget(path)
        self._store.remove(removed)

    def _forget(self, path: str) -> None:
        """From now on, read the sweep that contains `path` from the underlying store."""
        with self._lock:
            self._changed.add(path.partition("/")[0])

    def _listing(self, path: str) -> dict[str, Entry] | None:
        """Return a listing that includes the sweep of `path`, as path -> entry. Return None if the
        caller must use the underlying store."""
        top, slash, _ = path.partition("/")
        with self._lock:
            if not top or top in self._changed or posixpath.normpath(path) != path.rstrip("/"):
                return None
            if "" in self._listings:
                return self._listings[""]
            if top not in self._listings:
                if not slash:
                    return None  # `path` may be a file.
                self._add(top)
            return self._listings[top]

    def expect(self, tops: Iterable[str]) -> None:
        """Announce the sweeps that will be read, so that they are listed in groups."""
        with self._lock:
            self._expected = deque(tops)

    def _add(self, top: str) -> None:
        """List the sweep `top`. If it was announced by `expect`, also list the next announced
        sweeps. The number of sweeps per call doubles, up to `_LISTINGS`."""
        batch = {top: None}
        if top in self._expected:
            while self._expected and len(batch) < self._listed_at_once:
                other = self._expected.popleft()
                if other not in self._listings:
                    batch[other] = None
            self._listed_at_once = min(2 * self._listed_at_once, _LISTINGS)
        if len(batch) == 1:
            self._keep(top, self._list(top))
            return
        # Imported late, since most commands read one sweep.
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_LISTINGS) as pool:
            listings = {name: pool.submit(self._list, name) for name in batch}
        for name, listing in listings.items():
            with contextlib.suppress(*(() if name == top else (StoreError,))):
                self._keep(name, listing.result())

    def _list(self, top: str) -> dict[str, Entry]:
        contents = self._contents
        if contents is None:
            return {entry.path: entry for entry in self._store.list(top)}
        if not top:
            return self._list_each()
        folders = [f"{top}/{folder}" for folder in contents.gates]
        parts = each(self._store, lambda folder: [*self._store.list(folder)], folders)
        gate = [entry for part in parts for entry in part]
        listing = contents.listing(top, gate)
        if listing is None:
            listing = [*self._store.list(top)]
            contents.put_listing(top, gate, listing)
        return {entry.path: entry for entry in listing}

    def _list_each(self) -> dict[str, Entry]:
        """List the whole root: one request per folder, or one for all if there are more than
        `AT_ONCE` folders."""
        children = [*self._store.children()]
        tops = [child.path[:-1] for child in children if child.path.endswith("/")]
        if len(tops) > AT_ONCE:
            return {entry.path: entry for entry in self._store.list("")}
        entries = {child.path: child for child in children if not child.path.endswith("/")}
        for part in each(self._store, lambda top: self._listings.get(top) or self._list(top), tops):
            entries |= part
        return entries

    def _keep(self, top: str, listing: dict[str, Entry]) -> None:
        self._listings[top] = listing
        folders: set[str] = set()
        for path in listing:
            folder, _, name = path.rpartition("/")
            self._kinds.setdefault((folder.rpartition("/")[0], name), deque()).append(path)
            while folder not in folders and folder:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        self._folders[top] = folders
        self._ordered[top] = sorted(listing)

    def read(self, path: str) -> bytes:
        with self._lock:
            listing = self._listing(path)
            if listing is None:
                return self._store.read(path)
            entry = listing.get(path)
            if entry is None:
                raise NotFound(f"{self.root}/{path}: no such file")
            if path in self._ahead:
                return self._taken(path)
            if (data := self._remembered(entry)) is not None:
                return data
            if entry.size > _LARGEST:
                return self._store.read(path)
            self._read_ahead(entry, listing)
            return self._taken(path) if path in self._ahead else self._store.read(path)

    def _entry(self, path: str) -> Entry | None:
        top = path.partition("/")[0]
        listing = None if top in self._changed else self._listings.get(top, self._listings.get(""))
        return None if listing is None else listing.get(path)

    def _taken(self, path: str) -> bytes:
        data = self._ahead.pop(path)
        self._bytes -= len(data)
        return data

    def _remembered(self, entry: Entry) -> bytes | None:
        stamp = entry.size, entry.stamp
        data = None if self._contents is None else self._contents.get(entry.path, stamp)
        if data is None:
            copy = self._packs.get(entry.path.partition("/")[0], {}).get(entry.path)
            if copy is not None and (copy.size, copy.stamp) == stamp:
                data = copy.data
                self._remember(entry, data)
        return data

    def _remember(self, entry: Entry, data: bytes) -> None:
        if self._contents is not None:
            self._contents.put(entry.path, (entry.size, entry.stamp), data)

    def _unpack(self, top: str, listing: dict[str, Entry]) -> bool:
        """Read the packed files of a sweep when first called for this sweep. Return False if they
        were read before or do not exist."""
        if top in self._packs:
            return False
        has = f"{top}/{packed.NAME}" in listing
        self._packs[top] = packed.read_packed(self._store, top) if has else {}
        return has

    def _read_ahead(self, entry: Entry, listing: dict[str, Entry]) -> None:
        """Read a file into memory, together with files of the same name in the next folders. Skip a
        file that cannot be read: `read` then reads it again and raises the error."""
        folder, _, name = entry.path.rpartition("/")
        kind = folder.rpartition("/")[0], name
        window = self._windows.get(kind, 1)
        self._windows[kind] = min(_GROWTH * window, _WINDOW)
        top = entry.path.partition("/")[0]
        if window > 1 and entry.size <= packed.LARGEST and self._unpack(top, listing):
            data = self._remembered(entry)
            if data is not None:
                self._add_ahead(entry, data)
                return
        batch, size = {entry.path: entry}, entry.size
        self._done.add(entry.path)
        waiting = self._kinds.get(kind, deque())
        while waiting and len(batch) < window and self._bytes + size < _AHEAD:
            other = self._entry(waiting.popleft())
            if other is None:
                continue
            new = other.path not in self._done and other.size <= _LARGEST
            if new and self._remembered(other) is None:
                self._done.add(other.path)
                batch[other.path] = other
                size += other.size
        for path, data in self._store.read_many(batch).items():
            if len(data) != batch[path].size:
                continue  # The file has changed since it was listed.
            self._add_ahead(batch[path], data)
            self._remember(batch[path], data)

    def _add_ahead(self, entry: Entry, data: bytes) -> None:
        self._ahead[entry.path] = data
        self._bytes += len(data)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        with self._lock:
            listing = self._listing(path)
            entry = None if listing is None else listing.get(path)
            if entry is not None and start == 0 and end >= entry.size:
                return self.read(path)[:end]
        return self._store.read_range(path, start, end)

    def exists(self, path: str) -> bool:
        listing = self._listing(path)
        if listing is None:
            return self._store.exists(path)
        listed = "" if "" in self._folders else path.partition("/")[0]
        return path in listing or path.rstrip("/") in self._folders[listed]

    def list(self, prefix: str) -> Iterator[Entry]:
        with self._lock:
            if not prefix and not self._changed:
                self._list_root()
                return iter(list(self._listings[""].values()))
            listing = self._listing(f"{prefix.rstrip('/')}/" if prefix else "")
            if listing is not None:
                below = f"{prefix.rstrip('/')}/"
                paths = self._ordered["" if "" in self._ordered else prefix.partition("/")[0]]
                first = bisect.bisect_left(paths, below)
                after = f"{below[:-1]}0"  # "0" follows "/"
                return (listing[path] for path in paths[first : bisect.bisect_left(paths, after)])
        return self._store.list(prefix)

    def _list_root(self) -> None:
        if "" not in self._listings:
            self._kinds.clear()
            self._add("")

    def names(self, prefix: str) -> Iterator[str]:
        return (entry.path for entry in self.list(prefix))

    def folders_with(self, name: str) -> Iterator[str]:
        with self._lock:
            listing = None if self._changed else self._listings.get("")
        if listing is None:
            return self._store.folders_with(name)
        tops = dict.fromkeys(path.partition("/")[0] for path in listing)
        return (top for top in tops if f"{top}/{name}" in listing)

    def local_path(self, path: str) -> str | None:
        return self._store.local_path(path)
