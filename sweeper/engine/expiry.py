"""What time it is for what ends at a moment: when that moment has surely passed."""

import time
from collections.abc import Callable

__all__ = ["SureClock"]


def _running() -> float:
    """Seconds that pass, also while the machine sleeps."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class SureClock:
    """Unix seconds, as the clock on the wall has them, but never further than what has been seen to
    pass since this was made: a clock that is set forward by an hour or a year ends nothing, and
    nothing is deleted for it. One that is set back delays."""

    def __init__(
        self, wall: Callable[[], float] = time.time, running: Callable[[], float] = _running
    ) -> None:
        self._wall, self._running = wall, running
        self._began = wall() - running()

    def __call__(self) -> float:
        return min(self._wall(), self._began + self._running())
