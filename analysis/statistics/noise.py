"""Estimates the noise between seeds, i.e. the variance between runs of a cell: a common variance
of all cells, moderated variances, or a variance for each cell. docs/statistics.md describes the
method. Pure."""

# Bartlett's test (Proceedings of the Royal Society A 160, 1937, 268-282) at `LEVEL` checks whether
# the variances of cells differ. If not, fewer than `MANY` cells share one variance, and more are
# moderated: each cell's variance is drawn toward the common one (limma's empirical Bayes: Smyth,
# Statistical Applications in Genetics and Molecular Biology 3(1), 2004, article 3). If they differ,
# or if fewer than `FEW` cells were repeated, each cell has its own, and the interval of the best
# uses the larger of its own noise and that of all cells. A single noisier cell of two or three
# seeds is not detected; such cells are listed (`Noise.noisier`).
#
# Two kinds of noise that differ between cells are modelled first. Shares of some questions have the
# variance p(1 - p) times a common factor. Otherwise a trend along one ordered axis is removed if a
# test finds it (`_trend`): noise often grows with the learning rate. If all cells had the same
# seeds, `paired` may remove the effect of a seed on all cells. All values are on the scale of the
# comparison.

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from sweeper.analysis.reading.series import Floats
from sweeper.analysis.statistics.distributions import (
    digamma,
    student_quantile,
    student_tail,
    trigamma,
    upper_tail_f,
)
from sweeper.analysis.statistics.inference import CONFIDENCE, Estimate, student
from sweeper.analysis.statistics.variances import equal_variances, pool, squeeze
from sweeper.results.cells import unit_of

FEW = 4
"""With fewer repeated cells than this, cells do not share their noise unless the caller requests
shared noise."""

MANY = 12
"""If cells share their noise and fewer cells than this were repeated, all cells get the same
variance, since the spread of variances cannot be estimated. Otherwise variances may be
moderated."""

LEVEL = 0.02
"""The level of the test for equal variances. One in fifty sweeps with equal variances does not
share its noise, which costs power. A larger level would cost more power and give little more
protection."""

NOISIER = 0.1
"""The level of the F test that a cell is noisier than the other cells. With two seeds per cell, the
test detects a standard deviation of four times the size in two of three sweeps. At a level of 5 %,
undetected noise would cause more false winners than promised. At this level, two in a hundred true
winners are lost."""

TOWARD = " toward divergence"
"""Appended to the name of an axis if at least half of the cells at some value diverged."""

NoiseRule = Literal["auto", "pooled", "own"]


class Spread(NamedTuple):
    """The noise of a cell: the standard deviation between its runs, with degrees of freedom.
    `answers` is the effective number of answers per run if the metric is a fraction, such as the
    fraction of right answers. For other metrics it is 0."""

    sd: float
    df: float
    answers: float = 0.0

    def reach(self) -> float:
        """Return half of the width of Student's interval around the value of one run."""
        return self.sd * student_quantile((1 + CONFIDENCE) / 2, self.df)


