"""A grid: what the YAML file (or a mapping from Python) says, read and checked by itself.

Every mistake is gathered and told at once, one line each with its place. What only the recipe
can tell (whether it has such a field) is the planner's to check.

A configuration is made in layers, a later one winning: `base`, the choices of the axes, the
command line. An override `launch.<key>=value` sets how the runs are executed.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

from sweeper.errors import GridError
from sweeper.grid.blocks import (
    Block,
    Setting,
    check_overlap,
    read_axes,
    read_axis,
    read_entries,
    read_settings,
    read_zip,
)
from sweeper.grid.data import from_python
from sweeper.grid.nodes import (
    MAX_BYTES,
    Node,
    Place,
    Problems,
    kind,
    plain,
    read_yaml,
)
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

__all__ = ["MAX_AXES", "MAX_ENTRIES", "Grid", "grid_from_mapping", "load_grid", "parse_grid"]

_KEYS = (
    *("name", "recipe", "command", "service", "base", "grid", "zip", "exclude", "include"),
    *("seeds", "metric", "secrets", "launch"),
)
_SERVICES = ("local", "tinker", "none")
_LATER = ("random", "when", "extends")


MAX_AXES = 200
MAX_ENTRIES = 10_000

_T = TypeVar("_T")
Overrides: TypeAlias = Mapping[str, Any] | Sequence[str]


class Grid(NamedTuple):
    """A grid as read. Exactly one of `recipe` and `command` is given.

    `fixed` is what the command line sets, over everything; `dropped` the keys it took away.
    `places` says where the sections (`recipe`, `launch.python`, ...) stand.
    """

    name: str
    recipe: str | None
    command: tuple[str, ...] | None
    service: Literal["local", "tinker", "none"]
    base: dict[str, Setting]
    blocks: tuple[Block, ...]
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


def load_grid(path: str, overrides: Overrides = ()) -> Grid:
    """The grid in the file `path`, with `overrides` as on the command line, or as a mapping.

    Raises `GridError`.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise GridError([f"{path}: {error.strerror or error}"]) from error
    except ValueError as error:  # a NUL in the path
        raise GridError([f"{path!r}: {error}"]) from error
    if len(data) > MAX_BYTES:
        raise GridError([f"{path}: more than {MAX_BYTES} bytes, which is what a grid may have"])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        raise GridError([f"{path}:{line}:{column}: not UTF-8"]) from error
    return parse_grid(text, path, overrides)


def parse_grid(text: str, filename: str, overrides: Overrides = ()) -> Grid:
    """The grid in `text`; `filename` stands in messages, and its stem is the default name.

    Raises `GridError`.
    """
    problems = Problems()
    root = read_yaml(text, filename, problems)
    if root is None:
        if not problems:
            problems.add(Place(filename), "empty; a grid needs at least a recipe")
        raise problems.error()
    stem = os.path.splitext(os.path.basename(filename))[0]
    return _Builder(root, problems).build(stem, text, filename, overrides)


def grid_from_mapping(mapping: Mapping[str, Any], overrides: Overrides = ()) -> Grid:
    """The same from Python data; a place in messages is the path of keys. Raises `GridError`."""
    problems = Problems()
    root = from_python(mapping, "", problems)
    problems.raise_any()
    return _Builder(root, problems).build("", flow(plain(root)), "", overrides)


class _Builder:
    """One reading of one grid."""

    def __init__(self, root: Node, problems: Problems) -> None:
        self.problems = problems
        if root.entries is None:
            problems.add(root.place, f"a grid is a mapping, not {kind(root)}")
            raise problems.error()
        for key in _LATER:
            entry = root.entries.get(key)
            if entry is not None:
                problems.add(entry[0], f"{key!r} is not supported yet")
        kept = {k: v for k, v in root.entries.items() if k not in _LATER}
        self.root = Section(Node(kept, root.place), "the grid", _KEYS, problems)

    def build(self, stem: str, text: str, path: str, overrides: Overrides) -> Grid:
        """Read every section, apply the overrides, and raise if anything was wrong."""
        problems = self.problems
        texts = override_texts(overrides)
        changes = self._apply_to_launch(read_overrides(texts, problems))
        command, recipe = self._command(), self.root.string("recipe")
        launch = self._section("launch", read_launch, Launch())
        service = self.root.string("service", choices=_SERVICES)
        base = self._section("base", lambda n, p: read_settings(n, "base", p), {})
        grid = Grid(
            name=self._name(stem),
            recipe=recipe,
            command=command,
            service=cast('Literal["local", "tinker", "none"]', service or "none"),
            base=base,
            blocks=self._blocks(),
            include=self._entries("include"),
            exclude=self._entries("exclude"),
            fixed={},
            dropped=frozenset(),
            seeds=self._section("seeds", read_seeds, None),
            metric=self._section("metric", read_metric, None),
            secrets=self._secrets(service, launch),
            launch=launch,
            text=text,
            path=path,
            overrides=texts,
            places=self._places(),
        )
        for change in changes:
            grid = _apply(grid, change, problems)
        check_overlap(grid.blocks, problems)
        if sum(len(block.axes) for block in grid.blocks) > MAX_AXES:
            problems.add(grid.places["grid"], f"more than {MAX_AXES} axes")
        problems.raise_any()
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
                entries[key] = (change.place, change.node)
        if len(others) < len(changes) and (node is None or node.entries is not None):
            place = node.place if node else self.root.place
            self.root.entries["launch"] = (place, Node(entries, place))
        return others

    def _places(self) -> dict[str, Place]:
        places = dict.fromkeys(_KEYS, self.root.place)
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


