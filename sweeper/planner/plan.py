"""Grid -> Plan: the runs of a sweep, each with its configuration, name and id, all of it checked.

    plan = sweeper.plan("grids/quickstart.yaml", overrides={"max_steps": 5})

Nothing is started and nothing is written. A mistake, or many, raise one `GridError` with a line
for each.
"""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeper.backends import capabilities_of, options_of
from sweeper.errors import GridError, NotFound, StoreError
from sweeper.fields.nodes import Place, Problems
from sweeper.grid import Grid, GridText, read_grid
from sweeper.grid.blocks import Block, Setting
from sweeper.grid.by_run import unmatched
from sweeper.grid.naming import canonical
from sweeper.grid.seeds import Seeds
from sweeper.model.plan import Plan, Recipe, Run
from sweeper.planner.cells import axis_values, make_runs
from sweeper.planner.expansion import MAX_RUNS, Expansion, Point, count_points, place_of
from sweeper.recipe.reference import (
    RUN_KEYS,
    Problem,
    RecipeError,
    inspect,
    lacking,
    placeholders,
    render_command,
)

__all__ = ["plan", "repeats_by_default"]

_SOME_POINTS = 200
"""How many cells of a grid that has mistakes are checked by the recipe all the same."""

_SOME_KEYS = 20
_WINDOW_KEYS = ("sweep", "name", "cell", "seed", "run", "attempt")
_PLACES = {
    "python": "launch.python",
    "cwd": "launch.cwd",
    "log_path": "launch.log_path_field",
    "command": "command",
}


def plan(
    source: "str | os.PathLike[str] | Mapping[str, Any]",
    overrides: "Mapping[str, Any] | Sequence[str] | None" = None,
    *,
    validate: bool = True,
) -> Plan:
    """The plan of a grid: a file's path, or the same as a mapping.

    A path may be the address of a file in a store. `overrides` are as on the command line
    (`["max_steps=5", "~lr"]`, a string for a single one) or a mapping, in which a list sets an
    axis. Without `validate` the recipe is not imported; names and ids are the same. Raises
    `GridError`.
    """
    problems = Problems()
    planner = _Planner(read_grid(_fetched(source), overrides or (), problems), problems)
    if problems:
        if validate:
            planner.check_what_is_left()
        raise problems.error()
    return planner.plan(validate)


def _fetched(
    source: "str | os.PathLike[str] | Mapping[str, Any]",
) -> "str | os.PathLike[str] | Mapping[str, Any] | GridText":
    """A grid in a store, by its address, such as the next one that a report proposes."""
    if not isinstance(source, str) or "://" not in source:
        return source
    from sweeper.store.files import open_store

    above, _, name = source.rpartition("/")
    try:
        return GridText(source, open_store(above).read(name))
    except (NotFound, StoreError) as error:
        raise GridError([f"{source}: {error}"]) from error


