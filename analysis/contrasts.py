"""Differences between sums of cells, with the noise that is known of them. Pure.

The noise is that of the ranking (`noise`): shared between cells where they may share it, else each
cell's own. Where it says nothing of a cell (one run each), only what repeats itself over the
combinations of the other settings can tell a difference: then the rows of a grid are the trials
(`over_rows`).
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

from sweeper.analysis.cells import Cell, Ranking
from sweeper.analysis.distributions import range_quantile, range_tail
from sweeper.analysis.inference import CONFIDENCE, Estimate, student
from sweeper.analysis.settings import level

__all__ = [
    "Row",
    "level_mean",
    "over_pairs",
    "over_rows",
    "parts",
    "ranged",
    "rest",
    "usable",
    "weigh",
]

Row = tuple[tuple[str, str], ...]


def usable(ranking: Ranking) -> list[Cell]:
    """The cells whose mean is a measure of their setting: those with a value, none diverged, nor
    one that would be best only for what its failed runs left."""
    held = {cell.name for cell in ranking.held_back}
    return [cell for cell in ranking.measured if not cell.diverged and cell.name not in held]


def rest(cell: Cell, key: str) -> Row:
    """The other settings of a cell: cells with the same ones differ in `key` alone."""
    return tuple((other, level(cell.settings, other)) for other in cell.settings if other != key)


def parts(ranking: Ranking, key: str) -> int:
    """How many values of a setting have a cell that may be the best of those with that value."""
    return len({level(c.settings, key) for c in usable(ranking) if c.counted})


def level_mean(ranking: Ranking, cell: Cell) -> float:
    """The mean of a cell on the scale of the comparison."""
    values = ranking.on_scale(cell)
    return math.fsum(value / len(values) for value in values)


def weigh(ranking: Ranking, parts: Sequence[tuple[Cell, float]]) -> Estimate:
    """The weighted sum of cells' means; without an interval where nothing tells their noise."""
    groups = [(cell.name, ranking.on_scale(cell)) for cell, _ in parts]
    return ranking.noise.contrast(groups, [weight for _, weight in parts])


def over_rows(ranking: Ranking, pairs: Sequence[tuple[Cell, Cell]]) -> Estimate:
    """The mean of the first less the second cell of each pair, the pairs being the trials: what
    differs from pair to pair, be it noise or what the other settings do, is the noise here. No
    interval for fewer than three pairs, or when all differ alike."""
    gaps = np.array([level_mean(ranking, a) - level_mean(ranking, b) for a, b in pairs])
    value = float(gaps.mean())
    if len(gaps) < 3:
        return Estimate(value)
    error = float(gaps.std(ddof=1)) / len(gaps) ** 0.5
    if not (math.isfinite(error) and error > 1e-12 * abs(value)):
        return Estimate(value)
    return student(value, error, len(gaps) - 1)


def over_pairs(ranking: Ranking, pairs: Sequence[tuple[Cell, Cell]]) -> Estimate:
    """The mean of the first less the second cell of each pair, by the noise of the ranking; where
    that is not known, with the pairs as the trials."""
    share = 1 / len(pairs)
    parts = [part for one, two in pairs for part in ((one, share), (two, -share))]
    found = weigh(ranking, parts)
    return over_rows(ranking, pairs) if found.p is None else found


def ranged(found: Estimate, means: int) -> Estimate:
    """The same difference with the interval and the p of the largest of all differences between
    so many means (the studentized range): for a best and a worst that were picked by the data."""
    if found.error is None or found.df is None or means <= 2:
        return found
    reach = _quantile(means, round(found.df, 3)) / 2**0.5 * found.error
    p = range_tail(abs(found.value) / found.error * 2**0.5, means, found.df)
    return found._replace(low=found.value - reach, high=found.value + reach, p=p)


@functools.lru_cache(maxsize=1024)
def _quantile(means: int, df: float) -> float:
    """Takes some 20 ms: the quantile of a studentized range has no closed form."""
    return range_quantile(CONFIDENCE, means, df)
