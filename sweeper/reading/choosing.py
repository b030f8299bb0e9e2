"""The runs that a reading verb's arguments choose, from all sweeps of a root."""

from argparse import Namespace
from collections.abc import Sequence

from sweeper.errors import NotFound
from sweeper.records.runs import RecordedRun
from sweeper.records.selecting import named, pick
from sweeper.registry import Registry
from sweeper.store.files import default_root
from sweeper.terminal import warn

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
    """The runs that fit one of the selectors (all without one; see `records.selecting`), in one of
    the states, and for which the condition holds. Raises `NotFound` for a selector that names
    nothing."""
    sweeps = {selector.partition("/")[0] for selector in selectors}
    if sweeps and all(registry.has_sweep(name) for name in sweeps):
        runs = [run for name in sorted(sweeps) for run in registry.handles(name)]
    else:
        runs = registry.handles(None)
    for selector in selectors:
        if not named(runs, selector):
            raise NotFound(f"no run {selector!r} in {', '.join(registry.roots)}")
    return pick(runs, selectors, states, where)


def tell_problems(registry: Registry) -> None:
    """What could not be read, on standard error."""
    for problem in registry.problems[:20]:
        warn(problem)
    if len(registry.problems) > 20:
        warn(f"... and {len(registry.problems) - 20} more like these")
