"""A grid: what the YAML file (or a mapping from Python) says, read and checked by itself.

Every mistake is gathered and told at once, one line each with its place. What only the recipe
can tell (whether it has such a field) is the planner's to check.

A configuration is made in layers, a later one winning: what `extends` names, `base`, the choices of
the axes, the command line. An override `launch.<key>=value` sets how the runs are executed.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

from sweeper.grid.alarms import Alarms, OnAlarm, check_rules, read_alarms, read_on_alarm
from sweeper.grid.applying import apply
from sweeper.grid.blocks import (
    Block,
    Setting,
    check_overlap,
    read_axes,
    read_entries,
    read_settings,
    read_zip,
)
from sweeper.grid.conditions import When, check_whens, read_whens
from sweeper.grid.data import from_python
from sweeper.grid.extending import Source, decoded, extended, read_text
from sweeper.grid.nodes import Node, Place, Problems, Stop, kind, plain, read_yaml
from sweeper.grid.options import (
    Launch,
    Metric,
    Section,
    Seeds,
    is_name,
    nearest,
    read_launch,
    read_metric,
    read_secrets,
    read_seeds,
)
from sweeper.grid.overrides import Override, flow, override_texts, read_overrides
from sweeper.grid.sampling import MAX_DRAWN, Random, draw, read_random
from sweeper.grid.wandb import Wandb, check_env, read_wandb

__all__ = [
    "MAX_AXES",
    "MAX_ENTRIES",
    "Grid",
    "GridText",
    "grid_from_mapping",
    "load_grid",
    "parse_grid",
    "read_grid",
]

KEYS = (
    *("name", "extends", "recipe", "command", "service", "base", "grid", "zip", "random", "when"),
    *("exclude", "include", "seeds", "metric", "secrets", "launch", "wandb"),
    *("alarms", "on_alarm"),
)
_SERVICES = ("local", "tinker", "none")

MAX_AXES = 200
MAX_ENTRIES = 10_000
_SOME_SAMPLES = 100

_T = TypeVar("_T")
Overrides: TypeAlias = Mapping[str, Any] | Sequence[str]


class Grid(NamedTuple):
    """A grid as read. Exactly one of `recipe` and `command` is given.

    `blocks` are the axes of `grid`, `zip` and `random`, what `random` draws included. `fixed` is
    what the command line sets, over everything; `dropped` the keys it took away. `places` says
    where the sections (`recipe`, `launch.python`, ...) stand; `text` is as written, `extends` the
    files it extends; `notes` are warnings.
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


def load_grid(path: str, overrides: Overrides = ()) -> Grid:
    """The grid in the file `path`, with `overrides` as on the command line, or as a mapping.

    Raises `GridError`.
    """
    return parse_grid(read_text(path), path, overrides)


def parse_grid(text: str, filename: str, overrides: Overrides = ()) -> Grid:
    """The grid in `text`; `filename` stands in messages, its stem is the default name, and what
    the grid extends is looked for in its folder.

    Raises `GridError`.
    """
    problems = Problems()
    grid = _parse(text, filename, overrides, problems)
    problems.raise_any()
    return grid


def grid_from_mapping(mapping: Mapping[str, Any], overrides: Overrides = ()) -> Grid:
    """The same from Python data; a place in messages is the path of keys, and what it extends is
    looked for in the current folder. Raises `GridError`."""
    problems = Problems()
    grid = _from_mapping(mapping, overrides, problems)
    problems.raise_any()
    return grid


class GridText(NamedTuple):
    """What a grid's file holds that is no file of this machine."""

    path: str
    data: bytes


def read_grid(
    source: "str | os.PathLike[str] | Mapping[str, Any] | GridText",
    overrides: Overrides,
    problems: Problems,
) -> Grid:
    """The grid in a file or mapping, as far as it can be read: what is wrong with it is noted and
    left out. Raises `GridError` when there is nothing to go on with."""
    if isinstance(source, Mapping):
        return _from_mapping(source, overrides, problems)
    if isinstance(source, GridText):
        return _parse(decoded(source.data, source.path), source.path, overrides, problems)
    path = os.fspath(source)
    return _parse(read_text(path), path, overrides, problems)