class _Planner:
    """The making of one plan."""

    def __init__(self, grid: Grid, problems: Problems) -> None:
        self.warnings: list[str] = list(grid.notes)
        self.problems = problems
        self._warn_of_axes(grid)
        self.grid = self._seeds_from_axis(grid)
        self.seed_field = self.grid.seeds.field if self.grid.seeds else "seed"

    def plan(self, validate: bool) -> Plan:
        """Expand, name, check."""
        grid = self.grid
        self._check_keys()
        points, runs = self._runs()
        self._check_repeats(points, runs)
        recipe = self._check_recipe(points, runs, validate)
        self._check_templates(runs)
        if validate:
            self._check_program(runs)
        for key, options in grid.launch.options.items():
            for unused in unmatched(options, [run.config for run in runs]):
                self.warnings.append(f"{grid.places[f'launch.{key}']}: launch.{key}.{unused}")
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
                key: values
                for key, values in axis_values(grid, points).items()
                if not (key == self.seed_field and all(type(value) is int for value in values))
            },
            runs=tuple(runs),
            grid_text=grid.text,
            grid_path=grid.path,
            overrides=grid.overrides,
            warnings=tuple(dict.fromkeys(self.warnings)),
            extends=tuple((source.path, source.text) for source in grid.extends),
            wandb=grid.wandb,
            alarms=grid.alarms,
            on_alarm=grid.on_alarm,
        )

    def check_what_is_left(self) -> None:
        """Have the recipe check what could be read of a grid that has mistakes, so that all are
        told at once. What may only follow from the others is left untold."""
        grid = self.grid
        if grid.recipe is None:
            return
        expansion = Expansion(grid, Problems(), [], late=self.seed_field)
        if count_points(grid) > MAX_RUNS or expansion.overflows():
            return
        points = [p for p in itertools.islice(expansion.points(), _SOME_POINTS) if not p.pending]
        try:
            _, found = self._inspect([point.config for point in points], True)
        except RecipeError as error:
            self._tell(error)
            return
        for problem in found:
            if problem.number is not None and problem.key is not None:
                place = place_of(grid, points[problem.number], problem.key)
                if place is not None:
                    self.problems.add(place, problem.message)

    def _runs(self) -> tuple[list[Point], list[Run]]:
        grid = self.grid
        seeds = len(grid.seeds.values) if grid.seeds else 1
        count = count_points(grid) * seeds
        if count > MAX_RUNS:
            self.problems.add(grid.places["grid"], f"{count} runs; a sweep has at most {MAX_RUNS}")
            raise self.problems.error()
        expansion = Expansion(
            grid, self.problems, self.warnings, late=self.seed_field, replicates=seeds
        )
        if expansion.overflows():
            raise self.problems.error()
        points = list(expansion.points())
        if expansion.cut_short:
            raise self.problems.error()
        if not points:
            self.problems.add(grid.places["exclude"], "exclude leaves no cell")
        return points, make_runs(grid, expansion, points, self.seed_field, self.problems)

    def _seeds_from_axis(self, grid: Grid) -> Grid:
        """Treat an axis over the seed as replicates, and warn."""
        for block in grid.blocks:
            settings = block.axes.get("seed")
            if settings and grid.seeds is None and _all_integers(settings):
                place, alone = settings[0].place, len(block.axes) == 1
                advice = ": use seeds" if alone else ""
                self.warnings.append(f"{place}: the axis seed counts as replicates{advice}")
                if alone:
                    values = dict.fromkeys(setting.value for setting in settings)
                    blocks = tuple(other for other in grid.blocks if other is not block)
                    return grid._replace(blocks=blocks, seeds=Seeds("seed", tuple(values), place))
        return grid

    def _warn_of_axes(self, grid: Grid) -> None:
        """Warn of axes with one value; replicates may be one."""
        for block in _blocks(grid):
            for key, settings in block.axes.items():
                replicates = key == "seed" and _all_integers(settings)
                if not replicates and len({id(setting) for setting in settings}) == 1:
                    self.warnings.append(f"{settings[0].place}: the axis {key} has only one value")

    def _check_keys(self) -> None:
        """Note keys that are not the grid's to give."""
        grid = self.grid
        field = grid.launch.log_path_field or "log_path"
        ours = {field, "behavior_if_log_dir_exists"} if grid.command is None else set(RUN_KEYS)
        ours.discard(self.seed_field)
        given = [setting for settings in (grid.base, grid.fixed) for setting in settings.values()]
        given += [s for entry in grid.include for s in entry.values()]
        given += [s for when in grid.whens for s in when.base.values()]
        given += [s for block in _blocks(grid) for axis in block.axes.values() for s in axis]
        for setting in given:
            for key in setting.given:
                if key in ours:
                    self.problems.add(setting.places[key], f"{key} is set by sweeper")
                if grid.seeds is not None and key == self.seed_field:
                    self.problems.add(setting.places[key], f"{key} is given by seeds already")

    def _check_repeats(self, points: Sequence[Point], runs: Sequence[Run]) -> None:
        """Note runs that would be the same: one would silently stand for both."""
        first: dict[str, Run] = {}
        for number, run in enumerate(runs):
            other = first.setdefault(run.id, run)
            if other is not run:
                rows = self._point(points, number).rows
                chosen = (setting.place for row in rows for setting in row.settings.values())
                place = next(chosen, self.grid.places["grid"])
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
            recipe, found = self._inspect(
                [run.config for run in runs] if validate else [], validate
            )
        except RecipeError as error:
            self._tell(error)
            return None
        if grid.recipe is not None and not validate:
            place = grid.places["recipe"]
            self.warnings.append(f"{place}: not validated: values may be read otherwise")
        for problem in found:
            self._note(problem, points, runs, recipe)
        return recipe

    def _inspect(
        self, configs: Sequence[Mapping[str, Any]], validate: bool
    ) -> tuple[Recipe, list[Problem]]:
        grid = self.grid
        return inspect(
            grid.recipe if grid.recipe is not None else list(grid.command or ()),
            configs,
            grid.launch.python,
            grid.launch.cwd,
            log_path_field=grid.launch.log_path_field,
            metrics_dir=grid.launch.metrics_dir,
            seed_field=self.seed_field,
            env=grid.launch.env,
            validate=validate,
        )

    def _tell(self, error: RecipeError) -> None:
        places = self.grid.places
        place = places.get(_PLACES.get(error.kind, "recipe"), places["recipe"])
        self.problems.add(place, error.problems[0])

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

    def _check_program(self, runs: Sequence[Run]) -> None:
        """Note the programs of a command that are not on this machine, where its jobs run."""
        grid = self.grid
        if grid.command is None or self.problems:
            return
        launch = grid.launch
        if not capabilities_of(launch.backend, options_of(launch)).here:
            return
        folder = os.path.abspath(os.path.expanduser(grid.launch.cwd or "."))
        env = {**os.environ, **grid.launch.env}
        program = grid.command[:1]
        if set(placeholders(program)) & set(RUN_KEYS):
            return  # known when the run starts
        configs = [run.config for run in runs[: len(runs) if placeholders(program) else 1]]
        for name in dict.fromkeys(render_command(program, config)[0] for config in configs):
            message = lacking(name, folder, env)
            if message is not None:
                self.problems.add(grid.places["command"], f"command: {message}")

    def _check_templates(self, runs: Sequence[Run]) -> None:
        """Check the placeholders of `launch.window`, and that a command uses every axis."""
        grid = self.grid
        if grid.launch.window is not None:
            place = grid.places["launch.window"]
            try:
                needed = [k for k in placeholders([grid.launch.window]) if k not in _WINDOW_KEYS]
                for key in needed[:_SOME_KEYS]:
                    lack = next((run for run in runs if key not in run.config), None)
                    if lack is not None:
                        partly = any(key in run.config for run in runs)
                        where = f" in cell {lack.cell}" if partly else ""
                        message = f"launch.window: there is no {{{key[:60]}}}{where}"
                        self.problems.add(place, message)
                if len(needed) > _SOME_KEYS:
                    self.problems.add(place, f"launch.window: more than {_SOME_KEYS} placeholders")
            except RecipeError as error:
                self.problems.add(place, error.problems[0].replace("command", "launch.window", 1))
        if grid.command is not None and not self.problems:
            used = placeholders(grid.command)
            if "seed" in used and any(r.seed is None and "seed" not in r.config for r in runs):
                self.problems.add(grid.places["command"], "command: {seed} needs seeds")
            for block in _blocks(grid):
                for key, settings in block.axes.items():
                    if not any(u == key or u.startswith(f"{key}.") for u in used):
                        place = settings[0].place
                        self.warnings.append(f"{place}: the command does not use the axis {key}")