@dataclass(frozen=True)
class Noise:
    """The noise of a sweep. `kind` is "pooled" (the same variance for all cells), "moderated",
    "own" (a variance for each cell), or "none" (no cell was repeated). `spreads` has the noise of
    each cell. The estimate uses only cells with several runs: `repeated` cells of this sweep, and
    `lent_cells` cells of the other sweeps `lent`. `p` is the p value of the test for equal
    variances (None: no test). `prior` is the common standard deviation of all cells, with
    `prior_df` degrees of freedom (infinite: the cells' own variances are ignored). `total` is the
    number of degrees of freedom of all cells. `refused` names other sweeps that the user requested,
    but whose noise differs. `noisier` maps cells with a significantly larger variance (F test at
    `NOISIER`) to the noise of their own runs; `spreads` has shared noise for them. `together` is a
    common noise of all cells. It is set only if the test rejects a shared noise, if too few cells
    were repeated, or if runs failed. `trend` is the axis along which the noise grows or falls ("":
    none). `shares` is set if the metric is a fraction from 0 to 1. If a seed affects all cells
    equally (see `paired`), `seeds` is the noise of this effect, and `between` is the noise of
    differences between cells."""

    kind: Literal["pooled", "moderated", "own", "none"]
    spreads: Mapping[str, Spread]
    repeated: int
    total: float
    p: float | None = None
    prior: float | None = None
    prior_df: float = 0.0
    rule: NoiseRule = "auto"
    lent: tuple[str, ...] = ()
    lent_cells: int = 0
    refused: tuple[str, ...] = field(default=())
    noisier: Mapping[str, Spread] = field(default_factory=dict[str, Spread])
    together: Spread | None = None
    trend: str = ""
    shares: bool = False
    seeds: Spread | None = None
    between: "Noise | None" = None

    @property
    def shared(self) -> bool:
        """Whether `kind` is "pooled" or "moderated"."""
        return self.kind in ("pooled", "moderated")

    def of(self, cell: str) -> Spread | None:
        """Return the noise of a cell; None if it is unknown."""
        return self.spreads.get(cell)

    def largest(self, cell: str) -> Spread:
        """Return the largest noise of a cell in `spreads`, `noisier` and `together`."""
        spreads = (self.of(cell), self.noisier.get(cell), self.together)
        return max((s for s in spreads if s is not None), key=Spread.reach)

    def of_chosen(self, cell: str) -> Spread | None:
        """Return the noise for the interval of a cell that was chosen as the best: its entry in
        `noisier` (in `spreads` if `noisier` has none), or `together` if that is larger. Return
        None if the noise of the cell is unknown."""
        spread = self.noisier.get(cell) or self.of(cell)
        if spread is None or self.together is None:
            return spread
        return max(spread, self.together, key=Spread.reach)

    def contrast(
        self, groups: Sequence[tuple[str, Sequence[float]]], weights: Sequence[float]
    ) -> Estimate:
        """Return a weighted sum of the means of cells, with its interval. `groups` has (name,
        values) for each cell; the values have the same scale as the noise. The degrees of freedom
        are Satterthwaite's (at most `total` for shared noise). There is no interval if a cell with
        a nonzero weight has unknown noise."""
        if self.between is not None and self.seeds is not None:
            return _with_seeds(self.between.contrast(groups, weights), self.seeds, groups, weights)
        used = [(n, v, w) for (n, v), w in zip(groups, weights, strict=True) if w]
        most = unit_of(x for _, v, _ in used for x in v) if used else 1.0
        value = math.fsum(w * math.fsum(x / most / len(v) for x in v) for _, v, w in used) * most
        entries = [self.of(name) for name, _, _ in used]
        noises = [spread for spread in entries if spread is not None]
        if not used or len(noises) < len(used):
            return Estimate(value)
        unit = max(spread.sd for spread in noises)
        if not 0 < unit < math.inf:
            return Estimate(value)
        parts = [(w * s.sd / unit) ** 2 / len(v) for (_, v, w), s in zip(used, noises, strict=True)]
        variance = math.fsum(parts)
        below = math.fsum(part**2 / s.df for part, s in zip(parts, noises, strict=True))
        if not below > 0:  # the noise is so small that no float holds its square
            return Estimate(value)
        df = min(variance**2 / below, self.total if self.shared else math.inf)
        if self.kind == "moderated":
            both = zip(parts, noises, strict=True)
            variance = math.fsum(part * _wider(s.df) for part, s in both) / _wider(df)
        return student(value, math.sqrt(variance) * unit, df)

    def document(self) -> dict[str, Any]:
        """Return the value of `noise` in `report.json`."""
        return {
            "kind": self.kind,
            "asked": self.rule,
            "repeated_cells": self.repeated,
            "degrees_of_freedom": self.total,
            "p_equal": self.p,
            "sd": self.prior,
            "prior_df": self.prior_df if math.isfinite(self.prior_df) else None,
            "from": list(self.lent),
            "from_cells": self.lent_cells,
            "refused": list(self.refused),
            "trend": self.trend or None,
            "paired": self.between is not None,
        }


