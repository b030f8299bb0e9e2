"""The rule of a race for seeds: which cells may still be the best. Pure, and without numpy, since a
launcher asks it after each round.

A race looks at its data after every round, which gives chance many tries. So each look has a level
of its own: the bound of a normal statistic falls with the fourth root of the seeds, from the first
look to the last (Wang and Tsiatis, Biometrics 43(1), 1987, 193-199). All looks together have the
level of one test, for any first and last number of seeds. Reports use the same level.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.results.cells import center, choose_scale, on_scale, unit_of

_BOUND, _SHAPE = 2.25, 0.25
"""The bound at the last look, and how it falls."""
_WILD = 25.0
"""A cell whose variance is so many times the median of all takes no part in the shared noise."""
_MOST_DF = 500


def next_round(seeds: int, most: int) -> int:
    """Return the number of seeds that the next round goes up to: a quarter more."""
    return min(most, seeds + max(1, seeds // 4))


def level(seeds: int, most: int) -> float:
    """Return the two-sided level of the look after a round, where the last one has `most` seeds."""
    bound = _BOUND * (most / max(1, min(seeds, most))) ** _SHAPE
    return math.erfc(bound / math.sqrt(2))


def contenders(cells: Mapping[str, Sequence[float]], sign: float, level: float) -> list[str] | None:
    """Return the cells that may still be the best, best first; a single one is clear. `cells` have
    the finite values of their runs. With `sign` 1, smaller is better. None if no noise is known:
    each cell has one value, or all its values are the same.

    The best is clear if it is ahead of every other, each in a two-sided test. Otherwise a cell is
    left out if it is behind the best in a test that allows for the number of cells.
    """
    scale = choose_scale(cells.values())
    scaled = {name: on_scale(values, scale) for name, values in cells.items() if values}
    means = _means(scaled, sign)
    if means is None:
        return None
    best, *others = sorted(means, key=lambda name: means[name].value)
    chances = {name: _chance(means[best], means[name]) for name in others}
    if all(chance <= level for chance in chances.values()):
        return [best]
    pays = max(1.0, len(others) / 2)
    return [best, *(name for name in others if pays * chances[name] > level)]


class _Mean(NamedTuple):
    """A mean with its runs, and the variance of one run with its degrees of freedom."""

    value: float
    n: int
    variance: float
    df: int


def _means(cells: Mapping[str, Sequence[float]], sign: float) -> dict[str, _Mean] | None:
    """Return the means of cells, in units in which no square is too large. Cells share their
    noise, except those with a far larger one. None if all variances are 0."""
    unit = unit_of(value for values in cells.values() for value in values) or 1.0
    own = {name: _own(values, sign, unit) for name, values in cells.items()}
    known = sorted(mean.variance for mean in own.values() if mean.df)
    if not known or not known[-1]:
        return None
    limit = _WILD * known[(len(known) - 1) // 2]
    calm = {name: mean for name, mean in own.items() if mean.variance <= limit or not limit}
    df = sum(mean.df for mean in calm.values())
    shared = sum(mean.df * mean.variance for mean in calm.values()) / df
    pooled = {name: mean._replace(variance=shared, df=df) for name, mean in calm.items()}
    return own | pooled


def _own(values: Sequence[float], sign: float, unit: float) -> _Mean:
    scaled = [value / unit for value in values]
    mean, n = center(scaled), len(scaled)
    squares = math.fsum((value - mean) ** 2 for value in scaled)
    varies = min(scaled) != max(scaled)
    return _Mean(sign * mean, n, squares / (n - 1) if varies else 0.0, n - 1)


def _chance(best: _Mean, other: _Mean) -> float:
    """Return the two-sided p value of the difference of two means: Student's where they share
    their noise, else Welch's."""
    a, b = best.variance / best.n, other.variance / other.n
    if other.value == best.value:
        return 1.0
    if a + b == 0:
        return 0.0
    alike = (best.variance, best.df) == (other.variance, other.df)
    df = best.df if alike else (a + b) ** 2 / (a**2 / max(1, best.df) + b**2 / max(1, other.df))
    return student_chance((other.value - best.value) / math.sqrt(a + b), int(df))


def student_chance(t: float, df: int) -> float:
    """Return how often Student's t with `df` degrees of freedom is further from 0 than `t`
    (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    df = max(1, min(df, _MOST_DF))
    angle = math.atan(abs(t) / math.sqrt(df))
    cosine, sine = math.cos(angle), math.sin(angle)
    if df == 1:
        return 1 - 2 * angle / math.pi
    odd = df % 2
    term = total = cosine if odd else 1.0
    for k in range(3 if odd else 2, df - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    return max(0.0, 1 - (2 / math.pi * (angle + sine * total) if odd else sine * total))
