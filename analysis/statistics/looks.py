"""Stricter levels for tests of data that are analysed repeatedly: while runs are unfinished,
after seeds were added, and in later rounds on new seeds. Pure."""

# While runs are open the bound falls with the square root of the share done (O'Brien and Fleming,
# *Biometrics* 35(3), 1979). The same applies after seeds were added to a complete sweep. The last
# look at a sweep as planned has the usual level: its test has room for the errors of earlier looks
# (measured in `tests/bench`). A second or third round on new seeds has half the level of the round
# before.

import math
from collections import Counter
from typing import Any, cast

from sweeper.analysis.reading.frames import PENDING, SweepData
from sweeper.analysis.statistics.distributions import normal_tail
from sweeper.analysis.statistics.inference import CONFIDENCE
from sweeper.results.race import level

_OPEN, _GROWN = 2.3, 2.15
"""Critical values of a normal statistic at the last analysis, for sweeps with unfinished runs
and for sweeps with added seeds."""
_HORIZON, _BEYOND = 10, 2.5
"""The number of seeds up to which analyses of a growing sweep are planned, and the critical value
for more seeds."""


def price(data: SweepData) -> float:
    """Return the factor for p values that corrects for repeated analyses of the data. The factor is
    1 if all runs have ended, no seeds were added, the sweep is no race (which adds seeds to the
    best cells), and no other sweep has repeated its cells on new seeds."""
    usual = 1 - CONFIDENCE
    levels = [usual]
    if open_runs(data) and data.runs:
        done = max(1 - open_runs(data) / len(data.runs), 1 / len(data.runs))
        levels.append(2 * normal_tail(_OPEN / math.sqrt(done)))
    race = None if data.plan is None else data.plan.race
    if race is not None:
        levels.append(level(_seeds(data), race.most))
    if grown_from(data):
        seeds = min(_seeds(data), _HORIZON)
        bound = _GROWN * math.sqrt(_HORIZON / seeds) if _seeds(data) <= _HORIZON else _BEYOND
        levels.append(2 * normal_tail(bound))
    if data.confirmed is not None:
        levels.append(usual / 2 ** (len(data.confirmed.fresh) - 1))
    return usual / max(min(levels), 1e-300)


def open_runs(data: SweepData) -> int:
    """Return the number of runs that may still get a result."""
    return sum(run.state in PENDING for run in data.runs)


def grown_from(data: SweepData) -> int:
    """Return the smallest number of seeds per cell at a launch of the sweep, or 0 if no launch
    added seeds. Return 0 for a race, because `price` treats a race separately."""
    if data.plan is not None and data.plan.race is not None:
        return 0
    launches = () if data.plan is None else data.plan.launches
    earlier = [cast(Any, launch.get("seeds")) for launch in launches]
    smaller = [count for count in earlier if isinstance(count, int) and count < _seeds(data)]
    return min(smaller, default=0)


def _seeds(data: SweepData) -> int:
    return max(Counter(run.cell for run in data.runs).values(), default=0)
