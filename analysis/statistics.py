"""Statistics over seeds. Pure.

Intervals are Student t intervals of a mean. "Cannot be told apart from the best" is Games and
Howell's all-pairs procedure (Journal of Educational Statistics 1(2), 1976, 113-125): Welch's
statistic of a pair, referred to the studentized range of all cells compared, so that the variances
may differ between cells and picking the best after seeing the data is paid for.

Both happen on a scale that the data choose (`choose_scale`): as they are, or as logarithms, where
means become geometric means and differences become ratios.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sweeper.analysis.distributions import (
    range_quantile,
    range_tail,
    student_quantile,
    student_tail,
)
from sweeper.results.cells import Scale, center, comparable, exp, on_scale, unit_of

__all__ = [
    "CONFIDENCE",
    "Comparison",
    "Summary",
    "against_best",
    "summarise",
]

CONFIDENCE = 0.95

_FEW = 12
"""Comparisons that are worth the millisecond that an exact p takes."""


class Summary(NamedTuple):
    """The values of one cell, one a seed. `low` and `high` bound the mean with `CONFIDENCE`; they
    are None at n = 1 and when all values are the same, since identical replicates tell nothing
    about the noise between seeds. `mean` and the rest are None at n = 0; `sd` (with n - 1) also
    at n = 1. On the log scale `mean` is the geometric mean and `sd` that of the natural
    logarithms; the bounds are of the geometric mean."""

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    minimum: float | None
    maximum: float | None

    @property
    def identical(self) -> bool:
        """Two values or more, and all the same."""
        return self.n > 1 and self.minimum == self.maximum


class Comparison(NamedTuple):
    """A cell against the best: `difference` is its mean less the best's (on the log scale of the
    means of natural logarithms), `error` the standard error of that, `df` Welch's degrees of
    freedom, `family` the number of cells compared, and `p` is adjusted for all pairs of them. Of
    more than 12 comparisons those that are not among the 12 closest calls have Bonferroni's bound
    of it, which is larger."""

    difference: float
    error: float
    df: float
    family: int
    p: float
    scale: Scale = "linear"

    @property
    def told_apart(self) -> bool:
        """Whether the difference is beyond what noise explains, at 1 - `CONFIDENCE`."""
        return self.p <= 1 - CONFIDENCE

    @property
    def ratio(self) -> float | None:
        """Its geometric mean as a multiple of the best's; None on the linear scale."""
        return exp(self.difference) if self.scale == "log" else None

    def interval(self) -> tuple[float, float]:
        """Bounds of the difference, or of the ratio on the log scale, that hold with `CONFIDENCE`
        for all pairs at once."""
        reach = _quantile(self.family, round(self.df, 12)) / 2**0.5 * self.error
        low, high = self.difference - reach, self.difference + reach
        return (exp(low), exp(high)) if self.scale == "log" else (low, high)


@functools.lru_cache(maxsize=1024)
def _quantile(family: int, df: float) -> float:
    """Takes some 20 ms: the quantile of a studentized range has no closed form."""
    return range_quantile(CONFIDENCE, family, df)


@functools.lru_cache(maxsize=1024)
def _student(df: int) -> float:
    """How many standard errors Student's interval reaches to either side."""
    return student_quantile((1 + CONFIDENCE) / 2, df)


def summarise(values: Sequence[float], scale: Scale = "linear") -> Summary:
    """Mean and Student t interval of finite `values`: mean +- t(n - 1) sd / sqrt(n), computed on
    `scale` and brought back from it. On the log scale all `values` must be positive."""
    import numpy as np

    n = len(values)
    if n == 0:
        return Summary(0, None, None, None, None, None, None)
    least, most = float(min(values)), float(max(values))
    own = on_scale(values, scale)
    if min(own) == max(own):  # n = 1, or identical replicates: no interval either way
        return Summary(n, least, None if n == 1 else 0.0, None, None, least, most)
    unit = unit_of(own)
    data = np.asarray(own, dtype=float) / unit
    mean, sd = center(own) / unit, float(data.std(ddof=1))
    reach = _student(n - 1) * sd / n**0.5
    found = [bound * unit for bound in (mean, mean - reach, mean + reach)]
    if scale == "log":
        found = [exp(bound) for bound in found]
    return Summary(n, found[0], sd * unit, found[1], found[2], least, most)


def against_best(
    groups: Mapping[str, Sequence[float]], best: str, scale: Scale = "linear"
) -> dict[str, Comparison]:
    """Games-Howell comparisons of `best` with every other comparable cell; the family is all pairs
    of comparable cells. Empty when `best` is not comparable or nothing else is. On the log scale
    all values must be positive."""
    scaled = {cell: on_scale(values, scale) for cell, values in groups.items()}
    family = {cell: values for cell, values in scaled.items() if comparable(values)}
    if best not in family or len(family) < 2:
        return {}
    others = {cell: values for cell, values in family.items() if cell != best}
    found = _compare(others, family[best], len(family), scale)
    # The closest calls exactly, or all of few.
    near = sorted(found, key=lambda cell: abs(found[cell].difference) / found[cell].error)[:_FEW]
    return {
        cell: own._replace(p=_adjusted(own)) if cell in near else own for cell, own in found.items()
    }


def _adjusted(found: Comparison) -> float:
    # The studentized range counts in standard errors of one mean, a t statistic in those of a
    # difference: a factor of sqrt(2).
    statistic = abs(found.difference) / found.error * 2**0.5
    return range_tail(statistic, found.family, found.df)


def _compare(
    others: Mapping[str, Sequence[float]], best: Sequence[float], family: int, scale: Scale
) -> dict[str, Comparison]:
    """Welch's test of each of the others; those with the same number of values in one call."""
    found: dict[str, Comparison] = {}
    for n in {len(values) for values in others.values()}:
        cells = [cell for cell, values in others.items() if len(values) == n]
        found.update(_compare_equal([others[cell] for cell in cells], best, cells, family, scale))
    return {cell: found[cell] for cell in others}


def _compare_equal(
    values: Sequence[Sequence[float]],
    best: Sequence[float],
    cells: Sequence[str],
    family: int,
    scale: Scale,
) -> Iterator[tuple[str, Comparison]]:
    import numpy as np

    units = np.array([[unit_of([*own, *best])] for own in values])
    own, other = np.asarray(values) / units, np.asarray(best) / units
    differences = own.mean(axis=1) - other.mean(axis=1)
    n, m = own.shape[1], other.shape[1]
    a, b = own.var(axis=1, ddof=1) / n, other.var(axis=1, ddof=1) / m
    df = (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1))
    errors = np.sqrt(a + b)
    p_values = student_tail(differences / errors, df)
    differences, errors = differences * units[:, 0], errors * units[:, 0]
    pairs = family * (family - 1) / 2
    bounds = np.minimum(1.0, pairs * p_values)  # Bonferroni's
    columns = (differences, errors, df, bounds)
    for cell, row in zip(
        cells, zip(*(part.tolist() for part in columns), strict=True), strict=True
    ):
        difference, error, df, p = row
        yield cell, Comparison(difference, error, df, family, p, scale)
