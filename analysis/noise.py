"""The noise between seeds: how much runs of one cell differ. Pure.

With three seeds a cell's own standard deviation is hardly known; that of twelve such cells together
is. So cells share their noise where they may: Bartlett's test (Proceedings of the Royal Society A
160, 1937, 268-282), at `LEVEL`, asks whether their variances differ, or the noise is far from
normal, to which the test answers as well. Where it finds nothing, fewer than `MANY` cells share one
variance, and more are moderated: each cell's variance is drawn toward what all have in common, as
far as the spread of the variances says (the empirical Bayes of limma: Smyth, Statistical
Applications in Genetics and Molecular Biology 3(1), 2004, article 3). Where it finds something, and
where fewer than `FEW` cells were repeated, so that the test would find next to nothing, each cell
has its own. Neither finds a single cell that is noisier than the rest, of two or three seeds each:
which cells might be so is kept (`Noise.noisier`), for whoever names one of them as the best. All
values here are on the scale of the comparison.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from sweeper.analysis.distributions import (
    digamma,
    trigamma,
    trigamma_inverse,
    upper_tail_f,
)
from sweeper.analysis.inference import Estimate, student
from sweeper.analysis.series import Floats
from sweeper.results.cells import unit_of

__all__ = [
    "FEW",
    "LEVEL",
    "MANY",
    "NOISIER",
    "UNKNOWN",
    "Asked",
    "Noise",
    "Split",
    "Spread",
    "bartlett",
    "fit_noise",
    "split_noise",
    "squeeze",
]

FEW = 4
"""With fewer repeated cells none shares its noise, unless the caller asks for it."""

MANY = 12
"""With fewer repeated cells the spread of their variances is not estimated, and they share one
variance."""

LEVEL = 0.02
"""The level of the test for equal variances. One in fifty sweeps that might share their noise
does not, which costs power. A larger level would cost more power and protect little better."""

NOISIER = 0.1
"""Of the F test by which a cell may be noisier than the others. With two seeds it finds one of four
times the noise in two of three sweeps; at 5 % the rest would make more false winners than are
promised, and at this level it costs two in a hundred of the true ones."""

_DRAWS = 9999

Asked = Literal["auto", "pooled", "own"]


class Spread(NamedTuple):
    """The noise of a cell: its standard deviation between runs, with its degrees of freedom."""

    sd: float
    df: float


@dataclass(frozen=True)
class Noise:
    """The noise of a sweep. `kind` is "pooled" (one variance for all), "moderated", "own", or
    "none" (no cell was repeated). It rests on `cells` of the `repeated` cells, and on those of
    `lent` sweeps. `p` belongs to the test for equal variances (None if there was no test).
    `prior` is the variance that all cells have in common, with `prior_df` degrees of freedom
    (infinite: it is used alone). `total` are the degrees of freedom of all cells together.
    `refused` are sweeps whose noise was to be lent but differs. `noisier` are the cells that
    share the noise although their own variance is larger than that of the others by an F test at
    `NOISIER`, with their own noise."""

    kind: Literal["pooled", "moderated", "own", "none"]
    spreads: Mapping[str, Spread]
    repeated: int
    total: float
    p: float | None = None
    prior: float | None = None
    prior_df: float = 0.0
    asked: Asked = "auto"
    lent: tuple[str, ...] = ()
    lent_cells: int = 0
    refused: tuple[str, ...] = field(default=())
    noisier: Mapping[str, Spread] = field(default_factory=dict[str, Spread])

    @property
    def shared(self) -> bool:
        """Whether cells share their noise."""
        return self.kind in ("pooled", "moderated")

    def of(self, cell: str) -> Spread | None:
        """The noise of a cell; None if it is unknown."""
        return self.spreads.get(cell)

    def contrast(
        self, groups: Sequence[tuple[str, Sequence[float]]], weights: Sequence[float]
    ) -> Estimate:
        """A weighted sum of the means of cells, each by its name with its values on the scale of
        the comparison, with the interval that this noise gives it. The degrees of freedom are
        Satterthwaite's, at most all that there are. Moderated variances are of t distributions,
        each with its degrees of freedom, and lie below the mean that they stand for: a sum of many
        has the error that makes its variance that of the sum. No interval where the noise of a
        cell (at a weight other than 0) is not known."""
        used = [(n, v, w) for (n, v), w in zip(groups, weights, strict=True) if w]
        most = unit_of(x for _, v, _ in used for x in v) if used else 1.0
        value = math.fsum(w * math.fsum(x / most / len(v) for x in v) for _, v, w in used) * most
        spreads = [self.of(name) for name, _, _ in used]
        found = [spread for spread in spreads if spread is not None]
        if not used or len(found) < len(used):
            return Estimate(value)
        unit = max(spread.sd for spread in found)
        if not 0 < unit < math.inf:
            return Estimate(value)
        parts = [(w * s.sd / unit) ** 2 / len(v) for (_, v, w), s in zip(used, found, strict=True)]
        variance = math.fsum(parts)
        below = math.fsum(part**2 / s.df for part, s in zip(parts, found, strict=True))
        df = min(variance**2 / below, self.total if self.shared else math.inf)
        if self.kind == "moderated":
            both = zip(parts, found, strict=True)
            variance = math.fsum(part * _wider(s.df) for part, s in both) / _wider(df)
        return student(value, math.sqrt(variance) * unit, df)

    def document(self) -> dict[str, Any]:
        """The entry in `report.json`."""
        return {
            "kind": self.kind,
            "asked": self.asked,
            "repeated_cells": self.repeated,
            "degrees_of_freedom": self.total,
            "p_equal": self.p,
            "sd": self.prior,
            "prior_df": self.prior_df if math.isfinite(self.prior_df) else None,
            "from": list(self.lent),
            "from_cells": self.lent_cells,
            "refused": list(self.refused),
        }


UNKNOWN = Noise("none", {}, 0, 0.0)
"""The result if nothing is known about the noise."""


def fit_noise(
    groups: Mapping[str, Sequence[float]],
    asked: Asked = "auto",
    lent: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
) -> Noise:
    """Estimates the noise of cells from the values of each. `asked` may decide whether they share
    it. `lent` are the cells of other sweeps, by sweep, whose noise counts too. Lent noise needs
    no `FEW` cells, since a person vouches for it, but the test may refuse it."""
    own = {name: list(values) for name, values in groups.items() if values}
    others = {name: dict(cells) for name, cells in (lent or {}).items()}
    borrowed = [v for cells in others.values() for v in cells.values() if len(v) > 1]
    if asked != "own" and borrowed:
        found = _share(own, borrowed, asked, 1)
        if found is not None and found.shared:
            return replace(found, lent=tuple(others), lent_cells=len(borrowed))
        return replace(fit_noise(own, asked), refused=tuple(others))
    found = None if asked == "own" else _share(own, [], asked, 1 if asked == "pooled" else FEW)
    return found or _each(own, asked, None)


def _wider(df: float) -> float:
    """The variance of Student's t, with at least 4 degrees of freedom."""
    return max(df, 4.0) / (max(df, 4.0) - 2)


