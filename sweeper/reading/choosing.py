"""The runs that a reading verb's arguments choose, from all sweeps of a root."""

from argparse import Namespace
from collections.abc import Sequence

from sweeper.errors import NotFound
from sweeper.records.runs import RecordedRun
from sweeper.records.selecting import named, pick
from sweeper.registry import Registry
from sweeper.store.files import default_root

__all__ = ["choose", "chosen", "open_registry"]


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
        runs = registry.handles_of(sorted(sweeps))
    else:
        runs = registry.handles(None)
    fitting = [selector for selector in selectors if named(runs, selector)]
    for selector in selectors:
        unread = registry.problems.unread and registry.has_sweep(selector.partition("/")[0])
        if selector not in fitting and not unread:
            raise NotFound(f"no run {selector!r} in {', '.join(registry.roots)}")
    return pick(runs, fitting, states, where) if fitting or not selectors else []
