"""The types that the steps of planning share: rows of settings, points, and expanded grids."""

from typing import NamedTuple

from sweeper.fields.nodes import Place
from sweeper.grid import Grid
from sweeper.grid.blocks import Block, Setting


class Row(NamedTuple):
    """One choice of a block, or the settings of an entry of `when` or `include`. `given` has the
    values of `settings` by dotted key. `refers`: some of these values contain references."""

    settings: dict[str, Setting]
    given: dict[str, object]
    refers: bool

    @classmethod
    def of(cls, settings: dict[str, Setting]) -> "Row":
        """Make the row of these settings."""
        given: dict[str, object] = {}
        for setting in settings.values():
            given.update(setting.given)
        return cls(settings, given, any(setting.refers for setting in settings.values()))


def rows_of(block: Block) -> tuple[Row, ...]:
    """Return the choices of a block as rows."""
    columns = zip(*block.axes.values(), strict=True)
    return tuple(Row.of(dict(zip(block.axes, column, strict=True))) for column in columns)


class Point(NamedTuple):
    """One cell: its configuration with dotted keys, the rows chosen for it, and the keys whose
    values depend on the seed (`pending`). `configs` are the configurations of its runs, if they
    differ from `config`."""

    config: dict[str, object]
    rows: tuple[Row, ...]
    pending: tuple[str, ...] = ()
    configs: tuple[dict[str, object], ...] = ()


class Expanded(NamedTuple):
    """An expanded grid: its points, and warnings for people. In `grid`, an axis over the seed was
    replaced by `seeds`."""

    grid: Grid
    points: tuple[Point, ...]
    warnings: tuple[str, ...]

    def point_of(self, run: int) -> Point:
        """Return the point of the run with this number."""
        seeds = self.grid.seeds
        return self.points[run // (len(seeds.values) if seeds else 1)]


def place_of(grid: Grid, point: Point, key: str) -> Place | None:
    """Return the place where the value of a key at a point was written, or None if the grid does
    not give the key. If a reference to a mapping has made the key, this is the place of the
    reference."""
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