UNKNOWN = Noise("none", {}, 0, 0.0)
"""The noise if nothing is known about it."""


def fit_noise(
    groups: Mapping[str, Sequence[float]],
    rule: NoiseRule = "auto",
    lent: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
    axes: Mapping[str, Mapping[str, float]] | None = None,
    *,
    shares: bool = False,
) -> Noise:
    """Estimate the noise of cells from their values. `rule` says whether the cells share their
    noise. `lent` has the values of cells of other sweeps, by sweep and cell; the estimate uses them
    too. If the variances of all these cells differ significantly, the other sweeps are left out.
    `axes` has the position of each cell on each ordered axis, by axis and cell. The noise may have
    a trend along one axis. Set `shares` if the metric is a fraction from 0 to 1."""
    measured = {name: list(values) for name, values in groups.items() if values}
    lenders = {name: dict(cells) for name, cells in (lent or {}).items()}
    borrowed = [v for cells in lenders.values() for v in cells.values() if len(v) > 1]
    if rule != "own" and borrowed:
        share = (_of_shares if shares else _share)(measured, borrowed, rule, 1)
        if share is not None and share.shared:
            return replace(share, lent=tuple(lenders), lent_cells=len(borrowed))
        return replace(fit_noise(measured, rule, None, axes, shares=shares), refused=tuple(lenders))
    if shares:
        share = None if rule == "own" else _of_shares(measured, [], rule, 1)
        return share or _with_answers(_each(measured, rule, None), measured)
    if rule == "own":
        return _each(measured, rule, None)
    least = 1 if rule == "pooled" else FEW
    return _share(measured, [], rule, least, axes) or _each(measured, rule, None)


def _wider(df: float) -> float:
    return max(df, 4.0) / (max(df, 4.0) - 2)


def _variances(groups: Sequence[Sequence[float]], unit: float) -> tuple[Floats, Floats]:
    """Return the variances of repeated cells, in units of `unit`, and their degrees of freedom."""
    scaled = [np.asarray(values, dtype=float) / unit for values in groups]
    # The mean of equal values may be off by a rounding error, which is not noise.
    variances = np.array([float(v.var(ddof=1)) if v.min() < v.max() else 0.0 for v in scaled])
    return variances, np.array([len(values) - 1.0 for values in scaled])


def _share(
    groups: Mapping[str, Sequence[float]],
    borrowed: Sequence[Sequence[float]],
    rule: NoiseRule,
    least: int,
    axes: Mapping[str, Mapping[str, float]] | None = None,
) -> Noise | None:
    local = {name: values for name, values in groups.items() if len(values) > 1}
    repeated = [*local.values(), *borrowed]
    if len(repeated) < max(least, 1):
        return None
    unit = unit_of(v for values in repeated for v in values) or 1.0
    variances, dfs = _variances(repeated, unit)
    if not variances.any():
        return None
    variances = np.maximum(variances, _least(repeated, unit, variances))
    total = float(dfs.sum())
    trend = _trend(local, groups, variances, dfs, axes or {})
    flat = variances / np.array([trend.factors.get(n, 1.0) for n in local]) if trend else variances
    p = None if rule == "pooled" or len(repeated) < 2 else equal_variances(flat, dfs)
    if p is not None and p <= LEVEL and trend is not None:
        trend, flat, p = None, variances, equal_variances(variances, dfs)
    if p is not None and p <= LEVEL:
        return _each(groups, rule, p)
    moderate = rule != "pooled" and len(repeated) >= MANY
    prior, prior_df, drawn = squeeze(flat, dfs) if moderate else pool(flat, dfs)
    own_spreads = dict(zip(local, np.sqrt(drawn).tolist(), strict=False))  # without the lent cells
    root, prior_df = math.sqrt(float(prior)), float(prior_df)
    grown = {name: math.sqrt(factor) for name, factor in trend.factors.items()} if trend else {}
    spreads = {
        name: Spread(
            own_spreads.get(name, root) * grown.get(name, 1.0) * unit,
            min(prior_df + len(values) - 1, total - (trend is not None)),
        )
        for name, values in groups.items()
    }
    kind = "moderated" if math.isfinite(prior_df) else "pooled"
    made = Noise(kind, spreads, len(local), total, p, root * unit, prior_df, rule)
    made = replace(made, trend=trend.axis if trend is not None else "")
    if rule == "pooled":
        return made
    noisier = _noisier(list(local), flat, dfs, unit)
    own_noise = {n: s._replace(sd=s.sd * grown.get(n, 1.0)) for n, s in noisier.items()}
    return replace(made, noisier=own_noise)


