"""The runs that a reading verb's arguments choose, from all sweeps of a root."""

from argparse import Namespace

from sweeper.records.runs import RecordedRun
from sweeper.registry import Registry
from sweeper.store.files import default_root

__all__ = ["chosen", "open_registry"]


def open_registry(arguments: Namespace) -> Registry:
    """The registry of the root that was asked for."""
    return Registry(arguments.root or default_root())


def chosen(registry: Registry, arguments: Namespace) -> list[RecordedRun]:
    """The runs that the arguments `runs`, `state` and `where` choose."""
    return registry.choose(arguments.runs, arguments.state, arguments.where)
