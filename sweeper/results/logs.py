"""What runs print, of many at once: new lines, for one look at the stamp of each log.

For a program that shows many runs as they go. A log lies in the store, or in parts there while it
grows elsewhere; an offset means the same in both.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

from sweeper.errors import NotFound
from sweeper.results.follow import Growing
from sweeper.results.runs import RecordedRun, SweepRun
from sweeper.results.tables.sources import Files

__all__ = ["Line", "Tail", "files_of"]

_ONCE = 1 << 20
"""Bytes taken of one log before the others have their turn."""

_LONGEST = 1 << 16
"""Bytes that a line has at most: what goes on is another one."""


class Line(NamedTuple):
    """A line as it was printed, its end left out."""

    run: RecordedRun
    attempt: int
    data: bytes


def files_of(run: RecordedRun) -> tuple[str, str]:
    """The root and, from there, the folder below which a run's logs lie: a look at that serves all
    runs of a sweep."""
    return run.root, f"{run.sweep}/attempts" if isinstance(run, SweepRun) else ""


class Tail:
    """Follows what a run prints: the log of one attempt, then that of the next.

    Begins with the newest attempt that has printed something. `read` takes what is there to be
    read; `finish` gives what stands on the last line once nothing more is added to it.
    """

    def __init__(self, run: RecordedRun, files: Files) -> None:
        self.run = run
        self.attempt = max(1, run.attempts)
        self._rest = b""
        self._grew = 0.0
        for attempt in range(run.attempts, 0, -1):
            source = files.source(self._path(attempt))
            if source is not None and source.stamp.size:
                self.attempt = attempt
                break
        self._file = Growing(run.store, self._path(self.attempt), lines=False)

    @property
    def offset(self) -> int:
        """How many bytes of the log have been read."""
        return self._file.offset

    @property
    def silent(self) -> bool:
        """Whether nothing of this attempt has been seen."""
        return self.offset == 0

    @property
    def pending(self) -> bool:
        """Whether the last line has no end yet."""
        return bool(self._rest)

    def _path(self, attempt: int) -> str:
        if isinstance(self.run, SweepRun):
            return self.run.layout.log(self.run.id, attempt)
        return f"{self.run.folder}/logs.log".lstrip("/")  # tinker-cookbook's

    def next(self) -> None:
        """Go on to the next attempt."""
        self.attempt, self._rest = self.attempt + 1, b""
        self._file.open(self._path(self.attempt))

    def back(self, files: Files, count: int) -> None:
        """Begin `count` lines before the end of what is there now."""
        source = files.source(self._path(self.attempt))
        if source is None:
            return None
        size, start = source.stamp.size, source.stamp.size
        self._file.seek(size)
        reach = 1 << 14
        while count and start:
            start = max(0, size - reach)
            try:
                data = source.read(start)[1][: size - start]
            except NotFound:  # the parts have become one file
                return self.back(Files(files.store, files.prefix), count)
            at = len(data) - 1  # an end there begins no line
            for _ in range(count):
                at = data.rfind(b"\n", 0, max(at, 0))
                if at < 0:
                    break
            self._file.seek(start + at + 1)
            if at >= 0:
                return None
            reach *= 8
        return None

    def read(self, files: Files) -> Iterator[Line]:
        """The lines that were added since, a megabyte at most; the last one only when it is
        whole."""
        data = self._take(files)
        if not data:
            return
        self._grew = time.monotonic()
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield Line(self.run, self.attempt, line)
        if len(rest) > _LONGEST:
            yield Line(self.run, self.attempt, rest)
            rest = b""
        self._rest = rest

    def stands(self, seconds: float) -> bool:
        """Whether nothing has been added for so long."""
        return time.monotonic() - self._grew > seconds

    def finish(self) -> Iterator[Line]:
        """What stands on the last line and was not ended."""
        if self._rest:
            yield Line(self.run, self.attempt, self._rest)
        self._rest = b""

    def _take(self, files: Files) -> bytes:
        added = self._file.read(files.source, _ONCE)
        if added is None:
            return b""
        if added.again:
            self._rest = b""
        return added.data