def _variances(groups: Sequence[Sequence[float]], unit: float) -> tuple[Floats, Floats]:
    """The variances of repeated cells, in units of `unit`, and their degrees of freedom."""
    found = [np.asarray(values, dtype=float) / unit for values in groups]
    variances = np.array([float(values.var(ddof=1)) for values in found])
    return variances, np.array([len(values) - 1.0 for values in found])


def _share(
    own: Mapping[str, Sequence[float]],
    borrowed: Sequence[Sequence[float]],
    asked: Asked,
    least: int,
) -> Noise | None:
    """The shared noise; each cell's own if the test refuses that; None if there is too little
    data for the test."""
    mine = {name: values for name, values in own.items() if len(values) > 1}
    repeated = [*mine.values(), *borrowed]
    if len(repeated) < max(least, 1):
        return None
    unit = unit_of(v for values in repeated for v in values) or 1.0
    variances, dfs = _variances(repeated, unit)
    if not variances.any():
        return None
    variances = np.maximum(variances, _least(repeated, unit, variances))
    p = None if asked == "pooled" or len(repeated) < 2 else _equal(variances, dfs)
    if p is not None and p <= LEVEL:
        return _each(own, asked, p)
    total = float(dfs.sum())
    moderate = asked != "pooled" and len(repeated) >= MANY
    prior, prior_df, drawn = squeeze(variances, dfs) if moderate else _pool(variances, dfs)
    found = dict(zip(mine, np.sqrt(drawn).tolist(), strict=False))  # those lent come after them
    root, prior_df = math.sqrt(float(prior)), float(prior_df)
    spreads = {
        name: Spread(found.get(name, root) * unit, min(prior_df + len(values) - 1, total))
        for name, values in own.items()
    }
    kind = "moderated" if math.isfinite(prior_df) else "pooled"
    made = Noise(kind, spreads, len(mine), total, p, root * unit, prior_df, asked)
    if asked == "pooled":
        return made
    return replace(made, noisier=_noisier(list(mine), variances, dfs, unit))


def _noisier(
    names: Sequence[str], variances: Floats, dfs: Floats, unit: float
) -> dict[str, Spread]:
    """Those of the first cells whose variance is larger than that of all others together."""
    squares, total = float(dfs @ variances), float(dfs.sum())
    found: dict[str, Spread] = {}
    for name, own, df in zip(names, variances.tolist(), dfs.tolist(), strict=False):
        rest = (squares - df * own) / (total - df) if total > df else 0.0
        if rest > 0 and upper_tail_f(own / rest, df, total - df) <= NOISIER:
            found[name] = Spread(math.sqrt(own) * unit, df)
    return found