def _parse(text: str, filename: str, overrides: Overrides, problems: Problems) -> Grid:
    root = read_yaml(text, filename, problems)
    if root is None:
        if not problems:
            problems.add(Place(filename), "empty; a grid needs at least a recipe")
        raise problems.error()
    stem = os.path.splitext(os.path.basename(filename))[0]
    return _build(root, stem, text, filename, overrides, problems)


def _from_mapping(mapping: Mapping[str, Any], overrides: Overrides, problems: Problems) -> Grid:
    root = from_python(mapping, "", problems)
    problems.raise_any()
    return _build(root, "", flow(plain(root)), "", overrides, problems)


def _build(
    root: Node, stem: str, text: str, path: str, overrides: Overrides, problems: Problems
) -> Grid:
    if root.entries is None:
        problems.add(root.place, f"a grid is a mapping, not {kind(root)}")
        raise problems.error()
    try:
        root, sources = extended(root, path, len(text.encode()) if path else 0, problems)
    except Stop:
        raise problems.error() from None
    grid = _Builder(root, problems).build(stem, overrides)
    return grid._replace(text=text, path=path, extends=sources)


class _Builder:
    """One reading of one grid."""

    def __init__(self, root: Node, problems: Problems) -> None:
        self.problems = problems
        self.root = Section(root, "the grid", KEYS, problems)

    def build(self, stem: str, overrides: Overrides) -> Grid:
        """Read every section, apply the overrides, draw what is random."""
        problems = self.problems
        texts = override_texts(overrides)
        changes = self._apply_to_launch(read_overrides(texts, problems))
        command, recipe = self._command(), self.root.string("recipe")
        launch = self._section("launch", read_launch, Launch())
        service = self.root.string("service", choices=_SERVICES)
        grid = Grid(
            name=self._name(stem),
            recipe=recipe,
            command=command,
            service=cast('Literal["local", "tinker", "none"]', service or "none"),
            base=self._section("base", lambda n, p: read_settings(n, "base", p), {}),
            blocks=self._blocks(),
            random=self._section("random", read_random, None),
            whens=self._section("when", read_whens, ()),
            include=self._entries("include"),
            exclude=self._entries("exclude"),
            fixed={},
            dropped=frozenset(),
            seeds=self._section("seeds", read_seeds, None),
            metric=self._section("metric", read_metric, None),
            secrets=self._secrets(service, launch),
            launch=launch,
            wandb=self._section("wandb", read_wandb, None),
            alarms=self._section("alarms", read_alarms, None),
            on_alarm=self._section("on_alarm", read_on_alarm, None),
            text="",
            path="",
            overrides=texts,
            places=self._places(),
        )
        for change in changes:
            grid = apply(grid, change, problems)
        check_env(grid.wandb, launch, grid.places["launch"], problems)
        check_rules(grid.alarms, grid.on_alarm, grid.places["on_alarm"], problems)
        grid = _drawn(grid, problems)
        check_overlap(grid.blocks, problems)
        check_whens(grid.whens, grid.blocks, problems)
        blocks = [*grid.blocks, *(block for when in grid.whens for block in when.blocks)]
        if sum(len(block.axes) for block in blocks) > MAX_AXES:
            problems.add(grid.places["grid"], f"more than {MAX_AXES} axes")
        return grid

    def _apply_to_launch(self, changes: list[Override]) -> list[Override]:
        """Put `launch.backend=local` and the like into the section; the other changes."""
        node = self.root.node("launch")
        entries = dict((node.entries if node else None) or {})
        others: list[Override] = []
        for change in changes:
            section, _, key = change.key.partition(".")
            if section != "launch":
                others.append(change)
            elif not key:
                self.problems.add(change.place, "write launch.<key>=value, or ~launch.<key>")
            elif change.action == "drop":
                if entries.pop(key, None) is None:
                    self.problems.add(
                        change.place, f"there is no launch.{key} to drop{nearest(key, entries)}"
                    )
            else:
                _put(entries, key, change)
        if len(others) < len(changes) and (node is None or node.entries is not None):
            place = node.place if node else self.root.place
            self.root.entries["launch"] = (place, Node(entries, place))
        return others

    def _places(self) -> dict[str, Place]:
        places = dict.fromkeys(KEYS, self.root.place)
        for key, (_, node) in self.root.entries.items():
            places[key] = node.place
            if key == "launch" and node.entries is not None:
                places.update({f"launch.{k}": n.place for k, (_, n) in node.entries.items()})
        return places

    def _section(self, key: str, read: Callable[[Node, Problems], _T], default: _T) -> _T:
        node = self.root.node(key)
        return default if node is None else read(node, self.problems)

    def _blocks(self) -> tuple[Block, ...]:
        blocks = self._section("grid", lambda n, p: list(read_axes(n, p)), [])
        return (*blocks, *self._section("zip", lambda n, p: list(read_zip(n, p)), []))

    def _entries(self, key: str) -> tuple[dict[str, Setting], ...]:
        entries = self._section(key, lambda n, p: list(read_entries(n, key, p)), [])
        for setting in [s for e in entries for s in e.values() if s.refers and key == "exclude"]:
            message = "exclude: it takes values, not references"
            self.problems.add(setting.place, message)
        if len(entries) > MAX_ENTRIES:
            self.problems.add(self.root.place, f"{key} has more than {MAX_ENTRIES} entries")
        return tuple(entries[:MAX_ENTRIES])

    def _name(self, stem: str) -> str:
        name, problems = self.root.string("name"), self.problems
        rule = "letters, digits, '.', '_' and '-', a letter or digit first, at most 100"
        node = self.root.node("name")
        if node is not None:
            if name is not None and not is_name(name):
                problems.add(node.place, f"name: {name[:60]!r} cannot name a sweep ({rule})")
        elif not stem:
            problems.add(self.root.place, "a grid from Python needs a name")
        elif not is_name(stem):
            problems.add(
                self.root.place, f"the file's name {stem[:60]!r} cannot name a sweep: add a name"
            )
        return name or stem

    def _command(self) -> tuple[str, ...] | None:
        root, problems = self.root, self.problems
        node = root.node("command")
        recipe = root.node("recipe")
        if node is None:
            if recipe is None:
                problems.add(root.place, "a grid needs a recipe, or a command")
            return None
        if recipe is not None:
            problems.add(root.entries["command"][0], "a grid has a recipe or a command, not both")
        if node.items is None:
            root.wrong(node, "command", "a list such as [python, train.py, '--lr={lr}']")
            return None
        if not node.items:
            problems.add(node.place, "command is an empty list")
        for item in node.items:
            if type(item.value) not in (str, int):
                problems.add(item.place, f"command: {kind(item)} in the list; quote it")
        return tuple(str(item.value) for item in node.items)

    def _secrets(self, service: str | None, launch: Launch) -> tuple[str, ...]:
        secrets = self._section("secrets", read_secrets, ())
        if service == "tinker" and "TINKER_API_KEY" not in secrets:
            secrets = ("TINKER_API_KEY", *secrets)
        for name in secrets:
            if name in launch.env:
                place = self.root.entries["launch"][1].place
                self.problems.add(place, f"{name} is one of the secrets, and in launch.env")
        return secrets


