"""What is known of a sweep's runs without looking again: their events, how they ended, what they
are judged by. No numpy, so that `ls` starts quickly.

What is remembered of a run's events holds while there are no others (bodies of events never
change), and what is remembered of its metrics while their files are as they were.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sweeper.tables.keeping import Folder, is_fleeting
from sweeper.tables.sources import Stamp

__all__ = ["Index"]


class Index:
    """The memory of one sweep, or of one root's folders; `folder` None: it forgets everything."""

    def __init__(self, folder: Folder | None, name: str) -> None:
        self._folder, self._name = folder, f"index of {name}"
        self._known: dict[str, dict[str, Any]] | None = None  # not read yet
        self._changed = False

    def recall(
        self, run: str, what: str, stamps: Sequence[Stamp | None], find: Callable[[], Any]
    ) -> Any:
        """`what` of a run, a JSON value: as remembered if the stamps are still the same, else
        found out. None, which says that it could not be, is not remembered."""
        now = " ".join(map(_told, stamps))
        if self._known is None:
            kept = None if self._folder is None else self._folder.load_json(self._name)
            self._known = kept or {}
        known = self._known.get(run, {}).get(what)
        if known is not None and known[0] == now:
            return known[1]
        found = find()
        steady = not any(s is not None and s.inode and is_fleeting(s.time) for s in stamps)
        if steady and found is not None and self._folder is not None:
            self._known.setdefault(run, {})[what] = [now, found]
            self._changed = True
        return found

    def save(self) -> None:
        """Remember it for the next time."""
        if self._changed and self._known is not None and self._folder is not None:
            self._folder.save_json(self._name, self._known)
            self._changed = False


def _told(stamp: Stamp | None) -> str:
    """A stamp as it is kept: there are many, and a text is less than a list."""
    return "-" if stamp is None else f"{stamp[0]}.{stamp[1]}.{stamp[2]}"
