"""What is known of a sweep's runs without looking again: their events, how they ended, what they
are judged by. No numpy, so that `ls` starts quickly.

What is remembered of a run's events holds while its folder in `state/` has not changed (bodies of
events never do), and what is remembered of its metrics while their files have not.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from sweeper.tables.keeping import Folder, is_fleeting
from sweeper.tables.sources import Stamp

__all__ = ["Index", "stamp_of"]


class Index:
    """The memory of one sweep, or of one root's folders; `folder` None: it forgets everything."""

    def __init__(self, folder: Folder | None, name: str) -> None:
        self._folder, self._name = folder, f"index of {name}"
        kept = None if folder is None else folder.load_json(self._name)
        self._known: dict[str, dict[str, Any]] = kept or {}
        self._changed = False

    def recall(
        self, run: str, what: str, stamps: Sequence[Stamp | None], find: Callable[[], Any]
    ) -> Any:
        """`what` of a run, a JSON value: as remembered if the stamps are still the same, else
        found out."""
        now = [stamp and [*stamp] for stamp in stamps]
        known = self._known.get(run, {}).get(what)
        if known is not None and known[0] == now:
            return known[1]
        found = find()
        steady = not any(s is not None and s.inode and is_fleeting(s.time) for s in stamps)
        if steady and self._folder is not None:
            self._known.setdefault(run, {})[what] = [now, found]
            self._changed = True
        return found

    def save(self) -> None:
        """Remember it for the next time."""
        if self._changed and self._folder is not None:
            self._folder.save_json(self._name, self._known)
            self._changed = False


def stamp_of(path: str) -> Stamp | None:
    """The stamp of a local file or folder; None without."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino)
