"""The rule of a race for seeds: which cells may still be the best. Does no I/O and needs no numpy,
since a launcher applies the rule after each round."""

# Each look at the data has a level of its own: the bound of a normal statistic falls with the
# fourth root of the seeds, from the first look to the last (Wang and Tsiatis, Biometrics 43(1),
# 1987, 193-199). All looks together have the level of one test. Reports use the same level.

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.results.cells import center, choose_scale, on_scale, unit_of

_BOUND, _SHAPE = 2.25, 0.25
"""After a round with `seeds` of at most `most` seeds, a difference is significant if it exceeds
`_BOUND * (most / seeds) ** _SHAPE` standard errors."""
_DIFFERENT = 0.03
"""The level of the test for different variances."""
_NOISIER = 1.75
"""If the best cell's variance is more than this many times that of the other cells, the best cell's
lead must also be significant with the best cell's own noise."""
_FEW = 4
"""With fewer repeated cells than this, each cell is judged by its own noise, as in the report."""
_MANY = 12
"""With at least this many repeated cells, variances are shrunk toward the common one, as in the
report."""
_WELCH = 2 / 3
"""Welch's test uses at most this fraction of the degrees of freedom that two cells have
together, as in the report."""
_MOST_DF = 500


def next_round(seeds: int, most: int) -> int:
    """Return the number of seeds after the next round: `seeds` and a quarter more (rounded down,
    but at least 1), and at most `most`."""
    return min(most, seeds + max(1, seeds // 4))


def level(seeds: int, most: int) -> float:
    """Return the two-sided significance level of the test after a round with `seeds` seeds, in a
    race of at most `most` seeds."""
    bound = _BOUND * (most / max(1, min(seeds, most))) ** _SHAPE
    return math.erfc(bound / math.sqrt(2))


def contenders(cells: Mapping[str, Sequence[float]], sign: float, level: float) -> list[str] | None:
    """Return the cells that may still be the best, best first. If one cell is returned, it has won.
    `cells` maps names to finite values of runs; with `sign` 1, smaller is better. Return None if
    the noise is unknown, because no cell has two different values.

    The best cell wins if it leads every other cell in a two-sided test at `level`. Otherwise,
    remove the cells that are behind the best in a test that allows for the number of cells. These
    tests are at least as strict as the tests of a report, so a report names the same winner.
    """
    scale = choose_scale(cells.values())
    scaled = {name: on_scale(values, scale) for name, values in cells.items() if values}
    means = _means(scaled, sign)
    if means is None:
        return None
    best, *others = sorted(means, key=lambda name: means[name].value)
    chances = {name: _chance(means[best], means[name]) for name in others}
    doubts = {name: _doubt(means, best, name) for name in others}
    if all(max(chances[name], doubts[name]) <= level for name in others):
        return [best]
    pays = max(1.0, len(others) / 2)
    return [best, *(name for name in others if max(pays * chances[name], doubts[name]) > level)]


class _Mean(NamedTuple):
    """The mean of a cell. `value` is the mean, and `n` the number of runs. `variance` is the
    variance between runs, with `df` degrees of freedom. If the variance is shared with other cells,
    `cell_variance` is the variance of this cell alone."""

    value: float
    n: int
    variance: float
    df: float
    cell_variance: float | None = None


def _means(cells: Mapping[str, Sequence[float]], sign: float) -> dict[str, _Mean] | None:
    """Return the means of cells, scaled so that squares do not overflow; None if all variances are
    0. Each cell has its own variance if fewer than `_FEW` cells have several runs, or if Bartlett's
    test finds different variances. Otherwise all cells get one common variance. But if `_MANY` or
    more cells have several runs, the variances are only shrunk toward the common one."""
    unit = unit_of(value for values in cells.values() for value in values) or 1.0
    means = {name: _mean(values, sign, unit) for name, values in cells.items()}
    repeated = [mean for mean in means.values() if mean.df]
    df = sum(mean.n - 1 for mean in repeated)
    shared = sum(mean.df * mean.variance for mean in repeated) / max(1, df)
    if not shared:
        return None
    if len(repeated) < _FEW or _differ(repeated, shared, df):
        return means
    prior, weight = shared, math.inf
    if len(repeated) >= _MANY:
        prior, weight = _prior(repeated, shared)
    return {name: _drawn(mean, prior, weight, df) for name, mean in means.items()}


def _drawn(mean: _Mean, prior: float, weight: float, total: int) -> _Mean:
    """Shrink a cell's variance toward the common variance `prior`, which counts as `weight`
    degrees of freedom. The result has at most `total` degrees of freedom."""
    if math.isinf(weight):
        return mean._replace(variance=prior, df=total, cell_variance=mean.variance)
    variance = (weight * prior + mean.df * mean.variance) / (weight + mean.df)
    df = min(weight + mean.df, total)
    return mean._replace(variance=variance, df=df, cell_variance=mean.variance)


def _prior(means: Sequence[_Mean], shared: float) -> tuple[float, float]:
    """Return the common variance and its degrees of freedom, from the moments of the logarithms of
    the variances (limma's `fitFDist`: Smyth, 2004). If chance explains the differences of the
    variances, return `shared` and infinity."""
    logs = [
        math.log(mean.variance) - digamma(mean.df / 2) + math.log(mean.df / 2) for mean in means
    ]
    middle = math.fsum(logs) / len(logs)
    spread = math.fsum((log - middle) ** 2 for log in logs) / (len(logs) - 1)
    spread -= math.fsum(trigamma(mean.df / 2) for mean in means) / len(means)
    if spread <= 0:
        return shared, math.inf
    # Search for half the degrees of freedom, the point where trigamma equals the spread.
    low, high = 1e-6, 1e9
    while high / low > 1 + 1e-9:
        at = math.sqrt(low * high)
        low, high = (at, high) if trigamma(at) > spread else (low, at)
    return math.exp(middle + digamma(low) - math.log(low)), 2 * low


def _mean(values: Sequence[float], sign: float, unit: float) -> _Mean:
    scaled = [value / unit for value in values]
    mean, n = center(scaled), len(scaled)
    squares = math.fsum((value - mean) ** 2 for value in scaled)
    varies = min(scaled) != max(scaled)
    return _Mean(sign * mean, n, squares / (n - 1) if varies else 0.0, n - 1)


def _differ(means: Sequence[_Mean], shared: float, df: int) -> bool:
    """Return whether the variances differ (Bartlett's test, 1937)."""
    if not all(mean.variance for mean in means):
        return True
    spread = sum(mean.df * math.log(shared / mean.variance) for mean in means)
    cells = len(means) - 1
    scale = 1 + (sum(1 / mean.df for mean in means) - 1 / df) / (3 * cells)
    return chi_squared_chance(spread / scale, cells) <= _DIFFERENT


def _chance(best: _Mean, other: _Mean) -> float:
    """Return the two-sided p value of the difference of two means, from Student's t test if the
    cells share their variance, else from Welch's."""
    a, b = best.variance / best.n, other.variance / other.n
    if other.value == best.value:
        return 1.0
    if a + b == 0:
        return 0.0
    t = (other.value - best.value) / math.sqrt(a + b)
    if best.cell_variance is not None and other.cell_variance is not None:
        return _student(t, min(best.df, other.df))
    df = (a + b) ** 2 / (a**2 / max(1, best.df) + b**2 / max(1, other.df))
    return _student(t, min(df, _WELCH * (best.df + other.df)))


def _student(t: float, df: float) -> float:
    """Return `student_chance` for any `df`, by interpolation between whole numbers."""
    df = max(1.0, min(df, _MOST_DF))
    whole = int(df)
    lower, upper = student_chance(t, whole), student_chance(t, whole + 1)
    return lower + (df - whole) * (upper - lower)


def _doubt(means: Mapping[str, _Mean], best: str, other: str) -> float:
    """Return the p value of the best cell's lead over `other`, with the best cell's own variance in
    place of the shared one, since a noisy cell leads more often by chance. Return 0 if no variance
    is shared, or if the best cell's own variance is at most `_NOISIER` times the others'."""
    mean = means[best]
    if mean.cell_variance is None or mean.n < 2:
        return 0.0
    others = [m for name, m in means.items() if name != best]
    squares = [(m.n - 1) * m.cell_variance for m in others if m.cell_variance]
    rest = sum(m.n - 1 for m in others)
    if rest > 0 and mean.cell_variance <= _NOISIER * math.fsum(squares) / rest:
        return 0.0
    alone = mean._replace(variance=mean.cell_variance, df=mean.n - 1, cell_variance=None)
    return _chance(alone, means[other])


def chi_squared_chance(value: float, df: int) -> float:
    """Return the probability that chi-squared is larger than `value` (Abramowitz and Stegun, 26.4.4
    and 26.4.5)."""
    half = max(0.0, value) / 2
    odd = df % 2
    term = math.exp(-half) * (2 * math.sqrt(half / math.pi) if odd else 1.0)
    total = math.erfc(math.sqrt(half)) if odd else term
    if odd and df > 1:
        total += term
    for k in range(3 if odd else 2, df, 2):
        term *= 2 * half / k
        total += term
    return min(1.0, total)


def student_chance(t: float, df: int) -> float:
    """Return the probability that Student's t with `df` degrees of freedom is further from 0 than
    `t` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
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


def digamma(x: float) -> float:
    """Return the derivative of the logarithm of the gamma function (Abramowitz and Stegun, 6.3.5
    and 6.3.18)."""
    total = 0.0
    while x < 10:
        total -= 1 / x
        x += 1
    y = 1 / x**2
    return (
        total + math.log(x) - 1 / (2 * x) - y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y / 240)))
    )


def trigamma(x: float) -> float:
    """Return the second derivative of the logarithm of the gamma function (Abramowitz and Stegun,
    6.4.6 and 6.4.12)."""
    total = 0.0
    while x < 10:
        total += 1 / x**2
        x += 1
    y = 1 / x**2
    return total + 1 / x + y / 2 + y / x * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y / 30)))