class _Trend(NamedTuple):
    """A trend of the noise along an axis: a factor for the variance of each cell. The mean
    factor is 1."""

    axis: str
    factors: Mapping[str, float]


def _trend(
    repeated: Mapping[str, Sequence[float]],
    groups: Mapping[str, Sequence[float]],
    variances: Floats,
    dfs: Floats,
    axes: Mapping[str, Mapping[str, float]],
) -> _Trend | None:
    """Return the most significant trend of the variances along an axis; None if no trend is
    significant. A t test of the weighted slope of log variance on position is done for each axis,
    corrected for the number of axes. A significant trend toward divergence has priority."""
    if len(repeated) < FEW or len(variances) > len(repeated):
        return None
    weights = 1 / np.asarray(trigamma(dfs / 2))
    logs = np.log(variances) - digamma(dfs / 2) + np.log(dfs / 2)
    best: tuple[bool, float, str, float] = True, 1.0, "", 0.0
    for axis, places in axes.items():
        at = np.array([places[name] for name in repeated])
        at = at - weights @ at / weights.sum()
        squares = float(weights @ at**2)
        if not squares > 0:
            continue
        slope = float((weights * at) @ logs) / squares
        rest = logs - weights @ logs / weights.sum() - slope * at
        scale = max(1.0, float(weights @ rest**2) / (len(at) - 2))
        p = float(student_tail(slope * math.sqrt(squares / scale), len(at) - 2.0))
        # Near divergence, noise is of another kind, so a trend toward it takes precedence.
        plain = not (axis.endswith(TOWARD) and p * len(axes) <= 1 - CONFIDENCE)
        best = min(best, (plain, p, axis, slope))
    _, p, axis, slope = best
    if not axis or p * len(axes) > 1 - CONFIDENCE:
        return None
    factors = {name: math.exp(slope * axes[axis][name]) for name in groups}
    middle = float(dfs @ np.array([factors[name] for name in repeated])) / float(dfs.sum())
    return _Trend(axis, {name: factor / middle for name, factor in factors.items()})


_COUNTS = 5.0
"""If a run has fewer right answers or fewer wrong answers than this, variances of fractions are
not tested."""


def _of_shares(
    groups: Mapping[str, Sequence[float]],
    borrowed: Sequence[Sequence[float]],
    rule: NoiseRule,
    least: int,
) -> Noise | None:
    """Return the noise of fractions: the variance of a cell is p(1 - p) times a factor that all
    cells share. To compute p, a right and a wrong answer are added to each cell. If runs have
    enough right and wrong answers (`_COUNTS`) and a test finds different factors, each cell gets
    its own noise. Return None if too few cells were repeated, or the factor is 0."""
    local = {name: values for name, values in groups.items() if len(values) > 1}
    repeated = [*local.values(), *borrowed]
    if len(repeated) < least:
        return None
    variances, dfs = _variances(repeated, 1.0)
    means = np.array([math.fsum(values) / len(values) for values in repeated])
    expected = means * (1 - means)
    if not variances.any() or not float(dfs @ expected) > 0:
        return None
    total, factor = float(dfs.sum()), float(dfs @ variances) / float(dfs @ expected)
    p = None
    if rule != "pooled" and len(repeated) >= FEW and float(expected.min()) >= _COUNTS * factor:
        p = equal_variances(np.maximum(variances, 1e-5 * variances.max()) / expected, dfs)
        if p <= LEVEL:
            return _with_answers(_each(groups, rule, p), groups)
    spreads: dict[str, Spread] = {}
    for name, values in groups.items():
        answers = len(values) / factor
        share = (math.fsum(values) / len(values) * answers + 1) / (answers + 2)
        spreads[name] = Spread(math.sqrt(factor * share * (1 - share)), total, 1 / factor)
    sd = math.sqrt(factor * float(dfs @ expected) / total)
    return Noise("pooled", spreads, len(local), total, p, sd, math.inf, rule, shares=True)


