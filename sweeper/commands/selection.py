"""Lookup of the sweeps and runs that a verb's arguments select."""

import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence

from sweeper.errors import NotFound, UsageError
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.results.sweeps import Sweep, SweepRun
from sweeper.store.opening import default_root, open_store
from sweeper.sweep.lock import is_held

_NAMED = 5  # how many sweeps a message names


def open_registry(arguments: Namespace, *, cache: bool = True, snapshot: bool = False) -> Registry:
    """Open the registry of the requested roots. For `cache` and `snapshot` see `Registry`."""
    return Registry(*_roots(arguments.root), cache=cache, snapshot=snapshot)


def _roots(root: str | Sequence[str] | None) -> list[str]:
    """Return the requested roots, or the default root."""
    if isinstance(root, str):
        return [root]
    return list(root or [default_root()])


def prefixes(runs: Iterable[RecordedRun]) -> Callable[[RecordedRun], str]:
    """Return a function that returns the text to show before a run's name or cell. The text is ""
    if all runs belong to one sweep, `sweep/` if there are several sweeps in one root, and
    `root/sweep/` if there are several roots."""
    places = {(run.root, run.sweep) for run in runs}
    roots = len({root for root, _ in places}) > 1
    sweeps = len(places) > 1

    def prefix(run: RecordedRun) -> str:
        return (f"{run.root}/" if roots else "") + (f"{run.sweep}/" if sweeps else "")

    return prefix


def chosen(
    registry: Registry, arguments: Namespace, *, archived: bool = False
) -> list[RecordedRun]:
    """Return the runs that the arguments `runs`, `state` and `where` select. Runs of archived
    sweeps are included if `runs` names the sweep, or if `archived` is set."""
    return registry.choose(arguments.runs, arguments.state, arguments.where, archived=archived)


def open_chosen(arguments: Namespace) -> tuple[Registry, list[RecordedRun]]:
    """Open the registry, and return the runs that the arguments select. Without `--root`, the
    argument `runs` may name folders or URLs outside the default root: folders of sweeps, or folders
    of runs outside sweeps, not both. The registry then has only these folders."""
    names: list[str] = arguments.runs
    registry = open_registry(arguments, snapshot=True)
    folders = [name for name in names if "://" in name or os.path.isdir(name)]
    if arguments.root or folders != names or not names or any(_is_in(registry, n) for n in names):
        return registry, chosen(registry, arguments)
    split = [_split_folder(name) for name in names]
    roots = [rest if above is None else above for above, rest in split]
    below = [f"{above.rstrip('/')}/{rest}" for above, rest in split if above is not None]
    if below and len(below) < len(names):
        raise UsageError("name either folders of sweeps or folders of runs without a sweep")
    registry = Registry(*roots, snapshot=True)
    return registry, registry.choose(below, arguments.state, arguments.where)


def newest(registry: Registry) -> str:
    """Return the name of the newest sweep. Raises `NotFound` if there is no sweep."""
    return max(_sweeps(registry), key=lambda sweep: sweep.plan.created or "").name


def _sweeps(registry: Registry) -> list[Sweep]:
    if not (sweeps := registry.sweeps_in_use()):
        raise NotFound(f"no sweep in {', '.join(registry.roots)}")
    return sweeps


def split_sweep(arguments: Namespace) -> tuple[str | None, list[str]]:
    """Return the sweep (None if none is given) and the names of runs in a verb's arguments. If an
    option precedes the sweep, argparse stores the sweep as the first of the runs."""
    if arguments.sweep is None and arguments.runs:
        return arguments.runs[0], arguments.runs[1:]
    return arguments.sweep, arguments.runs


