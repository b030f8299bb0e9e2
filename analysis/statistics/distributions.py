"""Distributions that `scipy.special` lacks (studentized range and studentized maximum), and
readable names for some that it has. Pure."""

# `scipy.stats` has the studentized range too, and agrees to 9 digits, but it takes 0.4 s to load
# and 0.35 s for a quantile, twenty times as long as here. It has no studentized maximum. The
# noncentrality of F in `scipy.special` ends at 10,000 and is accurate to 3 digits only. The
# studentized range of `k` means with `df` degrees of freedom is integrated as by Lund and Lund
# (Applied Statistics 32(2), 1983, 204-210), over the chi distribution of the noise estimate and,
# for each of its values, over the largest mean; here by Gauss-Legendre quadrature.

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sweeper.analysis.reading.series import Floats

_PANELS, _POINTS = 6, 32
_REACH = 8.5
"""Beyond this many standard deviations a normal density is negligible."""

_LARGE = 500.0
"""For larger statistics than this, the noncentral F distribution is approximated by a lognormal
distribution."""

_DROP = 90.0
"""Integration stops where twice the logarithm of the density has fallen by this much."""


def _special() -> Any:
    """Return the module `scipy.special`, which has no type hints."""
    return importlib.import_module("scipy.special")


def student_quantile(share: float, df: float) -> float:
    """Return the quantile of Student's t at probability `share`."""
    return float(_special().stdtrit(df, share))


def student_tail(statistic: Any, df: Any) -> Any:
    """Return the two-sided p value of Student's t: the probability that |t| is at least
    `statistic`. Takes numbers or arrays."""
    return 2 * _special().stdtr(df, -np.abs(statistic))


def upper_tail_f(ratio: float, df: float, df_below: float) -> float:
    """Return the probability that an F statistic with `df` and `df_below` degrees of freedom is
    at least `ratio`."""
    return float(_special().fdtrc(df, df_below, ratio))


def noncentrality(share: float, df: float, df_below: float, ratio: float) -> float:
    """Return the noncentrality at which an F statistic is below `ratio` with probability
    `share`. Return 0 if this probability is at most `share` for a central F statistic."""
    special = _special()
    # `ncfdtr` adds a series whose length grows with the noncentrality, so use an approximation.
    if df * ratio > _LARGE:
        width = math.sqrt(2 / df_below + 4 / (df * ratio))
        return df * ratio * math.exp(student_quantile(1 - share, df_below) * width)
    if special.fdtr(df, df_below, ratio) <= share:
        return 0.0
    return _where(lambda shift: float(special.ncfdtr(df, df_below, shift, ratio)), share)


@functools.cache
def _rule() -> tuple[Floats, Floats]:
    """Return the points (between 0 and 1) and the weights of a quadrature rule."""
    points, weights = np.polynomial.legendre.leggauss(_POINTS)
    starts = np.arange(_PANELS) / _PANELS
    places = starts[:, np.newaxis] + (points + 1) / (2 * _PANELS)
    return places.ravel(), np.tile(weights / (2 * _PANELS), _PANELS)


def _chi(df: float) -> tuple[Floats, Floats]:
    places, weights = _rule()
    middle = math.sqrt(max(df - 1, 0.0) / df)
    low = max(0.0, middle - math.sqrt(_DROP / 2 / df))
    width = middle + math.sqrt(_DROP / df) - low
    # The points are dense where the deviation is small, since large statistics (about 300) depend
    # on this part.
    noise = low + width * places**4
    logs = (df - 1) * np.log(noise) - df * noise**2 / 2
    scale = math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2)
    return noise, width * 4 * places**3 * weights * np.exp(logs + scale)


def range_tail(statistic: float, means: int, df: float) -> float:
    """Return the probability that the studentized range of `means` equal means is at least
    `statistic`, if their noise was estimated with `df` degrees of freedom."""
    if not statistic > 0:
        return 1.0
    places, weights = _rule()
    noise, density = _chi(df)
    # Points and weights to integrate over the smallest of the means.
    least = _REACH * (2 * places - 1)
    normal = 2 * _REACH * weights * np.exp(-(least**2) / 2) / math.sqrt(2 * math.pi)
    below = _special().ndtr(least)
    above = _special().ndtr(least + statistic * noise[:, np.newaxis])
    within = means * ((above - below) ** (means - 1) @ normal)
    return float(np.clip(density @ (1 - within), 0.0, 1.0))


@functools.lru_cache(maxsize=1024)
def range_quantile(share: float, means: int, df: float) -> float:
    """Return the quantile of the studentized range at probability `share`."""
    return _where(lambda value: range_tail(value, means, df), 1 - share)


def _where(tail: Callable[[float], float], share: float) -> float:
    """Return the point at which a decreasing function `tail` reaches `share`. Uses the Illinois
    method (false position) on the logarithm of `tail`."""

    def above(place: float) -> float:
        return math.log(max(tail(place), 1e-300) / share)

    low, high = 0.0, 4.0
    at_low, at_high = above(low), above(high)
    while at_high > 0:
        low, high, at_low = high, 2 * high, at_high
        if high > 1e12:
            return math.inf
        at_high = above(high)
    side = 0
    for _ in range(100):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        hits = above(middle)
        if abs(hits) < 1e-11 or high - low < 1e-12 * high:
            return middle
        if hits > 0:
            at_high = at_high / 2 if side > 0 else at_high
            low, at_low, side = middle, hits, 1
        else:
            at_low = at_low / 2 if side < 0 else at_low
            high, at_high, side = middle, hits, -1
    return (low + high) / 2


def maximum_tail(statistic: float, count: int, df: float) -> float:
    """Return the tail of the studentized maximum: the probability that the largest of `count`
    independent standard normal values, divided by a common estimate of their standard deviation
    with `df` degrees of freedom, is at least `statistic`."""
    noise, density = _chi(df)
    within = _special().ndtr(statistic * noise) ** count
    return float(np.clip(density @ (1 - within), 0.0, 1.0))


@functools.lru_cache(maxsize=1024)
def maximum_quantile(share: float, count: int, df: float) -> float:
    """Return the quantile of the studentized maximum at probability `share`, which is at least
    1/2."""
    return _where(lambda value: maximum_tail(value, count, df), 1 - share)


def normal_tail(statistic: float) -> float:
    """Return the probability that a standard normal value is at least `statistic`."""
    return float(_special().ndtr(-statistic))


def beta_quantile(share: float, a: float, b: float) -> float:
    """Return the quantile of the beta distribution at probability `share`."""
    return float(_special().betaincinv(a, b, share))


def trigamma(x: Any) -> Any:
    """Return the second derivative of the logarithm of the gamma function."""
    return _special().polygamma(1, x)


def trigamma_inverse(value: Any) -> Floats:
    """Return the inverse of `trigamma` for positive numbers, by Newton's method on 1 / trigamma,
    which is convex (Smyth, Statistical Applications in Genetics and Molecular Biology 3(1), 2004,
    article 3, appendix)."""
    value = np.asarray(value, dtype=float)
    estimate: Any = 0.5 + 1 / value
    for _ in range(50):
        current = trigamma(estimate)
        step = current * (1 - current / value) / _special().polygamma(2, estimate)
        estimate = estimate + step
        if np.all(-step / estimate < 1e-12):
            break
    # Use the limits of the function where Newton's method loses precision.
    limits: list[Any] = [1 / value, 1 / np.sqrt(value)]
    return np.select([value < 1e-6, value > 1e7], limits, estimate)


def digamma(x: Any) -> Any:
    """Return the derivative of the logarithm of the gamma function."""
    return _special().digamma(x)
