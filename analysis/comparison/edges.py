"""Finds axes on which the best cell has the smallest or the largest tried value, and tests whether
the metric still improves toward this value. Pure."""

# An edge is a fact: with the other settings unchanged, nothing was tried beyond it. The claim that
# the metric still improves there has a test: the end is better than the value before it, over all
# combinations of the other settings that have both, or in a single combination (corrected for their
# number). The test is corrected for the number of axes and of blocks (Bonferroni). If the cells at
# these two values are noisier than the others, their own noise counts too, since noise often grows
# along an axis. With equal cells the claim is made in at most 5 % of sweeps.

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.comparison.contrasts import over_pairs, rest, usable, weigh
from sweeper.analysis.reading.settings import level, ordered
from sweeper.analysis.statistics.distributions import upper_tail_f
from sweeper.analysis.statistics.inference import CONFIDENCE, Estimate
from sweeper.analysis.statistics.noise import NOISIER, fit_noise


@dataclass(frozen=True)
class Edge:
    """An axis on which the best cell has the smallest or the largest value (`side`). This value is
    called the end. `values` is the number of values that were compared: as a rule, those of cells
    with the same other settings. `suggestion` is the next value beyond the end (None if there is no
    sensible value). `inner` is the value next to the end. `gain` is the mean at the end minus the
    mean at `inner` (None if no two cells can be compared), and `told` says whether the gain is
    significant. `stopped` is set if values beyond the end were tried, but only by cells with
    diverged or failed runs."""

    axis: str
    value: float
    side: str
    suggestion: float | None
    inner: float | None = None
    values: int = 2
    gain: Estimate | None = None
    told: bool = False
    stopped: bool = False

    @property
    def doubt(self) -> str:
        """The reason why the gain is not significant. Empty if it is significant."""
        if self.told:
            return ""
        tested = self.gain is not None and self.gain.p is not None
        return "within the noise" if tested else "noise not known"


def find_edges(
    best: Mapping[str, Any],
    tried: Sequence[Mapping[str, Any]],
    planned: Sequence[Mapping[str, Any]] = (),
    *,
    alone: bool = False,
) -> list[Edge]:
    """Return the settings in which the best cell has the smallest or the largest number. It is
    compared with cells that have the same other settings. `tried` are the settings of all cells
    with a result. A setting is left out if a cell in `planned`, with or without a result, has a
    number beyond the end. With `alone`, if the compared cells have only one number, the numbers of
    all cells in `tried` are used."""
    edges: list[Edge] = []
    for axis, value in best.items():
        row = [cell for cell in tried if _beside(cell, best, axis)]
        values = ordered(axis, row)
        if alone and len(values) < 2:
            row = list(tried)
            values = ordered(axis, row)
        if len(values) < 2 or value not in (values[0], values[-1]):
            continue
        everything = ordered(axis, [*row, *(c for c in planned if _beside(c, best, axis))])
        if value not in (*everything[:1], *everything[-1:]):
            continue
        outward = values if value == values[-1] else values[::-1]
        side = "largest" if value == values[-1] else "smallest"
        suggestion = _next(outward[-2], outward[-1], values)
        edges.append(Edge(axis, value, side, suggestion, outward[-2], len(values)))
    return edges


def _beside(cell: Mapping[str, Any], best: Mapping[str, Any], axis: str) -> bool:
    """Return whether a cell differs from the best cell only in `axis`. Keys that the best cell does
    not set are ignored."""
    if not best.keys() <= cell.keys():
        return False
    return all(key == axis or _same(cell, best, key) for key in best)


def _same(cell: Mapping[str, Any], best: Mapping[str, Any], key: str) -> bool:
    left, right = cell[key], best[key]
    if isinstance(left, bool | str) or isinstance(right, bool | str):
        return type(left) is type(right) and left == right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    return level(cell, key) == level(best, key)


def judge_edges(
    ranking: Ranking, sign: float, *, alone: bool = False, blocks: int = 1
) -> list[Edge]:
    """Return the edges of the best cell. Test the gain of each edge, corrected for the number of
    axes and of `blocks`. An axis has no edge if a cell with another value on this axis, and equal
    other settings, has the same mean as the best cell."""
    best = ranking.best
    if best is None:
        return []
    good = [cell.settings for cell in usable(ranking)]
    planned = [cell.settings for cell in ranking.cells if not cell.diverged]
    failed = [cell.settings for cell in ranking.tried]
    mean = best.summary.mean
    equal = [c.settings for c in usable(ranking) if c is not best and c.summary.mean == mean]
    all_edges = find_edges(best.settings, failed, planned, alone=alone)
    tried = {edge.axis: edge.values for edge in all_edges}
    edges = [
        replace(edge, stopped=edge.axis not in tried, values=tried.get(edge.axis, edge.values))
        for edge in find_edges(best.settings, good, planned, alone=alone)
        if not any(_beside(cell, best.settings, edge.axis) for cell in equal)
    ]
    # Trends are claims of the same kind, and have the other half of the level.
    family = 2 * max(len(_ordered_axes(best, good)), 1) * max(blocks, 1)
    return [_judged(edge, best, ranking, sign, family) for edge in edges]


