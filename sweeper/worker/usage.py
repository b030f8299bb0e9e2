"""Reads what the recipe has used of its service, as counted by the recipe's processes."""

import json
import os
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from sweeper.common import codec
from sweeper.errors import StoreError
from sweeper.sweep.usage import Counts, Usage, total

FOLDER = "usage"
"""The folder in the attempt's folder with one file for each recipe process that uses the SDK."""
_VOUCHED_SECONDS = 90.0
"""Seconds for which a report of a pause counts if it is not repeated."""


class _ProcessUsage(NamedTuple):
    """The usage that one process of the recipe has recorded. `paused` is the reason why the service
    delays the process."""

    models: Mapping[str, Counts] = MappingProxyType({})
    unknown: str | None = None
    paused: str | None = None
    sessions: tuple[str, ...] = ()


class UsageFiles:
    """The usage files that the recipe's processes write to `folder`. A file is read again only
    after it has changed. `clock` returns monotonic seconds. `stacks` is the path of the file to
    which the recipe writes its stack traces on request."""

    def __init__(self, folder: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self.stacks = f"{folder}.stacks"
        self._paused: dict[str, tuple[str, float]] = {}
        self._sessions: dict[str, tuple[str, ...]] = {}
        self._known: dict[str, tuple[tuple[int, int], Usage]] = {}

    def read(self) -> Usage:
        """Return the sum of all usage files. If a file cannot be read, its last readable content
        counts."""
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".json"):
                        self._look(entry)
        except OSError:
            pass
        return total(usage for _, usage in self._known.values())

    @property
    def sessions(self) -> tuple[str, ...]:
        """The ids of the recipe's sessions at the service, from the last `read`."""
        return tuple(dict.fromkeys(i for each in self._sessions.values() for i in each))

    @property
    def paused(self) -> str | None:
        """The reason why the service delays a process of the recipe. None if no process has
        reported a delay recently."""
        since = self._clock() - _VOUCHED_SECONDS
        return next((why for why, seen in self._paused.values() if seen > since), None)

    def _look(self, entry: "os.DirEntry[str]") -> None:
        try:
            status = entry.stat(follow_symlinks=False)
            stamp = (status.st_mtime_ns, status.st_size)
            earlier = self._known.get(entry.name)
            if earlier is not None and earlier[0] == stamp:
                return
            with open(entry.path, "rb") as file:
                process = codec.read(_ProcessUsage, json.load(file), entry.path)
            usage, paused = Usage(process.models, process.unknown), process.paused
        except (OSError, ValueError, RecursionError, StoreError):
            return
        self._known[entry.name] = (stamp, usage)
        self._sessions[entry.name] = process.sessions
        self._paused.pop(entry.name, None)
        if paused is not None:
            self._paused[entry.name] = (paused, self._clock())
