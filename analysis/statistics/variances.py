"""Compares the variances of several cells: a test for equality, and an estimate of their common
variance. Pure."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sweeper.analysis.reading.series import Floats
from sweeper.analysis.statistics.distributions import digamma, trigamma, trigamma_inverse

_DRAWS = 9999


class Split(NamedTuple):
    """The number of cells whose values have a small range (`close`) and a large range (`wide`).
    `factor` is the smallest large range divided by the largest small range."""

    close: int
    wide: int
    factor: float


def split_noise(groups: Sequence[Sequence[float]]) -> Split | None:
    """Return the split if the ranges of the cells' values fall into two groups, else None. The
    large ranges must be at least 4 times the small ranges, and each group must have at least two
    cells and a fifth of all cells. Such groups also occur by chance if the noise has a normal
    distribution, so check `Noise.p` first. Ranges of 0 are left out."""
    widths = sorted(max(g) - min(g) for g in groups if len(g) > 1 and max(g) > min(g))
    enough = max(2, len(widths) // 5)
    if len(widths) < 2 * enough:
        return None
    places = range(enough, len(widths) - enough + 1)
    at = max(places, key=lambda place: widths[place] / widths[place - 1])
    factor = widths[at] / widths[at - 1]
    return Split(at, len(widths) - at, factor) if factor >= _CLUMPS else None


_CLUMPS = 4.0


def squeeze(variances: Floats, dfs: Floats) -> tuple[Floats, Floats, Floats]:
    """Return moderated variances along the last axis (limma's `squeezeVar` without a trend): the
    common variance, its degrees of freedom, and each variance shrunk toward the common variance.
    If the variances differ no more than by chance, the degrees of freedom are infinite, and the
    common variance is the mean of the variances, weighted by degrees of freedom."""
    prior, prior_df = _prior(variances, dfs)
    middle = prior[..., np.newaxis]
    endless = np.isinf(prior_df)[..., np.newaxis]
    weight = np.where(endless, 1.0, prior_df[..., np.newaxis])
    drawn = (weight * middle + dfs * variances) / (weight + dfs)
    return prior, prior_df, np.where(endless, middle, drawn)


def pool(variances: Floats, dfs: Floats) -> tuple[Floats, Floats, Floats]:
    """Return a result like that of `squeeze`, for cells with the same true variance: the pooled
    variance, infinite degrees of freedom, and the pooled variance for each cell."""
    prior = np.asarray(dfs @ variances / dfs.sum())
    return prior, np.asarray(math.inf), np.full_like(variances, prior)


def _prior(variances: Floats, dfs: Floats) -> tuple[Floats, Floats]:
    """Return the common variance and its degrees of freedom, by limma's `fitFDist` (from moments
    of the logarithms of the variances)."""
    dfs = np.broadcast_to(dfs, variances.shape)
    logs = np.log(variances) - digamma(dfs / 2) + np.log(dfs / 2)
    spread = logs.var(axis=-1, ddof=1) - trigamma(dfs / 2).mean(axis=-1)
    wide: Any = np.asarray(spread > 0)
    prior_df = 2 * trigamma_inverse(np.where(wide, spread, 1.0))
    prior = np.exp(logs.mean(axis=-1) + digamma(prior_df / 2) - np.log(prior_df / 2))
    even = (dfs * variances).sum(axis=-1) / dfs.sum(axis=-1)
    return _either(wide, prior, even), _either(wide, prior_df, math.inf)


def _either(where: Any, value: Any, fallback: Any) -> Floats:
    return np.asarray(np.where(where, value, fallback), dtype=np.float64)


def bartlett(variances: Floats, dfs: Floats) -> Floats:
    """Return Bartlett's statistic of positive variances along the last axis, with Bartlett's
    correction."""
    dfs = np.broadcast_to(dfs, variances.shape)
    total = dfs.sum(axis=-1)
    pooled = (dfs * variances).sum(axis=-1) / total
    statistic = total * np.log(pooled) - (dfs * np.log(variances)).sum(axis=-1)
    cells = variances.shape[-1]
    return statistic / (1 + ((1 / dfs).sum(axis=-1) - 1 / total) / (3 * (cells - 1)))


def equal_variances(variances: Floats, dfs: Floats) -> float:
    """Return the p value of the test for equal variances. It is simulated, because the
    chi-squared approximation is poor if cells have two or three runs."""
    drawn = _null(tuple(sorted(dfs.tolist())))
    above = len(drawn) - int(np.searchsorted(drawn, float(bartlett(variances, dfs))))
    return (above + 1) / (len(drawn) + 1)


@functools.lru_cache(maxsize=16)
def _null(dfs: tuple[float, ...]) -> Floats:
    """Return simulated values of Bartlett's statistic for equal variances, in ascending order. The
    random numbers are always the same."""
    draws = max(999, min(_DRAWS, 1_000_000 // len(dfs)))
    free = np.array(dfs)
    chi = np.random.default_rng(20).chisquare(free, (draws, len(dfs)))
    return np.sort(bartlett(chi / free, free))
