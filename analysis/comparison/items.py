"""Compares cells item by item: paired differences, with errors clustered by item and run (Miller,
"Adding Error Bars to Evals", 2024, arXiv:2411.00640). Pure."""

# Items are a sample, and items with the same `cluster` count together. If a cell has several runs,
# they are a sample too. The variance of a mean over I items and R runs is
#
# V_items - V_rest + V_runs
#
# V_items is the variance of the items' means over I, V_runs that of the runs' means over R, and
# V_rest, which is in both, the mean square of the rest over R I (two-way analysis of variance with
# random effects). The parts have different degrees of freedom, so the half-width of the interval is
# sqrt(t(I - 1)^2 max(V_items - V_rest, 0) + t(d)^2 V_runs) (Graybill and Wang, *JASA* 75, 1980,
# 869-873). V_runs is estimated from all cells with several runs, so d is the sum of their R - 1. A
# cell whose own V_runs is larger by an F test at 5 %, shared by the cells, keeps its own. If no
# cell has two runs, the interval is one over items alone, and says nothing about other seeds.

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeper.analysis.reading.series import Floats
from sweeper.analysis.statistics.distributions import student_quantile, student_tail, upper_tail_f
from sweeper.analysis.statistics.inference import CONFIDENCE, counted_share, on_logits

Over = Literal["items", "items and runs"]

SOLVED = 0.5
"""An item counts as solved if the mean score of its answers is at least this."""

PAIRED = 6
"""Pairs are formed from at most this many cells, those with the highest means over the items."""

_SHOWN = 12
_DRAWS = 4000
_NO_CHANCE = 0.01
"""Cells with a smaller p value are treated as if they could not have been selected as the best."""
_ALONE = 8


class Parts(NamedTuple):
    """A mean and its variance. `items` is the variance from the choice of items, and `runs` is the
    variance between runs (0 for a single run). Each part has its degrees of freedom."""

    value: float
    items: float
    items_df: float
    runs: float
    runs_df: float

    def reach(self, confidence: float = CONFIDENCE) -> float:
        """Return half of the width of the mean's interval at `confidence`."""
        share = (1 + confidence) / 2
        square = student_quantile(share, self.items_df) ** 2 * self.items
        if self.runs > 0:
            square += student_quantile(share, self.runs_df) ** 2 * self.runs
        return math.sqrt(square)

    @property
    def p(self) -> float:
        """The two-sided p value of the hypothesis that the true mean is 0."""
        if not self.items and not self.runs:
            return 1.0 if self.value == 0 else 0.0
        if self.runs <= 0:
            return float(student_tail(self.value / math.sqrt(self.items), self.items_df))
        low, high = -37.0, 0.0  # logarithms of p
        for _ in range(50):
            middle = (low + high) / 2
            if self.reach(-math.expm1(middle)) < abs(self.value):
                high = middle
            else:
                low = middle
        return math.exp(high)


@dataclass(frozen=True)
class ItemCell:
    """The mean of a cell over its items and runs, with a 95 % interval."""

    cell: str
    runs: int
    mean: float
    low: float
    high: float
    over: Over


@dataclass(frozen=True)
class Parted:
    """A comparison of a cell with the best cell, item by item. `difference` is the mean of the cell
    minus the mean of the best cell, with a 95 % interval. The cell has a higher score than the best
    cell on `better` items, and a lower score on `worse` items. The interval and `p` are corrected
    for the selection of the best cell."""

    cell: str
    difference: float
    low: float
    high: float
    p: float
    better: int
    worse: int
    over: Over

    @property
    def told_apart(self) -> bool:
        """Whether the difference is significant."""
        return self.p <= 1 - CONFIDENCE


class Item(NamedTuple):
    """A question and the mean score of each cell on it, in the order of `Compared.cells`."""

    item: str
    prompt: str
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Alone:
    """The items that `cell` solves and `other` does not solve. `count` is their number. `items` has
    the ids of the items with the largest differences in score."""

    cell: str
    other: str
    count: int
    items: tuple[str, ...]


@dataclass(frozen=True)
class Compared:
    """A comparison of cells on the items of a task that all runs answered. The best cell is first.
    `known` is the number of items that at least one run answered. `apart` has the items with the
    largest differences between cells. `unsolved_count` items have the score 0 in all runs, and
    `unsolved` has the first of these. `solved` is the number of items with the full score in all
    runs. `errors` is the number of answers that ended in an error. `clusters` is the number of
    groups of related items (0 if all items are independent). If all scores are from 0 to 1, `alone`
    compares each pair of the first `PAIRED` cells."""

    task: str
    items: int
    known: int
    cells: tuple[ItemCell, ...]
    parted: tuple[Parted, ...]
    apart: tuple[Item, ...]
    unsolved: tuple[Item, ...]
    unsolved_count: int
    solved: int
    errors: int
    clusters: int
    training: bool
    shares: bool
    alone: tuple[Alone, ...] = ()


