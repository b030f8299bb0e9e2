"""The cache folder, and documents in it. Anyone may delete files here at any time, since they are
derived. Each file is written under another name and renamed. Standard library only."""

import atexit
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from sweeper import paths
from sweeper.common.atomic import atomic_write
from sweeper.metrics.sources import Stamp
from sweeper.store.base import Entry
from sweeper.sweep.settled import GATES, is_settled

T = TypeVar("T")

_VERSION = "v6"
_SMALL = 4096
"""Bytes of the largest file of a remote store whose content is cached."""
_PLAN = 1 << 22
"""The same for files directly in a sweep's folder, such as its plan."""

_LISTED_NS = 600 * 10**9
"""The longest that a listing is used again."""


class Folder:
    """The cache files of one root. `clock` returns nanoseconds."""

    def __init__(
        self, root: str, folder: str | None = None, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.top = folder or paths.cache()
        self.path = os.path.join(self.top, _VERSION, hash_of(root))
        self.root = root
        self._clock = clock
        self._made = False

    def may_keep(self, stamp: Stamp) -> bool:
        """Return whether a later change of the file with this stamp would be noticed."""
        return not stamp.is_fleeting(self._clock())

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> bool:
        """Write a file, replacing an existing one. Return whether it could be written. Of two
        writers the last one wins."""
        try:
            self._make()
            atomic_write(f"{self.path}/{name}", [*parts], mode=0o600)
        except OSError:
            self._made = False
        return self._made

    def _make(self) -> None:
        if not self._made:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError), open(f"{self.path}/root", "x") as file:
                file.write(self.root)
            self._made = True

    def save_json(self, name: str, document: Mapping[str, object]) -> None:
        """Save a document under a name that the caller chooses."""
        import zlib  # import it only if a cache is used: that takes some time

        text = json.dumps({"name": name, "document": document}, separators=(",", ":")).encode()
        self.write(hash_of(name), [f"{zlib.crc32(text):08x}".encode(), text])

    def load_json(self, name: str) -> dict[str, object] | None:
        """Return a saved document; None if it is missing or damaged."""
        import zlib

        try:
            with open(f"{self.path}/{hash_of(name)}", "rb") as file:
                data = file.read()
            if int(data[:8], 16) != zlib.crc32(memoryview(data)[8:]):
                return None
            stored = json.loads(memoryview(data)[8:].tobytes())
            return stored["document"] if stored["name"] == name else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Contents:
    """The contents of small files of a remote store, by their stamps. A file that a listing shows
    unchanged is not read again. They are saved when the process ends. Listings of sweeps that
    nothing writes to are used again too, for `_LISTED_NS` at most: no one is told of files that
    are removed by hand."""

    gates: tuple[str, ...] = GATES

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._tops: dict[str, dict[str, list[Any]]] = {}
        self._changed: set[str] = set()

    def _of(self, path: str) -> dict[str, list[Any]]:
        top = path.partition("/")[0]
        if top not in self._tops:
            stored = self._folder.load_json(f"contents of {top}")
            self._tops[top] = cast(dict[str, list[Any]], stored or {})
        return self._tops[top]

    def get(self, path: str, stamp: tuple[int, int]) -> bytes | None:
        """Return the content of the file with this stamp; None if it is not cached."""
        entry = self._of(path).get(path)
        if entry is None or (entry[0], entry[1]) != stamp:
            return None
        return str(entry[2]).encode()

    def put(self, path: str, stamp: tuple[int, int], data: bytes) -> None:
        """Remember the content of a file, if it is a small text."""
        if len(data) > (_PLAN if path.count("/") == 1 else _SMALL):
            return
        try:
            self._of(path)[path] = [*stamp, data.decode()]
        except UnicodeDecodeError:
            return
        if not self._changed:
            atexit.register(self.save)
        self._changed.add(path.partition("/")[0])

    def listing(self, top: str, gate: Sequence[Entry]) -> list[Entry] | None:
        """Return the files of a sweep as they were listed before, if none has changed since."""
        stored = self._folder.load_json(f"listing of {top}")
        if stored is None or stored["gate"] != [[*entry] for entry in gate]:
            return None
        if not 0 <= time.time_ns() - cast(int, stored["time"]) < _LISTED_NS:
            return None
        return [Entry(*entry) for entry in cast(list[Any], stored["files"])]

    def put_listing(self, top: str, gate: Sequence[Entry], listing: Sequence[Entry]) -> None:
        """Remember the files of a sweep if nothing writes to it. `gate` was listed before them."""
        start = len(top) + 1
        gated = (entry.path[start:] for entry in gate)
        if is_settled(gated) and is_settled(entry.path[start:] for entry in listing):
            document = {"gate": gate, "time": time.time_ns(), "files": listing}
            self._folder.save_json(f"listing of {top}", document)

    def save(self) -> None:
        """Save new contents."""
        for top in self._changed:
            self._folder.save_json(f"contents of {top}", self._tops[top])
        self._changed.clear()


def hash_of(text: str) -> str:
    """Return a name for any text."""
    import hashlib  # import it only if a cache is used: that takes some time

    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


class Index:
    """Cached facts about the runs of a sweep, or of a root's folders: events, outcomes, values.
    Each was read from some files, and is valid while these are unchanged. Without a `folder`
    nothing is kept."""

    def __init__(self, folder: Folder | None, name: str) -> None:
        self._folder, self._name = folder, f"index of {name}"
        self._values: dict[str, dict[str, list[Any]]] | None = None  # not read yet
        self._changed = False

    def recall(
        self,
        run: str,
        what: str,
        files: Sequence[tuple[str, Stamp | None]],
        read: Callable[[], T],
    ) -> T:
        """Return the value `what` of a run, as JSON. The cached value is used if the files that it
        was read from (their names, and their stamps before reading) are unchanged; else `read`
        reads it. None is not cached."""
        now = " ".join(_described(name, stamp) for name, stamp in files)
        if self._values is None:
            stored = None if self._folder is None else self._folder.load_json(self._name)
            self._values = cast(dict[str, dict[str, list[Any]]], stored or {})
        remembered = self._values.get(run, {}).get(what)
        if remembered is not None and remembered[0] == now:
            return remembered[1]
        value = read()
        folder = self._folder
        if folder is None or value is None:
            return value
        if all(stamp is None or folder.may_keep(stamp) for _, stamp in files):
            self._values.setdefault(run, {})[what] = [now, value]
            self._changed = True
        return value

    def save(self) -> None:
        """Save the values for the next time."""
        if self._changed and self._values is not None and self._folder is not None:
            self._folder.save_json(self._name, self._values)
            self._changed = False


def _described(name: str, stamp: Stamp | None) -> str:
    """Return a file's name and stamp as one text, which is smaller than a list."""
    return f"{name}:" if stamp is None else f"{name}:{stamp[0]}.{stamp[1]}.{stamp[2]}.{stamp[3]}"
