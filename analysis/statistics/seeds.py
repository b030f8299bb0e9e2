"""Statistics over seeds: Student t intervals, and comparisons with the best cell that allow for
its selection from the data. docs/statistics.md describes them. Pure."""

# Each cell is tested for whether it may be the best, that is, as good as all others. The means of
# better cells are moved onto its mean by as little as possible. The cell is excluded if noise does
# not explain this movement. With shared noise this is an F test with as many degrees of freedom as
# means were moved (Al Mohamad, van Zwet, Cator and Goeman, Biometrika 107(3), 2020, 677-688; Cox
# and Shi, Review of Economic Studies 90(1), 2023, 201-228). With separate noise it is Welch's test
# of the distance to the best, corrected by Bonferroni for the number of cells.
#
# The bounds of the differences from the best hold for all cells at once: Tukey's for all pairs
# (Kramer's for cells of different sizes), or Bonferroni's. The best is named alone if it leads
# every other cell in a two-sided test of the two. This test errs most often if there are only two
# cells (Gutmann and Maymin, Annals of Statistics 15(1), 1987, 456-461). If an F test shows that the
# runs of the best cell differ more than those of the others, this cell's own noise is used, and the
# best is not named alone if it then does not lead every other cell.
#
# The data choose the scale (`choose_scale`): the values, or their logarithms, where means become
# geometric means and differences become ratios.

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sweeper.analysis.statistics.distributions import (
    maximum_quantile,
    range_quantile,
    student_quantile,
    student_tail,
    upper_tail_f,
)
from sweeper.analysis.statistics.inference import CONFIDENCE, share_bounds
from sweeper.analysis.statistics.noise import FEW, Noise, Spread
from sweeper.results.cells import Scale, center, exp, off_scale, on_scale, unit_of

_WELCH = 2 / 3
"""Welch's comparison uses at most this fraction of the degrees of freedom of both cells. With three
runs, Welch's estimate is often too large if one of the cells is much noisier."""


_NO_CHANCE = 0.001
_SPARE = 1.2
_SURE = 0.001
_JUST, _FAILED, _HIDDEN = 0.99, 0.98, 0.99
"""The confidence of the bound on the worse side of the best cell in three cases: the cell is
only just ahead; failed runs may have been the worst; there are so few runs that collapses may
not have been seen."""
_ENOUGH = 6
"""If each run of a cell collapses with a probability of 0.4, this number of runs shows a collapse
in 95 % of sweeps."""


class Summary(NamedTuple):
    """A summary of a cell's values, one for each seed. `low` and `high` bound the mean with
    `CONFIDENCE`; they are None if the noise is unknown. `sd` is the sample standard deviation (None
    at n = 1). At n = 0 all other fields are None. On the log scale, `mean`, `low` and `high` are
    for the geometric mean, and `sd` is the standard deviation of the natural logarithms."""

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    minimum: float | None
    maximum: float | None

    @property
    def identical(self) -> bool:
        """Whether there are two or more values, and all are the same."""
        return self.n > 1 and self.minimum == self.maximum


class Chosen(NamedTuple):
    """The cell `name`, which was selected as the best of `cells` cells. With `sign` 1, smaller is
    better. `share` is the one-sided confidence of the interval's worse bound (with `sign` 1, the
    upper bound). The function `confidence` computes `share`."""

    name: str
    cells: int
    sign: float
    share: float = CONFIDENCE

    def reach(self, df: float) -> float:
        """Return the distance from the mean to the bound on the worse side, in standard errors."""
        if self.cells < 2:
            return _student(df)
        return max(maximum_quantile(self.share, self.cells, df), _student(df))


