"""Models all axes together for sweeps that are not a full grid, such as a random search: which axes
matter, the importance of each axis, and its curve with a 95 % band. Pure."""

# The model (`regression`) gives the importance of an axis as a share of the variance between cells
# (functional ANOVA of an additive model, and by permutation). The report says that an axis matters
# only if its test is significant, at 5 % for all axes together (Holm). Pairs of axes are tested at
# 2.5 % for all pairs together.

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.comparison.contrasts import level_mean, usable
from sweeper.analysis.reading.series import Floats
from sweeper.analysis.reading.settings import keys_of, level
from sweeper.analysis.statistics.distributions import noncentrality, student_quantile, student_tail
from sweeper.analysis.statistics.inference import CONFIDENCE, holm
from sweeper.analysis.statistics.regression import Column, Fit, bent, column, fit, one_more_knot
from sweeper.metrics.rows import as_float

_FEWEST = 12
"""The smallest number of cells for which a model is fitted."""
_POINTS = 41
_PLANE = 25
_PAIRED = 0.025
"""The level of the tests of all pairs together. Together with the level for axes, this level keeps
the fraction of sweeps that get a false sentence below 10 %."""
_FAR = 3.0
"""Means that are more than this many interquartile ranges away from the quartiles are moved to
that distance."""