def _apply(grid: Grid, change: Override, problems: Problems) -> Grid:
    """The grid as one override leaves it."""
    key = change.key
    given = [grid.base, *(block.axes for block in grid.blocks), *grid.include]
    keys = dict.fromkeys(key for settings in given for key in settings)
    if key == "seeds" and not _touches(key, keys):
        return _apply_to_section(grid, change, problems)
    if grid.seeds is not None and key == grid.seeds.field:
        return _apply_to_seeds(grid, change, problems)
    if change.action == "axis":
        return _apply_axis(grid, change, problems)
    if change.action == "drop" and not _touches(key, keys):
        problems.add(change.place, f"there is no {key!r} to drop{nearest(key, keys)}")
    grid = grid._replace(
        blocks=_without(grid.blocks, key),
        include=tuple(_cut(entry, key) for entry in grid.include),
        dropped=grid.dropped | {key},
        base=_cut(grid.base, key),
    )
    if change.action == "drop":
        return grid
    fixed = read_settings(
        Node({key: (change.place, change.node)}, change.place), "override", problems
    )
    return grid._replace(fixed={**grid.fixed, **fixed})


def _apply_axis(grid: Grid, change: Override, problems: Problems) -> Grid:
    """The grid with an axis put where it stood, among those that it is zipped with, or added."""
    key = change.key
    settings = read_axis(key, change.place, change.node, problems)
    blocks: list[Block] = []
    placed = False
    for block in grid.blocks:
        others = [axis for axis in block.axes if not _touches(key, (axis,))]
        if len(others) == len(block.axes):
            blocks.append(block)
        elif others and placed:
            problems.add(change.place, f"axis {key!r} would stand for axes of several blocks")
        elif others and settings and len(settings) != block.size:
            problems.add(
                change.place,
                f"axis {key!r} is zipped with {', '.join(others)[:60]}, so it takes {block.size}"
                f" values, not {len(settings)}",
            )
        elif not placed:
            axes = {axis if axis in others else key: s for axis, s in block.axes.items()}
            blocks.append(Block({**axes, key: settings}))
            placed = True
    if not settings:
        return grid
    return grid._replace(blocks=(*blocks, *([] if placed else [Block({key: settings})])))


def _apply_to_section(grid: Grid, change: Override, problems: Problems) -> Grid:
    """The grid with its section `seeds` as an override says; the field stays unless it is given."""
    if change.action == "drop":
        if grid.seeds is None:
            problems.add(change.place, "there is no 'seeds' to drop")
        return grid._replace(seeds=None)
    seeds = read_seeds(change.node, problems)
    if seeds is not None and grid.seeds is not None and "field" not in (change.node.entries or {}):
        seeds = seeds._replace(field=grid.seeds.field)
    return grid._replace(seeds=seeds)


def _apply_to_seeds(grid: Grid, change: Override, problems: Problems) -> Grid:
    """The same by the field that takes the seed."""
    if change.action == "drop":
        return grid._replace(seeds=None)
    node = change.node if change.action == "axis" else Node([change.node], change.place)
    seeds = read_seeds(node, problems)
    if seeds is None or grid.seeds is None:
        return grid
    return grid._replace(seeds=seeds._replace(field=grid.seeds.field))


def _touches(key: str, keys: Iterable[str]) -> bool:
    return any(other == key or other.startswith(f"{key}.") for other in keys)


def _cut(entry: dict[str, Setting], key: str) -> dict[str, Setting]:
    return {k: setting for k, setting in entry.items() if not _touches(key, (k,))}


def _without(blocks: tuple[Block, ...], key: str) -> tuple[Block, ...]:
    """The blocks with the axis `key`, and those below it, taken out."""
    left = ({k: s for k, s in block.axes.items() if not _touches(key, (k,))} for block in blocks)
    return tuple(Block(axes) for axes in left if axes)
