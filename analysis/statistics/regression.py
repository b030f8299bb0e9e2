"""An additive model of cells' means over their axes, fitted by least squares in plain numpy, with
permutation tests. Pure."""

# A numeric axis has a straight and a curved term, on a log scale if its values suggest that; any
# other axis has a mean for each value. For its figure an axis also has kinks where the residuals
# bend (`bent`). The residual is the noise of the seeds and everything that the model lacks. Tests
# do not assume its distribution: they deal the axis' values to the cells at random (Draper and
# Stoneman, Technometrics 8(4), 1966), or the residuals (Freedman and Lane, JBES 1(4), 1983). For a
# random search that is exact, whatever the noise.

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sweeper.analysis.reading.series import Floats
from sweeper.analysis.statistics.distributions import upper_tail_f
from sweeper.analysis.statistics.inference import CONFIDENCE

DEALS = 999
"""The number of random permutations."""
_WORK = 3_000_000
_LEVELS = 8
"""An axis that is not numeric may always have this many values. To have more values, it needs an
average of `_EACH` cells for each."""
_EACH = 5
_MOST = 40
"""The largest number of values of an axis that is not numeric. Each value is a column, and a
thousand permutations of hundreds of columns take minutes."""


_KNOTS = 3
"""The largest number of knots of an axis."""
_STEPS = 10
"""The largest number of steps in which knots are moved."""
_PLACES = np.linspace(0.05, 0.95, 19)
"""The positions of possible knots, as fractions of an axis's values."""


@dataclass(frozen=True)
class Column:
    """The columns of an axis in the model. `at` has the input of each cell: for a numeric axis, the
    value scaled to -1 ... 1; for any other axis, the position of the value in `names`. A numeric
    axis reaches from `low` to `high`, and its slope may change at `knots`."""

    key: str
    names: tuple[str, ...]
    log: bool
    low: float
    high: float
    at: Floats
    curved: bool
    knots: tuple[float, ...] = ()

    @property
    def numeric(self) -> bool:
        """Whether the values of the axis are numbers."""
        return not self.names

    @property
    def width(self) -> int:
        """The number of columns."""
        return self._raw(self.at[:1]).shape[1]

    def terms(self, at: Floats) -> Floats:
        """Return a matrix with the axis's columns at the inputs `at`. The columns are centered: at
        the inputs of the cells, each column has the mean 0."""
        return self._raw(at) - self._middle

    def steps(self, at: Floats) -> Floats:
        """Return a matrix with a column for each knot: a step from 0 to 1 at the knot, minus the
        mean of the step over the cells."""
        knots = np.array(self.knots)
        return (at[:, np.newaxis] > knots) * 1.0 - (self.at[:, np.newaxis] > knots).mean(axis=0)

    @cached_property
    def _middle(self) -> Floats:
        return self._raw(self.at).mean(axis=0)

    def _raw(self, at: Floats) -> Floats:
        if self.numeric:
            bends = [np.maximum(at - knot, 0.0) for knot in self.knots]
            return np.column_stack([at, *([at**2] if self.curved else []), *bends])
        return np.column_stack([at == code for code in range(1, len(self.names))]).astype(float)

    def value(self, at: Floats) -> Floats:
        """Convert inputs between -1 and 1 to values of the axis."""
        share = (at + 1) / 2
        if self.log:
            return np.exp(math.log(self.low) * (1 - share) + math.log(self.high) * share)
        return self.low * (1 - share) + self.high * share


def log_spread(values: Sequence[float]) -> bool:
    """Return whether positive numbers are spaced more evenly on a log scale than on a linear scale.
    (The measure is the largest distance from even spacing.) For two numbers, return whether their
    ratio is at least 3. Return False for a single number, and if any number is not positive."""
    distinct = np.unique(np.asarray(values, dtype=float))
    if len(distinct) < 2 or distinct[0] <= 0:
        return False
    if len(distinct) == 2:
        return bool(distinct[1] / distinct[0] >= 3)
    return _unevenness(np.log(distinct)) < _unevenness(distinct)