class Comparison(NamedTuple):
    """A cell compared with the best cell. `difference` is the mean of the cell minus the mean of
    the best cell (on the log scale, means of natural logarithms). `error` is the standard error of
    the difference, with `df` degrees of freedom. `family` is the number of compared cells,
    including the best. A small `p` means that the cell is not the best; `p` allows for the
    selection of the best cell. `reach` is the half-width of the interval in standard errors. `most`
    is the largest possible difference of two values (1 for a fraction). `doubt` is the half-width
    of the interval with the largest noise of both cells (see `Noise.largest`)."""

    difference: float
    error: float
    df: float
    family: int
    p: float
    reach: float
    scale: Scale = "linear"
    most: float = math.inf
    doubt: float = 0.0

    @property
    def told_apart(self) -> bool:
        """Whether `p` is at most 1 - `CONFIDENCE`."""
        return self.p <= 1 - CONFIDENCE

    @property
    def ratio(self) -> float | None:
        """The cell's geometric mean, divided by that of the best cell; None on the linear scale."""
        return exp(self.difference) if self.scale == "log" else None

    @property
    def beyond(self) -> bool:
        """Whether the difference is larger than `_SPARE` times the half-width of its interval,
        and larger than `doubt`."""
        return abs(self.difference) > max(_SPARE * self.reach * self.error, self.doubt)

    def interval(self) -> tuple[float, float]:
        """Return the bounds of the difference, or of the ratio on the log scale. The bounds of all
        cells hold simultaneously with `CONFIDENCE`. If the interval contains 0 but `told_apart` is
        set, or the reverse, the nearer bound becomes 0. (For a ratio, read 1 for 0.)"""
        reach = self.reach * self.error
        low = max(self.difference - reach, -self.most)
        high = min(self.difference + reach, self.most)
        end = max if self.told_apart == (self.difference > 0) else min
        low, high = (end(low, 0.0), high) if self.difference > 0 else (low, end(high, 0.0))
        return (exp(low), exp(high)) if self.scale == "log" else (low, high)


@functools.lru_cache(maxsize=1024)
def _student(df: float) -> float:
    return student_quantile((1 + CONFIDENCE) / 2, df)


