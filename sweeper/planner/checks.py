"""Checks a grid's runs. The recipe checks each configuration, in the interpreter that will run
it. Other checks compare the runs with each other, and check the launch settings. Cells are named
before the checks, because messages use their names."""

import itertools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from sweeper.backends import capabilities_at
from sweeper.common.json_values import is_list
from sweeper.errors import RecipeError, UsageError
from sweeper.fields.kinds import nearest
from sweeper.fields.nodes import Place, Problems
from sweeper.grid import Grid
from sweeper.grid.blocks import Setting
from sweeper.grid.declaration import SECTION
from sweeper.grid.dotted_keys import Reach
from sweeper.grid.misplaced import as_override, belongs
from sweeper.grid.naming import short_form
from sweeper.grid.overrides import flow
from sweeper.grid.run_overrides import unmatched
from sweeper.grid.used_keys import used_keys
from sweeper.paths import add_extra
from sweeper.planner.points import Expanded, Point, place_of
from sweeper.recipe.command_template import (
    RUN_KEYS,
    placeholders,
    render_command,
    spread_keys,
)
from sweeper.recipe.reference import (
    FilledFields,
    Inspected,
    Problem,
    RunProcess,
    inspect,
    lacking,
    lacking_modules,
)
from sweeper.recipe.requirements import outside
from sweeper.recipe.requirements import read as read_requirements
from sweeper.sweep.plan import MODEL_KEYS, Run
from sweeper.sweep.recipe import Recipe
from sweeper.sweep.tracking import PACKAGES
from sweeper.sweep.usage import Usage

_SOURCE_BYTES = 1_000_000
_SHOWN = 6
_NUMBERS = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?(, +[-+]?[0-9.]+([eE][-+]?[0-9]+)?)+")


def check_placeholders(grid: Grid, runs: Sequence[Run], problems: Problems) -> None:
    """Add problems for placeholders of the command without a value or with a wrong type."""
    try:
        holes = placeholders(grid.command or ())
    except RecipeError as error:
        problems.add(grid.places["command"], error.problems[0])
        return
    for key in [key for key in holes if key not in RUN_KEYS]:
        run = next((run for run in runs if key not in run.config), None)
        if run is None:
            continue
        partly = any(key in other.config for other in runs)
        below = [f"{{{other}}}" for other in run.config if other.startswith(f"{key}.")]
        where = f" in cell {run.cell}" if partly or below else ""
        message = f"command: no value for {{{key[:60]}}}{where}"
        if below:
            more = ", ..." if len(below) > _SHOWN else ""
            message += f": {key[:60]} is a mapping; write {', '.join(below[:_SHOWN])}{more}"
        else:
            message += nearest(key, run.config)
        problems.add(grid.places["command"], message)
    for key in spread_keys(grid.command or ()):
        first = (grid.command or ("",))[0] == f"{{{key}*}}"
        values = [run.config.get(key, [""]) for run in runs]
        if not all(is_list(value) and (value or not first) for value in values):
            words = " of words, at least one: the program" if first else " of words"
            problems.add(grid.places["command"], f"command: {{{key[:60]}*}} takes a list{words}")
    if "seed" in holes and any(run.seed is None and "seed" not in run.config for run in runs):
        problems.add(grid.places["command"], "command: {seed} needs seeds")


def command_warnings(grid: Grid, elsewhere: Collection[str] = ()) -> Iterator[str]:
    """Yield warnings about values, seeds and run folders that a command does not use. `elsewhere`
    are the keys that other stages use."""
    if grid.command is None:
        return
    used = used_keys(grid)
    yield from _unused_values(grid, Reach({*used, *elsewhere}))
    for key, setting in grid.fixed.items():
        if isinstance(setting.value, str) and _NUMBERS.fullmatch(setting.value):
            axis = f"'{key}=[{setting.value}]'"
            yield f"{setting.place}: this is a single string; write an axis as {axis}"
    seeded = grid.seed_field is not None and bool({"seed", grid.seed_field} & used)
    if grid.seeds is not None and grid.seeds.field and not seeded and not _reads(grid, "SEED"):
        yield (
            f"{grid.seeds.place}: the command has no {{seed}}: unless the program reads "
            "SWEEPER_SEED, all runs of a cell are the same"
        )
    folder = "log_path" in used or any("{log_path}" in v for v in grid.launch.env.values())
    if not folder and not _reads(grid, "RUN_DIR"):
        yield (
            f"{grid.places['command']}: the command has no {{log_path}}: unless the program writes "
            "to the folder in SWEEPER_RUN_DIR, all runs write to the same files, and sweeper finds "
            "no metrics"
        )


