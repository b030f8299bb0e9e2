"""Reads and checks a grid from a YAML file or from a mapping in Python, and reports all mistakes
together. The planner checks values that depend on the recipe."""

import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sweeper.fields.data import from_python
from sweeper.fields.nodes import Node, Place, Problems, Stop, kind, plain, read_yaml
from sweeper.fields.sections import Reading
from sweeper.grid.alarms import check_rules
from sweeper.grid.apply_overrides import advice, apply, apply_to_launch
from sweeper.grid.blocks import Block, check_overlap
from sweeper.grid.conditions import When, check_whens
from sweeper.grid.declaration import SECTION
from sweeper.grid.extends import GridText, decoded, extended, read_text
from sweeper.grid.launch import StageLaunch, read_stage_launch
from sweeper.grid.metric import metric_of
from sweeper.grid.model import Grid, StageGrid
from sweeper.grid.overrides import Override, flow, override_texts, read_overrides
from sweeper.grid.sampling import MAX_DRAWN, draw
from sweeper.grid.seeds import check_race
from sweeper.grid.stages import StageNode, beside_stages, check_graph, divide, ordered, read_stages
from sweeper.grid.wandb import check_env, check_track
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.names import is_sweep_name

MAX_AXES = 200
_SOME_SAMPLES = 100

Overrides: TypeAlias = Mapping[str, object] | Sequence[str]


def load_grid(path: str, overrides: Overrides = ()) -> Grid:
    """Read the grid in a file. `overrides` are texts such as `lr=1`, or a dict from key to value.

    Raises `GridError`.
    """
    return parse_grid(read_text(path), path, overrides)


def parse_grid(text: str, filename: str, overrides: Overrides = ()) -> Grid:
    """Read the grid in `text`. `filename` appears in messages. Its stem is the grid's default name,
    and relative paths in `extends` start at its folder.

    Raises `GridError`.
    """
    problems = Problems()
    grid = _from_text(text, filename, overrides, problems)
    problems.raise_any()
    return grid


def grid_from_mapping(mapping: Mapping[str, object], overrides: Overrides = ()) -> Grid:
    """Read a grid from Python data. Messages name places by keys, not by lines. Paths in
    `extends` start at the current folder. Raises `GridError`."""
    problems = Problems()
    grid = read_grid(mapping, overrides, problems)
    problems.raise_any()
    return grid


def read_grid(
    source: "str | os.PathLike[str] | Mapping[str, object] | GridText",
    overrides: Overrides,
    problems: Problems,
) -> Grid:
    """Read the grid in a file or mapping as far as possible. Mistakes are added to `problems`,
    and the wrong parts are left out. Raises `GridError` if nothing can be read."""
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
            problems.add(Place(path), "the grid is empty; it needs at least a recipe")
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
        grid = _with_changes(grid, changes, problems)
    else:
        grid = _with_stages(grid, reading, changes)
    return grid._replace(text=text, path=path, extends=sources, overrides=texts)


def _with_changes(grid: Grid, changes: Sequence[Override], problems: Problems) -> Grid:
    """Apply the command line's changes, draw the random values, and check the sections."""
    for change in changes:
        grid = apply(grid, change, problems)
    grid = _with_drawn_values(grid, problems)
    _check(grid, problems)
    return grid


def _with_stages(grid: Grid, reading: Reading, changes: Sequence[Override]) -> Grid:
    """Add the stages to the grid. Each stage comes after the stages that it takes runs from."""
    problems = reading.problems
    beside_stages(reading.entries, problems)
    check_rules(grid.alarms, grid.on_alarm, grid.places["on_alarm"], problems)
    nodes = read_stages(reading.values["stages"], problems)
    names = [node.name for node in nodes]
    whole = [
        change for change in changes if change.key.partition(".")[0] not in names and advice(change)
    ]
    for change in whole:
        problems.add(change.place, advice(change) or "")
    own_changes, references = divide(
        [stage for stage in changes if stage not in whole], nodes, problems
    )
    stages = {node.name: _stage(node, grid, reading, own_changes[node.name]) for node in nodes}
    metrics = {name: stage.grid.metric is not None for name, stage in stages.items()}
    check_graph(nodes, metrics, problems)
    stage_grids = (stages[node.name] for node in ordered(nodes))
    with_references = (
        change._replace(references=(*change.references, *references[change.name]))
        for change in stage_grids
    )
    return grid._replace(stages=tuple(with_references), order=reading.value("order"))