def _with_answers(noise: Noise, groups: Mapping[str, Sequence[float]]) -> Noise:
    def counted(name: str, spread: Spread) -> Spread:
        share = math.fsum(groups[name]) / len(groups[name])
        return spread._replace(answers=share * (1 - share) / spread.sd**2)

    spreads = {name: counted(name, spread) for name, spread in noise.spreads.items()}
    return replace(noise, spreads=spreads, shares=True)


def _noisier(
    names: Sequence[str], variances: Floats, dfs: Floats, unit: float
) -> dict[str, Spread]:
    squares, total = float(dfs @ variances), float(dfs.sum())
    noisier: dict[str, Spread] = {}
    for name, variance, df in zip(names, variances.tolist(), dfs.tolist(), strict=False):
        rest = (squares - df * variance) / (total - df) if total > df else 0.0
        if rest > 0 and upper_tail_f(variance / rest, df, total - df) <= NOISIER:
            noisier[name] = Spread(math.sqrt(variance) * unit, df)
    return noisier


def _each(groups: Mapping[str, Sequence[float]], rule: NoiseRule, p: float | None) -> Noise:
    """Give each cell the noise of its own runs. For a cell with a single run, or with equal
    values in all runs, the noise is unknown."""
    spreads: dict[str, Spread] = {}
    repeated = total = 0
    for name, values in groups.items():
        repeated += len(values) > 1
        total += len(values) - 1
        if len(values) > 1 and min(values) != max(values):
            unit = unit_of(values)
            [variance], [df] = _variances([values], unit)
            spreads[name] = Spread(math.sqrt(variance) * unit, float(df))
    noise = Noise("own" if repeated else "none", spreads, repeated, total, p, None, 0.0, rule)
    if rule == "own" or not spreads:
        return noise
    unit = unit_of(value for values in groups.values() for value in values)
    variances, dfs = _variances([values for values in groups.values() if len(values) > 1], unit)
    sd = math.sqrt(float(dfs @ variances) / float(dfs.sum())) * unit
    return replace(noise, together=Spread(sd, float(dfs.sum())))


def _least(groups: Sequence[Sequence[float]], unit: float, variances: Floats) -> float:
    """Return a lower limit for variances, because discrete values may be equal by chance: 1e-5 of
    the median positive variance, or d**2 / 12 if that is larger. (d is the smallest distance of two
    different values; d**2 / 12 is the variance of rounding to multiples of d.)"""
    values = np.unique(np.concatenate([np.asarray(g, dtype=float) for g in groups]) / unit)
    steps = np.diff(values)
    step = float(steps.min()) if len(steps) else 0.0
    return max(step**2 / 12, 1e-5 * float(np.median(variances[variances > 0])))