def _unused_values(grid: Grid, used: Reach) -> Iterator[str]:
    blocks = grid.every_block()
    axes = {key: settings[0] for block in blocks for key, settings in block.axes.items()}
    for key, setting in axes.items():
        if key != grid.seed_field and not used.touches(key):
            yield f"{setting.place}: the command does not use the axis {key}"
    holes = placeholders(grid.command or ())
    for key, setting in _single(grid):
        if key not in axes and key != grid.seed_field and not used.touches(key):
            yield f"{setting.place}: the command does not use {key}{nearest(key, holes)}"


def _single(grid: Grid) -> Iterator[tuple[str, Setting]]:
    """Yield each key that is set outside the axes, with the first such setting of the key."""
    seen: set[str] = set()
    parts = (grid.fixed, grid.base, *(when.base for when in grid.whens), *grid.include)
    for key, setting in (pair for part in parts for pair in part.items()):
        if key not in seen:
            seen.add(key)
            yield key, setting


def _reads(grid: Grid, name: str) -> bool:
    """Return whether the text `SWEEPER_<name>` occurs in the command, in `launch.env` or in a
    script that the command names."""
    variable = f"SWEEPER_{name}"
    words = [*(grid.command or ()), *grid.launch.env.values()]
    return any(variable in text for text in (*words, *_sources(grid)))


