"""The types that the steps of planning share: rows of settings, points, and expanded grids."""

from typing import NamedTuple

from sweeper.fields.nodes import Place
from sweeper.grid import Grid
from sweeper.grid.blocks import Block, Setting


class Row(NamedTuple):
    """One choice of a block (a setting for each axis), or the settings of an entry of `when` or
    `include`. `given` maps dotted keys to the values in `settings`. `refers` is True if a value
    contains a reference."""

    settings: dict[str, Setting]
    given: dict[str, object]
    refers: bool

    @classmethod
    def of(cls, settings: dict[str, Setting]) -> "Row":
        given: dict[str, object] = {}
        for setting in settings.values():
            given.update(setting.given)
        return cls(settings, given, any(setting.refers for setting in settings.values()))


def rows_of(block: Block) -> tuple[Row, ...]:
    """Return the choices of a block as rows."""
    columns = zip(*block.axes.values(), strict=True)
    return tuple(Row.of(dict(zip(block.axes, column, strict=True))) for column in columns)


class Point(NamedTuple):
    """One cell. `config` has dotted keys, `rows` are the rows chosen for the cell, and `pending`
    are the keys whose values depend on the seed. `configs` has one configuration per run if seeds
    change the configuration, else it is empty."""

    config: dict[str, object]
    rows: tuple[Row, ...]
    pending: tuple[str, ...] = ()
    configs: tuple[dict[str, object], ...] = ()


class Expanded(NamedTuple):
    """The points of a grid, and warnings for people. An axis `seed` that was alone in its block is
    now `grid.seeds`."""

    grid: Grid
    points: tuple[Point, ...]
    warnings: tuple[str, ...]

    def point_of(self, run: int) -> Point:
        """Return the point of the run with this number."""
        seeds = self.grid.seeds
        return self.points[run // (len(seeds.values) if seeds else 1)]


def place_of(grid: Grid, point: Point, key: str) -> Place | None:
    """Return the place where the value of a key at a point was written. If the grid gives only a
    parent of the key (`a` of `a.b`), return the parent's place. Return None if the grid gives
    neither."""
    while True:
        if key in grid.fixed:
            return grid.fixed[key].place
        for row in reversed(point.rows):
            for setting in row.settings.values():
                if key in setting.places:
                    return setting.places[key]
        if key in grid.base:
            return grid.base[key].place
        if "." not in key:
            return None
        key = key.rpartition(".")[0]
