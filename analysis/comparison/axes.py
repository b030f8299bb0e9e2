"""The effect of each axis: the mean of each value with its interval, trends, and pairs of axes.
Pure."""

# The marginal mean of a value is the plain mean, over the combinations of the other settings, of
# the cells' means, whatever their numbers of seeds. Only combinations that were measured at every
# value of the axis count, so that all values have the same combinations. The interval of the mean
# reflects the noise between seeds (`contrasts.weigh`). If no combination was measured at every
# value, as in a random search, nothing is claimed about means, and `surface` estimates the effect.
#
# Each claim has a test. A trend: the ends differ. "The best x depends on y": each of two values of
# x is better somewhere. A test covers all axes, or all pairs of them, together.

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import NamedTuple

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.comparison.contrasts import (
    level_mean,
    over_pairs,
    over_rows,
    ranged,
    rest,
    usable,
    weigh,
)
from sweeper.analysis.comparison.edges import by_ratios
from sweeper.analysis.reading.settings import level, ordered
from sweeper.analysis.statistics.distributions import range_tail
from sweeper.analysis.statistics.inference import CONFIDENCE, Estimate

MOST = 24
"""An axis with more values than this gets no mean for each value."""
_PAIRS = 3
_PAIRED = 4
"""Pairs are formed from at most this many axes, the most important ones."""


@dataclass(frozen=True)
class Level:
    """A value of an axis: its text, its number (None if the value is not a number), and its
    marginal mean with a 95 % interval. `cells` is the number of cells in the mean. On a log scale,
    the mean is geometric."""

    value: str
    number: float | None
    mean: float
    low: float | None
    high: float | None
    cells: int
    spelled: str = field(default="", compare=False)

    @property
    def shown(self) -> str:
        """The value as the names of cells show it. A long number is shortened."""
        if self.spelled:
            return self.spelled
        long = self.number is not None and len(self.value) > labels.BRIEF
        return labels.brief(self.number) if long else self.value


@dataclass(frozen=True)
class Axis:
    """An axis of the grid. `best` and `worst` are the positions of the levels with the best and the
    worst marginal mean. `effect` is the difference between these two means, on the scale of the
    comparison; its interval and p are corrected for the number of levels. On an ordered axis,
    `ends` is the mean of the last level minus the mean of the first level, and `steps` are the
    differences between neighbouring levels. `log` is set if the numbers are spaced by ratios. If no
    combination of the other settings was measured at every level, `matched` is False, and the means
    include effects of other settings."""

    key: str
    levels: tuple[Level, ...]
    best: int
    worst: int
    effect: Estimate
    log: bool
    matched: bool
    ends: Estimate | None = None
    steps: tuple[Estimate, ...] = ()


@dataclass(frozen=True)
class Trend:
    """An ordered axis along which the marginal mean improves at each step. The best mean is at the
    "smallest" or the "largest" value (`side`). The difference between the means of these two values
    is significant. `every` is set if each step is significant."""

    axis: str
    side: str
    effect: Estimate
    every: bool = False


@dataclass(frozen=True)
class Crossing:
    """An interaction of two axes, `x` and `y`. Where `y` is `here`, the value `first` of `x` is
    significantly better than the value `second`. Where `y` is `there`, `second` is significantly
    better than `first`. `p` is corrected for the number of comparisons."""

    x: str
    y: str
    first: str
    second: str
    here: str
    there: str
    p: float


@dataclass(frozen=True)
class Grid2:
    """A table of means with a row for each value of `y` and a column for each value of `x`. A mean
    is None if no cell has both values. `best_x` has the position of the best mean in each row (None
    for an empty row)."""

    x: str
    y: str
    xs: tuple[str, ...]
    ys: tuple[str, ...]
    means: tuple[tuple[float | None, ...], ...]
    best_x: tuple[int | None, ...]
    strength: float


def find_axes(ranking: Ranking, sign: float) -> list[Axis]:
    """Return the axes that have two to `MOST` values among the usable cells, the largest effect
    first. Cells with a diverged run and those in `ranking.held_back` (with failed runs) are not
    usable, because their means may be too good."""
    cells = usable(ranking)
    axes = [axis for key in ranking.keys if (axis := _axis(key, cells, ranking, sign)) is not None]
    return sorted(axes, key=lambda axis: -abs(axis.effect.value))


