"""A grid as read. Every step of planning uses it."""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from sweeper.fields.nodes import Place
from sweeper.grid.alarms import Alarms, OnAlarm
from sweeper.grid.baseline import GridBaseline
from sweeper.grid.blocks import Block, Setting
from sweeper.grid.conditions import When
from sweeper.grid.extends import Source
from sweeper.grid.sampling import Random
from sweeper.grid.seeds import Seeds
from sweeper.grid.stage_inputs import Taking
from sweeper.grid.stages import Reference
from sweeper.grid.wandb import Wandb
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.metric import Metric
from sweeper.sweep.notify import Notify
from sweeper.sweep.plan import Budget


class Grid(NamedTuple):
    """A grid as read. It has either a `recipe` or a `command`, not both.

    `blocks` are the axes of `grid` and `zip`, and the drawn values of `random`. `fixed` are the
    values of the command line, which override all other values; `dropped` are the keys that the
    command line removes. `places` has the positions of the sections and of the keys of `launch`.
    `extends` are the files that the grid extends, and `notes` are warnings.

    A grid with `stages` makes no runs itself: each stage is a grid.
    """

    name: str
    recipe: str | None
    command: tuple[str, ...] | None
    service: Literal["local", "tinker", "none"]
    base: dict[str, Setting]
    blocks: tuple[Block, ...]
    random: Random | None
    whens: tuple[When, ...]
    include: tuple[dict[str, Setting], ...]
    exclude: tuple[dict[str, Setting], ...]
    fixed: dict[str, Setting]
    dropped: frozenset[str]
    seeds: Seeds | None
    metric: Metric | None
    secrets: tuple[str, ...]
    launch: Launch
    text: str
    path: str
    overrides: tuple[str, ...]
    places: dict[str, Place]
    extends: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()
    wandb: Wandb | None = None
    track: tuple[str, ...] = ()
    alarms: Alarms | None = None
    on_alarm: OnAlarm | None = None
    budget: Budget | None = None
    notify: Notify | None = None
    baseline: GridBaseline | None = None
    stages: "tuple[StageGrid, ...]" = ()
    order: Literal["depth", "breadth"] = "depth"

    @property
    def seed_field(self) -> str | None:
        """The recipe's field for the seed; None if no seed is set."""
        return self.seeds.field if self.seeds else "seed"

    def every_block(self) -> Iterator[Block]:
        """Yield all blocks (axes that vary together), including blocks under conditions."""
        yield from self.blocks
        for when in self.whens:
            yield from when.blocks

    def every_setting(self) -> Iterator[Setting]:
        """Yield all values that the grid gives to keys."""
        yield from self.base.values()
        yield from self.fixed.values()
        baseline = (self.baseline and self.baseline.cell) or {}
        for given in (*(when.base for when in self.whens), *self.include, baseline):
            yield from given.values()
        for block in self.every_block():
            for settings in block.axes.values():
                yield from settings


class StageGrid(NamedTuple):
    """A stage as read: its own grid, the runs that it takes from other stages (`takings`), its
    references to values of other stages, and the values of its own `launch`."""

    name: str
    place: Place
    grid: Grid
    takings: tuple[Taking, ...]
    references: tuple[Reference, ...]
    launch: Mapping[str, object]
