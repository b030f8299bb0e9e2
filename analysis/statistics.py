"""Statistics over seeds. Pure.

Intervals are Student t intervals of a mean, by the noise that `noise` finds. Which cells "cannot be
told apart from the best" is answered by comparisons with the best, so that picking it after seeing
the data is paid for, at any number of cells and at 1 - `CONFIDENCE`:

- Each cell is asked whether it may be the best, and is left out where it cannot be as good as all
  others: the means that lie above it are moved onto it as little as that takes, and what they have
  to move is more than noise explains. Where cells share their noise, that is an F test with as many
  degrees of freedom as means had to be moved (Al Mohamad, van Zwet, Cator and Goeman, Biometrika
  107(3), 2020, 677-688; Cox and Shi, Review of Economic Studies 90(1), 2023, 201-228): what is far
  behind costs nothing. Where each has its own, the distance behind the best is Welch's, and
  Bonferroni's inequality pays for the number of cells.
- The bounds of the differences from the best hold for all cells at once, though the data chose it:
  Tukey's for all pairs of cells (Kramer's for cells of different sizes), or Bonferroni's for them.
- The best alone is left where it is ahead of every other, the second too, as in a two-sided test of
  those two: whatever the number of cells, that errs most often with two (Gutmann and Maymin,
  Annals of Statistics 15(1), 1987, 456-461). Where an F test says that its runs differ more than
  those of the others, which makes a lead by chance, it is asked with its own noise; what it is not
  ahead of then stays beside it.

Both happen on a scale that the data choose (`choose_scale`): as they are, or as logarithms, where
means become geometric means and differences become ratios.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sweeper.analysis.distributions import (
    maximum_quantile,
    range_quantile,
    student_quantile,
    student_tail,
    upper_tail_f,
)
from sweeper.analysis.inference import CONFIDENCE
from sweeper.analysis.noise import Noise, Spread
from sweeper.results.cells import Scale, center, exp, off_scale, on_scale, unit_of

__all__ = [
    "Comparison",
    "Summary",
    "against_best",
    "contenders",
    "finite_mean",
    "summarise",
    "summarise_chosen",
]

_WELCH = 2 / 3
"""Of all degrees of freedom of two cells the most that Welch's comparison of them is granted: with
three runs the estimate is often too large just where one of them is much noisier."""


_NO_CHANCE = 0.01


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
    means of natural logarithms), `error` the standard error of that, with `df` degrees of freedom,
    and `family` the number of cells compared. `p` is that of the claim that it is not the best,
    adjusted for choosing the best among all; `reach` how many standard errors the bounds of the
    difference lie from it; and by `most` two values of the metric can differ (by 1 where it is a
    share)."""

    difference: float
    error: float
    df: float
    family: int
    p: float
    reach: float
    scale: Scale = "linear"
    most: float = math.inf

    @property
    def told_apart(self) -> bool:
        """Whether the difference is beyond what noise explains, at 1 - `CONFIDENCE`."""
        return self.p <= 1 - CONFIDENCE

    @property
    def ratio(self) -> float | None:
        """Its geometric mean as a multiple of the best's; None on the linear scale."""
        return exp(self.difference) if self.scale == "log" else None

    def interval(self) -> tuple[float, float]:
        """Bounds of the difference, or of the ratio on the log scale, which hold with `CONFIDENCE`
        for all cells at once. They are those of all pairs, and say of no difference what the test
        says: where they would not, the near one ends there."""
        reach = self.reach * self.error
        low = max(self.difference - reach, -self.most)
        high = min(self.difference + reach, self.most)
        end = max if self.told_apart == (self.difference > 0) else min
        low, high = (end(low, 0.0), high) if self.difference > 0 else (low, end(high, 0.0))
        return (exp(low), exp(high)) if self.scale == "log" else (low, high)


@functools.lru_cache(maxsize=1024)
def _student(df: float) -> float:
    """How many standard errors Student's interval reaches to either side."""
    return student_quantile((1 + CONFIDENCE) / 2, df)


def finite_mean(values: Iterable[float]) -> float | None:
    """The mean of the values that are finite; None without any."""
    found = [value for value in values if math.isfinite(value)]
    return math.fsum(value / len(found) for value in found) if found else None


