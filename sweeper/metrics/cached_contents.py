"""A local cache of the file contents and listings of a remote store's sweeps. Later processes use
the cache too."""

import atexit
import time
from collections.abc import Sequence
from typing import Any, cast

from sweeper.metrics.cache_folder import Folder
from sweeper.store.base import Entry
from sweeper.sweep.settled import GATES, is_settled

_SMALL = 4096
"""Maximum size in bytes of a file on a remote store whose content is cached."""
_PLAN = 1 << 22
"""Maximum size in bytes of a cached file that is directly in a sweep's folder, such as the sweep's
plan."""

_LISTED_NS = 600 * 10**9
"""Maximum age in nanoseconds of a cached listing."""


class Contents:
    """A cache of the contents of small files on a remote store. A file is read again only if its
    stamp has changed. The contents are saved when the process ends. The list of a sweep's files is
    cached for `_LISTED_NS` if no process writes to the sweep. During this time, the cached list
    still contains files that a user has removed."""

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
        """Return the cached content of `path` if it was cached with this stamp, else None."""
        entry = self._of(path).get(path)
        if entry is None or (entry[0], entry[1]) != stamp:
            return None
        return str(entry[2]).encode()

    def put(self, path: str, stamp: tuple[int, int], data: bytes) -> None:
        """Cache the content of a file if the file is small, and is text."""
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
        """Return the cached list of the files of the sweep `top`; None if there is none, or if it
        is too old or was cached with another `gate`. `gate` is the current list of the files in the
        sweep's folders `gates`, which change before any other folder of the sweep."""
        stored = self._folder.load_json(f"listing of {top}")
        if stored is None or stored["gate"] != [[*entry] for entry in gate]:
            return None
        if not 0 <= time.time_ns() - cast(int, stored["time"]) < _LISTED_NS:
            return None
        return [Entry(*entry) for entry in cast(list[Any], stored["files"])]

    def put_listing(self, top: str, gate: Sequence[Entry], listing: Sequence[Entry]) -> None:
        """Cache the list of the files of the sweep `top` if no process writes to the sweep. `gate`
        has the files in the sweep's folders `gates`, listed before `listing` was made."""
        start = len(top) + 1
        gated = (entry.path[start:] for entry in gate)
        if is_settled(gated) and is_settled(entry.path[start:] for entry in listing):
            document = {"gate": gate, "time": time.time_ns(), "files": listing}
            self._folder.save_json(f"listing of {top}", document)

    def save(self) -> None:
        """Write new contents to the cache folder."""
        for top in self._changed:
            self._folder.save_json(f"contents of {top}", self._tops[top])
        self._changed.clear()