def with_failed(
    noise: Noise, groups: Mapping[str, Sequence[float]], failed: Mapping[str, int], worst: float
) -> Noise:
    """Return `noise` with a new `together`, computed as if each failed run had the value `worst`.
    Return `noise` unchanged if no run failed, or if no noise is known."""
    filled = {name: [*v, *[worst] * failed.get(name, 0)] for name, v in groups.items() if v}
    repeated = [values for values in filled.values() if len(values) > 1]
    if not any(failed.values()) or not repeated or not noise.spreads:
        return noise
    unit = unit_of(value for values in repeated for value in values) or 1.0
    variances, dfs = _variances(repeated, unit)
    sd, df = math.sqrt(float(dfs @ variances) / float(dfs.sum())) * unit, float(dfs.sum())
    together = noise.together
    spread = Spread(sd if together is None else max(sd, together.sd), df)
    return replace(noise, together=spread) if sd > 0 else noise


def paired(noise: Noise, cells: Mapping[str, Mapping[int, float]]) -> Noise:
    """Return the noise of cells that all had the same seeds. `cells` has values by cell and seed. A
    two-way analysis of variance subtracts the effect of a seed on all cells from the noise of
    differences. Return `noise` unchanged if cells have different seeds, if an F test finds no
    difference between seeds, or if the variance of residuals differs between cells. Also return
    `noise` unchanged if it uses other sweeps, or if its rule is "own"."""
    seed_sets = {tuple(sorted(by_seed)) for by_seed in cells.values()}
    if noise.rule == "own" or noise.lent or len(seed_sets) != 1 or len(cells) < 2:
        return noise
    (seeds,) = seed_sets
    if len(seeds) < 2:
        return noise
    table = np.array([[by_seed[seed] for seed in seeds] for by_seed in cells.values()])
    unit = unit_of(table.ravel().tolist()) or 1.0
    table = table / unit
    count, per_cell = table.shape
    means, middle = table.mean(axis=1, keepdims=True), table.mean()
    seed_means = table.mean(axis=0)
    rest = table - means - seed_means + middle
    free, seed_free = float((count - 1) * (per_cell - 1)), per_cell - 1.0
    within = float((rest**2).sum()) / free
    square = count * float(((seed_means - middle) ** 2).sum()) / seed_free
    # The residual of few cells has few degrees of freedom, and may be small by chance.
    level = LEVEL if count >= FEW else LEVEL / 2
    if not within > 1e-20 or upper_tail_f(square / within, seed_free, free) > level:
        return noise
    left = (means + rest / math.sqrt(1 - 1 / count)) * unit
    groups = dict(zip(cells, left.tolist(), strict=True))
    between = fit_noise(groups, "pooled" if count < FEW else noise.rule)
    if not between.shared:
        return noise
    limited = {n: Spread(s.sd, min(s.df, free)) for n, s in between.spreads.items()}
    between = replace(between, spreads=limited, total=free)
    # A single value has the variance of seeds and of the residual, each with its own df.
    parts = square / count, within * (count - 1) / count
    both = sum(parts)
    df = both**2 / (parts[0] ** 2 / seed_free + parts[1] ** 2 / free)
    spreads = dict.fromkeys(noise.spreads.keys() | cells.keys(), Spread(both**0.5 * unit, df))
    added = Spread(math.sqrt(max(square - within, 0.0) / count) * unit, seed_free)
    seeded = replace(between, spreads=spreads, total=df, noisier={}, seeds=added, between=between)
    values = {name: list(by_seed.values()) for name, by_seed in cells.items()}
    return _with_answers(replace(seeded, spreads=spreads), values) if noise.shares else seeded


def _with_seeds(
    estimate: Estimate,
    seeds: Spread,
    groups: Sequence[tuple[str, Sequence[float]]],
    weights: Sequence[float],
) -> Estimate:
    whole = abs(math.fsum(weights))
    if estimate.error is None or estimate.df is None or whole < 1e-9 * math.fsum(map(abs, weights)):
        return estimate
    n = min(len(values) for _, values in groups)
    parts = estimate.error**2, (whole * seeds.sd) ** 2 / n
    df = sum(parts) ** 2 / (parts[0] ** 2 / estimate.df + parts[1] ** 2 / seeds.df)
    return student(estimate.value, math.sqrt(sum(parts)), df)