class Share(NamedTuple):
    """A fraction of the variance between cells, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class AxisEffect:
    """The effect of an axis. `p` is corrected for the number of axes. `importance` is the fraction
    of the variance between cells that the axis explains. `permuted` is half of the increase of the
    squared prediction error if the values of the axis are shuffled, as a fraction of the same
    variance. At each of `xs`, `means` has the predicted metric at the average of all other axes,
    with a 95 % band from `low` to `high`. `side` is the end of the axis with the best prediction
    ("smallest" or "largest"). `side` is empty without a significant trend along the whole axis."""

    key: str
    numeric: bool
    log: bool
    p: float
    importance: Share
    permuted: Share
    xs: tuple[float | str, ...]
    means: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    side: str

    @property
    def certain(self) -> bool:
        """Whether the effect is significant."""
        return self.p <= 1 - CONFIDENCE


@dataclass(frozen=True)
class PairEffect:
    """The joint effect of two axes. `means` has a row for each of `ys` and a column for each of
    `xs`. `p` is the p value of the interaction, corrected for the number of pairs."""

    x: str
    y: str
    p: float
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    means: tuple[tuple[float, ...], ...]

    @property
    def certain(self) -> bool:
        """Whether the interaction is significant."""
        return self.p <= _PAIRED


@dataclass(frozen=True)
class Surface:
    """A model of the metric, fitted to `cells` cells. `axes` starts with the most important axis.
    `pairs` has pairs of axes with a significant interaction, and the most important pair.
    `explained` is the fraction of the variance that the model explains (adjusted for the number of
    terms). `left` has the settings that are not in the model, with reasons. `cut` is the number of
    outliers that were moved to a limit. If there is no model, `why` is the reason. If `within`
    names a setting that separates blocks, all fractions refer to the variance within blocks."""

    cells: int
    axes: tuple[AxisEffect, ...]
    pairs: tuple[PairEffect, ...]
    explained: float
    left: tuple[tuple[str, str], ...]
    cut: int = 0
    why: str = ""
    within: str = ""

    def of(self, key: str) -> AxisEffect | None:
        """Return the effect of an axis. Return None if the axis is not in the model."""
        return next((axis for axis in self.axes if axis.key == key), None)


def find_surface(ranking: Ranking, sign: float, within: str = "") -> Surface | None:
    """Fit the model. `within` is the setting that separates blocks. Return None if no setting with
    two or more values can be modelled."""
    cells = usable(ranking)
    candidates = [(key, _column(key, cells)) for key in ranking.keys]
    columns = [axis for _, axis in candidates if isinstance(axis, Column)]
    left = [(key, reason) for key, reason in candidates if isinstance(reason, str)]
    if not columns:
        return None
    y, cut = _pulled(np.array([level_mean(ranking, cell) for cell in cells]))
    unit = float(np.max(np.abs(y))) or 1.0
    if len(cells) < _FEWEST or not math.isfinite(unit) or float(np.ptp(y)) == 0:
        return Surface(len(cells), (), (), 0.0, tuple(left), cut, _why(len(cells)))
    columns, more = _within_means(columns, len(cells))
    left += more
    columns, same = _apart(columns)
    left += same
    model = fit(columns, y / unit) if columns else None
    if model is None:
        return Surface(len(cells), (), (), 0.0, tuple(left), cut, "too few cells for its axes")
    candidates = _surface(model, unit, ranking, sign, within)
    return replace(candidates, left=tuple(left), cut=cut)


def varying(ranking: Ranking) -> list[str]:
    """Return the settings that have two or more values in the usable cells."""
    cells = usable(ranking)
    return [k for k in ranking.keys if len({level(c.settings, k) for c in cells}) > 1]


def _why(cells: int) -> str:
    return f"{cells} cells are too few" if cells < _FEWEST else "all cells are alike"


def _column(key: str, cells: Sequence[Cell]) -> Column | str | None:
    """Return the model's column for a setting. Return None if all cells have the same value. Return
    a reason, as a string, if the setting cannot be modelled."""
    texts = [level(cell.settings, key) for cell in cells]
    if len(set(texts)) < 2:
        return None
    numbers = [as_float(cell.settings.get(key)) for cell in cells]
    finite = [number for number in numbers if number is not None and math.isfinite(number)]
    return column(key, finite if len(finite) == len(numbers) else [], texts)


def _pulled(y: Floats) -> tuple[Floats, int]:
    """Move outliers in `y` to the limit `_FAR`, so that a single very bad cell cannot dominate the
    fit. Return the result and the number of outliers."""
    low, high = np.quantile(y, [0.25, 0.75])
    reach = _FAR * (high - low)
    if not reach > 0:
        return y, 0
    pulled = np.clip(y, low - reach, high + reach)
    return pulled, int(np.sum(pulled != y))


def _within_means(
    columns: Sequence[Column], cells: int
) -> tuple[list[Column], list[tuple[str, str]]]:
    """Choose a curve for each axis if there are enough cells, otherwise straight lines for as many
    axes as possible. Return the chosen columns, and the axes that are left out, with reasons."""
    curved = 1 + sum(axis.width for axis in columns)
    if 2 * curved <= cells:
        return list(columns), []
    straight = [replace(axis, curved=False) for axis in columns]
    remaining: list[Column] = []
    left: list[tuple[str, str]] = []
    for axis in straight:
        if 1 + sum(entry.width for entry in [*remaining, axis]) <= 2 * cells / 3:
            remaining.append(axis)
        else:
            left.append((axis.key, f"{cells} cells are too few for another axis"))
    return remaining, left


def _apart(columns: Sequence[Column]) -> tuple[list[Column], list[tuple[str, str]]]:
    design = np.ones((len(columns[0].at), 1)) if columns else np.empty((0, 1))
    remaining: list[Column] = []
    left: list[tuple[str, str]] = []
    for axis in columns:
        wider = np.column_stack([design, axis.terms(axis.at)])
        if int(np.linalg.matrix_rank(wider)) == wider.shape[1]:
            design = wider
            remaining.append(axis)
        else:
            left.append((axis.key, "its values are determined by those of other settings"))
    return remaining, left


def _surface(model: Fit, unit: float, ranking: Ranking, sign: float, within: str) -> Surface:
    keys = [axis.key for axis in model.columns]
    blocks = [index for index, key in enumerate(keys) if key in keys_of(within)]
    count = [index for index in range(len(keys)) if index not in blocks]
    chances = dict(zip(count, holm([model.dealt(index) for index in count]), strict=True))
    apart = model.without(blocks) if blocks else model.y - model.y.mean()
    total = float(apart @ apart)
    scene = _Scene(model, bent(model), total, unit, ranking, sign)
    axes = {i: _effect(scene, i, chances[i]) for i in count}
    order = sorted(count, key=lambda i: (-axes[i].importance.value, i))
    adjusted = 1 - model.variance * (len(model.y) - 1) / total
    pairs = _pairs(scene, order, axes)
    effects = tuple(axes[i] for i in order)
    names = ", ".join(keys[index] for index in blocks)
    return Surface(len(model.y), effects, pairs, max(adjusted, 0.0), (), within=names)


class _Scene(NamedTuple):
    model: Fit
    drawn: Fit
    total: float
    unit: float
    ranking: Ranking
    sign: float

    def back(self, values: Floats) -> tuple[float, ...]:
        return tuple(self.ranking.off_scale(value) for value in (values * self.unit).tolist())


def _effect(scene: _Scene, index: int, p: float) -> AxisEffect:
    model, total, sign = scene.model, scene.total, scene.sign
    axis = model.columns[index]
    at = np.linspace(-1, 1, _POINTS) if axis.numeric else np.arange(len(axis.names), dtype=float)
    straight, _ = model.part(index, at)
    means, errors = scene.drawn.part(index, at)
    reach = student_quantile((1 + CONFIDENCE) / 2, scene.drawn.df) * errors
    xs: tuple[Any, ...] = tuple(axis.value(at).tolist()) if axis.numeric else axis.names
    low, high = means - reach, means + reach
    kinked = one_more_knot(scene.drawn, index)
    if kinked is not None:
        # One more kink may exist undetected.
        middle, errors = kinked.part(index, at)
        reach = student_quantile((1 + CONFIDENCE) / 2, kinked.df) * errors
        low, high = np.minimum(low, middle - reach), np.maximum(high, middle + reach)
    lines = [scene.back(line) for line in (means, low, high)]
    side = _side(model, index, straight, sign) if axis.numeric else ""
    return AxisEffect(
        key=axis.key,
        numeric=axis.numeric,
        log=axis.log,
        p=p,
        importance=_importance(model, index, total),
        permuted=_permuted(model, index, total),
        xs=xs,
        means=lines[0],
        low=lines[1],
        high=lines[2],
        side=side,
    )


def _importance(model: Fit, index: int, total: float) -> Share:
    """Return the fraction of the variance that an axis explains, without the contribution of noise.
    The interval is that of a noncentral F distribution."""
    squares, terms = model.squares(index)
    if not model.variance > 0:
        return Share(squares / total, squares / total, squares / total)
    statistic = squares / terms / model.variance
    value = max(0.0, terms * (statistic * max(model.df - 2, 1) / model.df - 1))
    tail = (1 - CONFIDENCE) / 2
    low, high = (noncentrality(share, terms, model.df, statistic) for share in (1 - tail, tail))
    # Variance that the axis and other axes explain alike counts for the axis.
    part = model.alone(index)
    unit = model.variance / total * max(1.0, float(part @ part) / max(squares, 1e-300))
    low, value, high = (min(part * unit, 1.0) for part in (low, value, high))
    return Share(value, low, high)


def _permuted(model: Fit, index: int, total: float) -> Share:
    """Shuffle an axis. Return the increase of the squared prediction error (leave-one-out) as a
    fraction of the variance. The increase is halved, because it contains the variance of the effect
    twice: for the real values and for the shuffled values."""
    part = model.alone(index)
    errors = model.left / (1 - model.leverage)
    with_own = errors + model.alone(index, without_own=True)
    grown = with_own**2 - 2 * with_own * part.mean() + np.mean(part**2) - errors**2
    grown = grown / 2 * len(model.y) / total
    n = len(grown)
    reach = student_quantile((1 + CONFIDENCE) / 2, n - 1) * float(grown.std(ddof=1)) / n**0.5
    value = float(grown.sum()) / n
    return Share(value, value - reach, value + reach)


def _side(model: Fit, index: int, means: Floats, sign: float) -> str:
    steps = np.diff(sign * means)
    if not (np.all(steps < 0) or np.all(steps > 0)):
        return ""
    place = model.place(index)
    ends = model.columns[index].terms(np.array([-1.0, 1.0]))
    across = ends[1] - ends[0]
    error = math.sqrt(max(float(across @ model.spread[place, place] @ across), 0.0))
    gap = float(across @ model.weights[place])
    p = float(student_tail(gap / error, model.df)) if error > 0 else 0.0
    if p * len(model.columns) > 1 - CONFIDENCE:
        return ""
    return "largest" if sign * gap < 0 else "smallest"


def _pairs(
    scene: _Scene, order: Sequence[int], axes: Mapping[int, AxisEffect]
) -> tuple[PairEffect, ...]:
    """Return at most three pairs of numeric axes: the pairs with a significant interaction, and the
    most important pair of axes with significant effects. A `_flattened` axis is not tested for
    interaction, because its curvature would look like an interaction."""
    flat = [i for i in order if axes[i].numeric]
    pairs = list(combinations(flat, 2))
    columns = scene.model.columns
    candidates = [pair for pair in pairs if not any(_flattened(columns[i]) for i in pair)]
    chances = dict.fromkeys(pairs, 1.0) | scene.model.products(candidates, _PAIRED)
    first = [pair for pair in pairs if all(axes[i].certain for i in pair)][:1]
    ranked = sorted((chances[pair], pair) for pair in pairs)
    shown = [(p, pair) for p, pair in ranked if p <= _PAIRED or pair in first]
    return tuple(_pair(scene, pair, p) for p, pair in shown[:3])


def _flattened(axis: Column) -> bool:
    """Return whether an axis has three or more numbers, but only a straight line in the model."""
    return axis.numeric and not axis.curved and len(np.unique(axis.at)) > 2


def _pair(scene: _Scene, pair: tuple[int, int], p: float) -> PairEffect:
    (a, b), model = pair, scene.model
    at = np.linspace(-1, 1, _PLANE)
    plane = model.part(b, at)[0][:, np.newaxis] + model.part(a, at)[0] - model.weights[0]
    if p <= _PAIRED:
        first, second = model.columns[a], model.columns[b]
        product = model.slope(a) * model.slope(b)
        q, _ = np.linalg.qr(model.design)
        bare = product - q @ (q.T @ product)
        slope = float(bare @ model.left / max(float(bare @ bare), 1e-300))
        plane = plane + slope * np.outer(at - second.at.mean(), at - first.at.mean())
    means = tuple(scene.back(row) for row in plane)
    xs, ys = (tuple(model.columns[i].value(at).tolist()) for i in pair)
    return PairEffect(model.columns[a].key, model.columns[b].key, p, xs, ys, means)
