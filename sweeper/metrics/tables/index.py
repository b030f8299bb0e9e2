"""What is known of a sweep's runs without looking again: their events, how they ended, what they
are judged by. No numpy, so that `ls` starts quickly.

Whatever is remembered was read from some files, and holds while those are the same files, and as
they were.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from sweeper.metrics.tables.cache_dir import Folder
from sweeper.metrics.tables.sources import Stamp

T = TypeVar("T")
_Known = dict[str, dict[str, list[Any]]]
"""Of each run what is known: what tells its files, and the value."""


class Index:
    """The memory of one sweep, or of one root's folders; `folder` None: it forgets everything."""

    def __init__(self, folder: Folder | None, name: str) -> None:
        self._folder, self._name = folder, f"index of {name}"
        self._known: _Known | None = None  # not read yet
        self._changed = False

    def recall(
        self,
        run: str,
        what: str,
        files: Sequence[tuple[str, Stamp | None]],
        find: Callable[[], T],
    ) -> T:
        """`what` of a run, a JSON value: as remembered if the files that it is read from (names
        that tell them apart, and stamps from before they are read) are still the same, else found
        out. None, which says that it could not be, is not remembered."""
        now = " ".join(_told(name, stamp) for name, stamp in files)
        if self._known is None:
            kept = None if self._folder is None else self._folder.load_json(self._name)
            self._known = cast(_Known, kept or {})
        known = self._known.get(run, {}).get(what)
        if known is not None and known[0] == now:
            return known[1]
        found = find()
        steady = not any(stamp is not None and stamp.is_fleeting for _, stamp in files)
        if steady and found is not None and self._folder is not None:
            self._known.setdefault(run, {})[what] = [now, found]
            self._changed = True
        return found

    def save(self) -> None:
        """Remember it for the next time."""
        if self._changed and self._known is not None and self._folder is not None:
            self._folder.save_json(self._name, self._known)
            self._changed = False


def _told(name: str, stamp: Stamp | None) -> str:
    """A file as it is kept: there are many, and a text is less than a list."""
    return f"{name}:" if stamp is None else f"{name}:{stamp[0]}.{stamp[1]}.{stamp[2]}.{stamp[3]}"
