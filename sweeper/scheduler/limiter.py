"""Limits how many jobs are at work at once. It has no clock of its own, and reads nothing.

While the service holds runs back (a worker says that its recipe is paused, or a run failed by its
quota), or the machine has no process to give to another, the launcher lowers its own limit, at most
once in a while, to half of what is at work, and starts nothing above it; what runs is left alone.
When none has been held back for a while, the limit grows by one, and so on until it is
`max_parallel` again (additive increase, multiplicative decrease, as in Chiu and Jain 1989,
"Analysis of the increase and decrease algorithms for congestion avoidance in computer networks").
"""

__all__ = ["Limiter"]

_WINDOW_SECONDS = 30.0


class Limiter:
    """The limit on jobs at work, between 1 and `most`; `why` is what it was lowered for last, a key
    of `labels.LOWERED`. Times are in monotonic seconds."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = most
        self.why = "service"
        self._cut_at: float | None = None
        self._moved_at = 0.0

    def see(self, now: float, busy: int, held_back: str | None) -> None:
        """Adapt the limit. `busy` jobs are at work; `held_back` is what paused or ended some of
        them since the last look, the service or the machine, and None if nothing did."""
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
