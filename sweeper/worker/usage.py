"""What the recipe has used of its service until now, as its processes have counted it."""

import json
import os

from sweeper.errors import StoreError
from sweeper.model.parts import Part
from sweeper.model.usage import Usage, read, total

__all__ = ["FOLDER", "UsageFiles"]

FOLDER = "usage"
"""In the attempt's folder: a file for each of the recipe's processes that uses the SDK."""


class UsageFiles:
    """The files in `folder`. One is read again only when it has changed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, int], Usage]] = {}

    def read(self) -> Usage:
        """The sum of all that is there. What cannot be read counts as it did before."""
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".json"):
                        self._look(entry)
        except OSError:
            pass
        return total(usage for _, usage in self._known.values())

    def _look(self, entry: "os.DirEntry[str]") -> None:
        try:
            status = entry.stat(follow_symlinks=False)
            stamp = (status.st_mtime_ns, status.st_size)
            known = self._known.get(entry.name)
            if known is not None and known[0] == stamp:
                return
            with open(entry.path, "rb") as file:
                usage = read(Part(json.load(file), entry.path))
        except (OSError, ValueError, RecursionError, StoreError):
            return
        self._known[entry.name] = (stamp, usage)
