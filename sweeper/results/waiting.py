"""Polls something that changes: the status of a sweep until the sweep is no longer running, or a
log."""

import math
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from sweeper.errors import StoreError
from sweeper.results.registry import Registry
from sweeper.results.status import Status, read_status
from sweeper.results.sweeps import Sweep
from sweeper.store.opening import default_root

_SECONDS = 1.0
"""The default pause between two polls, in seconds, and the shortest pause after a failed poll."""
SHARE = 20
"""The pause after a slow poll is at least this many times the duration of the poll."""

T = TypeVar("T")


class Live(Generic[T]):
    """A loop that calls `read`, shows the result, and pauses. The loop ends when `ended` returns
    True for a result. `status --follow`, `logs --follow`, the view of `watch`, and `wait` use it.

    `pause` returns the seconds until the next poll. After a slow poll, the pause is at least
    `share` times the duration of the poll. If a store no longer answers, the error is reported once
    with `tell`, and polls continue. Without `tell`, or at the first poll, the error is raised.
    """

    def __init__(
        self,
        read: Callable[[], T],
        *,
        ended: Callable[[T], bool] = lambda _: False,
        show: Callable[[T], object] | None = None,
        pause: Callable[[T], float] = lambda _: _SECONDS,
        share: float = 0.0,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        self._read, self._ended, self._show = read, ended, show
        self._pause, self._share, self._tell = pause, share, tell
        self._state: list[T] = []  # at most one result
        self._trouble = ""
        self.ended, self.pause = False, _SECONDS

    def poll(self) -> T:
        """Read once and show the result. Return the last result that could be read."""
        begun = time.monotonic()
        try:
            state = self._read()
            if self._show is not None:
                self._show(state)
            self.ended = self._ended(state)
        except StoreError as error:
            if not self._state or self._tell is None:
                raise
            state, trouble, shortest = self._state[0], str(error), _SECONDS
            if trouble != self._trouble:
                self._tell(f"{trouble}; trying again")
        else:
            self._state, trouble, shortest = [state], "", 0.0
        self._trouble = trouble
        seconds = time.monotonic() - begun
        self.pause = max(shortest, self._pause(state), self._share * seconds)
        return state

    def run(self, timeout: float = math.inf) -> T:
        """Poll until `ended` is true, or for `timeout` seconds. Return the last result."""
        deadline = time.monotonic() + timeout
        state = self.poll()
        while not self.ended and (remaining := deadline - time.monotonic()) > 0:
            time.sleep(min(self.pause, remaining))
            state = self.poll()
        return state


def wait(sweep: str, *, root: str | None = None, timeout: float = math.inf) -> Status:
    """Wait at most `timeout` seconds until a sweep is no longer running, and return the sweep's
    status. Its field `finished` tells whether all runs have ended. Raises `NotFound` if there is no
    such sweep, `StoreError` if the sweep cannot be read."""
    return _live_status(sweep, root).run(timeout)


async def wait_async(sweep: str, *, root: str | None = None, timeout: float = math.inf) -> Status:
    """Wait like `wait`, for asyncio: `await sweeper.wait_async(...)`. Cancelling the wait does not
    affect the sweep."""
    import asyncio

    deadline = time.monotonic() + timeout
    live = _live_status(sweep, root)
    current = await asyncio.to_thread(live.poll)
    while not live.ended and (remaining := deadline - time.monotonic()) > 0:
        await asyncio.sleep(min(live.pause, remaining))
        current = await asyncio.to_thread(live.poll)
    return current


def _live_status(sweep: str, root: str | None) -> Live[Status]:
    return Live(
        lambda: status(sweep, root=root), ended=lambda status: not status.at_work, share=SHARE
    )


def status(sweep: str, *, root: str | None = None) -> Status:
    """Read the status of a sweep. Raises `NotFound`, `StoreError`."""
    return read_status(Registry(root or default_root(), snapshot=True).sweep(sweep))


def find_sweep(name: str, root: str | None) -> Sweep:
    """Return the sweep called `name` in the store `root` (None: the default store). Raises
    `NotFound` if there is no such sweep, `StoreError` if the sweep cannot be read."""
    return Registry(root or default_root()).sweep(name)