def _axis(key: str, cells: Sequence[Cell], ranking: Ranking, sign: float) -> Axis | None:
    values: dict[str, list[Cell]] = {}
    for cell in cells:
        values.setdefault(level(cell.settings, key), []).append(cell)
    if not 2 <= len(values) <= MOST:
        return None
    numbers = ordered(key, [cell.settings for cell in cells])
    if numbers:
        order = {level({key: number}, key): float(number) for number in numbers}
        texts = sorted(values, key=lambda text: order.get(text, math.inf))
    else:
        order, texts = {}, list(values)
    blocks = _blocks(key, values)
    matched = bool(blocks)
    groups = {
        text: [c for c in values[text] if not matched or rest(c, key) in blocks] for text in texts
    }
    levels = tuple(_level(key, t, order.get(t), groups[t], ranking) for t in texts)
    ranked = sorted(range(len(levels)), key=lambda i: sign * levels[i].mean)
    best, worst = ranked[0], ranked[-1]
    gap = _Gap(key, groups, ranking, matched=matched)
    effect = ranged(gap.between(texts[best], texts[worst]), len(texts))
    ends, steps = None, ()
    if len(order) == len(texts):
        ends = gap.between(texts[-1], texts[0])
        steps = tuple(gap.between(b, a) for a, b in pairwise(texts))
    return Axis(key, levels, best, worst, effect, by_ratios(numbers), matched, ends, steps)


class _Gap(NamedTuple):
    key: str
    groups: Mapping[str, list[Cell]]
    ranking: Ranking
    matched: bool

    def between(self, first: str, second: str) -> Estimate:
        """Return the marginal mean of `first` minus the marginal mean of `second`. There is no
        interval if the axis is not `matched`."""
        left, right = self.groups[first], self.groups[second]
        if not self.matched:
            return Estimate(_plain_mean(self.ranking, left) - _plain_mean(self.ranking, right))
        parts = [(c, 1 / len(left)) for c in left] + [(c, -1 / len(right)) for c in right]
        contrast = weigh(self.ranking, parts)
        if contrast.p is None:
            beside = {rest(cell, self.key): cell for cell in right}
            return over_rows(self.ranking, [(c, beside[rest(c, self.key)]) for c in left])
        return contrast


def _plain_mean(ranking: Ranking, cells: Sequence[Cell]) -> float:
    return math.fsum(level_mean(ranking, cell) / len(cells) for cell in cells)


def _blocks(key: str, values: Mapping[str, list[Cell]]) -> set[tuple[tuple[str, str], ...]]:
    rests = [{rest(cell, key) for cell in cells} for cells in values.values()]
    return rests[0].intersection(*rests)


def _level(key: str, text: str, number: float | None, cells: list[Cell], ranking: Ranking) -> Level:
    estimate = weigh(ranking, [(cell, 1 / len(cells)) for cell in cells])
    back = ranking.off_scale
    low, high = (None if bound is None else back(bound) for bound in (estimate.low, estimate.high))
    if low is not None and high is not None:
        low, high = max(low, ranking.bounds[0]), min(high, ranking.bounds[1])
    spelled = cells[0].texts.get(key, "")
    return Level(text, number, back(estimate.value), low, high, len(cells), spelled)


def find_trends(axes: Sequence[Axis], sign: float) -> list[Trend]:
    """Return the ordered axes with three or more values along which the marginal mean improves at
    each step. The difference between the two ends must be significant, and so must the step next to
    the best end. The level is 2.5 % divided by the number of matched `axes` (Bonferroni)."""
    trends: list[Trend] = []
    family = 2 * max(sum(axis.matched for axis in axes), 1)
    for axis in axes:
        means = [sign * entry.mean for entry in axis.levels]
        steps = [b - a for a, b in pairwise(means)]
        monotone = all(step > 0 for step in steps) or all(step < 0 for step in steps)
        if not axis.matched or axis.ends is None or len(means) < 3 or not monotone:
            continue
        toward = axis.steps[0] if axis.best == 0 else axis.steps[-1]
        if _is_beyond_noise(axis.ends, family) and _is_beyond_noise(toward, family):
            side = "smallest" if axis.best == 0 else "largest"
            # All steps at once: each must be significant, so no correction is needed.
            steady = all(_is_beyond_noise(step, family) for step in axis.steps)
            trends.append(Trend(axis.key, side, axis.ends, steady))
    return trends


def _is_beyond_noise(estimate: Estimate, family: int) -> bool:
    return estimate.p is not None and estimate.p * family <= 1 - CONFIDENCE


def find_crossings(
    ranking: Ranking, axes: Sequence[Axis], sign: float, by: Sequence[str] | None = None
) -> list[Crossing]:
    """Return the interactions in which the best value of an axis `x` depends on another axis `y`.
    One value of `x` must be significantly better than another at one value of `y`, and worse at
    another value of `y`. If a sweep has no interactions, the list is empty with a probability of at
    least 95 %. With `by`, `y` is one of the settings in `by`. Cells are compared only if all their
    other settings are equal."""
    if by is None:
        shown = [axis.key for axis in axes if axis.matched][:_PAIRED]
        pairs = [(x, y) for x in shown for y in shown if x != y]
    else:
        pairs = [(axis.key, y) for axis in axes[:_PAIRED] for y in by if axis.key != y]
    crossings = [
        crossing for x, y in pairs if (crossing := _crossing(x, y, ranking, sign, len(pairs)))
    ]
    by_pair: dict[frozenset[str], Crossing] = {}
    for crossing in sorted(crossings, key=lambda crossing: crossing.p):
        by_pair.setdefault(frozenset((crossing.x, crossing.y)), crossing)
    return list(by_pair.values())


