"""How fast a launcher goes: when a run is started again, and how many run at once. No clock of its
own, no disk.

After an attempt has ended, the next waits

    base * 2 ** (k - 1) * (0.5 + u),  at most `most`

seconds, where k counts the attempts of the run that ended so, and u, in [0, 1), follows from the
run and the attempt: runs that failed together do not come back together, and a launcher that is
started again comes to the same number. A first preemption or loss waits for nothing, unless it was
for want of room.

While the service holds runs back (a worker says that its recipe is paused, or a run failed by its
quota), or the machine has no process to give to another, the launcher lowers its own limit, at most
once in a while, to half of what is at work, and starts nothing above it; what runs is left alone.
When none has been held back for a while, the limit grows by one, and so on until it is
`max_parallel` again (additive increase, multiplicative decrease, as in Chiu and Jain 1989,
"Analysis of the increase and decrease algorithms for congestion avoidance in computer networks").
"""

import hashlib
from typing import NamedTuple

from sweeper.states import Event
from sweeper.worker.outcome import LIMIT

__all__ = ["EXCUSED", "LOWERED", "SERVICE_TRIES", "Limiter", "backoff"]

EXCUSED = {"quota": "of the quota", "service": "its engine went away"}
"""Reasons of failures that are the service's, and count for no retry; and why, for people."""
SERVICE_TRIES = 20
"""How often a run is started again after such a failure, before it counts as failed."""

_WINDOW_SECONDS = 30.0


class _Wait(NamedTuple):
    base: float
    most: float


_WAITS = {
    Event.FAILED: _Wait(5.0, 300.0),
    Event.PREEMPTED: _Wait(2.0, 120.0),
    Event.LOST: _Wait(2.0, 120.0),
}
_QUOTA = _Wait(30.0, 900.0)
_ONCE = 30  # doublings: more would only make the number overflow


def backoff(event: Event | None, reason: str | None, ends: int, run: str, attempt: int) -> float:
    """Seconds from the end of `attempt`, which ended by `event` for `reason`, to the next. `ends`
    is how many attempts of the run have ended by that event, this one included."""
    wait = _QUOTA if reason == "quota" else _WAITS.get(event) if event is not None else None
    if wait is None:
        return 0.0
    if event is not Event.FAILED and ends <= 1 and reason != LIMIT:
        return 0.0
    digest = hashlib.sha256(f"{run}.{attempt}".encode()).digest()
    spread = 0.5 + int.from_bytes(digest[:4]) / 2**32
    return min(wait.most, wait.base * 2.0 ** min(max(ends, 1) - 1, _ONCE) * spread)


LOWERED = {
    "service": "the service holds runs back",
    "machine": "this machine has no room for more",
}
"""Why a limit is lowered, by the word that is published."""


class Limiter:
    """The limit on jobs at work, between 1 and `most`; `why` is what it was lowered for last (see
    `LOWERED`). Times are a launcher's own clock's."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = most
        self.why = "service"
        self._cut_at: float | None = None
        self._moved_at = 0.0

    def see(self, now: float, busy: int, held_back: str | None) -> None:
        """Take note of how things are: `busy` jobs at work, some of them `held_back` by the service
        or the machine, or ended by them since the last time."""
        if held_back is not None:
            self.why = held_back
            if self._cut_at is None or now - self._cut_at >= _WINDOW_SECONDS:
                self.limit = max(1, min(self.limit, busy) // 2)
                self._cut_at = now
            self._moved_at = now
        elif self.limit < self._most and now - self._moved_at >= _WINDOW_SECONDS:
            self.limit += 1
            self._moved_at = now

    @property
    def lowered(self) -> bool:
        """Whether the limit is below what was asked for."""
        return self.limit < self._most
