"""What won: the verbs that ask `analysis`, which is loaded only here."""

import os
from argparse import Namespace
from typing import TYPE_CHECKING

from sweeper.records.problems import tell_problems
from sweeper.store.files import default_root, open_store
from sweeper.terminal import print_json, say

if TYPE_CHECKING:
    from sweeper.registry import Registry

__all__ = ["analyze", "compare"]


def analyze(arguments: Namespace) -> int:
    """Write the report, print the verdict."""
    from sweeper import analysis

    registry, names = _named(arguments.root, arguments.sweeps)
    report = analysis.analyze(
        registry,
        names,
        metric=arguments.metric,
        goal=arguments.goal,
        at=arguments.at,
        out=arguments.out,
        prices=arguments.prices,
        pictures=not arguments.no_pictures,
    )
    if arguments.json:
        print_json(report.document)
    else:
        print(report.verdict)
        print()
        say(f"report: {report.html_path}")
    return tell_problems(registry.problems)


def compare(arguments: Namespace) -> int:
    """Two sweeps cell by cell, or two cells seed by seed."""
    from sweeper import analysis

    registry, (a, b) = _named(arguments.root, [arguments.a, arguments.b])
    found = analysis.versus(
        registry, a, b, metric=arguments.metric, goal=arguments.goal, at=arguments.at
    )
    if arguments.json:
        print_json(found.document)
    else:
        print(found.text)
    return tell_problems(registry.problems)


def _named(root: str | None, given: list[str]) -> tuple["Registry", list[str]]:
    """A registry that has all of them, and their names: a sweep may be given as its folder."""
    from sweeper.registry import Registry

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
