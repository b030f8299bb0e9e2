"""How long one leaves alone what has not answered, or has refused, and what has just answered."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from sweeper.errors import Unreachable

__all__ = ["Backoff", "Freshness"]

_FRESH_SECONDS, _FRESH_SHARE = 1.0, 20.0


class Backoff:
    """What has failed is left alone for a while, twice as long each time: from `first` to `most`
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
        """Raises what was raised last, as long as it is too early for another try."""
        if self._failure is not None and self._clock() < self._until:
            raise self._failure.with_traceback(None)  # else it grows with every call

    @contextmanager
    def tried(self, *failures: type[Unreachable]) -> Generator[None]:
        """A try in a block: it has failed if one of these is raised in it, which goes on."""
        try:
            yield
        except failures as error:
            self.failed(error)
            raise
        self.succeeded()

    def failed(self, failure: Unreachable) -> None:
        """Another try has failed. Tries at the same time that fail together count as one."""
        self._failure = failure
        if self._clock() < self._until:
            return
        self._until = self._clock() + self._next
        self._next = min(self._most, 2 * self._next)

    def succeeded(self) -> None:
        """A try has not failed."""
        self._failure, self._next, self._until = None, self._first, 0.0


class Freshness:
    """Whether a listing is young enough to be used again: for a second, and for twenty times as
    long as it took."""

    def __init__(self) -> None:
        self._until = float("-inf")

    def is_over(self) -> bool:
        """Whether the listing is too old, or there is none yet."""
        return time.monotonic() > self._until

    def end(self) -> None:
        """What was listed has changed."""
        self._until = float("-inf")

    @contextmanager
    def renewed(self) -> Generator[None]:
        """A new listing is made in the block."""
        begun = time.monotonic()
        yield
        now = time.monotonic()
        self._until = now + max(_FRESH_SECONDS, _FRESH_SHARE * (now - begun))
