"""A clock for expiry that is safe against changes of the system time."""

import time
from collections.abc import Callable


def _running() -> float:
    """Return elapsed seconds, including the time in which the machine sleeps."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class SureClock:
    """Unix seconds by the system clock, but never further ahead than the time that has elapsed
    since this object was made. If the clock is set forward by an hour or a year, nothing expires or
    is deleted. If it is set back, expiry is delayed."""

    def __init__(
        self, wall: Callable[[], float] = time.time, running: Callable[[], float] = _running
    ) -> None:
        self._wall, self._running = wall, running
        self._began = wall() - running()

    def __call__(self) -> float:
        return min(self._wall(), self._began + self._running())