def only(registry: Registry, *, at_work: bool = False) -> str:
    """Return the name of the only sweep. If there are several sweeps and `at_work` is set, return
    the only sweep with a running launcher. Raises `NotFound` if there is no sweep, and `UsageError`
    if the user must choose a sweep."""
    sweeps = _sweeps(registry)
    choices = [sweep.name for sweep in sweeps]
    if at_work and len(sweeps) > 1:
        choices = [sweep.name for sweep in sweeps if is_held(sweep.folder)] or choices
    if len(choices) > 1:
        named = ", ".join(choices[:_NAMED]) + (", ..." if len(choices) > _NAMED else "")
        raise UsageError(f"name one of the sweeps: {named}")
    return choices[0]


def open_named(
    root: str | Sequence[str] | None, requests: Sequence[str], registry: Registry | None = None
) -> tuple[Registry, list[str]]:
    """Open a registry with all requested sweeps. Each request is a name in the roots, or the path
    of the folder of a sweep or cell. Also return, for each request, the name to use in the
    registry. For a path, this name is `ROOT/NAME`."""
    requested = _roots(root)
    registry = registry or Registry(*requested, snapshot=True)
    roots: list[str] = []
    names: list[str] = []
    for name in requests:
        if root is not None and (below := _folder_below(registry, name)) is not None:
            above, rest = None, below
        else:
            above, rest = (None, name) if _is_in(registry, name) else _split_folder(name)
        # If `above` is None, the name is one in the registry. Otherwise it is the path of a folder.
        names.append(rest if above is None else f"{above.rstrip('/')}/{rest}")
        roots += requested if above is None else [above]
    return (registry if roots == requested * len(names) else Registry(*roots, snapshot=True)), names


def _folder_below(registry: Registry, name: str) -> str | None:
    """Return the path of the folder `name` below a requested root; `.` is the root itself. Return
    None if there is no such folder, if `name` is a sweep, or if `name` begins with `/`, `./` or
    `../`."""
    if name.startswith(("/", "./", "../")) or name == ".." or _is_in(registry, name):
        return None
    paths = (os.path.normpath(os.path.join(root, name)) for root in registry.roots)
    return next((path for path in paths if os.path.isdir(path)), None)


def _is_in(registry: Registry, name: str) -> bool:
    return registry.has_sweep(registry.split(name)[0])


def _split_folder(name: str) -> tuple[str | None, str]:
    """Split the path or address of a sweep's folder, or of a cell's folder in the sweep, into the
    root and the path below the root. Return (None, name) if there is no sweep at the path."""
    path = name.rstrip("/") if "://" in name else os.path.abspath(name)
    for depth in (1, 2):
        parts = path.rsplit("/", depth)
        if len(parts) == depth + 1 and not parts[0].endswith(":/"):
            root = parts[0] or "/"
            if open_store(root).exists(f"{parts[1]}/sweep.json"):
                return open_store(root).root, "/".join(parts[1:])
    return None, name


def run_of(registry: Registry, name: str) -> SweepRun:
    """Return the run `name`. If `name` is a sweep, return its only run, or the best run of its best
    cell. Raises `NotFound`, and `UsageError` for a run that belongs to no sweep."""
    if registry.has_sweep(name):
        if len(runs := registry.sweep(name).runs) == 1:
            return runs[0]
        from sweeper import analysis  # slow to load

        best = analysis.best(registry, name)
        if not best.cells:
            raise NotFound(f"{name}: no cell has a result yet, so there is no best run")
        cell = str(best.cells[0]["cell"])
        same = (run for run in runs if run.cell == cell)
        measured = [(value, run) for run in same if (value := run.record()["value"]) is not None]
        if not measured:
            raise NotFound(f"{name}: no run of the best cell {cell} has a value")
        pick = max if best.goal == "maximize" else min
        return pick(measured, key=lambda pair: pair[0])[1]
    run = registry.run(name)
    if not isinstance(run, SweepRun):
        raise UsageError(
            f"{run.sweep}/{run.name} belongs to no sweep, so it is unknown which service has its "
            "weights: name a run of a sweep"
        )
    return run
