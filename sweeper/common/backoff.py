"""Backoff: retries that wait longer after each failure. Workers load this module, so it imports
only the standard library."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

from sweeper.common.logs import Log
from sweeper.errors import Unreachable

_LOG = Log(__name__)

T = TypeVar("T")

_FRESH_SECONDS, _FRESH_SHARE = 1.0, 20.0
_DOUBLINGS = 30  # larger exponents would only overflow


def delay(first: float, doublings: int, most: float = float("inf")) -> float:
    """Return `first` seconds, doubled `doublings` times, but at most `most`."""
    return min(most, first * 2.0 ** min(doublings, _DOUBLINGS))


def delays(first: float, most: float = float("inf"), times: int | None = None) -> Iterator[float]:
    """Yield the seconds to wait between retries: `first`, doubled after each retry up to `most`.
    Yield `times` waits; infinitely many if `times` is None."""
    numbers = count() if times is None else iter(range(times))
    return (delay(first, number, most) for number in numbers)


def spread(waits: Iterable[float]) -> Iterator[float]:
    """Yield each wait, reduced by a random share of up to half. Processes that failed at the same
    time retry at different times."""
    import random

    return (wait * random.uniform(0.5, 1.0) for wait in waits)  # noqa: S311 - not for secrets


def retried(
    action: Callable[[], T],
    waits: Iterable[float],
    passing: Callable[[Exception], bool],
    *,
    at_least: Callable[[Exception], float] = lambda _: 0.0,
    note: Callable[[Exception, float], None] | None = None,
    sleep: Callable[[float], None] | None = None,
) -> T:
    """Return the result of `action`. If `passing` returns True for an error, wait and try again.
    Each wait is the next item of `waits`, but at least `at_least(error)` seconds. Other errors, and
    the error after the last wait, are raised. `note` is called before each wait, with the error and
    the seconds."""
    for wait in waits:
        try:
            return action()
        except Exception as error:
            if not passing(error):
                raise
            pause = max(wait, at_least(error))
            _LOG.info("trying again in %.1f s: %s", pause, error)
            if note is not None:
                note(error, pause)
        (sleep or time.sleep)(pause)
    return action()


class Backoff:
    """Exponential backoff: waits after failures. The first wait takes `first` seconds. Each further
    wait takes twice as long, but at most `most` seconds."""

    def __init__(
        self, first: float, most: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._first = self._next = first
        self._most = most
        self._clock = clock
        self._until = 0.0
        self._failure: Unreachable | None = None

    def check(self) -> None:
        """Raise the last failure again if the wait after this failure has not ended."""
        if self._failure is not None and self._clock() < self._until:
            # Otherwise the traceback would grow with every call.
            raise self._failure.with_traceback(None)

    @contextmanager
    def tried(self, *failures: type[Unreachable]) -> Generator[None]:
        """Record whether the block succeeds. An error of a type in `failures` counts as a failure,
        and is raised again."""
        try:
            yield
        except failures as error:
            self.failed(error)
            raise
        self.succeeded()

    def failed(self, failure: Unreachable) -> None:
        """Record a failure, and begin a wait. A failure during a wait does not prolong the wait."""
        self._failure = failure
        if self._clock() < self._until:
            return
        _LOG.info("next try in %g s at the earliest: %s", self._next, failure)
        self._until = self._clock() + self._next
        self._next = min(self._most, 2 * self._next)

    def succeeded(self) -> None:
        """Record a success. The next wait takes `first` seconds again."""
        self._failure, self._next, self._until = None, self._first, 0.0


class Freshness:
    """The lifetime of a cached listing. If it took T seconds to make the listing, it is used for
    20 T seconds, and for at least one second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = float("-inf")

    def is_over(self) -> bool:
        """Return whether the listing is outdated or missing."""
        return self._clock() > self._until

    def end(self) -> None:
        """Mark the listing as outdated."""
        self._until = float("-inf")

    @contextmanager
    def renewed(self) -> Generator[None]:
        """Measure how long the block takes to make a new listing. Then begin a new lifetime."""
        begun = self._clock()
        yield
        now = self._clock()
        self._until = now + max(_FRESH_SECONDS, _FRESH_SHARE * (now - begun))
