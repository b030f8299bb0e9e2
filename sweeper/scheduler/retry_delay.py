"""How long a run waits before it is started again. It has no clock of its own, and reads nothing.

After an attempt has ended, the next waits

    base * 2 ** (k - 1) * (0.5 + u),  at most `most`

seconds. k counts the attempts of the run that ended by the same event. u, in [0, 1), is a hash of
the run and the attempt: runs that failed together do not come back together, and a launcher that is
started again computes the same delay. After a first preemption or loss there is no wait, unless it
was for want of room.
"""

import hashlib
from typing import NamedTuple

from sweeper.sweep.states import Event
from sweeper.worker.outcome import LIMIT

EXCUSED = {"quota": "of the quota", "service": "its engine went away"}
"""Reasons of failures that are the service's fault and cost no retry, with words for people."""
SERVICE_TRIES = 20
"""How often a run is started again after such failures, before it counts as failed."""


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
