"""What each axis does: means by value with intervals, trends, and pairs of axes. Pure.

The marginal mean of a value is the plain mean, over the combinations of the other settings, of the
cells' means: each combination counts once, however many seeds it has. Only combinations that were
measured at every value of the axis count, so that a hole elsewhere moves no mean. Its interval is
of the noise between seeds, at the combinations that were tried (`inference.contrast`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from sweeper.analysis import labels
from sweeper.analysis.cells import Cell, Ranking
from sweeper.analysis.edges import by_ratios, ordered
from sweeper.analysis.inference import Estimate, contrast
from sweeper.analysis.settings import level

__all__ = ["Axis", "Grid2", "Level", "Trend", "find_axes", "find_pairs", "find_trends"]

MOST = 24
"""Values of an axis that are shown; an axis with more is a list of names, and the table has it."""


@dataclass(frozen=True)
class Level:
    """A value of an axis: its text, the number behind it if it is one, its marginal mean (the
    geometric one on a log scale) with a 95 % interval, and how many cells it is over."""

    value: str
    number: float | None
    mean: float
    low: float | None
    high: float | None
    cells: int

    @property
    def shown(self) -> str:
        """Its text, a long number cut short."""
        long = self.number is not None and len(self.value) > labels.BRIEF
        return labels.brief(self.number) if long else self.value


@dataclass(frozen=True)
class Axis:
    """`effect` is the best value's marginal mean less the worst's, on the scale of the comparison.
    `log` says that the numbers are spaced by ratios. `matched` is False where no combination of
    the other settings was measured at every value: then means mix the others' effects."""

    key: str
    levels: tuple[Level, ...]
    best: int
    worst: int
    effect: Estimate
    log: bool
    matched: bool


@dataclass(frozen=True)
class Trend:
    """The marginal means of an ordered axis get better from value to value toward its `side`
    ("smallest" or "largest"), and the ends differ beyond the noise."""

    axis: str
    side: str
    effect: Estimate


@dataclass(frozen=True)
class Grid2:
    """Means for pairs of values of two axes, over all cells that have them: `rows` of `y` by
    columns of `x`, None for a hole. `best_x` is the position of the best `x` in each row."""

    x: str
    y: str
    xs: tuple[str, ...]
    ys: tuple[str, ...]
    means: tuple[tuple[float | None, ...], ...]
    best_x: tuple[int | None, ...]
    strength: float


def _usable(ranking: Ranking) -> list[Cell]:
    return [cell for cell in ranking.measured if not cell.diverged]


def find_axes(ranking: Ranking, sign: float) -> list[Axis]:
    """The axes with two values or more among the measured cells, the most telling first. Cells
    with a diverged run are left out: what is left of them is no measure of their setting."""
    cells = _usable(ranking)
    found = [axis for key in ranking.keys if (axis := _axis(key, cells, ranking, sign)) is not None]
    return sorted(found, key=lambda axis: -abs(axis.effect.value))


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
        text: [c for c in values[text] if not matched or _rest(c, key) in blocks] for text in texts
    }
    levels = tuple(_level(text, order.get(text), groups[text], ranking) for text in texts)
    ranked = sorted(range(len(levels)), key=lambda i: sign * levels[i].mean)
    best, worst = ranked[0], ranked[-1]
    effect = _difference(groups[texts[best]], groups[texts[worst]], ranking)
    return Axis(key, levels, best, worst, effect, by_ratios(numbers), matched)


def _rest(cell: Cell, key: str) -> tuple[tuple[str, str], ...]:
    return tuple((other, level(cell.settings, other)) for other in cell.settings if other != key)


def _blocks(key: str, values: Mapping[str, list[Cell]]) -> set[tuple[tuple[str, str], ...]]:
    """Combinations of the other settings with a cell at every value."""
    found = [{_rest(cell, key) for cell in cells} for cells in values.values()]
    return found[0].intersection(*found)