def finite_mean(values: Iterable[float]) -> float | None:
    """Return the mean of the finite values; None if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(value / len(finite) for value in finite) if finite else None


def summarise(
    values: Sequence[float], scale: Scale = "linear", spread: Spread | None = None
) -> Summary:
    """Return the mean and the Student t interval of finite `values`: mean +- t(df) sd / sqrt(n).
    Both are computed on `scale` and converted back. `spread` gives sd and df; by default, sd is the
    standard deviation of the values and df is n - 1. On the log scale `values` must be positive."""
    n = len(values)
    if n == 0:
        return Summary(0, None, None, None, None, None, None)
    least, most = float(min(values)), float(max(values))
    scaled = on_scale(values, scale)
    unit = unit_of(scaled) or 1.0
    mean, sd = center(scaled), None
    if n > 1:
        same = min(scaled) == max(scaled)
        sd = 0.0 if same else float(np.std(np.asarray(scaled) / unit, ddof=1)) * unit
    middle = least if least == most else off_scale(mean, scale)
    noise = spread or (Spread(sd, n - 1.0) if sd else None)
    if noise is None:  # n = 1, or identical replicates: no interval either way
        return Summary(n, middle, sd, None, None, least, most)
    summary = Summary(n, middle, sd, None, None, least, most)
    usual = _student(noise.df)
    return _bounded(summary, mean, noise, (usual, usual), scale)


def _bounded(
    summary: Summary, mean: float, spread: Spread, reaches: tuple[float, float], scale: Scale
) -> Summary:
    error = spread.sd / summary.n**0.5
    below, above = reaches
    if spread.answers:
        low, high = share_bounds(mean, summary.n * spread.answers, below, above)
    else:
        low, high = mean - below * error, mean + above * error
    return summary._replace(low=off_scale(low, scale), high=off_scale(high, scale))


def summarise_chosen(
    values: Sequence[float], scale: Scale, noise: Noise, chosen: Chosen
) -> Summary:
    """Return the summary of a cell that was selected as the best. Its measured mean is probably too
    good, so the interval reaches at least as far as Student's on the worse side. The worse bound
    holds with a probability of `chosen.share` or more, even if `chosen.cells` cells are equal."""
    spread = noise.of_chosen(chosen.name)
    summary = summarise(values, scale, spread)
    if spread is None:
        return summary
    usual = _student(spread.df)
    worse = chosen.reach(spread.df)
    part = noise.between and noise.between.of_chosen(chosen.name)
    if noise.seeds is not None and part is not None:
        # A seed affects all cells equally, so only the residual was chosen.
        common = _student(noise.seeds.df) * noise.seeds.sd
        worse = max(usual, math.hypot(common, chosen.reach(part.df) * part.sd) / spread.sd)
    reaches = (usual, worse) if chosen.sign > 0 else (worse, usual)
    return _bounded(summary, center(on_scale(values, scale)), spread, reaches, scale)


def against_best(
    groups: Mapping[str, Sequence[float]],
    best: str,
    noise: Noise,
    sign: float = 1.0,
    scale: Scale = "linear",
    price: float = 1.0,
) -> dict[str, Comparison]:
    """Return a dict from each other cell with known noise to its comparison with `best`. With
    `sign` 1, smaller is better. The dict is empty if the noise of `best`, or of all other cells, is
    unknown. On the log scale all values must be positive. p values are multiplied by `price`, which
    corrects for repeated analyses of the data."""
    noise = noise.between or noise
    cells = {
        name: _Mean.of(on_scale(v, scale), s) for name, v in groups.items() if (s := noise.of(name))
    }
    if best not in cells or len(cells) < 2:
        return {}
    leader = cells.pop(best)
    family = _Family(len(cells) + 1, sign, scale, (1 - CONFIDENCE) / price)
    compare = _shared if noise.shared else _all_apart
    comparisons = compare(cells, leader, family)
    # To be named alone, the best must lead each other cell in a test of these two cells only.
    pairs = comparisons
    if best in noise.noisier:
        doubted = leader._replace(spread=noise.noisier[best])
        pairs = _all_apart(cells, doubted, family)
    nearest = max(pairs, key=lambda name: _pair(pairs[name], sign))
    alone = _pair(pairs[nearest], sign)
    if alone <= family.level:
        comparisons = {
            name: comparison._replace(p=min(comparison.p, alone))
            for name, comparison in comparisons.items()
        }
    elif pairs is not comparisons:
        comparisons = {**comparisons, nearest: pairs[nearest]}
    largest = {name: cell._replace(spread=noise.largest(name)) for name, cell in cells.items()}
    doubted = _all_apart(largest, leader._replace(spread=noise.largest(best)), family)
    return {
        name: comparison._replace(
            p=min(1.0, price * comparison.p), doubt=doubted[name].reach * doubted[name].error
        )
        for name, comparison in comparisons.items()
    }


def confidence(
    comparisons: Mapping[str, Comparison], noise: Noise, runs: Sequence[int], *, failed: bool
) -> float:
    """Return the confidence for `Chosen.share`. It is higher than `CONFIDENCE` if the best cell is
    only just ahead (see `only_just`), if runs `failed` (perhaps the worst ones), or if
    `may_hide_collapse` returns True. `runs` has the number of values of each cell."""
    share = _JUST if only_just(comparisons) else CONFIDENCE
    share = max(share, _FAILED if failed else 0.0)
    return max(share, _HIDDEN if may_hide_collapse(noise, runs) else 0.0)


def may_hide_collapse(noise: Noise, runs: Sequence[int]) -> bool:
    """Return whether fewer than `FEW` cells were repeated and every cell has fewer than `_ENOUGH`
    runs. Further runs may then collapse (end much worse than others), even if none has so far."""
    return noise.repeated + noise.lent_cells < FEW and max(runs, default=0) < _ENOUGH


def only_just(comparisons: Mapping[str, Comparison]) -> bool:
    """Return whether the best cell leads all other cells significantly, and at least one p value is
    above `_SURE`. Chance has then probably contributed to the lead."""
    return (
        bool(comparisons)
        and _SURE < max(comparison.p for comparison in comparisons.values()) <= 1 - CONFIDENCE
    )


def contenders(comparisons: Mapping[str, Comparison], rivals: Iterable[str]) -> int:
    """Return the number of cells that might have been selected as the best: the best cell, and the
    `rivals` with a p above `_NO_CHANCE` or without a comparison. If the best is only just ahead
    (see `only_just`), count the best cell and all `rivals`."""
    rivals = list(rivals)
    if only_just(comparisons):
        return 1 + len(rivals)
    return 1 + sum(name not in comparisons or comparisons[name].p > _NO_CHANCE for name in rivals)


class _Mean(NamedTuple):
    value: float
    n: int
    spread: Spread

    @classmethod
    def of(cls, values: Sequence[float], spread: Spread) -> "_Mean":
        return cls(center(values), len(values), spread)


class _Family(NamedTuple):
    """The tests of all cells against the best. `cells` is the number of cells, including the best;
    `level` is the significance level of the tests."""

    cells: int
    sign: float
    scale: Scale
    level: float


def _shared(cells: Mapping[str, _Mean], best: _Mean, family: _Family) -> dict[str, Comparison]:
    chances = _not_the_best(cells, best, family.sign)
    comparisons: dict[str, Comparison] = {}
    for name, cell in cells.items():
        difference, error, _, _ = _distance(cell, best)
        df = min(cell.spread.df, best.spread.df)
        reach = range_quantile(1 - family.level, family.cells, df) / 2**0.5
        comparison = Comparison(
            difference, error, df, family.cells, chances[name], reach, family.scale
        )
        comparisons[name] = _at_least_of_two(comparison, family.sign)
    return comparisons


def _not_the_best(cells: Mapping[str, _Mean], best: _Mean, sign: float) -> dict[str, float]:
    unit = max(cell.spread.sd for cell in (best, *cells.values()))
    order = sorted(cells, key=lambda name: sign * cells[name].value)
    ranked = [best, *(cells[name] for name in order)]
    ways = np.array([sign * (cell.value - best.value) / unit for cell in ranked])
    # The distance of each cell behind the best, limited so that its square does not overflow.
    behind = np.clip(ways, 0.0, 1e100)
    weights = np.array([cell.n * (unit / cell.spread.sd) ** 2 for cell in ranked]) * (ways >= 0)
    df = np.minimum.accumulate([cell.spread.df for cell in ranked])
    pull = weights * behind
    excess = behind * (np.cumsum(weights) - weights) - (np.cumsum(pull) - pull)
    chances = dict.fromkeys(cells, 1.0)
    for at, name in enumerate(order, 1):
        above = (weights[at] * (behind[at] - behind[:at]) > excess[:at]) & (weights[:at] > 0)
        if count := int(above.sum()):
            together = np.append(np.flatnonzero(above), at)
            mass, places = weights[together], behind[together]
            squares = float(mass @ (places - mass @ places / mass.sum()) ** 2)
            chances[name] = upper_tail_f(squares / count, count, float(df[at]))
    return chances


def _all_apart(cells: Mapping[str, _Mean], best: _Mean, family: _Family) -> dict[str, Comparison]:
    return {name: _apart(cell, best, family) for name, cell in cells.items()}


def _apart(cell: _Mean, best: _Mean, family: _Family) -> Comparison:
    difference, error, a, b = _distance(cell, best)
    df = (a + b) ** 2 / (a**2 / cell.spread.df + b**2 / best.spread.df)
    df, rivals = min(df, _WELCH * (cell.spread.df + best.spread.df)), family.cells - 1
    largest = min(1.0, rivals * float(student_tail(difference / error, df)) / 2)
    largest = largest if family.sign * difference > 0 else 1.0
    reach = -student_quantile(family.level / rivals / family.cells, df)
    comparison = Comparison(difference, error, df, family.cells, largest, reach, family.scale)
    return _at_least_of_two(comparison, family.sign)


def _distance(cell: _Mean, best: _Mean) -> tuple[float, float, float, float]:
    unit = max(cell.spread.sd, best.spread.sd)
    a, b = ((mean.spread.sd / unit) ** 2 / mean.n for mean in (cell, best))
    return cell.value - best.value, math.sqrt(a + b) * unit, a, b


def _at_least_of_two(comparison: Comparison, sign: float) -> Comparison:
    return comparison._replace(p=max(comparison.p, _pair(comparison, sign)))


def _pair(comparison: Comparison, sign: float) -> float:
    """Return the two-sided p value of a test of two cells; 1 if the cell's mean is not worse."""
    if sign * comparison.difference <= 0:
        return 1.0
    return float(student_tail(comparison.difference / comparison.error, comparison.df))
