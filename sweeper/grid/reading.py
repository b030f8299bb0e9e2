"""A grid: what the YAML file (or a mapping from Python) says, read and checked by itself.

Every mistake is gathered and told at once, one line each with its place. What only the recipe
can tell (whether it has such a field) is the planner's to check.

A configuration is made in layers, a later one winning: what `extends` names, `base`, the choices of
the axes, the command line. An override `launch.<key>=value` sets how the runs are executed.
"""

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

from sweeper.fields.data import from_python
from sweeper.fields.kinds import Choice, Item, Shape, Text, Texts
from sweeper.fields.nodes import Node, Place, Problems, Stop, kind, plain, read_yaml
from sweeper.fields.sections import Field, Nested, Reading, Section
from sweeper.grid.alarms import ALARMS, ON_ALARM, check_rules
from sweeper.grid.applying import apply, apply_to_launch
from sweeper.grid.baseline import BASELINE
from sweeper.grid.blocks import (
    AXES,
    ENTRIES,
    VALUES,
    ZIP,
    Block,
    Setting,
    check_overlap,
    read_axes,
    read_entries,
    read_settings,
    read_zip,
)
from sweeper.grid.budget import BUDGET
from sweeper.grid.conditions import WHEN, When, check_whens
from sweeper.grid.extending import GridText, decoded, extended, read_text
from sweeper.grid.launch import ENV_NAME, STAGE_SECTION, StageLaunch, read_launch, read_stage_launch
from sweeper.grid.launch import SECTION as LAUNCH
from sweeper.grid.metric import METRIC, made
from sweeper.grid.model import Grid, StageGrid
from sweeper.grid.notify import NOTIFY
from sweeper.grid.overrides import Override, flow, override_texts, read_overrides
from sweeper.grid.sampling import MAX_DRAWN, RANDOM, draw
from sweeper.grid.seeds import SEEDS
from sweeper.grid.stages import (
    IN_STAGE,
    StageNode,
    beside_stages,
    check_graph,
    divide,
    ordered,
    read_stages,
    stages_schema,
)
from sweeper.grid.wandb import WANDB, check_env
from sweeper.model.launch import Launch

__all__ = [
    "MAX_AXES",
    "MAX_ENTRIES",
    "SECTION",
    "grid_from_mapping",
    "is_name",
    "load_grid",
    "parse_grid",
    "read_grid",
    "schema_of_stages",
]

MAX_AXES = 200
MAX_ENTRIES = 10_000
_SOME_SAMPLES = 100
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"

Overrides: TypeAlias = Mapping[str, object] | Sequence[str]


def is_name(text: str) -> bool:
    """Whether a sweep may be called that: safe as a folder and as a tmux session."""
    return re.fullmatch(_NAME, text) is not None


def _read_excluded(node: Node, where: str, problems: Problems) -> list[dict[str, Setting]]:
    entries = _read_entries(node, where, problems)
    for setting in [s for entry in entries for s in entry.values() if s.refers]:
        problems.add(setting.place, f"{where}: it takes values, not references")
    return entries


def _read_entries(node: Node, where: str, problems: Problems) -> list[dict[str, Setting]]:
    entries = read_entries(node, where, problems)
    if len(entries) > MAX_ENTRIES:
        problems.add(node.place, f"{where} has more than {MAX_ENTRIES} entries")
    return entries[:MAX_ENTRIES]


def _read_secrets(node: Node, where: str, problems: Problems) -> tuple[str, ...]:
    if node.items is None:
        problems.add(node.place, f"{where} is {kind(node)}; it takes a list of variable names")
        return ()
    names: dict[str, None] = {}
    for item in node.items:
        if isinstance(item.value, str) and re.fullmatch(ENV_NAME, item.value):
            names[item.value] = None
        elif isinstance(item.value, str) and "=" in item.value:
            # The text may hold the secret itself: it must not be repeated on a terminal.
            problems.add(item.place, f"{where} takes names only; values come from the environment")
        else:
            problems.add(item.place, f"{where} takes the names of environment variables")
    return tuple(names)