def _put(entries: dict[str, tuple[Place, Node]], key: str, change: Override) -> None:
    """`launch.slurm.mem=8G` sets one key of a section within the section."""
    first, _, rest = key.partition(".")
    if rest and first in ("env", "slurm", "aws_batch"):
        below = entries[first][1] if first in entries else Node(None, change.place)
        inside = {**(below.entries or {}), rest: (change.place, change.node)}
        entries[first] = (change.place, Node(inside, below.place))
    else:
        entries[key] = (change.place, change.node)


def _drawn(grid: Grid, problems: Problems) -> Grid:
    """The grid with the values of its `random` sections drawn, as axes that move together."""
    notes: list[str] = []
    drawing = [owner.random for owner in (grid, *grid.whens) if owner.random is not None]
    if sum(random.samples * len(random.axes) for random in drawing) > MAX_DRAWN:
        problems.add(drawing[0].place, f"random: more than {MAX_DRAWN} values, samples times axes")
    most = _SOME_SAMPLES if problems else MAX_DRAWN  # they only serve to find more problems then

    def blocks(owner: Grid | When) -> tuple[Block, ...]:
        if owner.random is None or owner.random.samples > most:
            return owner.blocks
        return (*owner.blocks, draw(owner.random, notes))

    grid = grid._replace(
        blocks=blocks(grid),
        whens=tuple(when._replace(blocks=blocks(when)) for when in grid.whens),
    )
    return grid._replace(notes=tuple(notes))
