"""Blocks: parts of a sweep that are judged separately, such as one block per model. Either the user
requests blocks (`by`), or blocks follow from a setting with string values on which the best value
of an axis depends. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sweeper.analysis.comparison.axes import Crossing, find_axes, find_crossings
from sweeper.analysis.comparison.cells import Cell, Ranking, as_chosen, bounded
from sweeper.analysis.comparison.contrasts import Row, parts, rest, usable
from sweeper.analysis.comparison.edges import Edge, judge_edges
from sweeper.analysis.reading.settings import keys_of, level
from sweeper.analysis.statistics.seeds import Comparison, against_best
from sweeper.errors import UsageError
from sweeper.metrics.rows import as_float
from sweeper.store.documents import dotted
from sweeper.sweep.labels import plural


@dataclass(frozen=True)
class Block:
    """The cells with the same `value` of the setting that separates blocks. `best` is None if no
    usable cell has a run that counts (see `contrasts.usable` and `cells.rank`). `tied` has the
    cells that cannot be distinguished from `best`. `comparisons` compares each other cell with
    `best`. `holes` has the combinations of settings that were measured only in other blocks."""

    value: str
    cells: int
    diverged: int
    best: Cell | None
    tied: tuple[Cell, ...]
    comparisons: Mapping[str, Comparison]
    edges: tuple[Edge, ...]
    holes: tuple[Row, ...]

    @property
    def compared(self) -> int:
        """The number of cells that were compared with the best."""
        return len(self.comparisons)

    @property
    def ahead(self) -> bool:
        """Whether the best cell is distinguished from all cells that were compared with it. False
        if there are no such comparisons."""
        return bool(self.comparisons) and not self.tied

    @property
    def standing(self) -> str:
        """A phrase that compares the best cell with the other cells of the block. Empty if no other
        cell was compared."""
        if self.tied:
            return f"{len(self.tied)} of {self.compared} others may be as good"
        return f"ahead of {plural(self.compared, 'other')}" if self.compared else ""


@dataclass(frozen=True)
class Blocks:
    """The blocks of a sweep. `by` is the setting that separates blocks, or several settings with
    commas between them. If the user requested the blocks, `requested` is set; if not, `why` is the
    interaction that was detected. `ragged` is set if the combinations of the other settings that
    were measured differ between blocks."""

    by: str
    requested: bool
    why: Crossing | None
    ragged: bool
    blocks: tuple[Block, ...]

    @property
    def keys(self) -> list[str]:
        """The settings in `by`."""
        return keys_of(self.by)

    @property
    def holes(self) -> int:
        """The total number of `holes` in all blocks."""
        return sum(len(block.holes) for block in self.blocks)


def find_blocks(ranking: Ranking, sign: float, by: str | None) -> Blocks | None:
    """Divide the cells into blocks by the settings `by` (with commas between them). Without `by`,
    use a setting with text values on which the best value of an axis depends. Return None if there
    are no blocks. Raises `UsageError` for a setting that no cell has."""
    if by is not None:
        for key in keys_of(by):
            present = key in ranking.keys or any(_has(cell, key) for cell in ranking.cells)
            if ranking.cells and not present:
                names = ", ".join(ranking.keys) or "none"
                raise UsageError(
                    f"by {key!r}: all cells have the same value; they differ in {names}"
                )
        differing = [key for key in keys_of(by) if key in ranking.keys]
        return _blocks(ranking, sign, ", ".join(differing), None) if differing else None
    why = _crossing_of(ranking, sign)
    return None if why is None else _blocks(ranking, sign, why.y, why)


def _has(cell: Cell, key: str) -> bool:
    config = cell.runs[0].config
    return key in config or key in dict(dotted(config))


def _crossing_of(ranking: Ranking, sign: float) -> Crossing | None:
    named = [key for key in ranking.keys if _texts(ranking, key)]
    if not named:
        return None
    axes = find_axes(ranking, sign)
    return min(
        find_crossings(ranking, axes, sign, named), key=lambda crossing: crossing.p, default=None
    )


def _texts(ranking: Ranking, key: str) -> bool:
    values = [cell.settings.get(key) for cell in usable(ranking)]
    return bool(values) and all(isinstance(v, str) and as_float(v) is None for v in values)


def _blocks(ranking: Ranking, sign: float, by: str, why: Crossing | None) -> Blocks:
    groups: dict[str, list[Cell]] = {}
    for cell in ranking.cells:
        groups.setdefault(level(cell.settings, by), []).append(cell)
    done = {value: _rows([c for c in cells if c.summary.n], by) for value, cells in groups.items()}
    blocks = tuple(
        _block(ranking, sign, by, value, [rows for key, rows in done.items() if key != value])
        for value in groups
    )
    ragged = len({frozenset(rows) for rows in done.values()}) > 1
    return Blocks(by, why is None, why, ragged, blocks)


def _rows(cells: Sequence[Cell], by: str) -> set[Row]:
    return {rest(cell, by) for cell in cells}


def _block(ranking: Ranking, sign: float, by: str, value: str, peers: Sequence[set[Row]]) -> Block:
    cells = tuple(cell for cell in ranking.cells if level(cell.settings, by) == value)
    part = replace(ranking, cells=cells, best=None, best_run=None, comparisons={})
    good = usable(part)
    counted = [cell for cell in good if cell.counted]
    best = counted[0] if counted else None  # the cells are in the order of the ranking
    tried = _rows(part.tried, by)
    holes = _holes(tried, peers)
    diverged = sum(cell.diverged > 0 for cell in cells)
    if best is None:
        return Block(value, len(tried), diverged, None, (), {}, (), holes)
    groups = {cell.name: cell.values for cell in good}
    compared = against_best(groups, best.name, ranking.noise, sign, ranking.scale, ranking.price)
    limited = bounded(compared, ranking.bounds)
    tied = tuple(c for c in good if c.name in limited and not limited[c.name].told_apart)
    judged = replace(part, best=best, comparisons=limited)
    edges = tuple(judge_edges(judged, sign, alone=True, blocks=parts(ranking, by)))
    return Block(value, len(tried), diverged, best, tied, limited, edges, holes)


def by_blocks(ranking: Ranking, partition: Blocks, sign: float) -> tuple[Ranking, Blocks]:
    """Compare each cell with the best cell of its block. In the returned ranking, `best` is None,
    and the interval of each block's best cell allows for the choice of this cell. If fewer than two
    blocks have a best cell, return the arguments unchanged."""
    if sum(block.best is not None for block in partition.blocks) < 2:
        return ranking, partition
    leaders: dict[str, str] = {}
    chosen: dict[str, Cell] = {}
    blocks: list[Block] = []
    for block in partition.blocks:
        best = block.best
        if best is not None:
            cells = tuple(
                c for c in ranking.cells if level(c.settings, partition.by) == block.value
            )
            part = replace(ranking, cells=cells)
            best, _ = as_chosen(part, best, block.comparisons, sign)
            chosen[best.name] = best
            leaders |= {cell.name: best.name for cell in cells}
        blocks.append(replace(block, best=best))
    apart = replace(
        ranking,
        cells=tuple(chosen.get(cell.name, cell) for cell in ranking.cells),
        best=None,
        best_run=None,
        comparisons={n: entry for block in blocks for n, entry in block.comparisons.items()},
        passed_over=(),
        chosen_of=1,
        held_back=(),
        leaders=leaders,
    )
    return apart, replace(partition, blocks=tuple(blocks))


def _holes(tried: set[Row], peers: Sequence[set[Row]]) -> tuple[Row, ...]:
    values: dict[str, set[str]] = {}
    for row in tried:
        for key, text in row:
            values.setdefault(key, set()).add(text)
    missing = set[Row]().union(*peers) - tried
    fitting = [row for row in missing if all(text in values.get(key, ()) for key, text in row)]
    return tuple(sorted(fitting, key=_order))


def _order(row: Row) -> list[tuple[str, float, str]]:
    return [(key, _number(text), text) for key, text in row]


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def rows(blocks: Blocks, cells: Sequence[Cell]) -> list[Mapping[str, Any]]:
    """Return a row for each block, for `report.json`. The values of settings keep their types."""
    given = ((cell, key) for cell in cells for key in cell.settings)
    typed = {(key, level(cell.settings, key)): cell.settings[key] for cell, key in given}
    values: dict[str, list[Any]] = {}
    for cell in cells:
        combination = [cell.settings.get(key) for key in blocks.keys]
        values.setdefault(level(cell.settings, blocks.by), combination)
    return [
        {
            "value": values[block.value] if len(blocks.keys) > 1 else values[block.value][0],
            "cells": block.cells,
            "diverged": block.diverged,
            "best": block.best and block.best.name,
            "mean": block.best and block.best.summary.mean,
            "tied": [cell.name for cell in block.tied],
            "compared": block.compared,
            "edges": [
                {"axis": e.axis, "value": e.value, "side": e.side, "told": e.told}
                | {"stopped": e.stopped, "suggestion": e.suggestion}
                for e in block.edges
            ],
            "holes": [
                {key: typed.get((key, text), text) for key, text in row} for row in block.holes
            ],
        }
        for block in blocks.blocks
    ]
