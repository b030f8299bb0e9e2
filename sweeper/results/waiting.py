"""Read the state of a sweep, and wait until it is no longer running."""

import math
import time

from sweeper.results.registry import Registry
from sweeper.results.status import Status, read_status
from sweeper.results.sweeps import Sweep
from sweeper.store.opening import default_root

_WAIT_SECONDS = 1.0
"""The interval between two polls of `wait`. Polling takes at most one part in `_SHARE` of the
time."""
_SHARE = 20


def wait(sweep: str, *, root: str | None = None, timeout: float = math.inf) -> Status:
    """Wait at most `timeout` seconds until a sweep is no longer running, and return its status.
    `finished` is False if the time is up, or if its launcher ended before all runs had. Raises
    `NotFound`, `StoreError`."""
    deadline = time.monotonic() + timeout
    while True:
        begun = time.monotonic()
        current = status(sweep, root=root)
        rest = deadline - time.monotonic()
        if not current.at_work or rest <= 0:
            return current
        pause = max(_WAIT_SECONDS, _SHARE * (time.monotonic() - begun))
        time.sleep(max(0.0, min(pause, rest)))


async def wait_async(sweep: str, *, root: str | None = None, timeout: float = math.inf) -> Status:
    """The same for asyncio: `await sweeper.wait_async(...)`. Cancelling the wait does not affect
    the sweep."""
    import asyncio

    deadline = time.monotonic() + timeout
    while True:
        begun = time.monotonic()
        current = await asyncio.to_thread(status, sweep, root=root)
        left = deadline - time.monotonic()
        if not current.at_work or left <= 0:
            return current
        pause = max(_WAIT_SECONDS, _SHARE * (time.monotonic() - begun))
        await asyncio.sleep(max(0.0, min(pause, left)))


def status(sweep: str, *, root: str | None = None) -> Status:
    """Read the status of a sweep. Raises `NotFound`, `StoreError`."""
    return read_status(find_sweep(sweep, root))


def find_sweep(name: str, root: str | None) -> Sweep:
    """Find the sweep of that name below a root. Raises `NotFound`, `StoreError`."""
    return Registry(root or default_root()).sweep(name)
