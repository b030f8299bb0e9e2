"""Finds the folders of the interpreter's own packages, and records which of their modules this
process has imported, for the fork server. Loaded by path; standard library only."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress


def remember(path: str) -> None:
    """Add the imported modules of the standard library and of installed packages to the list at
    `path`, in the order of import."""
    before = listed(path)
    listed_before = set(before)
    new = [name for name, _ in _own_modules() if _is_called(name) and name not in listed_before]
    if not new:
        return
    partial = f"{path}.{os.getpid()}"
    with suppress(OSError):
        with open(partial, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "modules": [*before, *new]}, file)
        os.replace(partial, path)


def listed(path: str) -> list[str]:
    """Return the names of modules in the list at `path`; [] if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return [name for name in json.load(file)["modules"] if isinstance(name, str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def files_of_modules() -> set[str]:
    """Return the files of all imported modules of the standard library and of installed
    packages."""
    return {file for _, file in _own_modules()}


def _own_modules() -> Iterator[tuple[str, str]]:
    """Yield imported modules of the standard library and of installed packages, with their files,
    in the order of import."""
    folders = tuple(os.path.join(folder, "") for folder in own_folders())
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(folders):
            yield name, file


def _is_called(name: str) -> bool:
    """Return whether a loaded module can be imported under `name`."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and spec.name == name != "__main__"


@functools.cache
def own_folders() -> frozenset[str]:
    """Return the folders of the standard library and of the interpreter's packages."""
    import site
    import sysconfig

    paths = sysconfig.get_paths()
    folders = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        folders.add(site.getusersitepackages())
    dynamic = {os.path.join(paths["platstdlib"], "lib-dynload")}
    return frozenset(folders | dynamic)


def what_installs_change() -> set[str]:
    """Return the files and folders that may change when a package is installed or removed."""
    paths = {os.path.join(sys.prefix, "pyvenv.cfg")}
    for folder in own_folders():
        if "-packages" in folder and os.path.isdir(folder):
            paths.add(folder)
            paths |= {entry.path for entry in os.scandir(folder) if entry.name.endswith(".pth")}
    return paths