def _each(own: Mapping[str, Sequence[float]], asked: Asked, p: float | None) -> Noise:
    """Gives each cell the noise of its own runs. A cell whose runs are all equal has none."""
    spreads: dict[str, Spread] = {}
    repeated = total = 0
    for name, values in own.items():
        repeated += len(values) > 1
        total += len(values) - 1
        if len(values) > 1 and min(values) != max(values):
            unit = unit_of(values)
            [variance], [df] = _variances([values], unit)
            spreads[name] = Spread(math.sqrt(variance) * unit, float(df))
    return Noise("own" if repeated else "none", spreads, repeated, total, p, None, 0.0, asked)


def _least(groups: Sequence[Sequence[float]], unit: float, variances: Floats) -> float:
    """The value that replaces a variance of 0. A metric that comes in steps, such as a share of
    some questions, gives equal values by chance. Their variance is not 0, but below that of one
    step."""
    values = np.unique(np.concatenate([np.asarray(g, dtype=float) for g in groups]) / unit)
    steps = np.diff(values)
    step = float(steps.min()) if len(steps) else 0.0
    return max(step**2 / 12, 1e-5 * float(np.median(variances[variances > 0])))


class Split(NamedTuple):
    """How many cells have runs `close` together and how many `wide` apart, with the factor
    between them."""

    close: int
    wide: int
    factor: float


def split_noise(groups: Sequence[Sequence[float]]) -> Split | None:
    """Whether the ranges of repeated cells fall into two clumps, as they do where some runs go
    another way altogether: the largest gap between them is a factor of 4 or more, with a fifth of
    the cells or more, and two at least, on either side. Normal noise has such gaps too, so ask
    `Noise.p` first. Ranges of 0 are left out."""
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
    """Moderated variances, along the last axis (limma's `squeezeVar` without a trend): the common
    variance, its degrees of freedom, and each variance drawn toward it. If the variances spread
    no more than by chance, the degrees of freedom are infinite and the common variance is their
    mean, weighted by degrees of freedom."""
    prior, prior_df = _prior(variances, dfs)
    middle = prior[..., np.newaxis]
    endless = np.isinf(prior_df)[..., np.newaxis]
    weight = np.where(endless, 1.0, prior_df[..., np.newaxis])
    drawn = (weight * middle + dfs * variances) / (weight + dfs)
    return prior, prior_df, np.where(endless, middle, drawn)


def _pool(variances: Floats, dfs: Floats) -> tuple[Floats, Floats, Floats]:
    """The same with one variance for all cells."""
    prior = np.asarray(dfs @ variances / dfs.sum())
    return prior, np.asarray(math.inf), np.full_like(variances, prior)


def _prior(variances: Floats, dfs: Floats) -> tuple[Floats, Floats]:
    """limma's `fitFDist`: moments of the logarithms of the variances."""
    dfs = np.broadcast_to(dfs, variances.shape)
    logs = np.log(variances) - digamma(dfs / 2) + np.log(dfs / 2)
    spread = logs.var(axis=-1, ddof=1) - trigamma(dfs / 2).mean(axis=-1)
    wide: Any = np.asarray(spread > 0)
    prior_df = 2 * trigamma_inverse(np.where(wide, spread, 1.0))
    prior = np.exp(logs.mean(axis=-1) + digamma(prior_df / 2) - np.log(prior_df / 2))
    even = (dfs * variances).sum(axis=-1) / dfs.sum(axis=-1)
    return _either(wide, prior, even), _either(wide, prior_df, math.inf)


def _either(where: Any, one: Any, other: Any) -> Floats:
    return np.asarray(np.where(where, one, other), dtype=np.float64)


def bartlett(variances: Floats, dfs: Floats) -> Floats:
    """Bartlett's statistic of positive variances along the last axis, with his correction."""
    dfs = np.broadcast_to(dfs, variances.shape)
    total = dfs.sum(axis=-1)
    pooled = (dfs * variances).sum(axis=-1) / total
    statistic = total * np.log(pooled) - (dfs * np.log(variances)).sum(axis=-1)
    cells = variances.shape[-1]
    return statistic / (1 + ((1 / dfs).sum(axis=-1) - 1 / total) / (3 * (cells - 1)))


def _equal(variances: Floats, dfs: Floats) -> float:
    """The p value of the test for equal variances. It is simulated, since chi-squared is far from
    the distribution of the statistic if cells have two or three runs."""
    drawn = _null(tuple(sorted(dfs.tolist())))
    above = len(drawn) - int(np.searchsorted(drawn, float(bartlett(variances, dfs))))
    return (above + 1) / (len(drawn) + 1)


@functools.lru_cache(maxsize=16)
def _null(dfs: tuple[float, ...]) -> Floats:
    """The statistic of cells with equal variances, in ascending order. The random draws are
    always the same."""
    draws = max(999, min(_DRAWS, 1_000_000 // len(dfs)))
    free = np.array(dfs)
    chi = np.random.default_rng(20).chisquare(free, (draws, len(dfs)))
    return np.sort(bartlett(chi / free, free))
