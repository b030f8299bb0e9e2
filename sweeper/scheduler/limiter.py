"""Learns how many jobs at once are borne, by the service or by the machine. It reads nothing.

While some jobs are held back (a worker says that its recipe is paused, a run failed by its quota, a
machine has no process to give to another), the limit is lowered to what is at work and is not held
back, but to half of what is at work at least; and once in a window. What runs is left alone, and so
more may be held back for a while, which says nothing new. When nothing has been held back for a
window, and more is wanted, the limit grows: by 1, then by 2, 4 and so on, until something is held
back again. So it stays within one or two of a limit that does not change, and follows one that does
within a few windows. (Chiu and Jain 1989, "Analysis of the increase and
decrease algorithms for congestion avoidance in computer networks", have the rule that the growth
begins with, and why several who follow it come to share alike.)

What was learned may be shared: each launcher keeps the time by its own clock, from when it saw a
change, whoever made it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from sweeper.sweep.quota import Learned

_WINDOW_SECONDS = 15.0
"""Three heartbeats of a worker. After this time the effect of a changed limit is known."""


class Load(NamedTuple):
    """An observation: `busy` running jobs, `paused` of them held back, `wanted` more that could
    start. `refused`: why one was rejected, a key of `labels.LOWERED`."""

    busy: int
    paused: int = 0
    wanted: int = 0
    refused: str | None = None


class Limiter:
    """One launcher's view of how a limit developed. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: Learned | None = None
        self._cut_at = -math.inf
        self._quiet_since = clock()

    def see(self, learned: Learned, load: Load) -> Learned:
        """The state that follows from an observation. It counts once it is passed to the next
        call."""
        now = self._clock()
        self._note(learned, now)
        if load.paused or load.refused is not None:
            self._quiet_since = now
            return _cut(learned, load) if now - self._cut_at >= _WINDOW_SECONDS else learned
        limit = learned.limit
        if limit is None or not load.wanted or load.busy < limit:
            return learned  # nothing is kept from starting by it
        if now - self._quiet_since < _WINDOW_SECONDS:
            return learned
        step = min(learned.step, limit)
        return learned._replace(limit=limit + step, step=2 * step)

    def _note(self, learned: Learned, now: float) -> None:
        """Records when the limit was changed, by any launcher."""
        before, self._seen = self._seen, learned
        if before is None or before == learned:
            return
        self._quiet_since = now
        if before.cuts != learned.cuts:
            self._cut_at = now


def _cut(learned: Learned, load: Load) -> Learned:
    """The state after something was held back. While more jobs run than the limit allows, as
    after a cut, that many are expected to be held back."""
    limit = max(1, load.busy) if learned.limit is None else learned.limit
    half = max(1, min(limit, load.busy) // 2)
    expected = max(0, load.busy - limit)
    if load.refused is not None:
        return Learned(min(limit, half), 1, learned.cuts + 1, load.refused)
    if load.paused <= expected:
        return learned
    return Learned(max(half, min(limit, load.busy) - (load.paused - expected)), 1, learned.cuts + 1)
