"""Statistics over seeds. Pure; everything that scipy has is scipy's.

Intervals are Student t intervals of a mean. "Cannot be told apart from the best" is Games and
Howell's all-pairs procedure (Journal of Educational Statistics 1(2), 1976, 113-125): Welch's
statistic of a pair, referred to the studentized range of all cells compared, so that the variances
may differ between cells and picking the best after seeing the data is paid for.
"""

import importlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["CONFIDENCE", "Comparison", "Summary", "against_best", "comparable", "summarise"]

CONFIDENCE = 0.95


class Summary(NamedTuple):
    """The values of one cell, one a seed. `low` and `high` bound the mean with `CONFIDENCE`; they
    are None at n = 1 and when all values are the same, since identical replicates tell nothing
    about the noise between seeds. `mean` and the rest are None at n = 0; `sd` (with n - 1) also
    at n = 1."""

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
    """A cell against the best: `difference` is its mean less the best's, `error` the standard
    error of that, `df` Welch's degrees of freedom, `family` the number of cells compared, and `p`
    is adjusted for all pairs of them."""

    difference: float
    error: float
    df: float
    family: int
    p: float

    @property
    def told_apart(self) -> bool:
        """Whether the difference is beyond what noise explains, at 1 - `CONFIDENCE`."""
        return self.p <= 1 - CONFIDENCE

    def interval(self) -> tuple[float, float]:
        """Bounds of the difference that hold with `CONFIDENCE` for all pairs at once. Takes some
        50 ms: the quantile of a studentized range has no closed form."""
        quantile = float(_stats().studentized_range.ppf(CONFIDENCE, self.family, self.df))
        reach = quantile / 2**0.5 * self.error
        return self.difference - reach, self.difference + reach


def _stats() -> Any:
    """scipy.stats, which has no types and takes a while to load."""
    return importlib.import_module("scipy.stats")


def summarise(values: Sequence[float]) -> Summary:
    """Mean and Student t interval of finite `values`: mean +- t(n - 1) sd / sqrt(n)."""
    import numpy as np

    n = len(values)
    if n == 0:
        return Summary(0, None, None, None, None, None, None)
    data = np.asarray(values, dtype=float)
    least, most = float(data.min()), float(data.max())
    if least == most:  # n = 1, or identical replicates: no interval either way
        return Summary(n, least, None if n == 1 else 0.0, None, None, least, most)
    mean, sd = float(data.mean()), float(data.std(ddof=1))
    bounds = _stats().t.interval(CONFIDENCE, n - 1, loc=mean, scale=sd / n**0.5)
    return Summary(n, mean, sd, float(bounds[0]), float(bounds[1]), least, most)


def comparable(values: Sequence[float]) -> bool:
    """Whether a cell can take part in comparisons: two different values or more."""
    return len(values) > 1 and min(values) != max(values)


def against_best(groups: Mapping[str, Sequence[float]], best: str) -> dict[str, Comparison]:
    """Games-Howell comparisons of `best` with every other comparable cell; the family is all pairs
    of comparable cells. Empty when `best` is not comparable or nothing else is."""
    family = {cell: values for cell, values in groups.items() if comparable(values)}
    if best not in family or len(family) < 2:
        return {}
    return {
        cell: _compare(values, family[best], len(family))
        for cell, values in family.items()
        if cell != best
    }


def _compare(values: Sequence[float], best: Sequence[float], family: int) -> Comparison:
    import numpy as np

    with warnings.catch_warnings():
        # scipy warns when values differ in their last digits only; the figures stand.
        warnings.simplefilter("ignore", RuntimeWarning)
        test = _stats().ttest_ind(values, best, equal_var=False)
    difference = float(np.mean(values) - np.mean(best))
    error = float(np.sqrt(np.var(values, ddof=1) / len(values) + np.var(best, ddof=1) / len(best)))
    df = float(test.df)
    # The studentized range counts in standard errors of one mean, a t statistic in those of a
    # difference: a factor of sqrt(2).
    statistic = abs(float(test.statistic)) * 2**0.5
    p = float(_stats().studentized_range.sf(statistic, family, df))
    return Comparison(difference, error, df, family, p)
