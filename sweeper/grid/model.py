"""A grid as read: what every step of planning is handed."""

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
from sweeper.model.launch import Launch
from sweeper.model.metric import Metric
from sweeper.model.notify import Notify
from sweeper.model.plan import Budget

__all__ = ["Grid", "StageGrid"]


class Grid(NamedTuple):
    """A grid as read. Exactly one of `recipe` and `command` is given.

    `blocks` are the axes of `grid`, `zip` and `random`, what `random` draws included. `fixed` is
    what the command line sets, over everything; `dropped` the keys it took away. `places` says
    where the sections (`recipe`, `launch.python`, ...) stand; `text` is as written, `extends` the
    files it extends; `notes` are warnings.

    A grid with `stages` makes no runs itself: each of them is a grid.
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
    alarms: Alarms | None = None
    on_alarm: OnAlarm | None = None
    budget: Budget | None = None
    notify: Notify | None = None
    baseline: GridBaseline | None = None
    stages: "tuple[StageGrid, ...]" = ()
    order: Literal["depth", "breadth"] = "depth"

    @property
    def seed_field(self) -> str | None:
        """The field that takes the seed; None where no seed is set."""
        return self.seeds.field if self.seeds else "seed"

    def every_block(self) -> Iterator[Block]:
        """Its blocks, those under conditions too."""
        yield from self.blocks
        for when in self.whens:
            yield from when.blocks

    def every_setting(self) -> Iterator[Setting]:
        """Everything that it gives to keys."""
        yield from self.base.values()
        yield from self.fixed.values()
        baseline = (self.baseline and self.baseline.cell) or {}
        for given in (*(when.base for when in self.whens), *self.include, baseline):
            yield from given.values()
        for block in self.every_block():
            for settings in block.axes.values():
                yield from settings


class StageGrid(NamedTuple):
    """A stage as read: a grid of its own, what it takes from others, the references to others in
    its values, and what it says itself of `launch`, as `Stage.launch` has it."""

    name: str
    place: Place
    grid: Grid
    takings: tuple[Taking, ...]
    references: tuple[Reference, ...]
    launch: Mapping[str, object]
