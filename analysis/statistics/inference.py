"""Intervals and tests of single differences, of pairs and of fractions. The comparison with the
best cell is in `seeds.py`. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sweeper.analysis.statistics.distributions import (
    beta_quantile,
    normal_tail,
    student_quantile,
    student_tail,
)
from sweeper.results.cells import unit_of

CONFIDENCE = 0.95
"""The confidence of all intervals. The level of all tests is 1 - `CONFIDENCE`."""

_NORMAL = 1.959963984540054
"""Within this many standard deviations of the mean lies the fraction `CONFIDENCE` of a normal
distribution."""


class Estimate(NamedTuple):
    """A difference or another weighted sum of means, with its standard error, degrees of freedom,
    two-sided 95 % Student t interval and p value. If the noise is unknown, only `value` is set."""

    value: float
    error: float | None = None
    df: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def contrast(groups: Sequence[Sequence[float]], weights: Sequence[float]) -> Estimate:
    """Return a weighted sum of the means of independent groups, with an interval that allows for
    different variances: the degrees of freedom are Welch and Satterthwaite's (Biometrics Bulletin
    2(6), 1946, 110-114). For two groups with weights 1 and -1, this is Welch's t test. There is no
    interval if a group with a nonzero weight has a single value, or only equal values."""
    used = [(g, w) for g, w in zip(groups, weights, strict=True) if w]
    if not used:
        return Estimate(0.0)
    # In this unit, the square of a huge value does not overflow.
    unit = unit_of(value for g, _ in used for value in g)
    scaled = [(np.asarray(g, dtype=float) / unit, w) for g, w in used]
    value = float(np.sum([w * float(g.mean()) for g, w in scaled])) * unit
    if any(len(g) < 2 or min(g) == max(g) for g, _ in used):
        return Estimate(value)
    parts = np.array([w**2 * float(g.var(ddof=1)) / len(g) for g, w in scaled])
    variance = float(parts.sum())
    below = float(np.sum(parts**2 / np.array([len(g) - 1 for g, _ in scaled])))
    if not below > 0:
        return Estimate(value)
    return student(value, math.sqrt(variance) * unit, variance**2 / below)


def student(value: float, error: float, df: float) -> Estimate:
    """Return the estimate with Student's interval and p value. If `error` is 0, or the interval is
    too large for a float, only `value` is set."""
    reach = student_quantile((1 + CONFIDENCE) / 2, df) * error
    if not error > 0 or not math.isfinite(reach):
        return Estimate(value)
    return Estimate(
        value, error, df, value - reach, value + reach, float(student_tail(value / error, df))
    )


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Estimate | None:
    """Return the mean difference `first` - `second` over the shared seeds, with the interval of a
    paired t test. Return None if there is no shared seed. There is no interval if there is only one
    shared seed, or if all differences are equal."""
    return paired_with({"": first}, second).get("")


def paired_with(
    cells: Mapping[str, Mapping[int, float]], baseline: Mapping[int, float], tests: int = 1
) -> dict[str, Estimate]:
    """Return a dict from cell to `paired(cell, baseline)`, for the cells that share a seed with
    `baseline`. Intervals and p are corrected for `tests` tests (Bonferroni)."""
    estimates: dict[str, Estimate] = {}
    alike: dict[tuple[int, ...], dict[str, tuple[float, list[float]]]] = {}
    for name, cell in cells.items():
        shared = tuple(sorted(cell.keys() & baseline.keys()))
        if not shared:
            continue
        # In this unit, neither a difference of huge values nor its square overflows.
        unit = unit_of(values[seed] for seed in shared for values in (cell, baseline))
        gaps = [cell[seed] / unit - baseline[seed] / unit for seed in shared]
        estimates[name] = Estimate(math.fsum(gaps) / len(gaps) * unit)
        if min(gaps) != max(gaps):  # so there are at least two
            alike.setdefault(shared, {})[name] = unit, gaps
    for shared, rows_of in alike.items():
        units = np.array([unit for unit, _ in rows_of.values()])
        table = np.array([gaps for _, gaps in rows_of.values()])
        n, means = len(shared), np.mean(table, axis=1)
        errors = np.std(table, axis=1, ddof=1) / n**0.5
        reach = student_quantile(1 - (1 - CONFIDENCE) / 2 / tests, n - 1) * errors
        chances = np.minimum(tests * student_tail(means / errors, n - 1), 1.0)
        with np.errstate(over="ignore"):  # an end may lie beyond the largest float
            rows = (errors * units, (means - reach) * units, (means + reach) * units, chances)
        for name, row in zip(rows_of, np.transpose(rows).tolist(), strict=True):
            error, low, high, p = row
            estimates[name] = Estimate(estimates[name].value, error, n - 1.0, low, high, p)
    return estimates


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a proportion (JASA 22, 1927, 209-212)."""
    share, square = successes / trials, _NORMAL**2 / trials
    middle = (share + square / 2) / (1 + square)
    reach = _NORMAL * math.sqrt(share * (1 - share) / trials + square / 4 / trials) / (1 + square)
    low = 0.0 if successes == 0 else middle - reach
    return low, 1.0 if successes == trials else middle + reach


def counted_share(share: float, items: int) -> tuple[float, float]:
    """Return Wilson's interval of a proportion. The number of successes, `share` * `items`, is
    rounded to an integer. Use this interval if the noise between runs is unknown."""
    return wilson(min(max(round(share * items), 0), items), items)


def share_bounds(share: float, answers: float, below: float, above: float) -> tuple[float, float]:
    """Return Jeffreys' interval of the fraction `share` of right answers among `answers` (Brown,
    Cai and DasGupta, *Statistical Science* 16(2), 2001). A normal interval with the same confidence
    ends `below` standard errors under the mean and `above` standard errors over the mean."""
    right, wrong = share * answers + 0.5, (1 - share) * answers + 0.5
    low = beta_quantile(normal_tail(below), right, wrong) if share > 0 else 0.0
    high = 1 - beta_quantile(normal_tail(above), wrong, right) if share < 1 else 1.0
    return low, high


def on_logits(mean: float, reach: float) -> tuple[float, float]:
    """Return bounds of a fraction `mean`, which must lie strictly between 0 and 1. The delta method
    converts the half-width `reach` to the logit scale, so the bounds also lie between 0 and 1
    (Agresti, *Categorical Data Analysis*, 3.1.6)."""
    logit, width = math.log(mean / (1 - mean)), reach / (mean * (1 - mean))
    return _logistic(logit - width), _logistic(logit + width)


def _logistic(logit: float) -> float:
    if logit < -700:
        return 0.0
    return 1 / (1 + math.exp(-logit))


def holm(values: Sequence[float]) -> list[float]:
    """Adjust p values for multiple tests by Holm's step-down procedure (1979). The result has the
    order of the input."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted = [0.0] * len(values)
    so_far = 0.0
    for rank, position in enumerate(order):
        so_far = max(so_far, min(1.0, (len(values) - rank) * values[position]))
        adjusted[position] = so_far
    return adjusted


def pass_at_k(answers: int, right: int, k: int) -> float:
    """Estimate the probability that at least one of `k` answers to a question is right, if `right`
    of `answers` answers were right. The estimate is unbiased: 1 - C(answers - right, k) /
    C(answers, k) (Chen et al. 2021, arXiv:2107.03374, equation 1). Raises `ValueError` if `k` is
    less than 1 or more than `answers`."""
    if not 1 <= k <= answers:
        raise ValueError(f"pass@{k} of {answers} answers")
    return 1.0 - math.comb(answers - right, k) / math.comb(answers, k)
