"""Backoff for calls that failed or were refused, and the age limit of cached listings."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from sweeper.errors import Unreachable

_FRESH_SECONDS, _FRESH_SHARE = 1.0, 20.0


class Backoff:
    """Exponential backoff: the wait after a failure doubles each time, from `first` to `most`
    seconds."""

    def __init__(
        self, first: float, most: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._first = self._next = first
        self._most = most
        self._clock = clock
        self._until = 0.0
        self._failure: Unreachable | None = None

    def check(self) -> None:
        """Raise the last failure again if it is too early for another try."""
        if self._failure is not None and self._clock() < self._until:
            raise self._failure.with_traceback(None)  # else the traceback grows with every call

    @contextmanager
    def tried(self, *failures: type[Unreachable]) -> Generator[None]:
        """Wrap a try. It has failed if the block raises one of `failures`, which is re-raised."""
        try:
            yield
        except failures as error:
            self.failed(error)
            raise
        self.succeeded()

    def failed(self, failure: Unreachable) -> None:
        """Record a failed try. Simultaneous failures count as one."""
        self._failure = failure
        if self._clock() < self._until:
            return
        self._until = self._clock() + self._next
        self._next = min(self._most, 2 * self._next)

    def succeeded(self) -> None:
        """Record a successful try."""
        self._failure, self._next, self._until = None, self._first, 0.0


class Freshness:
    """Tells whether a cached listing may be used again: for one second or twenty times as long as
    it took to make, whichever is longer."""

    def __init__(self) -> None:
        self._until = float("-inf")

    def is_over(self) -> bool:
        """Return whether the listing is too old or missing."""
        return time.monotonic() > self._until

    def end(self) -> None:
        """Mark the listing as outdated."""
        self._until = float("-inf")

    @contextmanager
    def renewed(self) -> Generator[None]:
        """Wrap the making of a new listing."""
        begun = time.monotonic()
        yield
        now = time.monotonic()
        self._until = now + max(_FRESH_SECONDS, _FRESH_SHARE * (now - begun))
