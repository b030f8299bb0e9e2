"""Detects from a recipe's output that the recipe is paused, which means that it waits for the
service. Signs are the tinker SDK's "is paused" warnings, and reports of HTTP status 429. A pause
is not a failure. Uses only the standard library."""

import os
import threading
import time
from collections.abc import Callable

from sweeper.store.documents import timestamp
from sweeper.sweep.event import Paused

VOUCHED_SECONDS = 90.0
"""Seconds for which a printed line counts as a sign of a pause. The SDK repeats the line every
60 s."""
_LONGEST_LINE = 4096
_MOST = 32
"""The largest number of pauses in a list. If there are more, the longest are listed."""


class Pauses:
    """The pauses of one recipe (the times when it waits for the service). A pause ends when the
    metrics file in `folder` grows, or `VOUCHED_SECONDS` after its last sign. One thread may call
    `feed` while another reads the pauses. `begun` is called when a pause begins."""

    def __init__(
        self,
        folder: str,
        *,
        begun: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._tell = begun
        self._heard = False
        self._clock = clock
        self._lock = threading.Lock()
        self._rest = b""
        self._pause: Paused | None = None
        self._ended: list[Paused] = []
        self._begun = 0.0
        self._until = 0.0
        self._size = 0
        self._before = 0.0

    def feed(self, data: bytes) -> None:
        """Search the recipe's output for signs of a pause."""
        text = self._rest + data
        lines, _, rest = text.replace(b"\r", b"\n").rpartition(b"\n")
        self._rest = rest[-_LONGEST_LINE:]
        if b"paused" not in lines and b"429" not in lines:
            return
        for line in lines.split(b"\n"):
            reason = _pause_reason(line)
            if reason is not None:
                self._saw(reason)

    def hear(self, reason: str | None) -> None:
        """Record the `reason` for which the recipe reports a pause. If `reason` is None, end the
        current pause, but not if only `feed` has found it."""
        if reason is not None:
            self._heard = True
            self._saw(reason)
        elif self._heard:
            self._heard = False
            with self._lock:
                self._settle()
                self._close(self._clock())

    def _saw(self, reason: str) -> None:
        with self._lock:
            self._settle()
            now, is_new = self._clock(), self._pause is None
            if self._pause is None or self._pause.reason != reason:
                self._close(now)
                self._pause, self._begun = Paused(reason, timestamp()), now
            self._until = now + VOUCHED_SECONDS
            self._size = _size(self._folder)
        if is_new:
            self._tell()

    def current(self) -> Paused | None:
        """Return the current pause; None if the recipe is not paused."""
        with self._lock:
            self._settle()
            return self._lasting(self._clock())

    def listed(self) -> list[Paused]:
        """Return the pauses in the order in which they began. If more than `_MOST` pauses have
        ended, the shortest of them are left out."""
        with self._lock:
            self._settle()
            current = self._lasting(self._clock())
            return self._ended + ([current] if current else [])

    def _lasting(self, at: float) -> Paused | None:
        return self._pause and self._pause._replace(for_s=round(at - self._begun, 3))

    def seconds(self) -> float:
        """Return the total duration of all pauses."""
        with self._lock:
            self._settle()
            lasting = self._clock() - self._begun if self._pause else 0.0
            return self._before + lasting

    def _settle(self) -> None:
        if self._pause is None:
            return
        now = self._clock()
        if now >= self._until:
            self._close(self._until)
        elif _size(self._folder) > self._size:
            self._close(now)

    def _close(self, at: float) -> None:
        pause = self._lasting(at)
        if pause is not None:
            self._before += at - self._begun
            self._ended.append(pause)
            if len(self._ended) > _MOST:
                self._ended.remove(min(self._ended, key=lambda ended: ended.for_s))
            self._pause = None


def _size(folder: str) -> int:
    from sweeper.metrics.files import local_metrics  # imported late: most recipes are never paused

    try:
        return os.stat(local_metrics(folder)).st_size
    except OSError:
        return 0


def _pause_reason(line: bytes) -> str | None:
    text = line.lower()
    if b"is paused due to billing" in text:
        return "quota"
    if b" paused" in text and b"reason:" in text:
        return "capacity" if b"capacity" in text.rpartition(b"reason:")[2] else "rate_limit"
    if b"429 too many requests" in text:
        return "rate_limit"
    return None


def is_quota_error(tail: bytes) -> bool:
    """Return whether a failed recipe's last lines of output say that the service refused a request
    because of a rate limit, a quota or missing payment."""
    text = b"\n".join(tail.lower().rstrip().splitlines()[-20:])
    return any(phrase in text for phrase in _QUOTA)


_QUOTA = (
    b"ratelimiterror",
    b"billingerror",
    b"error code: 429",
    b"status code 429",
    b"status_code=429",
    b"status code: 429",
    b"http error 429",
    b"429 client error",
    b"429 too many requests",
    b"too many requests",
    b"insufficient_quota",
    b"quota exceeded",
    b"exceeded your current quota",
    b"paused due to billing status",
    b"rate limit exceeded",
)
