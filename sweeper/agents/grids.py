"""The grids that agents may plan and launch: only files below one folder."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from sweeper.errors import GridError, UsageError
from sweeper.fields.nodes import Problems, read_yaml
from sweeper.grid.extends import MAX_EXTENDS, read_text
from sweeper.store.base import Store
from sweeper.sweep.folder import SweepFolder, find_sweeps
from sweeper.sweep.plan import Plan
from sweeper.sweep.states import State

_MOST_GRIDS = 500
_ENDINGS = (".yaml", ".yml")


class Recorded(NamedTuple):
    """A run that has already succeeded in another sweep: the run's id, the sweep, and the run's
    name in that sweep."""

    run: str
    sweep: str
    name: str


def find_grid(folder: str, name: str) -> str:
    """Return the absolute path of a grid. `name` is the path relative to `folder`. Raises
    `UsageError` if the grid is missing or outside the folder, or if it extends a file outside the
    folder."""
    at = path = find_below(folder, name, _ENDINGS, "grid")
    top = os.path.realpath(folder)
    for _ in range(MAX_EXTENDS + 1):
        above = _extends(at)
        if above is None:
            return path
        at = os.path.realpath(os.path.join(os.path.dirname(at), above))
        if not at.startswith(top + os.sep):
            raise UsageError(
                f"{name}: `extends` names a file outside the grids folder: copy that file into it"
            )
    return path


def find_below(folder: str, name: str, endings: tuple[str, ...], noun: str) -> str:
    """Return the absolute path of a file. `name` is the path relative to `folder`, and messages use
    the word `noun` for the file. Raises `UsageError` if the file is missing, is outside the folder,
    or has none of the `endings`."""
    top = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(top, name.replace("\0", "?")))
    if not path.startswith(top + os.sep) or "\0" in name:
        raise UsageError(f"{name[:200]!r} is not below the grids folder")
    if not path.endswith(endings) or not os.path.isfile(path):
        available = ", ".join(names_below(folder, endings)[:20]) or "none"
        raise UsageError(f"no {noun} {name[:200]!r} (available: {available})")
    return path


def _extends(path: str) -> str | None:
    problems = Problems()
    root = read_yaml(read_text(path), path, problems)
    entry = None if root is None else (root.entries or {}).get("extends")
    value = None if entry is None else entry[1].value
    return value if isinstance(value, str) else None


def grid_names(folder: str) -> list[str]:
    """Return the relative paths of at most 500 grids below the folder. Hidden folders and folders
    called `sweeps` are skipped."""
    return names_below(folder, _ENDINGS)


def names_below(folder: str, endings: tuple[str, ...]) -> list[str]:
    names: list[str] = []
    for top, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "sweeps")
        for file in sorted(files):
            if file.endswith(endings) and len(names) < _MOST_GRIDS:
                names.append(os.path.relpath(os.path.join(top, file), folder))
    return names


def planned_for(folder: str, name: str, overrides: Sequence[str]) -> Plan:
    """Plan a grid. Raises `UsageError`, or `GridError` with all mistakes of an invalid grid."""
    from sweeper.planner.plan import plan

    try:
        return plan(find_grid(folder, name), list(overrides))
    except GridError as error:
        problems = [
            line.replace(f"{os.path.realpath(folder)}{os.sep}", "") for line in error.problems
        ]
        raise GridError(problems) from None


def recorded_elsewhere(store: Store, plan: Plan) -> dict[str, Recorded]:
    """Find the runs of the plan that have succeeded in another sweep. Return a dict from run id to
    the recorded run. Runs with equal recipes, values and seeds have equal ids. Runs that continue
    other runs are left out."""
    wanted = {run.id: run for run in plan.runs if not run.parents}
    recorded: dict[str, Recorded] = {}
    for sweep in find_sweeps(store):
        if sweep == plan.name or not wanted.keys() - recorded.keys():
            continue
        folder = SweepFolder(store, sweep)
        states = folder.read_states()
        done = {run for run, state in states.items() if state.state is State.SUCCEEDED}
        for run in folder.read_plan().runs if done & wanted.keys() else ():
            if run.id in done and run.id in wanted:
                recorded.setdefault(run.id, Recorded(run.id, sweep, run.name))
    return recorded
