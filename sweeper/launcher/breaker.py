"""Stopping a sweep whose runs all fail for one cause, before it has cost much. Pure."""

import re
from typing import Any, NamedTuple

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

    def see(self, run: str, failure: Failure | None) -> None:
        """A run has ended, in this launch; None: otherwise than by failing."""
        if len(self._ends) < FIRST:
            self._ends.setdefault(run, failure)

    def tripped(self, runs: int) -> Failure | None:
        """What they all failed by; None unless as many as it takes have. There are `runs` runs."""
        ends = list(self._ends.values())
        if not ends or len(ends) < min(FIRST, runs):
            return None
        first = ends[0]
        if first is None or not all(end is not None and end.alike(first) for end in ends):
            return None
        return ends[-1]

    def reset(self) -> None:
        """Begin again: a user has asked for another try."""
        self._ends.clear()


def normalised(line: str) -> str:
    """A line of a log without what differs from run to run: numbers, hashes, folders."""
    return _NUMBER.sub("#", _PATH.sub("/", line)).strip()


def failure_of(outcome: dict[str, Any], line: str) -> Failure:
    """From the outcome of a failed attempt, which mostly says why, and the last line that it
    printed."""
    return Failure(outcome.get("reason"), outcome.get("code"), outcome.get("detail") or line)
