"""Checks the command of a grid: its placeholders, the values that it does not use, and the program
that it starts."""

import itertools
import os
import re
from collections.abc import Collection, Iterator, Sequence

from sweeper.errors import RecipeError
from sweeper.fields.kinds import nearest
from sweeper.fields.nodes import Problems
from sweeper.grid import Grid
from sweeper.grid.blocks import Setting
from sweeper.grid.dotted_keys import Reach
from sweeper.grid.used_keys import used_keys
from sweeper.recipe.command_template import RUN_KEYS, placeholders, render_command
from sweeper.recipe.reference import lacking
from sweeper.sweep.plan import Run

_SOURCE_BYTES = 1_000_000
_SHOWN = 6
_NUMBERS = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?(, *[-+]?[0-9.]+([eE][-+]?[0-9]+)?)+")


def check_placeholders(grid: Grid, runs: Sequence[Run], problems: Problems) -> None:
    """Note placeholders without a value, each once."""
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
        message = f"command: there is no value for {{{key[:60]}}}{where}"
        if below:
            more = ", ..." if len(below) > _SHOWN else ""
            message += f": {key[:60]} is a mapping; write {', '.join(below[:_SHOWN])}{more}"
        else:
            message += nearest(key, run.config)
        problems.add(grid.places["command"], message)
    if "seed" in holes and any(run.seed is None and "seed" not in run.config for run in runs):
        problems.add(grid.places["command"], "command: {seed} needs seeds")


def command_warnings(grid: Grid, elsewhere: Collection[str] = ()) -> Iterator[str]:
    """Yield warnings about values, seeds and folders that do not reach the program. Other stages
    use the keys `elsewhere`."""
    if grid.command is None:
        return
    used = used_keys(grid)
    yield from _unused_values(grid, Reach({*used, *elsewhere}))
    for key, setting in grid.fixed.items():
        if isinstance(setting.value, str) and _NUMBERS.fullmatch(setting.value):
            axis = f"'{key}=[{setting.value}]'"
            yield f"{setting.place}: this is one text; an axis is written {axis}"
    seeded = grid.seed_field is not None and bool({"seed", grid.seed_field} & used)
    if grid.seeds is not None and grid.seeds.field and not seeded and not _reads(grid, "SEED"):
        yield (
            f"{grid.seeds.place}: the command has no {{seed}}: unless the program reads "
            "SWEEPER_SEED, the runs of a cell are copies of one run"
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
    """Yield the values of single keys: of the base, the command line, conditions and included
    cells, each key once."""
    seen: set[str] = set()
    parts = (grid.fixed, grid.base, *(when.base for when in grid.whens), *grid.include)
    for key, setting in (pair for part in parts for pair in part.items()):
        if key not in seen:
            seen.add(key)
            yield key, setting


def _reads(grid: Grid, name: str) -> bool:
    """Return whether the command, or a script that it names, visibly reads SWEEPER_<name>."""
    variable = f"SWEEPER_{name}"
    words = [*(grid.command or ()), *grid.launch.env.values()]
    return any(variable in text for text in (*words, *_sources(grid)))


def _sources(grid: Grid) -> Iterator[str]:
    """Yield the text of the files that the command names, as far as they can be read here."""
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
    """Note programs that are missing on this machine, for jobs that run here."""
    command = grid.command or ()
    folder = os.path.abspath(os.path.expanduser(grid.launch.cwd or "."))
    env = {**os.environ, **grid.launch.env}
    program = command[:1]
    holes = placeholders(program)
    if set(holes) & set(RUN_KEYS):
        return  # known when the run starts
    configs = [run.config for run in runs[: len(runs) if holes else 1]]
    for name in dict.fromkeys(render_command(program, config)[0] for config in configs):
        message = lacking(name, folder, env)
        if message is not None:
            problems.add(grid.places["command"], f"command: {message}")
