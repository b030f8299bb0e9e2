"""Grid -> Plan: the runs of a sweep, each with its configuration, name and id, all of it checked.

    plan = sweeper.plan("grids/quickstart.yaml", overrides={"max_steps": 5})

Nothing is started and nothing is written. A mistake, or many, raise one `GridError` with a line
for each.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sweeper.expansion import MAX_RUNS, Point, count_points, expand, place_of
from sweeper.grid import Grid, grid_from_mapping, load_grid
from sweeper.grid.blocks import Setting
from sweeper.grid.naming import canonical, key_labels, run_id, shorten, value_labels
from sweeper.grid.nodes import Place, Problems
from sweeper.grid.options import Launch, Metric, Seeds
from sweeper.recipe import RUN_KEYS, Problem, Recipe, RecipeError, inspect, placeholders

__all__ = ["Plan", "Run", "plan"]

SCHEMA = 1
_MAX_CELL = 80
_NONE: Any = object()
_WINDOW_KEYS = ("sweep", "name", "cell", "seed", "run", "attempt")
_PLACES = {
    "python": "launch.python",
    "cwd": "launch.cwd",
    "log_path": "launch.log_path_field",
    "command": "command",
}


class Run(NamedTuple):
    """A cell with a seed. `config` holds the explicitly given values by dotted keys, the seed
    field included, what the worker fills in (`log_path`) left out."""

    id: str
    name: str
    cell: str
    seed: int | None
    config: dict[str, Any]


class Plan(NamedTuple):
    """What a launch would submit. `axes` are those declared, in the grid's order, the seed left
    out; `warnings` are for people, a line each."""

    name: str
    recipe: Recipe
    service: Literal["local", "tinker", "none"]
    metric: Metric | None
    secrets: tuple[str, ...]
    launch: Launch
    axes: dict[str, list[Any]]
    runs: tuple[Run, ...]
    grid_text: str
    grid_path: str
    overrides: tuple[str, ...]
    warnings: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """As `sweep.json` has it, without what only a launch knows (`created`, `provenance`)."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "grid": self.grid_text,
            "grid_path": self.grid_path,
            "overrides": list(self.overrides),
            "recipe": self.recipe.document(),
            "service": self.service,
            "metric": None if self.metric is None else self.metric._asdict(),
            "secrets": list(self.secrets),
            "launch": self.launch.document(),
            "axes": self.axes,
            "runs": [run._asdict() for run in self.runs],
        }


def plan(
    source: "str | os.PathLike[str] | Mapping[str, Any]",
    overrides: "Mapping[str, Any] | Sequence[str] | None" = None,
    *,
    validate: bool = True,
) -> Plan:
    """The plan of a grid: a file's path, or the same as a mapping.

    `overrides` are as on the command line (`["max_steps=5", "~lr"]`, a string for a single one) or
    a mapping, in which a list sets an axis. Without `validate` the recipe is not imported; names
    and ids are the same. Raises `GridError`.
    """
    if isinstance(source, Mapping):
        grid = grid_from_mapping(source, overrides or ())
    else:
        grid = load_grid(os.fspath(source), overrides or ())
    return _Planner(grid).plan(validate)


