"""Comparisons beyond the one that names the best. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sweeper.analysis.distributions import range_tail, student_quantile, student_tail

__all__ = [
    "Estimate",
    "contrast",
    "holm",
    "optimism",
    "paired",
    "paired_with",
    "pass_at_k",
    "seeds_to_part",
    "student",
    "wilson",
]

CONFIDENCE = 0.95

_NORMAL = 1.959963984540054
"""So many standard deviations to either side hold `CONFIDENCE` of a normal distribution."""


class Estimate(NamedTuple):
    """A difference with its standard error, degrees of freedom, two-sided 95 % Student t interval
    and p value. All but `value` are None where the noise is not known."""

    value: float
    error: float | None = None
    df: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def contrast(groups: Sequence[Sequence[float]], weights: Sequence[float]) -> Estimate:
    """A weighted sum of the means of independent groups, with an interval that lets variances
    differ: the degrees of freedom are Welch and Satterthwaite's (Biometrics Bulletin 2(6), 1946,
    110-114). For weights 1 and -1 it is Welch's t test. Groups of one value, or with all values
    the same, tell no noise: with one of them (at a weight other than 0) there is no interval."""
    used = [(np.asarray(g, dtype=float), w) for g, w in zip(groups, weights, strict=True) if w]
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(np.sum([w * float(g.mean()) for g, w in used]))
        if not used or any(len(g) < 2 or g.min() == g.max() for g, _ in used):
            return Estimate(value)
        parts = np.array([w**2 * float(g.var(ddof=1)) / len(g) for g, w in used])
        variance = float(parts.sum())
        below = float(np.sum(parts**2 / np.array([len(g) - 1 for g, _ in used])))
    if not (math.isfinite(variance) and below > 0):
        return Estimate(value)
    return student(value, math.sqrt(variance), variance**2 / below)


def student(value: float, error: float, df: float) -> Estimate:
    """A difference with its standard error and degrees of freedom: Student's interval and p."""
    reach = student_quantile((1 + CONFIDENCE) / 2, df) * error
    return Estimate(
        value, error, df, value - reach, value + reach, float(student_tail(value / error, df))
    )


def paired(own: Mapping[int, float], other: Mapping[int, float]) -> Estimate | None:
    """The mean of own less other over the seeds that both have, with the interval of a paired t
    test. None when they share none; no interval for one pair, or when all differ alike."""
    return paired_with({"": own}, other).get("")


def paired_with(
    cells: Mapping[str, Mapping[int, float]], other: Mapping[int, float]
) -> dict[str, Estimate]:
    """The same for each of several cells that shares a seed with `other`."""
    found: dict[str, Estimate] = {}
    alike: dict[tuple[int, ...], list[str]] = {}
    for name, own in cells.items():
        shared = tuple(sorted(own.keys() & other.keys()))
        differences = [own[seed] - other[seed] for seed in shared]
        if shared:
            found[name] = Estimate(math.fsum(each / len(shared) for each in differences))
            if min(differences) != max(differences):  # so there are two or more
                alike.setdefault(shared, []).append(name)
    for shared, names in alike.items():
        table = np.array([[cells[name][seed] - other[seed] for seed in shared] for name in names])
        n, means = len(shared), np.mean(table, axis=1)
        errors = np.std(table, axis=1, ddof=1) / n**0.5
        reach = student_quantile((1 + CONFIDENCE) / 2, n - 1) * errors
        rows = (errors, means - reach, means + reach, student_tail(means / errors, n - 1))
        for name, row in zip(names, np.transpose(rows).tolist(), strict=True):
            error, low, high, p = row
            found[name] = Estimate(found[name].value, error, n - 1.0, low, high, p)
    return found


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion (JASA 22, 1927, 209-212)."""
    share, square = successes / trials, _NORMAL**2 / trials
    middle = (share + square / 2) / (1 + square)
    reach = _NORMAL * math.sqrt(share * (1 - share) / trials + square / 4 / trials) / (1 + square)
    low = 0.0 if successes == 0 else middle - reach
    return low, 1.0 if successes == trials else middle + reach


def holm(values: Sequence[float]) -> list[float]:
    """p values adjusted for their number by Holm's step-down procedure (1979), in their order."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted = [0.0] * len(values)
    so_far = 0.0
    for rank, position in enumerate(order):
        so_far = max(so_far, min(1.0, (len(values) - rank) * values[position]))
        adjusted[position] = so_far
    return adjusted


def pass_at_k(answers: int, right: int, k: int) -> float:
    """The chance that of `k` answers to a question one at least is right, estimated without bias
    from more: 1 - C(answers - right, k) / C(answers, k) (Chen et al. 2021, arXiv:2107.03374,
    equation 1). Raises `ValueError` for fewer answers than `k`."""
    if not 1 <= k <= answers:
        raise ValueError(f"pass@{k} of {answers} answers")
    return 1.0 - math.comb(answers - right, k) / math.comb(answers, k)


def optimism(cells: Mapping[str, Mapping[int, float]], sign: float) -> tuple[float, float] | None:
    """How far the best mean flatters: for each seed that all cells share, the best is chosen by the
    other seeds and measured by the one left out. Gives the mean of what was left out, and of the
    means that chose it; None with fewer than three shared seeds or one cell (`sign` 1: the least
    is best)."""
    if len(cells) < 2:
        return None
    groups = list(cells.values())
    shared = sorted(set(groups[0]).intersection(*groups))
    if len(shared) < 3:
        return None
    table = np.array([[values[seed] for seed in shared] for values in cells.values()])
    fresh: list[float] = []
    chosen: list[float] = []
    for out in range(len(shared)):
        means = np.delete(table, out, axis=1).mean(axis=1)
        at = int(np.argmin(sign * means))
        fresh.append(float(table[at, out]))
        chosen.append(float(means[at]))
    found = float(np.mean(fresh)), float(np.mean(chosen))
    return found if all(map(math.isfinite, found)) else None


_SEEDS = (3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50, 100)


def seeds_to_part(difference: float, sds: tuple[float, float], family: int) -> int | None:
    """About how many seeds a cell it takes to tell two cells apart in four sweeps of five, among
    `family` cells and with these standard deviations, if `difference` is the true one: the least
    of some round numbers for which it exceeds the Games-Howell threshold by 0.84 standard errors.
    None when 100 are not enough."""
    unit = max(abs(difference), *sds)
    if difference == 0 or not math.isfinite(unit):
        return None
    difference, sds = difference / unit, (sds[0] / unit, sds[1] / unit)
    pooled = sds[0] ** 2 + sds[1] ** 2
    if pooled < 1e-12:
        return _SEEDS[0]
    low, high = 0, len(_SEEDS)
    while low < high:
        middle = (low + high) // 2
        seeds = _SEEDS[middle]
        df = (seeds - 1) * pooled**2 / (sds[0] ** 4 + sds[1] ** 4)
        excess = abs(difference) / math.sqrt(pooled / seeds) - 0.8416
        if excess > 0 and range_tail(excess * 2**0.5, family, df) <= 1 - CONFIDENCE:
            high = middle
        else:
            low = middle + 1
    return _SEEDS[low] if low < len(_SEEDS) else None