def summarise(
    values: Sequence[float], scale: Scale = "linear", spread: Spread | None = None
) -> Summary:
    """Mean and Student t interval of finite `values`: mean +- t(df) sd / sqrt(n), computed on
    `scale` and brought back from it, with the standard deviation and the degrees of freedom of
    `spread`, else with their own and n - 1. On the log scale all `values` must be positive."""
    n = len(values)
    if n == 0:
        return Summary(0, None, None, None, None, None, None)
    least, most = float(min(values)), float(max(values))
    own = on_scale(values, scale)
    unit = unit_of(own) or 1.0
    mean, sd = center(own), None
    if n > 1:
        same = min(own) == max(own)
        sd = 0.0 if same else float(np.std(np.asarray(own) / unit, ddof=1)) * unit
    middle = least if least == most else off_scale(mean, scale)
    known = spread or (Spread(sd, n - 1.0) if sd else None)
    if known is None:  # n = 1, or identical replicates: no interval either way
        return Summary(n, middle, sd, None, None, least, most)
    reach = _student(known.df) * known.sd / n**0.5
    low, high = (off_scale(bound, scale) for bound in (mean - reach, mean + reach))
    return Summary(n, middle, sd, low, high, least, most)


def summarise_chosen(
    values: Sequence[float], scale: Scale, spread: Spread, of: int, sign: float
) -> Summary:
    """The same for a cell that was chosen as the best of `of` that may be it: chance has most
    likely helped it. The bound on the worse side is as far off as the largest of so many means
    strays from its truth with probability 1 - `CONFIDENCE`; the other is Student's (`sign` 1: the
    least is best)."""
    found = summarise(values, scale, spread)
    if of < 2:
        return found
    reach = max(maximum_quantile(CONFIDENCE, of, spread.df), _student(spread.df))
    bound = center(on_scale(values, scale)) + sign * reach * spread.sd / len(values) ** 0.5
    side = "high" if sign > 0 else "low"
    return found._replace(**{side: off_scale(bound, scale)})


def against_best(
    groups: Mapping[str, Sequence[float]],
    best: str,
    noise: Noise,
    sign: float = 1.0,
    scale: Scale = "linear",
) -> dict[str, Comparison]:
    """Comparisons of `best` with every other cell whose noise is known, the family (`sign` 1: the
    least is best). Empty when that of `best` is not, or of nothing else. On the log scale all
    values must be positive."""
    cells = {
        name: _Mean.of(on_scale(v, scale), s) for name, v in groups.items() if (s := noise.of(name))
    }
    if best not in cells or len(cells) < 2:
        return {}
    own = cells.pop(best)
    family = _Family(len(cells) + 1, sign, scale)
    compare = _shared if noise.shared else _all_apart
    found = compare(cells, own, family)
    # The best alone: ahead of each of the others as if there were no more than those two.
    pairs = found
    if best in noise.noisier:
        doubted = own._replace(spread=noise.noisier[best])
        pairs = _all_apart(cells, doubted, family)
    nearest = max(pairs, key=lambda name: _pair(pairs[name], sign))
    alone = _pair(pairs[nearest], sign)
    if alone <= 1 - CONFIDENCE:
        return {name: one._replace(p=min(one.p, alone)) for name, one in found.items()}
    return found if pairs is found else {**found, nearest: pairs[nearest]}


def contenders(found: Mapping[str, Comparison], others: Iterable[str]) -> int:
    """How many cells may have been chosen as the best, itself and `others` among them: those that
    cannot be told apart from it at a level that leaves out only what had no chance, and those that
    were not compared, of which nothing tells that they had none."""
    return 1 + sum(name not in found or found[name].p > _NO_CHANCE for name in others)


class _Mean(NamedTuple):
    value: float
    n: int
    spread: Spread

    @classmethod
    def of(cls, values: Sequence[float], spread: Spread) -> "_Mean":
        return cls(center(values), len(values), spread)


class _Family(NamedTuple):
    """Cells that are compared: how many, and as `against_best`."""

    cells: int
    sign: float
    scale: Scale