def _read_launch(node: Node, where: str, problems: Problems) -> Launch:
    del where
    return read_launch(node, problems)


_SECRETS = {"type": "array", "items": {"type": "string", "pattern": f"^{ENV_NAME}$"}}
_PROGRAM = Section(
    Field(
        "name",
        Text(
            _NAME,
            "{} cannot name a sweep (letters, digits, '.', '_' and '-', a letter or digit first,"
            " at most 100)",
        ),
        "The sweep's name (default: the file's stem).",
    ),
    Field(
        "extends",
        Text(),
        "Another grid that this one starts from: its path, counted from this file.",
    ),
    Field(
        "recipe",
        Text(),
        "The program that each run executes: a short name, package.module, package.module:Class"
        " or path/to/file.py.",
        examples=("sft",),
    ),
    Field(
        "command",
        Texts(
            Item({}, numbers=True),
            least=1,
            most=10_000,
            example="a list such as [python, train.py, '--lr={lr}']",
        ),
        "Instead of a recipe: an argv in which {key} stands for the value of a key, {log_path},"
        " {seed}, {run} or {attempt}.",
    ),
    Field(
        "service",
        Choice("local", "tinker", "none"),
        "Who serves the model: local (our engine), tinker (the hosted one; needs TINKER_API_KEY)"
        " or none.",
        "none",
    ),
    Field("base", Shape(VALUES, read_settings), "Values that all runs share."),
    Field("grid", Shape(AXES, read_axes), "Axes: every combination of their values is a cell."),
    Field("zip", Shape(ZIP, read_zip), "Axes that move together, of one length within a mapping."),
    RANDOM,
    WHEN,
    Field(
        "exclude",
        Shape(ENTRIES, _read_excluded),
        "Cells to leave out: those that have all values of an entry.",
    ),
    Field("include", Shape(ENTRIES, _read_entries), "Further cells, one each, over base."),
    SEEDS,
    Field("metric", Nested(METRIC), "What decides which cell is best."),
    BASELINE,
    Field(
        "secrets",
        Shape(_SECRETS, _read_secrets),
        "Names of variables whose values come from the launcher's environment.",
    ),
    Field("launch", Shape(LAUNCH.schema, _read_launch), "How the runs are executed."),
    WANDB,
    ALARMS,
    ON_ALARM,
    BUDGET,
    NOTIFY,
)


def _as_it_stands(node: Node, where: str, problems: Problems) -> Node:
    """Stages are read once the command line is."""
    del where, problems
    return node


def schema_of_stages(launch: Section) -> dict[str, object]:
    """What stages may be, as a JSON Schema, of which each may say `launch` itself."""
    own = Field("launch", Nested(launch), "How its own runs are executed, over what all say.")
    sections = {key: _PROGRAM.fields[key].schema() for key in IN_STAGE}
    return stages_schema({**sections, own.name: own.schema()})


SECTION = _PROGRAM.extended(
    Field(
        "stages",
        Shape(partial(schema_of_stages, STAGE_SECTION), _as_it_stands),
        "Instead of a recipe: grids that go on from each other's runs.",
    ),
    Field(
        "order",
        Choice("depth", "breadth"),
        "Which stages' runs start first: those of the last, or those of the first.",
        "depth",
    ),
)


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
    grid = _from_text(text, filename, overrides, problems)
    problems.raise_any()
    return grid


def grid_from_mapping(mapping: Mapping[str, object], overrides: Overrides = ()) -> Grid:
    """The same from Python data; a place in messages is the path of keys, and what it extends is
    looked for in the current folder. Raises `GridError`."""
    problems = Problems()
    grid = read_grid(mapping, overrides, problems)
    problems.raise_any()
    return grid


