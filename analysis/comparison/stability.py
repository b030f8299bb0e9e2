"""Finds runs that went wrong without failing: they diverged (their last value is NaN or infinite),
or are unstable. Pure."""

# A run is *unstable* if its last value is finite but it lost what it had learned. Either it lost
# more than half of its gain from the first value to the best, if that gain is at least a tenth of
# the largest gain of any run; or it ended worse than it began by more than that tenth.
# Both must exceed the noise of single recorded values, for all runs and all their values together
# (Bonferroni), because the best of many noisy values is always better than the last. That noise is
# the larger of two: between the seeds of a cell at the same step (the median of the cells), and the
# scatter of a run's values about a straight line through their neighbours (second differences,
# their median).

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.analysis.reading.series import Floats
from sweeper.analysis.reading.settings import level
from sweeper.analysis.statistics.distributions import student_quantile
from sweeper.analysis.statistics.inference import CONFIDENCE, wilson

RULE = (
    "Diverged: the last value of the metric is NaN or infinite. Unstable: the run lost more than "
    "half of its gain from the first value to the best, or ended worse than it began (by more than "
    "a tenth of the largest gain of any run), beyond the noise of single values. Rates count runs "
    "as independent. If seeds of one cell go wrong together, their intervals are too narrow."
)
_POINTS = 3
_SHARE = 0.1
_MANY = 8
"""From this number of values on, the scatter of the run itself is measured."""
_SPREAD = 1.4826 / 6**0.5
"""The factor from the median of absolute second differences to a standard deviation."""
_EFFICIENCY = 0.4
"""The degrees of freedom that each value contributes to a median."""


@dataclass(frozen=True)
class Unstable:
    """A run whose last value of the metric is significantly worse than its best value. `worse` is
    set if the last value is also significantly worse than the first."""

    run: str
    cell: str
    first: float
    best: float
    last: float
    worse: bool = False


@dataclass(frozen=True)
class Rate:
    """The fraction of diverged or unstable runs at one `value` of a setting: `count` of the
    `trials` runs with a result. Wilson's 95 % interval of the fraction is from `low` to `high`."""

    axis: str
    value: str
    count: int
    trials: int
    low: float
    high: float


@dataclass(frozen=True)
class Stability:
    """The diverged and the unstable runs of a sweep, and the fraction of these runs at each value
    of each axis."""

    diverged: tuple[RunData, ...]
    unstable: tuple[Unstable, ...]
    rates: tuple[Rate, ...]


def assess(data: SweepData, keys: Sequence[str]) -> Stability:
    """Find the diverged and the unstable runs, and their fraction at each value of the settings
    `keys`."""
    diverged = tuple(run for run in data.runs if run.diverged)
    unstable = _unstable(data)
    ids = {run.name: run.id for run in data.runs}
    wrong = {run.id for run in diverged} | {ids[entry.run] for entry in unstable}
    rates = _rates(data, keys, wrong) if wrong else ()
    return Stability(diverged, unstable, rates)


@dataclass(frozen=True)
class _Course:
    """The values of the metric over the steps of a run, with a sign so that smaller is better."""

    run: RunData
    values: Floats

    @cached_property
    def lasting(self) -> Floats:
        """The running median of three values, in which single outliers have no effect. With fewer
        than `_MANY` values, the values themselves."""
        if len(self.values) < _MANY:
            return self.values
        return np.median(np.lib.stride_tricks.sliding_window_view(self.values, 3), axis=1)

    @property
    def gain(self) -> float:
        """Half of the improvement from the first value to the best. (The full improvement may be
        too large for a float.)"""
        return float(self.lasting[0] / 2 - self.lasting.min() / 2)

    @property
    def lost(self) -> float:
        return float(self.lasting[-1] / 2 - self.lasting.min() / 2)

    @property
    def fallen(self) -> float:
        return float(self.lasting[-1] / 2 - self.lasting[0] / 2)


def _unstable(data: SweepData) -> tuple[Unstable, ...]:
    if data.metric is None:
        return ()
    sign = data.metric.sign
    courses: list[_Course] = []
    for run in data.runs:
        points = run.curves.get(data.metric.name)
        if points is not None and not run.diverged and len(points.finite.values) >= _POINTS:
            courses.append(_Course(run, sign * points.finite.values))
    enough = _SHARE * max((course.gain for course in courses), default=0.0)
    if enough <= 0:
        return ()
    shared = _between_seeds(courses), _about_a_line(courses)
    unstable: list[Unstable] = []
    for course in courses:
        worse = course.fallen > enough
        if not worse and not (course.gain >= enough and course.lost > course.gain / 2):
            continue
        beyond = _beyond(course, shared, len(courses))
        if (worse and course.fallen > beyond) or (not worse and course.lost > beyond):
            first, last = (float(sign * course.values[at]) for at in (0, -1))
            best = float(sign * course.values.min())
            unstable.append(Unstable(course.run.name, course.run.cell, first, best, last, worse))
    return tuple(unstable)


class _Scatter(NamedTuple):
    """The standard deviation of single values, with its degrees of freedom."""

    sd: float
    df: float


def _beyond(course: _Course, shared: tuple[_Scatter | None, _Scatter], runs: int) -> float:
    """Return half of the smallest significant difference between two values of a run."""
    between, of_all = shared
    within = _about_a_line([course]) if len(course.values) >= _MANY else None
    scatters = [scatter for scatter in (between, within) if scatter is not None] or [of_all]
    chance = (1 - CONFIDENCE) / (runs * len(course.values))
    reaches = [s.sd * student_quantile(1 - chance, s.df) for s in scatters]
    return max(reaches) / 2**0.5


def _between_seeds(courses: Sequence[_Course]) -> _Scatter | None:
    """Return the standard deviation between runs of the same cell at the same step. Only the second
    half of the steps counts. The result is the median over cells. Return None if no cell has two
    runs of the same length."""
    cells: dict[tuple[str, int], list[Floats]] = {}
    for course in courses:
        cells.setdefault((course.run.cell, len(course.values)), []).append(course.values)
    scatters: list[_Scatter] = []
    for values in cells.values():
        if len(values) > 1:
            half = np.stack(values)[:, len(values[0]) // 2 :]
            middle = half - half.mean(axis=0)
            spread = math.sqrt(float(np.sum(middle**2)) / ((len(values) - 1) * half.shape[1]))
            scatters.append(_Scatter(spread, float((len(values) - 1) * half.shape[1])))
    scatters.sort()
    return scatters[(len(scatters) - 1) // 2] if scatters else None


def _about_a_line(courses: Sequence[_Course]) -> _Scatter:
    """Return the standard deviation of values around the straight line through their two
    neighbours, pooled over `courses`."""
    bends = np.concatenate([np.abs(np.diff(course.values, 2)) for course in courses])
    return _Scatter(_SPREAD * float(np.median(bends)), max(2.0, _EFFICIENCY * len(bends)))


def _rates(data: SweepData, keys: Sequence[str], wrong: set[str]) -> tuple[Rate, ...]:
    rates: list[Rate] = []
    tried = [run for run in data.runs if run.value is not None or run.diverged]
    for key in keys:
        levels: dict[str, list[bool]] = {}
        for run in tried:
            levels.setdefault(level(run.config, key), []).append(run.id in wrong)
        if 1 < len(levels) <= 24:
            for value, marks in levels.items():
                low, high = wilson(sum(marks), len(marks))
                rates.append(Rate(key, value, sum(marks), len(marks), max(low, 0.0), high))
    return tuple(rates)