class Luck(NamedTuple):
    """The variance between the mean scores of a cell's runs, with its degrees of freedom. `rest` is
    the part of `variance` that comes from different answers to the same item."""

    variance: float
    rest: float
    df: float


class _Chosen(NamedTuple):
    """A correction for the selection of the best cell. If all cells are equally good, the highest
    measured mean exceeds the true mean by less than `reach`, with a probability of 95 %. `usual` is
    the mean score of the cells from which `reach` was computed."""

    reach: float
    usual: float

    def least_share(self, value: float) -> float:
        """Return the lower bound of the true mean, if scores are fractions and the measured mean is
        `value` (a Wilson bound)."""
        if not 0 < self.usual < 1:
            return value - self.reach
        square = self.reach**2 / (self.usual * (1 - self.usual))
        root = math.sqrt(square * (square + 4 * value * (1 - value)))
        return (2 * value + square - root) / (2 * (1 + square))


def level(scores: Floats, luck: Luck | None = None, clusters: Sequence[int] | None = None) -> Parts:
    """Return the mean of `scores` (runs x items) with its variance. Without `luck`, the variance
    between runs is left out."""
    value = float(scores.mean())
    by_item, item_df = _clustered(scores.mean(axis=0), clusters)
    if luck is None:
        return Parts(value, by_item, item_df, 0.0, 1.0)
    items_part = max(by_item - luck.rest / len(scores), 0.0)
    return Parts(value, items_part, item_df, luck.variance / len(scores), luck.df)


def difference(
    left: Floats,
    right: Floats,
    lucks: tuple[Luck, Luck] | None = None,
    clusters: Sequence[int] | None = None,
    *,
    shares: bool = False,
) -> Parts:
    """Return the mean of `left` minus the mean of `right`, paired by item. If `shares` is set
    (scores from 0 to 1) and there are no clusters, add two items: `left` is better on one of them,
    and `right` on the other. Without them, the interval would be too narrow if few items differ
    (Bonett and Price, *J. Educational and Behavioral Statistics* 37(4), 2012, 479-488)."""
    by_item = left.mean(axis=0) - right.mean(axis=0)
    if shares and clusters is None:
        win = 1 / min(len(left), len(right))
        by_item = np.concatenate([by_item, [win, -win]])
        items_part, item_df = float(by_item.var()) / len(by_item), len(by_item) - 1.0
    else:
        items_part, item_df = _clustered(by_item, clusters)
    value = float(by_item.mean())
    if lucks is None:
        return Parts(value, items_part, item_df, 0.0, 1.0)
    parts = [
        (luck.variance / len(t), luck.df) for luck, t in zip(lucks, (left, right), strict=True)
    ]
    runs = sum(part for part, _ in parts)
    rest = sum(luck.rest / len(t) for luck, t in zip(lucks, (left, right), strict=True))
    items_part = max(items_part - rest, 0.0)
    if lucks[0] == lucks[1]:
        return Parts(value, items_part, item_df, runs, lucks[0].df)
    below = sum(part**2 / df for part, df in parts)
    return Parts(value, items_part, item_df, runs, runs**2 / below if below > 0 else 1.0)


def lucks(tables: Mapping[str, Floats]) -> dict[str, Luck]:
    """Return a dict from cell to the variance between its runs. Cells share a pooled variance; a
    cell with a significantly larger variance gets its own. The dict is empty if no cell has two
    runs."""
    squares = {cell: _squares(table) for cell, table in tables.items() if len(table) > 1}
    if not squares:
        return {}
    alone = {
        cell
        for cell, sums in squares.items()
        if _stands_out(sums, [peer for peer in squares.values() if peer is not sums], len(squares))
    }
    usual = [sums for cell, sums in squares.items() if cell not in alone]
    by_name = dict.fromkeys(tables, _luck(usual or list(squares.values())))
    return by_name | {cell: _luck([squares[cell]]) for cell in alone}


class _Squares(NamedTuple):
    """The sums of squares of a cell: between runs, and of the residuals."""

    between: float
    rest: float
    runs: int
    items: int


def _squares(scores: Floats) -> _Squares:
    rows, columns = scores.mean(axis=1), scores.mean(axis=0)
    rest = scores - rows[:, np.newaxis] - columns + scores.mean()
    between = scores.shape[1] * float(((rows - rows.mean()) ** 2).sum())
    return _Squares(between, float((rest**2).sum()), *scores.shape)


