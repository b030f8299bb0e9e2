"""Finds the range of an axis in which the best values lie. A row is a block or, without blocks, all
cells that agree in all other settings. If at least three rows have three or more values of the
axis, the best value of each row counts; otherwise, as in a random search, the values of the best
cells count. No curve is fitted. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.comparison.contrasts import level_mean, rest, usable
from sweeper.analysis.reading.settings import keys_of, level, ordered

_ROWS = 3
"""The smallest number of rows, and of values in each row."""
_SHARE = 0.15
"""The fraction of a random search's cells that count as the best."""
_WIDE = 2 / 3
"""In a random search, a range that covers more than this fraction of the tried values is not
reported."""
_MOST = 0.9
"""In a grid, a range contains the best values of at least this fraction of the rows."""


class Place(NamedTuple):
    """The range of `axis`, from `low` to `high`, that contains the best values. A row is a group of
    cells that differ only on this axis, or a block. In a grid, `of` is the number of rows, and
    `counts` has the number of rows in which each value is best. In a random search, `of` is the
    number of cells that give the range, and `counts` is empty. `rows` is the name of the setting
    that separates blocks, or "row". `texts` maps each value to its text in the names of cells."""

    axis: str
    low: float
    high: float
    of: int
    cells: int
    counts: tuple[tuple[float, int], ...] = ()
    rows: str = ""
    texts: Mapping[float, str] = MappingProxyType({})

    def text(self, value: float) -> str:
        """Return a value as the names of cells show it."""
        return self.texts.get(value) or labels.brief(value)


def find_places(
    ranking: Ranking, keys: Iterable[str], sign: float, by: str | None = None
) -> list[Place]:
    """Return, for each of the axes `keys`, the range that contains the best values. Axes without a
    clear range are left out. `by` is the setting that separates blocks."""
    cells = usable(ranking)
    places = [_place(ranking, key, cells, sign, by) for key in keys if key not in keys_of(by or "")]
    return [place for place in places if place is not None]


def _place(
    ranking: Ranking, key: str, cells: Sequence[Cell], sign: float, by: str | None
) -> Place | None:
    values = ordered(key, [cell.settings for cell in cells])
    cells = [cell for cell in cells if cell.settings.get(key) in values]
    if len(values) < _ROWS:
        return None
    rows: dict[object, list[Cell]] = {}
    for cell in cells:
        row = level(cell.settings, by) if by is not None else rest(cell, key)
        rows.setdefault(row, []).append(cell)
    texts = {float(cell.settings[key]): cell.texts[key] for cell in cells}
    whole = [group for group in rows.values() if len({c.settings[key] for c in group}) >= _ROWS]

    def merit(cell: Cell) -> float:
        return sign * level_mean(ranking, cell)

    if len(whole) >= _ROWS:
        bests = [float(min(group, key=merit).settings[key]) for group in whole]
        low, high = _shortest(sorted(bests))
        counts = tuple(Counter(bests).most_common())
        return Place(key, low, high, len(whole), len(cells), counts, by or "row", texts)
    count = max(_ROWS, math.ceil(_SHARE * len(cells)))
    top = sorted(values.index(c.settings[key]) for c in sorted(cells, key=merit)[:count])
    if len(values) < 4 * _ROWS or top[-1] - top[0] > _WIDE * (len(values) - 1):
        return None
    ends = float(values[top[0]]), float(values[top[-1]])
    return Place(key, *ends, count, len(cells), texts=texts)


def _shortest(bests: Sequence[float]) -> tuple[float, float]:
    needed = math.ceil(_MOST * len(bests))
    spans = [(bests[i], bests[i + needed - 1]) for i in range(len(bests) - needed + 1)]
    values = sorted(set(bests))
    return min(spans, key=lambda ends: values.index(ends[1]) - values.index(ends[0]))