def _ordered_axes(best: Cell, good: Sequence[Mapping[str, Any]]) -> list[str]:
    settings = best.settings
    rows = {axis: [cell for cell in good if _beside(cell, settings, axis)] for axis in settings}
    return [axis for axis, row in rows.items() if len(ordered(axis, row)) > 1]


def _judged(edge: Edge, best: Cell, ranking: Ranking, sign: float, family: int) -> Edge:
    pairs = _pairs(ranking, edge)
    if not pairs:
        return edge
    gain = over_pairs(ranking, pairs)
    chances = [gain.p] if gain.p is not None and sign * gain.value < 0 else []
    best_pairs = [pair for pair in pairs if pair[0] is best]
    if best_pairs and len(pairs) > 1:
        alone = weigh(ranking, [(best_pairs[0][0], 1.0), (best_pairs[0][1], -1.0)])
        if alone.p is not None and sign * alone.value < 0:
            chances = [2 * p for p in (*chances, len(pairs) * alone.p)]
    level = (1 - CONFIDENCE) / family
    beyond_noise = bool(chances) and max(min(chances), _by_their_noise(ranking, pairs)) <= level
    return replace(edge, gain=gain, told=beyond_noise)


def _by_their_noise(ranking: Ranking, pairs: Sequence[tuple[Cell, Cell]]) -> float:
    """Test `pairs` with the noise of their own cells, if this noise is significantly larger than
    that of all other cells. Return the p value of the mean difference; 0 if this test is not
    needed."""
    if not ranking.noise.shared or ranking.noise.between is not None:
        return 0.0
    sides = [[cell for cell, _ in pairs], [cell for _, cell in pairs]]
    here = {cell.name for side in sides for cell in side}
    remaining = {c.name: ranking.on_scale(c) for c in usable(ranking) if c.name not in here}
    rest = fit_noise(remaining, "pooled")
    levels = [fit_noise({c.name: ranking.on_scale(c) for c in s}, "pooled") for s in sides]
    if not all(noise.prior and noise.total for noise in (rest, *levels)):
        return 0.0
    total = sum(noise.total for noise in levels)
    variance = math.fsum(noise.total / total * (noise.prior or 0.0) ** 2 for noise in levels)
    if upper_tail_f(variance / (rest.prior or 1.0) ** 2, total, rest.total) > NOISIER:
        return 0.0
    spreads = {name: spread for noise in levels for name, spread in noise.spreads.items()}
    parts = [(cell, weight) for a, b in pairs for cell, weight in ((a, 1.0), (b, -1.0))]
    groups = [(cell.name, ranking.on_scale(cell)) for cell, _ in parts]
    noise = replace(ranking.noise, kind="pooled", spreads=spreads, total=total)
    comparison = noise.contrast(groups, [weight for _, weight in parts])
    return 0.0 if comparison.p is None else comparison.p


def _pairs(ranking: Ranking, edge: Edge) -> list[tuple[Cell, Cell]]:
    ends: dict[object, Cell] = {}
    inner: dict[object, Cell] = {}
    for cell in usable(ranking):
        value = cell.settings.get(edge.axis)
        if value == edge.value:
            ends[rest(cell, edge.axis)] = cell
        elif value == edge.inner:
            inner[rest(cell, edge.axis)] = cell
    return [(cell, inner[row]) for row, cell in ends.items() if row in inner]


def _next(inner: float, edge: float, values: Sequence[float]) -> float | None:
    """Return the value one step beyond `edge`, rounded to few digits. The step is a ratio if the
    axis is spaced by ratios, otherwise a difference. Return None if there is no sensible value."""
    if by_ratios(values):
        beyond = edge * (edge / inner)
    else:
        beyond = edge + (edge - inner)
        if beyond <= 0 <= min(values):
            return None  # zero or less is probably no valid value of this setting
    if not math.isfinite(beyond):
        return None
    if all(float(v).is_integer() for v in values):
        return round(beyond) if round(beyond) not in (edge, 0) else None
    for digits in range(2, 18):
        rounded = float(f"{beyond:.{digits}g}")
        if math.isfinite(rounded) and (rounded > edge if edge > inner else rounded < edge):
            return rounded
    return None


def by_ratios(values: Sequence[float]) -> bool:
    """Return whether the ratios between neighbouring values vary at most as much as the
    differences. Return False if there is only one value, or if a value is not positive."""
    if len(values) < 2 or values[0] <= 0:
        return False
    pairs = list(itertools.pairwise(values))
    ratios = [math.log(b) - math.log(a) for a, b in pairs]
    steps = [b - a for a, b in pairs]
    return min(ratios) > 0 and max(ratios) / min(ratios) <= max(steps) / min(steps)