def _shared(cells: Mapping[str, _Mean], best: _Mean, family: _Family) -> dict[str, Comparison]:
    """With noise that all share; the bounds are Tukey's and Kramer's."""
    chances = _not_the_best(cells, best, family.sign)
    found: dict[str, Comparison] = {}
    for name, cell in cells.items():
        difference, error, _, _ = _distance(cell, best)
        df = min(cell.spread.df, best.spread.df)
        reach = range_quantile(CONFIDENCE, family.cells, df) / 2**0.5
        one = Comparison(difference, error, df, family.cells, chances[name], reach, family.scale)
        found[name] = _at_least_of_two(one, family.sign)
    return found


def _not_the_best(cells: Mapping[str, _Mean], best: _Mean, sign: float) -> dict[str, float]:
    """For each cell the p value of the claim that one of the others is better.

    If none is, the nearest that the means can be to what was found has this cell and those above it
    in one place, their mean, down to the last that lies above that. Given which cells those are,
    the squares of the ways that they have to go add up to no more than chi-squared, with as many
    degrees of freedom as there are cells above. What has a better mean than the best (runs of it
    failed) is left out."""
    unit = max(cell.spread.sd for cell in (best, *cells.values()))
    order = sorted(cells, key=lambda name: sign * cells[name].value)
    every = [best, *(cells[name] for name in order)]
    ways = np.array([sign * (one.value - best.value) / unit for one in every])
    # How far each is behind the best; at most so far that its square is still a number.
    behind = np.clip(ways, 0.0, 1e100)
    weights = np.array([one.n * (unit / one.spread.sd) ** 2 for one in every]) * (ways >= 0)
    df = np.minimum.accumulate([one.spread.df for one in every])
    pull = weights * behind
    excess = behind * (np.cumsum(weights) - weights) - (np.cumsum(pull) - pull)
    found = dict.fromkeys(cells, 1.0)
    for at, name in enumerate(order, 1):
        above = (weights[at] * (behind[at] - behind[:at]) > excess[:at]) & (weights[:at] > 0)
        if count := int(above.sum()):
            together = np.append(np.flatnonzero(above), at)
            own, places = weights[together], behind[together]
            squares = float(own @ (places - own @ places / own.sum()) ** 2)
            found[name] = upper_tail_f(squares / count, count, float(df[at]))
    return found


def _all_apart(cells: Mapping[str, _Mean], best: _Mean, family: _Family) -> dict[str, Comparison]:
    return {name: _apart(cell, best, family) for name, cell in cells.items()}


def _apart(cell: _Mean, best: _Mean, family: _Family) -> Comparison:
    """With the noise of each: Welch's, and Bonferroni's bound."""
    difference, error, a, b = _distance(cell, best)
    df = (a + b) ** 2 / (a**2 / cell.spread.df + b**2 / best.spread.df)
    df, others = min(df, _WELCH * (cell.spread.df + best.spread.df)), family.cells - 1
    largest = min(1.0, others * float(student_tail(difference / error, df)) / 2)
    largest = largest if family.sign * difference > 0 else 1.0
    reach = -student_quantile((1 - CONFIDENCE) / others / family.cells, df)
    found = Comparison(difference, error, df, family.cells, largest, reach, family.scale)
    return _at_least_of_two(found, family.sign)


def _distance(cell: _Mean, best: _Mean) -> tuple[float, float, float, float]:
    """Of two means with its error, and the parts of that error's square, in a unit of their own."""
    unit = max(cell.spread.sd, best.spread.sd)
    a, b = ((one.spread.sd / unit) ** 2 / one.n for one in (cell, best))
    return cell.value - best.value, math.sqrt(a + b) * unit, a, b


def _at_least_of_two(found: Comparison, sign: float) -> Comparison:
    """Among many no surer than with just those two."""
    return found._replace(p=max(found.p, _pair(found, sign)))


def _pair(found: Comparison, sign: float) -> float:
    """The p value of two cells alone, two-sided; 1 for a cell with the better mean."""
    if sign * found.difference <= 0:
        return 1.0
    return float(student_tail(found.difference / found.error, found.df))
