"""Finds the sweeps and runs that a verb's arguments choose."""

import os
from argparse import Namespace

from sweeper.errors import NotFound
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.storage.opening import default_root, open_store

__all__ = ["chosen", "newest", "open_named", "open_registry"]


def open_registry(arguments: Namespace, *, cache: bool = True) -> Registry:
    """Open the registry of the root that was asked for."""
    return Registry(arguments.root or default_root(), cache=cache)


def chosen(
    registry: Registry, arguments: Namespace, *, archived: bool = False
) -> list[RecordedRun]:
    """The runs that the arguments `runs`, `state` and `where` choose; where no sweep is named those
    of archived ones only with `archived`."""
    return registry.choose(arguments.runs, arguments.state, arguments.where, archived=archived)


def newest(registry: Registry) -> str:
    """The sweep that was made last. Raises `NotFound` where there is none."""
    found = registry.sweep_records()
    if not found:
        raise NotFound(f"no sweep in {', '.join(registry.roots)}")
    return max(found, key=lambda sweep: sweep["created"] or "")["sweep"]


def open_named(root: str | None, given: list[str]) -> tuple[Registry, list[str]]:
    """Open a registry that has all of the sweeps, and give their names: a sweep may be given as its
    folder."""
    roots: list[str] = []
    names: list[str] = []
    for name in given:
        folder = name.rstrip("/") if "://" in name else os.path.abspath(name)
        above, _, last = folder.rpartition("/")
        if "://" in name:
            found = open_store(above).exists(f"{last}/sweep.json")
        else:
            found = os.path.isfile(os.path.join(folder, "sweep.json"))
        # Else a name, or the path of a folder with runs of anyone's.
        roots.append((above or "/") if found else root or default_root())
        names.append(last if found else name)
    return Registry(*dict.fromkeys(roots)), names