def read_grid(
    source: "str | os.PathLike[str] | Mapping[str, object] | GridText",
    overrides: Overrides,
    problems: Problems,
) -> Grid:
    """The grid in a file or mapping, as far as it can be read: what is wrong with it is noted and
    left out. Raises `GridError` when there is nothing to go on with."""
    if isinstance(source, Mapping):
        root = from_python(source, "", problems)
        problems.raise_any()
        return _from_root(root, flow(plain(root)), "", overrides, problems)
    if isinstance(source, GridText):
        return _from_text(decoded(source.data, source.path), source.path, overrides, problems)
    path = os.fspath(source)
    return _from_text(read_text(path), path, overrides, problems)


def _from_text(text: str, path: str, overrides: Overrides, problems: Problems) -> Grid:
    root = read_yaml(text, path, problems)
    if root is None:
        if not problems:
            problems.add(Place(path), "empty; a grid needs at least a recipe")
        raise problems.error()
    return _from_root(root, text, path, overrides, problems)


def _from_root(root: Node, text: str, path: str, overrides: Overrides, problems: Problems) -> Grid:
    if root.entries is None:
        problems.add(root.place, f"a grid is a mapping, not {kind(root)}")
        raise problems.error()
    try:
        root, sources = extended(root, path, len(text.encode()) if path else 0, problems)
        problems.order((path, *(source.path for source in sources)))
    except Stop:
        raise problems.error() from None
    texts = override_texts(overrides)
    root, changes = apply_to_launch(root, read_overrides(texts, problems), problems)
    reading = SECTION.read(root, "", problems)
    stem = os.path.splitext(os.path.basename(path))[0]
    grid = _grid(reading, _name(reading, stem))
    if reading.given("stages") is None:
        _check_program(reading)
        grid = _applied(grid, changes, problems)
    else:
        grid = _with_stages(grid, reading, changes)
    return grid._replace(text=text, path=path, extends=sources, overrides=texts)


def _applied(grid: Grid, changes: Sequence[Override], problems: Problems) -> Grid:
    """The grid as the command line leaves it, with what is drawn."""
    for change in changes:
        grid = apply(grid, change, problems)
    grid = _drawn(grid, problems)
    _check(grid, problems)
    return grid


def _with_stages(grid: Grid, reading: Reading, changes: Sequence[Override]) -> Grid:
    """The grid with its stages, in an order in which each comes after those that it takes from."""
    problems = reading.problems
    beside_stages(reading.entries, problems)
    check_rules(grid.alarms, grid.on_alarm, grid.places["on_alarm"], problems)
    nodes = read_stages(reading.values["stages"], problems)
    mine, references = divide(changes, nodes, problems)
    stages = {node.name: _stage(node, grid, reading, mine[node.name]) for node in nodes}
    metrics = {name: stage.grid.metric is not None for name, stage in stages.items()}
    check_graph(nodes, metrics, problems)
    found = (stages[node.name] for node in ordered(nodes))
    made = (one._replace(references=(*one.references, *references[one.name])) for one in found)
    return grid._replace(stages=tuple(made), order=reading.value("order"))


def _stage(node: StageNode, grid: Grid, above: Reading, changes: Sequence[Override]) -> StageGrid:
    """One stage. What it does not say itself of how its runs are executed holds for all."""
    shared = {k: above.entries[k] for k in ("service", "launch", "secrets") if k in above.entries}
    reading = SECTION.read(Node({**shared, **node.entries}, node.place), "", above.problems)
    _check_program(reading, f"stages.{node.name}")
    found = _grid(reading, grid.name)
    own, changes = _own_launch(node, changes, found, above.problems)
    launch = found.launch.under(own.values)
    places = {**found.places, **{f"launch.{key}": place for key, place in own.places.items()}}
    if node.launch is not None:
        places["launch"] = node.launch.place
    found = found._replace(launch=launch, places=places)
    found = _applied(found, changes, above.problems)
    return StageGrid(node.name, node.place, found, node.takings, node.references, own.values)