def _all_integers(settings: Sequence[Setting]) -> bool:
    return all(type(setting.value) is int for setting in settings)


def _blocks(grid: Grid) -> Iterator[Block]:
    """All blocks, those under conditions too."""
    yield from grid.blocks
    for when in grid.whens:
        yield from when.blocks


def repeats_by_default(plan: Plan, recorded: Plan) -> list[str]:
    """Warnings of runs that an earlier launch has on record but for values which are the recipe's
    defaults: `lora_rank: 8` where nothing was given, and 8 is what the recipe takes then.

    An id is made of what a grid gives, so they are other runs and train again. They are not taken
    for the same: a default may have been another when the earlier ones ran.
    """
    if recorded.recipe.reference != plan.recipe.reference:
        return []
    defaults = {
        key: canonical(about["default"])
        for key, about in plan.recipe.takes.items()
        if "default" in about
    }
    planned = {run.id for run in plan.runs}
    known = {run.id for run in recorded.runs}
    left: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for run in recorded.runs:
        if run.id not in planned:
            left.setdefault(_stripped(run.config, defaults), set()).update(run.config)
    counts: dict[tuple[str, ...], int] = {}
    for run in plan.runs:
        before = left.get(_stripped(run.config, defaults)) if run.id not in known else None
        keys = tuple(key for key in run.config if before is not None and key not in before)
        if keys:
            counts[keys] = counts.get(keys, 0) + 1
    return [
        f"runs that differ from recorded ones only in giving {', '.join(keys)[:80]}, with the"
        f" recipe's default: {count}; they are other runs, and train again"
        for keys, count in counts.items()
    ]


def _stripped(
    config: Mapping[str, Any], defaults: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """What a configuration gives, values that are the defaults left out."""
    texts = {key: canonical(value) for key, value in config.items()}
    return tuple(sorted((k, text) for k, text in texts.items() if defaults.get(k) != text))