def _luck(squares: Sequence[_Squares]) -> Luck:
    df = sum(entry.runs - 1 for entry in squares)
    items = squares[0].items
    between = sum(entry.between for entry in squares) / df
    rest = sum(entry.rest for entry in squares) / (df * (items - 1))
    return Luck(between / items, rest / items, float(df))


def _stands_out(sums: _Squares, peers: Sequence[_Squares], cells: int) -> bool:
    df, rest_df = sums.runs - 1, sum(peer.runs - 1 for peer in peers)
    if not peers:
        return False
    usual = sum(peer.between for peer in peers) / rest_df
    if usual <= 0:
        return sums.between > 0
    return upper_tail_f(sums.between / df / usual, df, rest_df) < (1 - CONFIDENCE) / cells


def _clustered(values: Floats, clusters: Sequence[int] | None) -> tuple[float, float]:
    """Return the variance of the mean of `values`, and its degrees of freedom. With `clusters`, the
    variance is cluster-robust with the correction CR2 (Bell and McCaffrey, *Survey Methodology*
    28(2), 2002), and the degrees of freedom are Satterthwaite's (Imbens and Kolesar, *Review of
    Economics and Statistics* 98(4), 2016)."""
    count = len(values)
    if clusters is None:
        return float(values.var(ddof=1)) / count, count - 1.0
    index = np.asarray(clusters)
    rest, sizes = values - values.mean(), np.bincount(index).astype(float)
    sums = np.bincount(index, rest).astype(float)
    expected = sizes * (1 + _alike(rest, index, sums, sizes) * (sizes - 1))
    df = float(expected.sum() ** 2 / (expected**2).sum()) - 1
    return float((sums**2 / (1 - sizes / count)).sum()) / count**2, max(df, 1.0)


def _alike(rest: Floats, index: NDArray[np.intp], sums: Floats, sizes: Floats) -> float:
    count, groups = len(rest), len(sizes)
    if count == groups:
        return 0.0
    between = float((sums**2 / sizes).sum()) / (groups - 1)
    within = float(((rest - (sums / sizes)[index]) ** 2).sum()) / (count - groups)
    usual = (count - float((sizes**2).sum()) / count) / (groups - 1)
    whole = between + (usual - 1) * within
    return min(max((between - within) / whole, 0.0), 1.0) if whole > 0 else 0.0


def compare(
    cells: Mapping[str, Sequence[Mapping[str, float]]],
    task: str = "",
    prompts: Mapping[str, str] | None = None,
    clusters: Mapping[str, str] | None = None,
    errors: int = 0,
    *,
    training: bool = False,
) -> Compared | None:
    """Compare cells on the items that all their runs have. `cells` maps each cell to its runs; a
    run is a dict from item to score. Higher scores are better. Return None if there are no runs, or
    fewer than two common items."""
    runs = [run for cell_runs in cells.values() for run in cell_runs]
    shared = sorted(set(runs[0]).intersection(*runs[1:])) if runs else []
    if len(shared) < 2:
        return None
    tables = _tables(cells, shared)
    groups, luck = _groups(shared, clusters or {}), lucks(tables)
    least = min(float(table.min()) for table in tables.values())
    most = max(float(table.max()) for table in tables.values())
    shares = least >= 0 and most <= 1
    order = sorted(tables, key=lambda cell: -float(tables[cell].mean()))
    means = [tables[cell].mean(axis=0).tolist() for cell in order]
    comparisons = [
        Item(item, (prompts or {}).get(item, item), scores)
        for item, scores in zip(shared, zip(*means, strict=True), strict=True)
    ]
    unsolved = [item for item in comparisons if max(item.scores) <= 0]
    spread = sorted(comparisons, key=lambda item: (min(item.scores) - max(item.scores), item.item))
    parted = tuple(
        _parted(cell, order[0], tables, luck, groups, shares=shares) for cell in order[1:]
    )
    close = {c: tables[c] for c in (order[0], *(p.cell for p in parted if p.p > _NO_CHANCE))}
    chosen = _Chosen(
        _chosen_reach(close, luck, groups),
        float(np.mean([table.mean() for table in close.values()])),
    )
    return Compared(
        task=task,
        items=len(shared),
        known=len({item for run in runs for item in run}),
        cells=tuple(
            _cell(c, tables[c], luck.get(c), groups, chosen if c == order[0] else None, shares)
            for c in order
        ),
        parted=parted,
        apart=tuple(item for item in spread[:_SHOWN] if max(item.scores) > min(item.scores)),
        unsolved=tuple(unsolved[:_SHOWN]),
        unsolved_count=len(unsolved),
        solved=sum(min(item.scores) >= 1 for item in comparisons),
        errors=errors,
        clusters=0 if groups is None else max(groups) + 1,
        training=training,
        shares=shares,
        alone=tuple(_alone(order[:PAIRED], means, shared)) if shares else (),
    )