def _own_launch(
    node: StageNode, changes: Sequence[Override], whole: Grid, problems: Problems
) -> tuple[StageLaunch, list[Override]]:
    """What a stage says itself of `launch`, the command line in it, and the other changes."""
    entries = {} if node.launch is None else {"launch": (node.launch.place, node.launch)}
    top, others = apply_to_launch(Node(entries, node.place), list(changes), problems)
    section = (top.entries or {}).get("launch")
    if section is None:
        return StageLaunch({}, {}), others
    name = f"stages.{node.name}.launch"
    return read_stage_launch(section[1], name, whole.launch, problems), others


def _grid(reading: Reading, name: str) -> Grid:
    """The grid before the command line has changed it."""
    found = reading.values
    command, metric = found.get("command"), found.get("metric", {})
    secrets: tuple[str, ...] = found.get("secrets", ())
    service = reading.value("service")
    if service == "tinker" and "TINKER_API_KEY" not in secrets:
        secrets = ("TINKER_API_KEY", *secrets)
    return Grid(
        name=name,
        recipe=found.get("recipe"),
        command=None if command is None else tuple(command),
        service=service,
        base=found.get("base", {}),
        blocks=(*found.get("grid", ()), *found.get("zip", ())),
        random=found.get("random"),
        whens=found.get("when", ()),
        include=tuple(found.get("include", ())),
        exclude=tuple(found.get("exclude", ())),
        fixed={},
        dropped=frozenset(),
        seeds=found.get("seeds"),
        metric=made(metric),
        secrets=secrets,
        launch=found.get("launch", Launch()),
        wandb=found.get("wandb"),
        alarms=found.get("alarms"),
        on_alarm=found.get("on_alarm"),
        budget=found.get("budget"),
        notify=found.get("notify"),
        baseline=found.get("baseline"),
        text="",
        path="",
        overrides=(),
        places=_places(reading),
    )


def _places(reading: Reading) -> dict[str, Place]:
    places = dict.fromkeys(SECTION.fields, reading.place)
    places |= {key: node.place for key, (_, node) in reading.entries.items()}
    launch = reading.given("launch")
    entries = (launch and launch.entries) or {}
    return places | {f"launch.{key}": node.place for key, (_, node) in entries.items()}


def _name(reading: Reading, stem: str) -> str:
    problems = reading.problems
    if reading.given("name") is None:
        if not stem:
            problems.add(reading.place, "a grid from Python needs a name")
        elif not is_name(stem):
            told = f"the file's name {stem[:60]!r} cannot name a sweep: add a name"
            problems.add(reading.place, told)
    return reading.values.get("name", stem)


def _check_program(reading: Reading, what: str = "a grid") -> None:
    if reading.given("command") is None and reading.given("recipe") is None:
        reading.problems.add(reading.place, f"{what} needs a recipe, or a command")
    elif reading.given("command") is not None and reading.given("recipe") is not None:
        place = reading.entries["command"][0]
        reading.problems.add(place, f"{what} has a recipe or a command, not both")


def _check(grid: Grid, problems: Problems) -> None:
    """Note what is wrong with sections beside each other."""
    for name in grid.secrets:
        if name in grid.launch.env:
            place = grid.places["launch"]
            problems.add(place, f"{name} is one of the secrets, and in launch.env")
    check_env(grid.wandb, grid.launch, grid.places["launch"], problems)
    check_rules(grid.alarms, grid.on_alarm, grid.places["on_alarm"], problems)
    check_overlap(grid.blocks, problems)
    check_whens(grid.whens, grid.blocks, problems)
    if sum(len(block.axes) for block in grid.every_block()) > MAX_AXES:
        problems.add(grid.places["grid"], f"more than {MAX_AXES} axes")


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
