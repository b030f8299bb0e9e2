"""Expands a grid to its cells, which `product` makes, and to the configurations of their runs."""

import itertools
from collections.abc import Iterator, Sequence

from sweeper.fields.nodes import Problems
from sweeper.grid import Grid
from sweeper.grid.blocks import Setting
from sweeper.grid.naming import canonical
from sweeper.grid.seeds import Seeds
from sweeper.planner.points import Expanded, Point
from sweeper.planner.product import MAX_RUNS, Product, count_points

_SOME_POINTS = 200


def expand(grid: Grid, problems: Problems) -> Expanded:
    """Expand a grid to its cells and their runs. The runs of a cell are in the order of their
    seeds. Raises `GridError` if there are too many runs, or if a cell cannot be made."""
    warnings = [*grid.notes, *_lone_values(grid)]
    grid = _seeds_from_axis(grid, warnings)
    warnings += _seed_like(grid)
    replicates = len(grid.seeds.values) if grid.seeds else 1
    count = count_points(grid) * replicates
    if count > MAX_RUNS:
        problems.add(grid.places["grid"], f"{count} runs; a sweep has at most {MAX_RUNS}")
        raise problems.error()
    product = Product(grid, problems, warnings, replicates=replicates)
    if product.overflows():
        raise problems.error()
    points = tuple(product.with_runs(point) for point in product.points())
    if product.cut_short:
        raise problems.error()
    if not points:
        problems.add(grid.places["exclude"], "exclude leaves no cell")
    return Expanded(grid, points, tuple(warnings))


def expand_with_baseline(grid: Grid, problems: Problems) -> tuple[Expanded, int | None]:
    """Expand a grid. If the grid's baseline is a cell that the grid lacks, add this cell. Return
    the expanded grid, and the number of the baseline's cell (None: the baseline names no cell)."""
    baseline = grid.baseline
    if baseline is None or baseline.cell is None:
        return expand(grid, problems), None
    alone = not grid.blocks and not grid.include  # The grid has one cell, which is the base.
    include = (*grid.include, *([{}] if alone else []), baseline.cell)
    points = expand(grid._replace(include=include), problems)
    texts = [canonical(point.config) for point in points.points]
    first = texts.index(texts[-1])
    if first == len(texts) - 1:
        return points, first
    return expand(grid, problems), first


def expand_some(grid: Grid) -> list[Point] | None:
    """Return some points of a grid that has mistakes, or None if the grid has too many points.
    Points with values that depend on the seed are left out. No mistakes are reported."""
    product = Product(grid, Problems(), [])
    if count_points(grid) > MAX_RUNS or product.overflows():
        return None
    return [p for p in itertools.islice(product.points(), _SOME_POINTS) if not p.pending]


def _lone_values(grid: Grid) -> Iterator[str]:
    """Yield a warning for each axis that has one value and is not an axis of seeds."""
    for block in grid.every_block():
        for key, settings in block.axes.items():
            replicates = key == "seed" and bool(_integers(settings))
            if not replicates and len({id(setting) for setting in settings}) == 1:
                yield f"{settings[0].place}: the axis {key} has only one value"


def _seeds_from_axis(grid: Grid, warnings: list[str]) -> Grid:
    """Add a warning if an axis `seed` has integers and the grid has no seeds. If this axis is alone
    in its block, return the grid with the axis replaced by `seeds`."""
    for block in grid.blocks:
        settings = block.axes.get("seed")
        integers = _integers(settings or ())
        if integers and grid.seeds is None:
            place, alone = block.axes["seed"][0].place, len(block.axes) == 1
            advice = ": use seeds" if alone else ""
            warnings.append(f"{place}: the axis seed counts as replicates{advice}")
            if alone:
                blocks = tuple(other for other in grid.blocks if other is not block)
                return grid._replace(
                    blocks=blocks, seeds=Seeds("seed", tuple(dict.fromkeys(integers)), place)
                )
    return grid


def _seed_like(grid: Grid) -> Iterator[str]:
    """Yield a warning for each axis of cells whose name ends with `seed`."""
    if grid.seeds is not None:
        return
    for block in grid.every_block():
        for key, settings in block.axes.items():
            last = key.rpartition(".")[2].lower()
            values = _integers(settings)
            if key != "seed" and last.endswith("seed") and values:
                shown = str(values[:4])[:-1] + (", ...]" if len(values) > 4 else "]")
                yield (
                    f"{settings[0].place}: each value of the axis {key} is a cell of its own: for"
                    f" replicates write seeds: {{field: {key}, values: {shown}}}"
                )


def _integers(settings: Sequence[Setting]) -> list[int]:
    """Return the values of settings if all are integers, else []."""
    values = [setting.value for setting in settings]
    integers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    return integers if len(integers) == len(values) else []
