"""Computes weighted sums and differences of cells' means, with the noise of the ranking. If the
noise is unknown (one run per cell), pairs of cells that differ in only one setting serve as the
sample (`over_rows`). Pure."""

import functools
import math
from collections.abc import Sequence

import numpy as np

from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.reading.settings import keys_of, level
from sweeper.analysis.statistics.distributions import range_quantile, range_tail
from sweeper.analysis.statistics.inference import CONFIDENCE, Estimate, student

Row = tuple[tuple[str, str], ...]


def usable(ranking: Ranking) -> list[Cell]:
    """Return the cells with a value, without the cells that have a diverged run or are in
    `ranking.held_back`."""
    held = {cell.name for cell in ranking.held_back}
    return [cell for cell in ranking.measured if not cell.diverged and cell.name not in held]


def rest(cell: Cell, by: str) -> Row:
    """Return the settings of a cell except `by`, as (key, text) pairs."""
    keys = [key for key in cell.settings if key not in (by, *keys_of(by))]
    return tuple((key, level(cell.settings, key)) for key in keys)


def parts(ranking: Ranking, key: str) -> int:
    """Return how many values the setting `key` has in usable cells with a run that counts."""
    return len({level(c.settings, key) for c in usable(ranking) if c.counted})


def level_mean(ranking: Ranking, cell: Cell) -> float:
    """Return the mean of a cell on the scale of the comparison."""
    values = ranking.on_scale(cell)
    return math.fsum(value / len(values) for value in values)


def weigh(ranking: Ranking, parts: Sequence[tuple[Cell, float]]) -> Estimate:
    """Return the weighted sum of the means of cells. `parts` has (cell, weight) pairs. If the noise
    is unknown, the sum has no interval."""
    groups = [(cell.name, ranking.on_scale(cell)) for cell, _ in parts]
    return ranking.noise.contrast(groups, [weight for _, weight in parts])


def over_rows(ranking: Ranking, pairs: Sequence[tuple[Cell, Cell]]) -> Estimate:
    """Return the mean difference between the first and the second cell of each pair. The noise is
    estimated from the variation between pairs. There is no interval for fewer than three pairs, or
    if all differences are equal."""
    gaps = np.array([level_mean(ranking, a) - level_mean(ranking, b) for a, b in pairs])
    value = float(gaps.mean())
    if len(gaps) < 3:
        return Estimate(value)
    error = float(gaps.std(ddof=1)) / len(gaps) ** 0.5
    if not (math.isfinite(error) and error > 1e-12 * abs(value)):
        return Estimate(value)
    return student(value, error, len(gaps) - 1)


def over_pairs(ranking: Ranking, pairs: Sequence[tuple[Cell, Cell]]) -> Estimate:
    """Return the mean difference between the first and the second cell of each pair, with the noise
    of the ranking. If this noise is unknown, return the result of `over_rows`."""
    share = 1 / len(pairs)
    parts = [part for left, right in pairs for part in ((left, share), (right, -share))]
    estimate = weigh(ranking, parts)
    return over_rows(ranking, pairs) if estimate.p is None else estimate


def ranged(estimate: Estimate, means: int) -> Estimate:
    """Correct the difference between the best and the worst mean for the choice of these two. The
    interval and p become those of the studentized range. `means` is the number of all means."""
    if estimate.error is None or estimate.df is None or means <= 2:
        return estimate
    reach = _quantile(means, round(estimate.df, 3)) / 2**0.5 * estimate.error
    p = range_tail(abs(estimate.value) / estimate.error * 2**0.5, means, estimate.df)
    return estimate._replace(low=estimate.value - reach, high=estimate.value + reach, p=p)


@functools.lru_cache(maxsize=1024)
def _quantile(means: int, df: float) -> float:
    """Return a quantile of the studentized range. The result is cached, because its computation
    takes about 20 ms."""
    return range_quantile(CONFIDENCE, means, df)
