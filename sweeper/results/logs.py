"""Follows the output of many runs live. Only new lines are read, and one stamp is checked per
log."""

import time
from collections.abc import Iterator
from typing import NamedTuple

from sweeper.errors import NotFound
from sweeper.metrics.follow import Growing
from sweeper.metrics.sources import Files
from sweeper.results.runs import RecordedRun
from sweeper.results.sweeps import SweepRun

_ONCE = 1 << 20
"""The maximum number of bytes to read of one log before reading the next log."""

_LONGEST = 1 << 16
"""An unfinished line of more bytes than this is divided."""


class Line(NamedTuple):
    """A printed line, without its line end."""

    run: RecordedRun
    attempt: int
    data: bytes


def files_of(run: RecordedRun) -> tuple[str, str]:
    """Return the run's root, and the relative path of the folder of attempts ("" for a run outside
    sweeps). The runs of a sweep have the same folder, so callers can list it once for all runs."""
    return run.root, f"{run.sweep}/attempts" if isinstance(run, SweepRun) else ""


class Tail:
    """A follower of a run's output. It begins with the newest attempt that printed something.
    `next` opens the log of the next attempt. `read` returns new lines. After the end of a log,
    `finish` returns an unfinished last line."""

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
        """The read position in the log, in bytes."""
        return self._file.offset

    @property
    def is_empty(self) -> bool:
        """Whether the read position is at the beginning of the attempt's log."""
        return self.offset == 0

    @property
    def pending(self) -> bool:
        """Whether the last line is unfinished."""
        return bool(self._rest)

    def _path(self, attempt: int) -> str:
        if isinstance(self.run, SweepRun):
            return self.run.sweep_folder.log(self.run.id, attempt)
        return f"{self.run.folder}/logs.log".lstrip("/")  # tinker-cookbook's log

    def next(self) -> None:
        """Continue with the next attempt."""
        self.attempt, self._rest = self.attempt + 1, b""
        self._file.open(self._path(self.attempt))

    def back(self, files: Files, count: int) -> None:
        """Move the read position to the beginning of the last `count` lines."""
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
            except NotFound:  # the parts were joined to one file
                return self.back(Files(files.store, files.prefix), count)
            at = len(data) - 1  # the end of the parts may not be the start of a line
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
        """Yield the lines added since the last call, at most a megabyte. An unfinished last line
        waits for a later call."""
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

    def is_idle_for(self, seconds: float) -> bool:
        """Return whether `read` has found nothing new in the last `seconds` seconds."""
        return time.monotonic() - self._grew > seconds

    def finish(self) -> Iterator[Line]:
        """Yield the unfinished last line, if there is one."""
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