class _Planner:
    """The making of one plan."""

    def __init__(self, grid: Grid) -> None:
        self.warnings: list[str] = []
        self.problems = Problems()
        self.grid = self._seeds_from_axis(grid)
        self.seed_field = self.grid.seeds.field if self.grid.seeds else "seed"

    def plan(self, validate: bool) -> Plan:
        """Expand, name, check."""
        grid = self.grid
        count = count_points(grid) * (len(grid.seeds.values) if grid.seeds else 1)
        if count > MAX_RUNS:
            self.problems.add(grid.places["grid"], f"{count} runs; a sweep has at most {MAX_RUNS}")
            raise self.problems.error()
        self._check_keys()
        points = list(expand(grid, self.problems, self.warnings))
        if not points:
            self.problems.add(grid.places["exclude"], "exclude leaves no cell")
        runs = list(self._runs(points))
        self._check_repeats(points, runs)
        recipe = self._check_recipe(points, runs, validate)
        self._check_templates(runs)
        if recipe is None or self.problems:
            raise self.problems.error()
        return Plan(
            name=grid.name,
            recipe=recipe,
            service=grid.service,
            metric=grid.metric,
            secrets=grid.secrets,
            launch=grid.launch,
            axes={
                key: [setting.value for setting in settings]
                for block in grid.blocks
                for key, settings in block.axes.items()
                if not (key == self.seed_field and _all_integers(settings))
            },
            runs=tuple(runs),
            grid_text=grid.text,
            grid_path=grid.path,
            overrides=grid.overrides,
            warnings=tuple(dict.fromkeys(self.warnings)),
        )

    def _seeds_from_axis(self, grid: Grid) -> Grid:
        """Treat an axis over the seed as replicates, and warn; warn of axes with one value."""
        for block in grid.blocks:
            for key, settings in block.axes.items():
                place = settings[0].place
                if key == "seed" and grid.seeds is None and _all_integers(settings):
                    advice = ": use seeds" if len(block.axes) == 1 else ""
                    self.warnings.append(f"{place}: the axis seed counts as replicates{advice}")
                    if len(block.axes) == 1:
                        seeds = Seeds(key, tuple(setting.value for setting in settings), place)
                        blocks = tuple(other for other in grid.blocks if other is not block)
                        return self._seeds_from_axis(grid._replace(blocks=blocks, seeds=seeds))
                elif len(settings) == 1:
                    self.warnings.append(f"{place}: the axis {key} has only one value")
        return grid

    def _check_keys(self) -> None:
        """Note keys that are not the grid's to give."""
        grid = self.grid
        field = grid.launch.log_path_field or "log_path"
        ours = {field, "behavior_if_log_dir_exists"} if grid.command is None else set(RUN_KEYS)
        ours.discard(self.seed_field)
        given = [setting for settings in (grid.base, grid.fixed) for setting in settings.values()]
        given += [s for entry in grid.include for s in entry.values()]
        given += [s for block in grid.blocks for axis in block.axes.values() for s in axis]
        for setting in given:
            for key in setting.given:
                if key in ours:
                    self.problems.add(setting.places[key], f"{key} is set by sweeper")
                if grid.seeds is not None and key == self.seed_field:
                    self.problems.add(setting.places[key], f"{key} is given by seeds already")

    def _runs(self, points: Sequence[Point]) -> Iterator[Run]:
        grid = self.grid
        source = f'"recipe":{canonical(grid.recipe)}'
        if grid.command is not None:
            source = f'"command":{canonical(list(grid.command))}'
        # The same values come back in many points; the grid keeps them alive, so ids are theirs.
        texts: dict[int, str] = {}
        own = [point.config.get(self.seed_field, _NONE) for point in points]
        # Without `seeds`, a cell's own integer is its seed, and shown where it is not always one.
        replicates = grid.seeds is not None or all(n is _NONE or type(n) is int for n in own)
        shown = grid.seeds is not None or (replicates and len(set(own)) > 1)
        keys = [key for key in _given_keys(grid) if key != self.seed_field or not replicates]
        # What the replicates are called: not `seed` where a key of that name means something else.
        word = self.seed_field if "seed" in keys and grid.seeds is not None else "seed"
        same: dict[tuple[tuple[str, str], ...], str] = {}
        for point, mine, label in zip(points, own, _cells(grid, points, keys, word), strict=True):
            config = point.config
            fixed = mine if type(mine) is int else None
            values: list[tuple[str, str]] = []
            for key in sorted(config):
                if key != self.seed_field or fixed is None:
                    value = config[key]
                    text = texts.get(id(value))
                    if text is None:
                        text = texts[id(value)] = canonical(value)
                    values.append((key, text))
            cell = label
            if shown and grid.seeds is None:  # cells that differ in nothing but the seed are one
                cell = same.setdefault(tuple(values), label)
            for seed in grid.seeds.values if grid.seeds else (fixed,):
                name = cell
                if shown and seed is not None:
                    name = shorten(f"{cell},{word}={seed}" if cell else f"{word}={seed}")
                yield Run(
                    id=run_id(source, values, canonical(seed)),
                    name=name or "base",
                    cell=cell or "base",
                    seed=seed,
                    config=config if grid.seeds is None else {**config, self.seed_field: seed},
                )

    def _check_repeats(self, points: Sequence[Point], runs: Sequence[Run]) -> None:
        """Note runs that would be the same: one would silently stand for both."""
        first: dict[str, Run] = {}
        for number, run in enumerate(runs):
            other = first.setdefault(run.id, run)
            if other is not run:
                chosen = self._point(points, number).chosen
                place = next((s.place for s in chosen.values()), self.grid.places["grid"])
                self.problems.add(
                    place, f"cells {other.cell!r} and {run.cell!r} are one configuration"
                )

    def _point(self, points: Sequence[Point], number: int) -> Point:
        return points[number // (len(self.grid.seeds.values) if self.grid.seeds else 1)]

    def _check_recipe(
        self, points: Sequence[Point], runs: Sequence[Run], validate: bool
    ) -> Recipe | None:
        """Find the recipe and have it check every configuration."""
        grid = self.grid
        try:
            recipe, found = inspect(
                grid.recipe if grid.recipe is not None else list(grid.command or ()),
                [run.config for run in runs] if validate else [],
                grid.launch.python,
                grid.launch.cwd,
                log_path_field=grid.launch.log_path_field,
                seed_field=self.seed_field,
                env=grid.launch.env,
                validate=validate,
            )
        except RecipeError as error:
            place = grid.places.get(_PLACES.get(error.kind, "recipe"), grid.places["recipe"])
            self.problems.add(place, error.problems[0])
            return None
        if grid.recipe is not None and not validate:
            place = grid.places["recipe"]
            self.warnings.append(f"{place}: not validated: values may be read otherwise")
        for problem in found:
            self._note(problem, points, runs, recipe)
        return recipe

    def _note(
        self, problem: Problem, points: Sequence[Point], runs: Sequence[Run], recipe: Recipe
    ) -> None:
        """Put what the recipe finds wrong where the value was written."""
        grid, key = self.grid, problem.key
        if problem.number is None:
            self.problems.add(grid.places["recipe"], problem.message)
            return
        place: Place | None = None
        message = problem.message
        if key is None:
            source = grid.places["command" if grid.command is not None else "recipe"]
            name = runs[problem.number].name
            message = message if grid.command is not None else f"run {name}: {message}"
            self.problems.add(source, message)
            return
        if grid.seeds is not None and key == grid.seeds.field:
            place = grid.seeds.place
            if recipe.seed_field is None:
                message = f"seeds: {message}"
        else:
            place = place_of(grid, self._point(points, problem.number), key)
        self.problems.add(place or grid.places["recipe"], message)

    def _check_templates(self, runs: Sequence[Run]) -> None:
        """Check the placeholders of `launch.window`, and that a command uses every axis."""
        grid = self.grid
        if grid.launch.window is not None:
            place = grid.places["launch.window"]
            self.warnings.append(
                f"{place}: launch.window groups nothing yet: every run has a window of its own"
            )
            try:
                for key in placeholders([grid.launch.window]):
                    lack = [r for r in runs if key not in _WINDOW_KEYS and key not in r.config]
                    if lack:
                        where = "" if len(lack) == len(runs) else f" in cell {lack[0].cell}"
                        message = f"launch.window: there is no {{{key[:60]}}}{where}"
                        self.problems.add(place, message)
            except RecipeError as error:
                self.problems.add(place, error.problems[0].replace("command", "launch.window", 1))
        if grid.command is not None and not self.problems:
            used = placeholders(grid.command)
            if "seed" in used and any(r.seed is None and "seed" not in r.config for r in runs):
                self.problems.add(grid.places["command"], "command: {seed} needs seeds")
            for block in grid.blocks:
                for key, settings in block.axes.items():
                    if not any(u == key or u.startswith(f"{key}.") for u in used):
                        place = settings[0].place
                        self.warnings.append(f"{place}: the command does not use the axis {key}")


def _all_integers(settings: Sequence[Setting]) -> bool:
    return all(type(setting.value) is int for setting in settings)


def _given_keys(grid: Grid) -> list[str]:
    """The keys that may tell one cell from another: of axes, then of included cells."""
    keys = [key for block in grid.blocks for key in block.axes]
    return list(dict.fromkeys([*keys, *(key for entry in grid.include for key in entry)]))


def _cells(grid: Grid, points: Sequence[Point], keys: Sequence[str], word: str) -> Iterator[str]:
    """The name of each point's cell: those of the keys that vary, with their values; "" for none.
    `word` is not to be the name of any."""
    axes = {key for block in grid.blocks for key in block.axes}
    chosen = [_values(point, keys) for point in points[len(points) - len(grid.include) :]]
    parts: dict[str, dict[str, str]] = {}
    short = key_labels(keys, word)
    for key in keys:
        values = [s.value for block in grid.blocks for s in block.axes.get(key, ())]
        values += [value[key] for value in chosen if key in value]
        labels = value_labels(values)
        # Included cells stand beside those of the axes, which know nothing of their other keys.
        beside = bool(grid.blocks) and key not in axes
        if len(labels) > 1 or beside or any(key not in value for value in chosen):
            parts[key] = {text: f"{short[key]}={label}" for text, label in labels.items()}
    texts: dict[int, str] = {}
    for number, point in enumerate(points):
        included = number - (len(points) - len(grid.include))
        found: list[str] = []
        for key, labels in parts.items():
            if included >= 0:
                if key in chosen[included]:
                    found.append(labels[canonical(chosen[included][key])])
            elif key in point.chosen:
                setting = point.chosen[key]
                text = texts.get(id(setting))
                if text is None:
                    text = texts[id(setting)] = labels[canonical(setting.value)]
                found.append(text)
        yield shorten(",".join(found), _MAX_CELL)


def _values(point: Point, keys: Sequence[str]) -> dict[str, Any]:
    """What an included cell has for the keys: its own values, else the base's."""
    values: dict[str, Any] = {}
    for key in keys:
        if key in point.chosen:
            values[key] = point.chosen[key].value
        elif key in point.config:
            values[key] = point.config[key]
    return values