def _sources(grid: Grid) -> Iterator[str]:
    """Yield the contents of the files that the command names and that can be read here."""
    folder = os.path.abspath(os.path.expanduser(grid.launch.cwd or "."))
    command = grid.command or ()
    names = list(command)
    for flag, module in itertools.pairwise(command):
        if flag == "-m":
            path = module.replace(".", os.sep)
            names += [f"{path}.py", os.path.join(path, "__main__.py")]
    for name in names:
        path = os.path.join(folder, name)
        try:
            if "{" not in name and os.path.isfile(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    yield file.read(_SOURCE_BYTES)
        except (OSError, ValueError):
            continue


def check_program(grid: Grid, runs: Sequence[Run], problems: Problems) -> None:
    """Add problems for programs of the command that cannot be started on this machine. Call this
    only if the jobs run here."""
    command = grid.command or ()
    folder = os.path.abspath(os.path.expanduser(grid.launch.cwd or "."))
    env = {**os.environ, **grid.launch.env}
    program = command[:1]
    holes = placeholders(program)
    if set(holes) & set(RUN_KEYS):
        return  # Their values are only known when a run starts.
    configs = [run.config for run in runs[: len(runs) if holes else 1]]
    for name in dict.fromkeys(render_command(program, config)[0] for config in configs):
        message = lacking(name, folder, env)
        if message is not None:
            problems.add(grid.places["command"], f"command: {message}")


_SOME_KEYS = 20
_WINDOW_KEYS = ("sweep", "name", "cell", "seed", "run", "attempt")
_PLACES = {
    "python": "launch.python",
    "cwd": "launch.cwd",
    "log_path": "launch.log_path_field",
    "command": "command",
}


class Checked(NamedTuple):
    """The result of a check. `notes` are messages from the recipe. `estimates` maps the index of a
    run to its estimated usage. `model_places` maps a model's name to its file, line and column."""

    recipe: Recipe
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    estimates: Mapping[int, Usage]
    model_places: Mapping[str, str]


def check(
    expanded: Expanded,
    runs: Sequence[Run],
    problems: Problems,
    *,
    validate: bool,
    elsewhere: Collection[str] = (),
) -> Checked:
    """Check a grid's runs. Raises `GridError` with all mistakes, including earlier ones in
    `problems`. Without `validate`, the recipe is not imported. `elsewhere` are the keys that other
    stages use."""
    return _Check(expanded, runs, problems).all(validate, elsewhere)


def check_readable_part(grid: Grid, points: Sequence[Point] | None, problems: Problems) -> None:
    """Let the recipe check the points of a grid that has mistakes. Add only the problems that
    belong to one key of one point, since the grid's mistakes may cause the others."""
    if grid.recipe is None or points is None:
        return
    try:
        recipe_problems = _inspect(grid, [point.config for point in points], validate=True).problems
    except RecipeError as error:
        _add_error(grid, error, problems)
        return
    for problem in recipe_problems:
        if problem.number is not None and problem.key is not None:
            place = place_of(grid, points[problem.number], problem.key)
            if place is not None:
                problems.add(place, problem.message)


def fields_of(grid: Grid) -> Mapping[str, object]:
    """Return the fields of a grid's recipe, or {} if the recipe cannot be inspected."""
    try:
        return _inspect(grid, [], validate=True).recipe.takes
    except RecipeError:
        return {}


def _inspect(grid: Grid, configs: Sequence[Mapping[str, object]], *, validate: bool) -> Inspected:
    launch = grid.launch
    return inspect(
        grid.recipe if grid.recipe is not None else list(grid.command or ()),
        configs,
        RunProcess(launch.python, launch.cwd, launch.env),
        FilledFields(launch.log_path_field, grid.seed_field, launch.metrics_dir),
        validate=validate,
    )


def _add_error(grid: Grid, error: RecipeError, problems: Problems) -> None:
    place = grid.places.get(_PLACES.get(error.kind, "recipe"), grid.places["recipe"])
    problems.add(place, error.problems[0])


class _Check:
    """One check of a grid. Each step notes the mistakes that it finds."""

    def __init__(self, expanded: Expanded, runs: Sequence[Run], problems: Problems) -> None:
        self.expanded, self.runs, self.problems = expanded, runs, problems
        # The recipe refuses these values again, but each mistake is reported only once.
        self.broken = problems.places()
        self.grid = expanded.grid
        self.warnings: list[str] = []
        self.lacks: list[Problem] = []
        self.notes: tuple[str, ...] = ()
        self.estimates: dict[int, Usage] = {}

    def all(self, validate: bool, elsewhere: Collection[str]) -> Checked:
        """Run every step in order."""
        grid = self.grid
        self._check_keys()
        self._check_duplicates()
        recipe = self._ask_recipe(validate)
        here = self._check_backends()
        self._check_requirements(recipe)
        if here and validate and recipe is not None:
            self._check_trackers(recipe)
        for lack in self.lacks if here else ():
            self._add_problem(lack, recipe)
        self._check_window()
        if grid.command is not None:
            check_placeholders(grid, self.runs, self.problems)
        if not self.problems:
            self.warnings += command_warnings(grid, elsewhere)
        if grid.command is not None and validate and here and not self.problems:
            check_program(grid, self.runs, self.problems)
        if recipe is None or self.problems:
            raise self.problems.error()
        return Checked(
            recipe, tuple(self.warnings), self.notes, self.estimates, self._model_places()
        )

    def _model_places(self) -> dict[str, str]:
        """Return a dict from each model's name to the place where it was first written."""
        places: dict[str, str] = {}
        for number, run in enumerate(self.runs):
            for key in MODEL_KEYS:
                model = run.config.get(key)
                if isinstance(model, str) and model not in places:
                    place = place_of(self.grid, self.expanded.point_of(number), key)
                    places[model] = str(place or self.grid.places["recipe"])
        return places

    def _check_keys(self) -> None:
        """Add a problem for each key that a grid must not give."""
        grid = self.grid
        field = grid.launch.log_path_field or "log_path"
        filled = {field, "behavior_if_log_dir_exists"} if grid.command is None else set(RUN_KEYS)
        filled.discard(grid.seed_field or "")
        for setting in grid.every_setting():
            for key in setting.given:
                if key in filled:
                    self.problems.add(setting.places[key], f"{key} is set by sweeper")
                if grid.seeds is not None and key == grid.seed_field:
                    self.problems.add(setting.places[key], f"{key} is already given by seeds")

    def _check_duplicates(self) -> None:
        """Add a problem for each run with the same configuration, and so id, as an earlier run."""
        first: dict[str, Run] = {}
        for number, run in enumerate(self.runs):
            other = first.setdefault(run.id, run)
            if other is not run:
                rows = self.expanded.point_of(number).rows
                chosen = (setting.place for row in rows for setting in row.settings.values())
                place = next(chosen, self.grid.places["grid"])
                message = f"cells {other.cell!r} and {run.cell!r} have the same configuration"
                self.problems.add(place, message)

    def _ask_recipe(self, validate: bool) -> Recipe | None:
        """Let the recipe check every configuration. Return None if the recipe cannot be
        inspected."""
        grid = self.grid
        configs = [run.config for run in self.runs] if validate else []
        try:
            inspected = _inspect(grid, configs, validate=validate)
        except RecipeError as error:
            _add_error(grid, error, self.problems)
            return None
        if grid.recipe is not None and not validate:
            place = grid.places["recipe"]
            self.warnings.append(f"{place}: not validated: the recipe may read values differently")
        self.lacks = [problem for problem in inspected.problems if problem.lacking]
        self.notes = inspected.notes
        for problem in inspected.problems:
            if not problem.lacking:
                self._add_problem(problem, inspected.recipe)
        estimates = enumerate(inspected.estimates)
        self.estimates = {number: usage for number, usage in estimates if usage is not None}
        return inspected.recipe

    def _add_problem(self, problem: Problem, recipe: Recipe | None) -> None:
        """Add the recipe's problem, with the place in the grid where the value was written."""
        grid, key, message = self.grid, problem.key, problem.message
        place: Place | None = None
        if problem.number is None:
            pass
        elif key is None:
            message = f"run {self.runs[problem.number].name}: {message}"
        elif grid.seeds is not None and key == grid.seeds.field:
            place = grid.seeds.place
            bare = recipe is None or recipe.seed_field is None
            message = f"seeds: {message}" if bare else message
        else:
            place = place_of(grid, self.expanded.point_of(problem.number), key)
            if place in self.broken:
                return
            if "did you mean" not in message:
                message += self._advice(self.runs[problem.number], key, place, recipe)
        self.problems.add(place or grid.places["recipe"], message)

    def _advice(self, run: Run, key: str, place: Place | None, recipe: Recipe | None) -> str:
        """Return a suggestion to append to the message about a refused value, or "" if there is
        none."""
        first, value = key.partition(".")[0], run.config.get(key)
        overridden = place is not None and place.source.startswith("override ")
        if recipe is None or not recipe.takes:
            return ""
        if first in recipe.takes:
            if overridden and isinstance(value, str) and "," in value:
                return f"; an axis is written '{key}=[{value}]'"
            return ""
        same = [field for field in recipe.takes if short_form(field) == short_form(first)]
        if same:
            return f"; did you mean '{same[0]}'?"
        if overridden:
            advice = as_override(key, flow(value), frozenset(SECTION.fields))
            return f"; {advice}" if advice else ""
        return belongs(first)

    def _check_backends(self) -> bool:
        """Add problems for mistakes in the options of backends. Return whether all jobs run on this
        machine."""
        grid = self.grid
        for key, options in grid.launch.options.items():
            for unused in unmatched(options, [run.config for run in self.runs]):
                place = grid.places.get(f"launch.{key}") or grid.places["launch.backends"]
                self.warnings.append(f"{place}: launch.{key}.{unused}")
        here = True
        for name in grid.launch.places:
            try:
                here = capabilities_at(grid.launch, name).here and here
            except UsageError as error:
                keys = ("launch.backends", "launch.backend")
                place = next((grid.places[k] for k in keys if k in grid.places), None)
                self.problems.add(place or grid.places["launch"], str(error))
                here = False
        return here

    def _check_requirements(self, recipe: Recipe | None) -> None:
        """Check `launch.requirements`, the requirements file for other machines."""
        launch = self.grid.launch
        if launch.requirements is None:
            return
        place = self.grid.places["launch.requirements"]
        try:
            seen = all(capabilities_at(launch, name).files for name in launch.places)
        except UsageError:
            return  # `_check_backends` reports this.
        if seen:
            message = f"jobs of {launch.backend} use the packages of launch.python, not this file"
            self.warnings.append(f"{place}: launch.requirements: {message}")
            return
        path = os.path.abspath(os.path.expanduser(launch.requirements))
        mistakes = list(read_requirements(path).mistakes)
        if recipe is not None and os.path.exists(path):
            file = os.path.dirname(recipe.file) if recipe.file else None
            mistakes += filter(None, [outside(path, recipe.cwd, file)])
        for mistake in mistakes:
            self.problems.add(place, f"launch.requirements: {mistake}")

    def _check_trackers(self, recipe: Recipe) -> None:
        """Check that the recipe's interpreter has the trackers' packages. If the grid has a
        command, only warn that sweeper sends no metrics to the trackers."""
        track = [name for name in self.grid.track if name != "wandb"]
        if not track:
            return
        place = self.grid.places["track"]
        if self.grid.command is not None:
            names = " and ".join(track)
            message = f"track: a command logs to {names} by itself; sweeper sends nothing there"
            self.warnings.append(f"{place}: {message}")
            return
        for name in lacking_modules(
            recipe.python, [PACKAGES[n] for n in track], self.grid.launch.env
        ):
            self.problems.add(
                place,
                f"track: {recipe.python or 'this Python'} has no {name}: "
                f"`{add_extra('trackers', recipe.python)}`",
            )

    def _check_window(self) -> None:
        """Check the placeholders of `launch.window`."""
        window, runs = self.grid.launch.window, self.runs
        if window is None:
            return
        place = self.grid.places["launch.window"]
        try:
            needed = [k for k in placeholders([window]) if k not in _WINDOW_KEYS]
        except RecipeError as error:
            message = error.problems[0].replace("command", "launch.window", 1)
            self.problems.add(place, message)
            return
        for key in needed[:_SOME_KEYS]:
            lack = next((run for run in runs if key not in run.config), None)
            if lack is not None:
                partly = any(key in run.config for run in runs)
                where = f" in cell {lack.cell}" if partly else ""
                self.problems.add(place, f"launch.window: no value for {{{key[:60]}}}{where}")
        if len(needed) > _SOME_KEYS:
            self.problems.add(place, f"launch.window: more than {_SOME_KEYS} placeholders")
