"""Stopping a sweep whose runs all fail for one cause, before it has cost much. Pure."""

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from sweeper.model.event import Outcome

__all__ = ["FIRST", "Breaker", "Failure", "failure_of", "normalised"]

FIRST = 3
"""How many runs have to fail alike, with none that ended otherwise before."""

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{12,}\b|\d+(?:[.,:]\d+)*(?:e[+-]?\d+)?")
_PATH = re.compile(r"(?:[A-Za-z]+:/)?(?:/[^\s/'\":,;()<>]+)+/?")


class Failure(NamedTuple):
    """Why a run failed: two runs failed alike when these are equal but for numbers and paths."""

    reason: str | None
    code: int | None
    line: str

    def alike(self, other: "Failure") -> bool:
        """Whether the two have one cause, as far as can be told."""
        return (self.reason, self.code, normalised(self.line)) == (
            other.reason,
            other.code,
            normalised(other.line),
        )


class Breaker:
    """Sees how the runs of one launch end, in the order in which they do."""

    def __init__(self) -> None:
        self._ends: dict[str, Failure | None] = {}
        self._firsts: dict[str, Failure | None] = {}

    def see_first(self, run: str, failure: Failure | None) -> None:
        """An attempt of a run has ended, and there may be others. None: it did not fail, which
        clears earlier failures of the run."""
        if failure is None:
            self._firsts[run] = None
        elif len(self._firsts) < FIRST:
            self._firsts.setdefault(run, failure)

    def suspects(self) -> Collection[str]:
        """The runs whose attempts, the first to end, all failed alike: as many as it takes to stop
        a sweep, once they have no other left. None otherwise."""
        if len(self._firsts) < FIRST or _cause(self._firsts.values()) is None:
            return ()
        return self._firsts.keys()

    def see(self, run: str, failure: Failure | None) -> None:
        """A run has ended, in this launch. None: it did not fail."""
        if len(self._ends) < FIRST:
            self._ends.setdefault(run, failure)

    def tripped(self, runs: int) -> Failure | None:
        """The common cause, once enough of the `runs` runs have failed by it; None before."""
        return None if len(self._ends) < min(FIRST, runs) else _cause(self._ends.values())

    def reset(self) -> None:
        """Begin again: a user has asked for another try."""
        self._ends.clear()
        self._firsts.clear()


def _cause(ends: Iterable[Failure | None]) -> Failure | None:
    """What all of them failed by, as the last one says it; None where they are not alike."""
    last: Failure | None = None
    for end in ends:
        if end is None or (last is not None and not end.alike(last)):
            return None
        last = end
    return last


def normalised(line: str) -> str:
    """A line of a log without what differs from run to run: numbers, hashes, folders."""
    return _NUMBER.sub("#", _PATH.sub("/", line)).strip()


def failure_of(outcome: Outcome, line: str) -> Failure:
    """From the outcome of a failed attempt, which mostly says why, and the last line that it
    printed."""
    return Failure(outcome.reason, outcome.code, outcome.detail or line)
