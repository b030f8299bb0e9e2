"""Measures what a step's time is spent on, for metrics such as `time/sampling`."""

import time
from collections.abc import Generator
from contextlib import contextmanager


class Stopwatch:
    """The sum of the seconds that a recipe waits for each kind of work.

    Requests are pipelined, so a kind's seconds are those in which nothing else could go on, not
    the time that the service works on it. Within a span that is timed, inner spans do not count:
    an evaluation's sampling belongs to the evaluation.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._running = False

    @contextmanager
    def span(self, kind: str) -> Generator[None]:
        """Add the seconds of the block to a kind of work."""
        if self._running:
            yield
            return
        self._running, start = True, time.monotonic()
        try:
            yield
        finally:
            self._running = False
            self._seconds[kind] = self._seconds.get(kind, 0.0) + time.monotonic() - start

    def metrics(self) -> dict[str, float]:
        """Return the seconds since the last call as metrics, and start again from zero."""
        seconds, self._seconds = self._seconds, {}
        return {f"time/{kind}": value for kind, value in seconds.items()}
