"""The circuit breaker stops a sweep whose first runs all fail for one cause, before it has cost
much. Pure: it reads nothing itself."""

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from sweeper.sweep.event import Outcome

NEEDED = 3
"""The number of first runs that must fail alike to stop the sweep."""

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{12,}\b|\d+(?:[.,:]\d+)*(?:e[+-]?\d+)?")
_PATH = re.compile(r"(?:[A-Za-z]+:/)?(?:/[^\s/'\":,;()<>]+)+/?")


class Failure(NamedTuple):
    """Why a run failed: two runs failed alike when these are equal but for numbers and paths."""

    reason: str | None
    code: int | None
    line: str

    def alike(self, other: "Failure") -> bool:
        """Returns whether both failures seem to have the same cause."""
        return (self.reason, self.code, normalised(self.line)) == (
            other.reason,
            other.code,
            normalised(other.line),
        )


class CircuitBreaker:
    """Remembers how the first runs of a launch ended, and their first attempts. A failure of None
    stands for an end without one."""

    def __init__(self) -> None:
        self._runs: dict[str, Failure | None] = {}
        self._attempts: dict[str, Failure | None] = {}

    def attempt_ended(self, run: str, failure: Failure | None) -> None:
        """Note the end of an attempt of a run that may have others. A success clears the run's
        earlier failure."""
        if failure is None:
            self._attempts[run] = None
        elif len(self._attempts) < NEEDED:
            self._attempts.setdefault(run, failure)

    def run_ended(self, run: str, failure: Failure | None) -> None:
        """Note the end of a run that has no attempts left."""
        if len(self._runs) < NEEDED:
            self._runs.setdefault(run, failure)

    def suspects(self) -> Collection[str]:
        """The runs that will stop the sweep unless a retry of theirs succeeds: their attempts were
        the first to end, and all failed alike."""
        if len(self._attempts) < NEEDED or _common(self._attempts.values()) is None:
            return ()
        return self._attempts.keys()

    def tripped(self, runs: int) -> Failure | None:
        """The common failure, once enough of the sweep's `runs` runs have ended by it; else
        None."""
        return None if len(self._runs) < min(NEEDED, runs) else _common(self._runs.values())

    def reset(self) -> None:
        """Forget everything: a user has asked for another try."""
        self._runs.clear()
        self._attempts.clear()


def _common(failures: Iterable[Failure | None]) -> Failure | None:
    """The last of failures that are all alike; None where one is not."""
    last: Failure | None = None
    for failure in failures:
        if failure is None or (last is not None and not failure.alike(last)):
            return None
        last = failure
    return last


def normalised(line: str) -> str:
    """Strip a line of a log of what differs from run to run: numbers, hashes, folders."""
    return _NUMBER.sub("#", _PATH.sub("/", line)).strip()


def failure_of(outcome: Outcome, line: str) -> Failure:
    """Make a `Failure` of a failed attempt's outcome, and of the last line that it printed, which
    counts where the outcome gives no details."""
    return Failure(outcome.reason, outcome.code, outcome.detail or line)
