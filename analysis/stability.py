"""Runs that went wrong without failing: diverged, or worse at the end than they had been. Pure.

A run *diverged* when the last value of its metric is NaN or infinite. It is *unstable* when it is
finite there but lost what it had learned: it gave back more than half of its own gain, from its
first value to its best, where that gain is at least a tenth of the largest gain of any run; or it
ended worse than it began by more than that tenth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.analysis.frames import RunData, SweepData
from sweeper.analysis.inference import wilson
from sweeper.analysis.settings import level

__all__ = ["RULE", "Rate", "Stability", "Unstable", "assess"]

RULE = (
    "Diverged: the last value of the metric is NaN or infinite. Unstable: it gave back more than "
    "half of its gain from the first value to the best, or ended worse than it began (by more than "
    "a tenth of the largest gain of any run). A rate takes each run for a trial of its own, though "
    "seeds of one cell often go wrong together: then its interval is too narrow."
)
_POINTS = 3
_SHARE = 0.1


@dataclass(frozen=True)
class Unstable:
    """A run that lost what it had: the metric when it began, at its best and at its end."""

    run: str
    cell: str
    first: float
    best: float
    last: float


@dataclass(frozen=True)
class Rate:
    """Of the `trials` runs with a result that have `value` of a setting, `count` diverged or were
    unstable; `low` and `high` are Wilson's 95 % interval of the share."""

    axis: str
    value: str
    count: int
    trials: int
    low: float
    high: float


@dataclass(frozen=True)
class Stability:
    """`diverged` and `unstable` runs, and how often they occur at each value of each axis."""

    diverged: tuple[RunData, ...]
    unstable: tuple[Unstable, ...]
    rates: tuple[Rate, ...]


def assess(data: SweepData, keys: Sequence[str]) -> Stability:
    """Which runs went wrong, and where in the grid; `keys` are the settings that differ."""
    diverged = tuple(run for run in data.runs if run.diverged)
    unstable = _unstable(data)
    ids = {run.name: run.id for run in data.runs}
    wrong = {run.id for run in diverged} | {ids[entry.run] for entry in unstable}
    rates = _rates(data, keys, wrong) if wrong else ()
    return Stability(diverged, unstable, rates)


def _unstable(data: SweepData) -> tuple[Unstable, ...]:
    if data.metric is None:
        return ()
    sign = data.metric.sign
    ends: list[tuple[RunData, float, float, float]] = []
    for run in data.runs:
        points = run.curves.get(data.metric.name)
        if points is None or run.diverged:
            continue
        values = points.finite.values
        if len(values) >= _POINTS:
            top = float(values[int(np.argmin(sign * values))])
            ends.append((run, float(values[0]), top, float(values[-1])))
    gains = [sign * (first / 2 - top / 2) for _, first, top, _ in ends]  # halves: no overflow
    enough = _SHARE * max(gains, default=0.0)
    if enough <= 0:
        return ()
    found: list[Unstable] = []
    for (run, first, top, end), gain in zip(ends, gains, strict=True):
        lost = sign * (end / 2 - top / 2)
        if (gain >= enough and lost > gain / 2) or sign * (end / 2 - first / 2) > enough:
            found.append(Unstable(run.name, run.cell, first, top, end))
    return tuple(found)


def _rates(data: SweepData, keys: Sequence[str], wrong: set[str]) -> tuple[Rate, ...]:
    found: list[Rate] = []
    tried = [run for run in data.runs if run.value is not None or run.diverged]
    for key in keys:
        levels: dict[str, list[bool]] = {}
        for run in tried:
            levels.setdefault(level(run.config, key), []).append(run.id in wrong)
        if 1 < len(levels) <= 24:
            for value, marks in levels.items():
                low, high = wilson(sum(marks), len(marks))
                found.append(Rate(key, value, sum(marks), len(marks), max(low, 0.0), high))
    return tuple(found)
