"""Shell completion with argcomplete (`eval "$(sweeper --completion bash)"`). Verbs and options
come from the parser. This file provides grids, keys, sweeps, runs and the like."""

import argparse
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import cast

from argcomplete import autocomplete
from argcomplete.completers import BaseCompleter, DirectoriesCompleter, FilesCompleter
from argcomplete.finders import safe_actions  # pyright: ignore[reportUnknownVariableType]
from argcomplete.shell_integration import shellcode

from sweeper.commands.arguments import OneRoot
from sweeper.common.sanitize import sanitize
from sweeper.errors import SweeperError
from sweeper.store.base import Store
from sweeper.store.opening import default_root, open_store
from sweeper.sweep.folder import SweepFolder


def shell_code(shell: str) -> str:
    """Return the script that turns on completion in a shell (`bash`, `zsh` or `fish`)."""
    return shellcode(["sweeper"], shell=shell)


def complete(parser: argparse.ArgumentParser) -> None:
    """If environment variables contain a shell's completion request, answer it and exit."""
    actions = cast("set[type[argparse.Action]]", safe_actions)
    actions.add(OneRoot)  # without this, completers would not get the root that was typed
    autocomplete(parser, always_complete_options=False, default_completer=Offers())


class Offers(BaseCompleter):
    """A completer for values that only sweeper knows, such as names of sweeps and runs."""

    def __call__(
        self,
        *,
        prefix: str,
        action: argparse.Action,
        parser: argparse.ArgumentParser,
        parsed_args: Namespace,
    ) -> list[str]:
        """Return the values to offer; [] after an error, since the user is still typing."""
        del parser
        find = _OFFERS.get(action.dest)
        try:
            offers: Iterable[str] = () if find is None else find(prefix, parsed_args)
            # A shell would print control characters to the terminal.
            return [text for text in offers if text == sanitize(text)]
        except (SweeperError, OSError, KeyError, TypeError):
            return []


def _on_disk(completer: Callable[[str], Iterable[str]]) -> "_Offer":
    return lambda prefix, _: completer(prefix)


def _keys(prefix: str, arguments: Namespace) -> Iterable[str]:
    """Return the keys that an override can name: `seeds`, all keys of `launch`, and the recipe's
    settings in the grid. Other settings are left out, since importing the recipe may be slow."""
    from sweeper.grid import load_grid
    from sweeper.grid.launch import SECTION, backend_fields

    drop, sign = ("~", "") if prefix.startswith("~") else ("", "=")
    grid = load_grid(arguments.grid)
    keys = [*grid.base, *(key for block in grid.blocks for key in block.axes)]
    keys += [key for entry in grid.include for key in entry]
    keys += ["seeds", *SECTION.extended(*backend_fields()).keys("launch.")]
    return (f"{drop}{key}{sign}" for key in dict.fromkeys(keys))


def _store(arguments: Namespace) -> Store:
    """Return the store at the last `--root` of the command line, or else at the default root."""
    root: str | list[str] | None = arguments.root
    return open_store((root[-1] if isinstance(root, list) else root) or default_root())


def _sweeps(prefix: str, arguments: Namespace) -> Iterable[str]:
    from sweeper.sweep.folder import find_sweeps

    del prefix
    return find_sweeps(_store(arguments))


def _runs(prefix: str, arguments: Namespace) -> Iterable[str]:
    """Return `SWEEP/` for each sweep. If the prefix is `SWEEP/...`, return `SWEEP/RUN` for each
    run of this sweep instead."""
    sweep, slash, _ = prefix.partition("/")
    if not slash:
        return (f"{name}/" for name in _sweeps(prefix, arguments))
    return (f"{sweep}/{name}" for name in _runs_of(sweep, arguments))


def _names(prefix: str, arguments: Namespace) -> Iterable[str]:
    """Return the names of the runs of `arguments.sweep`. Without a sweep, return the same as
    `_runs`."""
    sweep: str | None = getattr(arguments, "sweep", None)
    return _runs(prefix, arguments) if sweep is None else _runs_of(sweep, arguments)


def _runs_of(sweep: str, arguments: Namespace) -> Iterable[str]:
    plan = SweepFolder(_store(arguments), sweep).read_plan()
    return (run.name for run in plan.runs if not run.retired)


def _recipes(prefix: str, arguments: Namespace) -> Iterable[str]:
    from importlib import metadata

    del arguments
    names = [point.name for point in metadata.entry_points(group="sweeper.recipes")]
    return [*names, *FilesCompleter(("py",))(prefix)]


def _states(prefix: str, arguments: Namespace) -> Iterable[str]:
    from sweeper.sweep.states import NoState, State

    del prefix, arguments
    return (state.value for state in (*State, *NoState))


def _backends(prefix: str, arguments: Namespace) -> Iterable[str]:
    from sweeper.backends import backend_names

    del prefix, arguments
    return backend_names()


def _subjects(prefix: str, arguments: Namespace) -> Iterable[str]:
    """Return the names of all sweeps, and the results of `_runs`."""
    return [*_sweeps(prefix, arguments), *_runs(prefix, arguments)]


def _tags(prefix: str, arguments: Namespace) -> Iterable[str]:
    from sweeper.sweep.marks import read_marks

    store = _store(arguments)
    marks = (
        mark
        for sweep in _sweeps(prefix, arguments)
        for mark in read_marks(SweepFolder(store, sweep))
    )
    return sorted({mark.text for mark in marks if mark.kind == "tag"})


_Offer = Callable[[str, Namespace], Iterable[str]]
_files, _folders = _on_disk(FilesCompleter()), _on_disk(DirectoriesCompleter())
_OFFERS: dict[str, _Offer] = {
    "backend": _backends,
    "file": _files,
    "grid": _on_disk(FilesCompleter(("yaml", "yml"))),
    "grids": _folders,
    "install": _folders,
    "notes": _folders,
    "out": _files,
    "overrides": _keys,
    "python": _files,
    "recipe": _recipes,
    "root": _folders,
    "run": _runs,
    "runs": _names,
    "state": _states,
    "sweep": _sweeps,
    "sweeps": _sweeps,
    "tag": _tags,
    "target": _subjects,
    "untag": _tags,
}
"""{name of an argument in the parser: function that finds values}."""
