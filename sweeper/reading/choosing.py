"""Which runs a user means: selectors, states, a condition."""

import fnmatch
from argparse import Namespace
from collections.abc import Sequence

from sweeper.errors import NotFound
from sweeper.records.runs import RecordedRun
from sweeper.registry import Registry
from sweeper.store.files import default_root
from sweeper.terminal import warn
from sweeper.where import parse_where, select

__all__ = ["choose", "chosen", "open_registry", "tell_problems"]


def open_registry(arguments: Namespace) -> Registry:
    """The registry of the root that was asked for."""
    return Registry(arguments.root or default_root())


def chosen(registry: Registry, arguments: Namespace) -> list[RecordedRun]:
    """The runs that the arguments `runs`, `state` and `where` choose."""
    return choose(registry, arguments.runs, arguments.state, arguments.where)


def choose(
    registry: Registry,
    selectors: Sequence[str] = (),
    states: Sequence[str] | None = None,
    where: str | None = None,
) -> list[RecordedRun]:
    """The runs that one of the selectors names (all without one), in one of the states, and for
    which the condition holds. A selector is a sweep or a glob of sweeps; `sweep/` and a run's name,
    its beginning or a glob; the same without a sweep; or an id or the beginning of one, six digits
    or more. Raises `NotFound` for a selector that names nothing."""
    condition = None if where is None else parse_where(where)
    sweeps = {selector.partition("/")[0] for selector in selectors}
    if sweeps and all(registry.has_sweep(name) for name in sweeps):
        runs = [run for name in sorted(sweeps) for run in registry.handles(name, states)]
    else:
        runs = registry.handles(None, states)
    if selectors:
        wanted: set[int] = set()
        for selector in selectors:
            found = _named(runs, selector)
            # To be in none of the states is no mistake, to be nowhere is one.
            if not found and not (states and _named(registry.handles(), selector)):
                raise NotFound(f"no run {selector!r} in {', '.join(registry.roots)}")
            wanted.update(map(id, found))
        runs = [run for run in runs if id(run) in wanted]
    if condition is None:
        return runs
    records = [run.record() for run in runs]
    kept = {id(record) for record in select(condition, records)}
    return [run for run, record in zip(runs, records, strict=True) if id(record) in kept]


def _named(runs: Sequence[RecordedRun], selector: str) -> list[RecordedRun]:
    selector = selector.rstrip("/")
    full = [(run, f"{run.sweep}/{run.name}") for run in runs]
    return (
        [run for run in runs if run.sweep == selector]
        or [run for run, name in full if selector in (name, run.name, run.id)]
        or [run for run in runs if fnmatch.fnmatchcase(run.sweep, selector)]
        or [run for run, name in full if _fits(selector, name, run.name)]
        or [run for run, name in full if name.startswith(selector)]
        or [run for run in runs if run.name.startswith(selector)]
        or [run for run in runs if len(selector) >= 6 and run.id.startswith(selector)]
    )


def _fits(selector: str, *names: str) -> bool:
    return any(fnmatch.fnmatchcase(name, selector) for name in names)


def tell_problems(registry: Registry) -> None:
    """What could not be read, on standard error."""
    for problem in registry.problems[:20]:
        warn(problem)
    if len(registry.problems) > 20:
        warn(f"... and {len(registry.problems) - 20} more like these")
