"""Finds the sweeps and runs that a verb's arguments choose."""

import os
from argparse import Namespace

from sweeper.errors import NotFound
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.storage.opening import default_root, open_store

__all__ = ["chosen", "newest", "open_named", "open_registry"]


def open_registry(arguments: Namespace, *, cache: bool = True) -> Registry:
    """Open the registry of the requested root."""
    return Registry(arguments.root or default_root(), cache=cache)


def chosen(
    registry: Registry, arguments: Namespace, *, archived: bool = False
) -> list[RecordedRun]:
    """Return the runs that the arguments `runs`, `state` and `where` choose. If no sweep is named,
    runs of archived sweeps are included only with `archived`."""
    return registry.choose(arguments.runs, arguments.state, arguments.where, archived=archived)


def newest(registry: Registry) -> str:
    """Return the newest sweep. Raises `NotFound` if there is none."""
    found = registry.sweep_records()
    if not found:
        raise NotFound(f"no sweep in {', '.join(registry.roots)}")
    return max(found, key=lambda sweep: sweep["created"] or "")["sweep"]


def open_named(root: str | None, given: list[str]) -> tuple[Registry, list[str]]:
    """Open a registry that has all of the sweeps, and return their names. A sweep may be given as
    its folder."""
    roots: list[str] = []
    names: list[str] = []
    for name in given:
        folder = name.rstrip("/") if "://" in name else os.path.abspath(name)
        above, _, last = folder.rpartition("/")
        if "://" in name:
            found = open_store(above).exists(f"{last}/sweep.json")
        else:
            found = os.path.isfile(os.path.join(folder, "sweep.json"))
        # Otherwise it is a name, or the path of any folder with runs.
        roots.append((above or "/") if found else root or default_root())
        names.append(last if found else name)
    return Registry(*dict.fromkeys(roots)), names