def _tables(
    cells: Mapping[str, Sequence[Mapping[str, float]]], items: Sequence[str]
) -> dict[str, Floats]:
    return {
        cell: np.array([[run[item] for item in items] for run in runs], dtype=float)
        for cell, runs in cells.items()
        if runs
    }


def _alone(
    cells: Sequence[str], means: Sequence[Sequence[float]], items: Sequence[str]
) -> Iterator[Alone]:
    scores = np.array(means[: len(cells)])
    for left, right in itertools.permutations(range(len(cells)), 2):
        places = np.flatnonzero((scores[left] >= SOLVED) & (scores[right] < SOLVED))
        if len(places):
            gaps = scores[left, places] - scores[right, places]
            most: list[int] = places[np.argsort(-gaps, kind="stable")[:_ALONE]].tolist()
            shown = tuple(items[place] for place in most)
            yield Alone(cells[left], cells[right], len(places), shown)


def _groups(shared: Sequence[str], clusters: Mapping[str, str]) -> list[int] | None:
    if not clusters:
        return None
    numbers: dict[tuple[bool, str], int] = {}
    groups = [
        numbers.setdefault((item in clusters, clusters.get(item, item)), len(numbers))
        for item in shared
    ]
    return groups if len(numbers) > 1 else None


def _chosen_reach(
    tables: Mapping[str, Floats], luck: Mapping[str, Luck], groups: Sequence[int] | None
) -> float:
    """Simulate equally good cells. Return the `CONFIDENCE` quantile of the difference between the
    highest measured mean and the true mean."""
    if len(tables) < 2:
        return 0.0
    means = np.array([table.mean(axis=0) for table in tables.values()])
    rest, count = means - means.mean(axis=1, keepdims=True), means.shape[1]
    if groups is not None:
        rest = np.array([np.bincount(np.asarray(groups), row) for row in rest])
    parts = rest.shape[1]
    spread = rest @ rest.T * parts / ((parts - 1) * count**2)
    values, vectors = np.linalg.eigh(spread)
    rng = np.random.default_rng(14)
    drawn: Floats = (
        rng.standard_normal((_DRAWS, len(values))) @ (vectors * np.sqrt(values.clip(0))).T
    )
    drawn /= np.sqrt(rng.chisquare(parts - 1, (_DRAWS, 1)) / (parts - 1))
    added = np.array(
        [
            0.0 if r is None else max(r.variance - r.rest, 0.0) / len(table)
            for r, table in ((luck.get(cell), table) for cell, table in tables.items())
        ]
    )
    if luck:
        df = min(r.df for r in luck.values())
        thick = np.sqrt(rng.chisquare(df, (_DRAWS, 1)) / df)
        drawn += rng.standard_normal(drawn.shape) * np.sqrt(added) / thick
    return float(np.quantile(drawn.max(axis=1), CONFIDENCE))


def _cell(
    cell: str,
    table: Floats,
    luck: Luck | None,
    groups: Sequence[int] | None,
    chosen: _Chosen | None,
    shares: bool,
) -> ItemCell:
    estimate = level(table, luck, groups)
    reach, value = estimate.reach(), estimate.value
    below = reach if chosen is None else max(reach, chosen.reach)
    low, high = value - below, value + reach
    if shares and 0 < value < 1 and reach > 0:
        low, high = on_logits(value, reach)
        if chosen is not None and below > reach:
            low = min(low, chosen.least_share(value))
    elif shares:
        low, high = counted_share(value, table.shape[1] if groups is None else max(groups) + 1)
    return ItemCell(cell, len(table), value, low, high, _over(luck))


def _over(luck: Luck | None) -> Over:
    return "items" if luck is None else "items and runs"


def _parted(
    cell: str,
    best: str,
    tables: Mapping[str, Floats],
    luck: Mapping[str, Luck],
    groups: Sequence[int] | None,
    *,
    shares: bool,
) -> Parted:
    left, right = tables[cell], tables[best]
    both = (luck[cell], luck[best]) if luck else None
    gap = difference(left, right, both, groups, shares=shares)
    plain = float(left.mean() - right.mean())
    pairs = len(tables) * (len(tables) - 1) / 2
    reach = gap.reach(1 - (1 - CONFIDENCE) / pairs)
    low, high = min(gap.value - reach, plain), max(gap.value + reach, plain)
    gaps = left.mean(axis=0) - right.mean(axis=0)
    return Parted(
        cell,
        plain,
        max(low, -1.0) if shares else low,
        min(high, 1.0) if shares else high,
        min(1.0, gap.p * pairs),
        int((gaps > 0).sum()),
        int((gaps < 0).sum()),
        _over(luck.get(cell)),
    )