def _stage(node: StageNode, grid: Grid, above: Reading, changes: Sequence[Override]) -> StageGrid:
    """Read one stage. The grid's `launch` gives the values that the stage's own `launch` lacks."""
    shared = {k: above.entries[k] for k in ("service", "launch", "secrets") if k in above.entries}
    reading = SECTION.read(Node({**shared, **node.entries}, node.place), "", above.problems)
    _check_program(reading, f"stages.{node.name}")
    grid_of_stage = _grid(reading, grid.name)
    if grid_of_stage.seeds is not None and grid_of_stage.seeds.least is not None:
        message = f"stages.{node.name}.seeds.race: a stage cannot have a race: write seeds: 3"
        above.problems.add(grid_of_stage.seeds.place, message)
    of_launch, changes = _own_launch(node, changes, grid_of_stage, above.problems)
    launch = grid_of_stage.launch.under(of_launch.values)
    places = {
        **grid_of_stage.places,
        **{f"launch.{key}": place for key, place in of_launch.places.items()},
    }
    if node.launch is not None:
        places["launch"] = node.launch.place
    grid_of_stage = grid_of_stage._replace(launch=launch, places=places)
    grid_of_stage = _with_changes(grid_of_stage, changes, above.problems)
    return StageGrid(
        node.name, node.place, grid_of_stage, node.takings, node.references, of_launch.values
    )


def _own_launch(
    node: StageNode, changes: Sequence[Override], whole: Grid, problems: Problems
) -> tuple[StageLaunch, list[Override]]:
    """Read a stage's own `launch`, changed by the command line. Return the section, and the
    changes that belong to other sections."""
    entries = {} if node.launch is None else {"launch": (node.launch.place, node.launch)}
    top, others = apply_to_launch(Node(entries, node.place), list(changes), problems)
    section = (top.entries or {}).get("launch")
    if section is None:
        return StageLaunch({}, {}), others
    name = f"stages.{node.name}.launch"
    return read_stage_launch(section[1], name, whole.launch, problems), others


def _grid(reading: Reading, name: str) -> Grid:
    """Return the grid without the changes of the command line."""
    values = reading.values
    command, metric = values.get("command"), values.get("metric", {})
    secrets: tuple[str, ...] = values.get("secrets", ())
    service = reading.value("service")
    if service == "tinker" and "TINKER_API_KEY" not in secrets:
        secrets = ("TINKER_API_KEY", *secrets)
    return Grid(
        name=name,
        recipe=values.get("recipe"),
        command=None if command is None else tuple(command),
        service=service,
        base=values.get("base", {}),
        blocks=(*values.get("grid", ()), *values.get("zip", ())),
        random=values.get("random"),
        whens=values.get("when", ()),
        include=tuple(values.get("include", ())),
        exclude=tuple(values.get("exclude", ())),
        fixed={},
        dropped=frozenset(),
        seeds=values.get("seeds"),
        metric=metric_of(metric),
        secrets=secrets,
        launch=values.get("launch", Launch()),
        wandb=values.get("wandb"),
        track=tuple(values.get("track", ())),
        alarms=values.get("alarms"),
        on_alarm=values.get("on_alarm"),
        budget=values.get("budget"),
        notify=values.get("notify"),
        baseline=values.get("baseline"),
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
        elif not is_sweep_name(stem):
            message = f"the file's name {stem[:60]!r} cannot name a sweep: add a name"
            problems.add(reading.place, message)
    return reading.values.get("name", stem)


def _check_program(reading: Reading, name: str = "a grid") -> None:
    if reading.given("command") is None and reading.given("recipe") is None:
        reading.problems.add(reading.place, f"{name} needs a recipe, or a command")
    elif reading.given("command") is not None and reading.given("recipe") is not None:
        place = reading.entries["command"][0]
        reading.problems.add(place, f"{name} has both a recipe and a command: remove one")


def _check(grid: Grid, problems: Problems) -> None:
    """Report contradictions between sections."""
    for name in grid.secrets:
        if name in grid.launch.env:
            place = grid.places["launch"]
            problems.add(place, f"{name} is in both secrets and launch.env: remove one")
    check_track(grid.wandb, grid.track, grid.places, problems)
    check_env(grid.wandb, grid.launch, grid.places["launch"], problems)
    check_rules(grid.alarms, grid.on_alarm, grid.places["on_alarm"], problems)
    check_overlap(grid.blocks, problems)
    check_whens(grid.whens, grid.blocks, problems)
    check_race(grid.seeds, grid.metric, problems)
    if sum(len(block.axes) for block in grid.every_block()) > MAX_AXES:
        problems.add(grid.places["grid"], f"more than {MAX_AXES} axes")


def _with_drawn_values(grid: Grid, problems: Problems) -> Grid:
    """Draw the values of the `random` sections, and add them as axes that vary together."""
    notes: list[str] = []
    drawing = [owner.random for owner in (grid, *grid.whens) if owner.random is not None]
    if sum(random.samples * len(random.axes) for random in drawing) > MAX_DRAWN:
        problems.add(
            drawing[0].place, (f"random: more than {MAX_DRAWN} values (samples times axes)")
        )
    # If there are problems, the drawn values only help to find more, so a few are enough.
    most = _SOME_SAMPLES if problems else MAX_DRAWN

    def blocks(owner: Grid | When) -> tuple[Block, ...]:
        if owner.random is None or owner.random.samples > most:
            return owner.blocks
        return (*owner.blocks, draw(owner.random, notes))

    grid = grid._replace(
        blocks=blocks(grid), whens=tuple(when._replace(blocks=blocks(when)) for when in grid.whens)
    )
    return grid._replace(notes=tuple(notes))