def _level(text: str, number: float | None, cells: list[Cell], ranking: Ranking) -> Level:
    found = contrast([ranking.on_scale(cell) for cell in cells], [1 / len(cells)] * len(cells))
    back = ranking.off_scale
    low, high = (None if bound is None else back(bound) for bound in (found.low, found.high))
    if low is not None and high is not None:
        low, high = max(low, ranking.bounds[0]), min(high, ranking.bounds[1])
    return Level(text, number, back(found.value), low, high, len(cells))


def _difference(own: list[Cell], other: list[Cell], ranking: Ranking) -> Estimate:
    groups = [ranking.on_scale(cell) for cell in (*own, *other)]
    return contrast(groups, [1 / len(own)] * len(own) + [-1 / len(other)] * len(other))


def find_trends(axes: Sequence[Axis], sign: float, family: int) -> list[Trend]:
    """Ordered axes with three values or more along which every step is an improvement, with the
    ends told apart at 5 % shared by the `family` of axes (Bonferroni)."""
    found: list[Trend] = []
    for axis in axes:
        means = [sign * entry.mean for entry in axis.levels]
        ends = {axis.best, axis.worst} == {0, len(means) - 1}
        if len(means) < 3 or any(entry.number is None for entry in axis.levels) or not ends:
            continue
        steps = [b - a for a, b in pairwise(means)]
        monotone = all(step > 0 for step in steps) or all(step < 0 for step in steps)
        p = axis.effect.p
        if monotone and p is not None and p * max(family, 1) <= 0.05:
            side = "smallest" if axis.best == 0 else "largest"
            found.append(Trend(axis.key, side, axis.effect))
    return found


def find_pairs(ranking: Ranking, axes: Sequence[Axis], sign: float, count: int = 3) -> list[Grid2]:
    """Pairs of the most telling axes as grids of means, those first in which they depend on each
    other most."""
    cells = _usable(ranking)
    shown = axes[:4]
    grids = [_pair(x, y, cells, ranking, sign) for x, y in combinations(shown, 2)]
    return sorted(grids, key=lambda grid: -grid.strength)[:count]


def _pair(x: Axis, y: Axis, cells: Sequence[Cell], ranking: Ranking, sign: float) -> Grid2:
    if len(x.levels) < len(y.levels):
        x, y = y, x
    places: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        values = ranking.on_scale(cell)
        at = (level(cell.settings, y.key), level(cell.settings, x.key))
        places.setdefault(at, []).append(math.fsum(v / len(values) for v in values))
    xs, ys = (tuple(entry.value for entry in axis.levels) for axis in (x, y))
    scaled = [
        [
            math.fsum(v / len(found) for v in found) if (found := places.get((b, a))) else None
            for a in xs
        ]
        for b in ys
    ]
    best: list[int | None] = []
    for row in scaled:
        there = [(sign * value, i) for i, value in enumerate(row) if value is not None]
        best.append(min(there)[1] if there else None)
    means = tuple(tuple(None if v is None else ranking.off_scale(v) for v in row) for row in scaled)
    xs, ys = (tuple(entry.shown for entry in axis.levels) for axis in (x, y))
    return Grid2(x.key, y.key, xs, ys, means, tuple(best), _interaction(scaled))


def _interaction(table: Sequence[Sequence[float | None]]) -> float:
    """How far the means are from a sum of a row's and a column's part: the root mean square of
    what is left. 0 with a hole, since then it is not known."""
    rows = [[value for value in row if value is not None] for row in table]
    if any(len(row) != len(table[0]) for row in rows):
        return 0.0
    unit = max((abs(v) for row in rows for v in row), default=0.0) or 1.0
    rows = [[value / unit for value in row] for row in rows]
    total = math.fsum(map(math.fsum, rows)) / (len(rows) * len(rows[0]))
    across = [math.fsum(row) / len(row) for row in rows]
    down = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    left = [
        (value - across[i] - down[j] + total) ** 2
        for i, row in enumerate(rows)
        for j, value in enumerate(row)
    ]
    return math.sqrt(math.fsum(left) / len(left)) * unit