def _unevenness(values: Floats) -> float:
    share = (values - values[0]) / (values[-1] - values[0])
    return float(np.max(np.abs(share - np.linspace(0, 1, len(values)))))


def column(key: str, numbers: Sequence[float], texts: Sequence[str]) -> Column | str:
    """Return the columns of the axis `key`, or the reason why the model cannot have this axis.
    `texts` has the value of each cell. `numbers` has these values as numbers, or is empty."""
    if numbers:
        values = np.asarray(numbers, dtype=float)
        low, high = float(values.min()), float(values.max())
        log = log_spread(numbers)
        scaled = np.log(values) if log else values
        ends = scaled.min(), scaled.max()
        if not (math.isfinite(ends[1] - ends[0]) and ends[1] > ends[0]):
            return "its values are too far apart for a number"
        at = 2 * (scaled - ends[0]) / (ends[1] - ends[0]) - 1
        return Column(key, (), log, low, high, at, curved=len(set(numbers)) > 2)
    names = tuple(dict.fromkeys(texts))
    if len(names) > min(_MOST, max(_LEVELS, len(texts) // _EACH)):
        return f"it has {len(names)} values other than numbers"
    places = {name: place for place, name in enumerate(names)}
    at = np.array([places[text] for text in texts], dtype=float)
    return Column(key, names, False, 0.0, 0.0, at, curved=False)


@dataclass(frozen=True)
class Fit:
    """A fitted model: the `weights` of its terms (the first is the mean), the covariance of the
    weights, and the residuals of the cells."""

    columns: tuple[Column, ...]
    y: Floats
    design: Floats
    weights: Floats
    spread: Floats
    left: Floats
    variance: float
    df: int

    def place(self, index: int) -> slice:
        """Return the positions of the weights of an axis."""
        start = 1
        for at, column in enumerate(self.columns):
            if at == index:
                return slice(start, start + column.width)
            start += column.width
        raise IndexError(index)

    def part(self, index: int, at: Floats) -> tuple[Floats, Floats]:
        """Return the sum of the overall mean and the effect of an axis at the inputs `at`, with
        the standard error of this sum."""
        place = self.place(index)
        terms = self.columns[index].terms(at)
        chosen = [0, *range(place.start, place.stop)]
        rows = np.column_stack([np.ones(len(terms)), terms])
        means = rows @ self.weights[chosen]
        spread = self.spread
        if self.columns[index].knots:
            # The places of the knots are estimates. To first order, moving one adds a step there.
            column = self.columns[index]
            bends = self.weights[place][-len(column.knots) :]
            wider = np.column_stack([self.design, column.steps(column.at) * bends])
            chosen = [*chosen, *range(self.design.shape[1], wider.shape[1])]
            rows = np.column_stack([rows, column.steps(at) * bends])
            inverse = np.linalg.pinv(wider.T @ wider)
            spread = inverse * float(self.left @ self.left) / max(len(self.y) - wider.shape[1], 1)
        spread = spread[np.ix_(chosen, chosen)]
        errors = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", rows, spread, rows), 0.0))
        return means, errors

    def alone(self, index: int, *, without_own: bool = False) -> Floats:
        """Return the effect of an axis at each cell. With `without_own`, the effect at a cell is
        estimated from the other cells."""
        place = self.place(index)
        terms = self.design[:, place]
        part: Floats = terms @ self.weights[place]
        if without_own:
            pull = self.design @ (self.spread[:, place] / self.variance)
            part = part - np.sum(terms * pull, axis=1) * self.left / (1 - self.leverage)
        return part

    @cached_property
    def leverage(self) -> Floats:
        """The leverage of each cell on its own fitted value."""
        q, _ = np.linalg.qr(self.design)
        return np.minimum(np.sum(q**2, axis=1), 0.999)

    def without(self, indexes: Sequence[int]) -> Floats:
        """Return `y` minus the fitted values of a model that has only the axes `indexes`."""
        columns = [self.design[:, self.place(index)] for index in indexes]
        rows = np.column_stack([np.ones(len(self.y)), *columns])
        solved: Any = np.linalg.lstsq(rows, self.y, rcond=None)[0]
        return self.y - rows @ solved

    def squares(self, index: int) -> tuple[float, int]:
        """Return two numbers: the increase of the sum of squared residuals if an axis is removed,
        and the number of columns of this axis."""
        place = self.place(index)
        rest = self._without(place)
        solved: Any = np.linalg.lstsq(rest, self.y, rcond=None)[0]
        without = self.y - rest @ solved
        gained = float(without @ without - self.left @ self.left)
        return max(gained, 0.0), place.stop - place.start

    def _without(self, place: slice) -> Floats:
        return np.hstack([self.design[:, : place.start], self.design[:, place.stop :]])

    def dealt(self, index: int, deals: int = DEALS) -> float:
        """Return the p value of a permutation test of an axis: the fraction of random assignments
        of axis values to cells that explain at least as much as the real assignment."""
        rng = np.random.default_rng([7, index, len(self.y)])
        place = self.place(index)
        # Deal often enough that the smallest possible p, times the number of axes, is significant.
        deals = max(deals, 40 * len(self.columns))
        # Deal less often for axes with many terms. 199 permutations are enough for ten axes.
        deals = min(deals, max(199, _WORK // (len(self.y) * (place.stop - place.start))))
        q, _ = np.linalg.qr(self._without(place))
        left = self.y - q @ (q.T @ self.y)
        terms = self.design[:, place]
        explained = _explained(terms[np.newaxis], q, left)[0]
        order = np.argsort(rng.random((deals, len(self.y))), axis=1)
        permuted = _explained(terms[order], q, left)
        return (1 + int(np.sum(permuted >= explained * (1 - 1e-9)))) / (deals + 1)

    def products(
        self, pairs: Sequence[tuple[int, int]], level: float
    ) -> dict[tuple[int, int], float]:
        """Return a dict from each pair of axes to the p value of their product. A small p value
        means that the effect of one axis depends on the other. The p values are corrected for
        multiple tests (Westfall and Young: compared with the largest statistic of all pairs). A
        product that is significant at `level` joins the model before the others are tested."""
        design, strengths = self.design, dict[tuple[int, int], float]()
        while len(strengths) < len(pairs):
            missing = [pair for pair in pairs if pair not in strengths]
            if len(self.y) - design.shape[1] < 3:
                return strengths | dict.fromkeys(missing, 1.0)
            chances = self._largest(design, missing)
            least = min(range(len(missing)), key=chances.__getitem__)
            if chances[least] > level:
                return strengths | dict(zip(missing, chances, strict=True))
            a, b = missing[least]
            strengths[a, b] = chances[least]
            design = np.column_stack([design, self.slope(a) * self.slope(b)])
        return strengths

    def _largest(self, design: Floats, pairs: Sequence[tuple[int, int]]) -> list[float]:
        q, _ = np.linalg.qr(design)
        left = self.y - q @ (q.T @ self.y)
        rows = np.array([self.slope(a) * self.slope(b) for a, b in pairs])
        rows = rows - (rows @ q) @ q.T
        size = np.sqrt(np.sum(rows**2, axis=1))
        rows = np.divide(rows, size[:, np.newaxis], where=size[:, np.newaxis] > 1e-9, out=rows * 0)
        df = len(self.y) - design.shape[1]
        strengths = _strength(rows, left[:, np.newaxis], df)[:, 0]
        rng = np.random.default_rng([8, len(pairs), len(self.y)])
        dealt = left[np.argsort(rng.random((DEALS, len(self.y))), axis=1)].T
        dealt -= q @ (q.T @ dealt)
        most = _strength(rows, dealt, df).max(axis=0)
        return [
            (1 + int(np.sum(most >= strength * (1 - 1e-9)))) / (DEALS + 1) for strength in strengths
        ]

    def slope(self, index: int) -> Floats:
        """Return the input of each cell on an axis, minus the mean of these inputs."""
        column = self.columns[index]
        return column.at - column.at.mean()


def _explained(terms: Floats, q: Floats, left: Floats) -> Floats:
    rest = terms - q @ (q.T @ terms)
    squares = np.swapaxes(rest, 1, 2) @ rest
    shared = np.swapaxes(rest, 1, 2) @ left
    solved = np.einsum("bij,bj->bi", np.linalg.pinv(squares, rcond=1e-9, hermitian=True), shared)
    gained = np.einsum("bi,bi->b", solved, shared)
    return gained / np.maximum(float(left @ left) - gained, 1e-300)


def _strength(rows: Floats, left: Floats, df: int) -> Floats:
    shared = (rows @ left) ** 2
    rest = np.maximum(np.sum(left**2, axis=0) - shared, 1e-300)
    return shared / rest * (df - 1)


def bent(model: Fit) -> Fit:
    """Add up to `_KNOTS` knots to each axis along which a parabola does not fit the cells. Each
    knot is put where it improves the fit most. It is kept if an F test, corrected for the number of
    curved axes, is significant."""
    curved = [i for i, column in enumerate(model.columns) if column.numeric and column.curved]
    for index in curved * _KNOTS:
        more = one_more_knot(model, index)
        if more is None:
            continue
        gained = float(model.left @ model.left) - more.variance * more.df
        p = upper_tail_f(gained / more.variance, 1, more.df)
        if p * len(curved) <= 1 - CONFIDENCE:
            model = _moved(more, index)
    return model


def one_more_knot(model: Fit, index: int) -> Fit | None:
    """Return the model with one more knot on axis `index`, at the value where the fit improves
    most. Return None if the axis is not curved, or if no fit with another knot is possible."""
    column = model.columns[index]
    if not (column.numeric and column.curved) or 2 * (model.design.shape[1] + 1) > len(model.y):
        return None
    places = np.unique(np.quantile(np.unique(column.at), _PLACES))
    wider = [_with_knot(model, index, float(place)) for place in places]
    usable = [candidate for candidate in wider if candidate is not None and candidate.variance > 0]
    return min(usable, key=lambda candidate: candidate.variance, default=None)


def _moved(model: Fit, index: int) -> Fit:
    """Return the model with the knots of an axis moved to where the fit is best (Muggeo,
    Statistics in Medicine 22(19), 2003)."""
    for _ in range(_STEPS):
        column = model.columns[index]
        bends = model.weights[model.place(index)][-len(column.knots) :]
        wider = np.column_stack([model.design, column.steps(column.at)])
        solution: Any = np.linalg.lstsq(wider, model.y, rcond=None)[0]
        ways = -solution[-len(bends) :] / bends
        low, high = np.quantile(column.at, [_PLACES[0], _PLACES[-1]])
        for part in (1.0, 0.5, 0.25, 0.125):
            knots = np.clip(np.array(column.knots) + part * ways, low, high)
            more = _with_knots(model, index, knots.tolist())
            if more is not None and more.variance < model.variance:
                break
        else:
            return model
        model = more
    return model


def _with_knot(model: Fit, index: int, place: float) -> Fit | None:
    return _with_knots(model, index, [*model.columns[index].knots, place])


def _with_knots(model: Fit, index: int, knots: Sequence[float]) -> Fit | None:
    columns = list(model.columns)
    columns[index] = replace(columns[index], knots=tuple(knots))
    return fit(columns, model.y)


def fit(columns: Sequence[Column], y: Floats) -> Fit | None:
    """Fit the model by least squares. Return None if terms are collinear or there are no degrees
    of freedom left."""
    design = np.column_stack([np.ones(len(y)), *(column.terms(column.at) for column in columns)])
    df = len(y) - design.shape[1]
    if df < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    inverse = np.linalg.inv(design.T @ design)
    weights = inverse @ (design.T @ y)
    left = y - design @ weights
    variance = float(left @ left) / df
    return Fit(tuple(columns), y, design, weights, inverse * variance, left, variance, df)