def _crossing(x: str, y: str, ranking: Ranking, sign: float, family: int) -> Crossing | None:
    rows: dict[str, dict[str, dict[object, Cell]]] = {}
    for cell in usable(ranking):
        at = rows.setdefault(level(cell.settings, y), {})
        settings = tuple(item for item in rest(cell, x) if item[0] != y)
        at.setdefault(level(cell.settings, x), {})[settings] = cell
    # Compare the best value over all rows with the best value of each row.
    better: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for name, row in rows.items():
        for first, second in combinations(sorted(row), 2):
            gap = _within(ranking, row[first], row[second])
            if gap is None or gap.error is None or gap.df is None:
                continue
            paid = len(rows) * family
            p = min(1.0, paid * (gap.p or 0.0))
            # In a row with more than two values p is larger. Compute that only if it may matter.
            if p <= 1 - CONFIDENCE:
                statistic = abs(gap.value) / gap.error * 2**0.5
                p = min(1.0, paid * range_tail(statistic, len(row), gap.df))
            order = (first, second) if sign * gap.value < 0 else (second, first)
            better.setdefault(order, []).append((p, name))
    crossings: list[Crossing] = []
    for (first, second), forward in better.items():
        reverse = better.get((second, first))
        if reverse is not None and first < second:
            (p, here), (q, there) = min(forward), min(reverse)
            crossings.append(Crossing(x, y, first, second, here, there, max(p, q)))
    least = min(crossings, key=lambda crossing: crossing.p, default=None)
    return least if least is not None and least.p <= 1 - CONFIDENCE else None


def _within(
    ranking: Ranking, left: Mapping[object, Cell], right: Mapping[object, Cell]
) -> Estimate | None:
    both = [(left[key], right[key]) for key in left if key in right]
    return over_pairs(ranking, both) if both else None


def find_pairs(ranking: Ranking, axes: Sequence[Axis], sign: float) -> list[Grid2]:
    """Return tables of means for up to `_PAIRS` pairs of the most important axes. The pair with the
    strongest interaction is first."""
    cells = usable(ranking)
    shown = [axis for axis in axes if axis.matched][:_PAIRED]
    grids = [_pair(x, y, cells, ranking, sign) for x, y in combinations(shown, 2)]
    return sorted(grids, key=lambda grid: -grid.strength)[:_PAIRS]


def _pair(x: Axis, y: Axis, cells: Sequence[Cell], ranking: Ranking, sign: float) -> Grid2:
    if len(x.levels) < len(y.levels):
        x, y = y, x
    places: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        at = (level(cell.settings, y.key), level(cell.settings, x.key))
        places.setdefault(at, []).append(level_mean(ranking, cell))
    xs, ys = (tuple(entry.value for entry in axis.levels) for axis in (x, y))
    middles = {at: math.fsum(v / len(values) for v in values) for at, values in places.items()}
    scaled = [[middles.get((b, a)) for a in xs] for b in ys]
    best: list[int | None] = []
    for row in scaled:
        there = [(sign * value, i) for i, value in enumerate(row) if value is not None]
        best.append(min(there)[1] if there else None)
    means = tuple(tuple(None if v is None else ranking.off_scale(v) for v in row) for row in scaled)
    xs, ys = (tuple(entry.shown for entry in axis.levels) for axis in (x, y))
    return Grid2(x.key, y.key, xs, ys, means, tuple(best), _interaction(scaled))


def _interaction(table: Sequence[Sequence[float | None]]) -> float:
    """Return the strength of an interaction: the root mean square of the means after row and column
    effects are subtracted. Return 0 if a mean is missing."""
    rows = [[value for value in row if value is not None] for row in table]
    if any(len(row) != len(table[0]) for row in rows):
        return 0.0
    unit = max((abs(v) for row in rows for v in row), default=0.0) or 1.0
    rows = [[value / unit for value in row] for row in rows]
    total = math.fsum(map(math.fsum, rows)) / (len(rows) * len(rows[0]))
    across = [math.fsum(row) / len(row) for row in rows]
    down = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    cells = ((i, j, value) for i, row in enumerate(rows) for j, value in enumerate(row))
    left = [(value - across[i] - down[j] + total) ** 2 for i, j, value in cells]
    return math.sqrt(math.fsum(left) / len(left)) * unit
