"""What the verbs of the command line do: each takes the parsed arguments and gives an exit code."""

import os
import sys
from argparse import Namespace
from types import ModuleType
from typing import TYPE_CHECKING

from sweeper.errors import EnvironmentFailure, NotFound, UsageError
from sweeper.store import default_root
from sweeper.terminal import print_json, print_table, warn

if TYPE_CHECKING:
    from sweeper.registry import Registry

__all__ = ["analyze", "attach", "compare", "doctor", "engine", "launch"]


def launch(arguments: Namespace) -> int:
    """Start a grid, or go on with it."""
    from sweeper import start
    from sweeper.planning import planned_by
    from sweeper.progress import exit_code, showing_progress

    planned = planned_by(arguments)
    for warning in planned.warnings:
        warn(f"warning: {warning}")
    print(f"{planned.name}: {len(planned.runs)} runs of {_short(planned.recipe.reference)}")
    flags = {"smoke": arguments.smoke, "live": arguments.live}
    where = f"{planned.name} --root {arguments.root}" if arguments.root else planned.name
    if not arguments.wait:
        start.launch(planned, arguments.root, wait=False, tell=warn, **flags)
        print(f"launched; watch it with `sweeper status {where} --follow`", end="")
        print(f" or `sweeper attach {where}`" if planned.launch.backend == "tmux" else "")
        return 0
    if planned.launch.backend == "tmux":
        print(f"watch it with `sweeper attach {where}` from another terminal", flush=True)
    with showing_progress() as notify:
        try:
            launched = start.launch(
                planned, arguments.root, wait=True, notify=notify, tell=warn, **flags
            )
        except KeyboardInterrupt:
            print(
                f"sweeper: interrupted; what runs goes on, `sweeper launch {arguments.grid}"
                f"{f' --root {arguments.root}' if arguments.root else ''}` takes up the rest",
                file=sys.stderr,
            )
            return 130
    return exit_code(launched.summary) if launched.summary else 4


def _short(reference: str) -> str:
    """A recipe's reference on a line of its own; a command may be long and have several."""
    line = " ".join(reference.split())
    return line if len(line) <= 60 else line[:57] + "..."


def attach(arguments: Namespace) -> int:
    """Become a tmux client that shows a sweep's windows."""
    from sweeper.backends.tmux import TmuxServer, socket_name
    from sweeper.registry import Registry

    registry = Registry(arguments.root or default_root())
    found = registry.sweep_records()
    names = [s["sweep"] for s in sorted(found, key=lambda s: s["created"] or "")]
    if not names:
        raise NotFound(f"no sweep in {arguments.root or default_root()}")
    name = arguments.sweep or names[-1]
    sweep = registry.sweep(name)
    server = TmuxServer()
    server.check()
    session = server.session(f"{sweep.root}/{sweep.name}")
    if session is None:
        raise NotFound(
            f"{name!r} has no tmux session: its windows were closed, or it ran elsewhere"
        )
    if not sys.stdout.isatty():
        raise UsageError("attach needs a terminal")
    sys.stdout.flush()
    environment = {k: v for k, v in os.environ.items() if k != "TMUX"}  # inside a tmux is fine
    command = ["tmux", "-L", socket_name(), "attach", "-t", session]
    os.execvpe(command[0], command, environment)


def analyze(arguments: Namespace) -> int:
    """Write the report, print the verdict."""
    registry, names = _named(arguments.root, arguments.sweeps)
    report = _analysis().analyze(
        registry,
        names,
        metric=arguments.metric,
        goal=arguments.goal,
        out=arguments.out,
        prices=arguments.prices,
        pictures=not arguments.no_pictures,
    )
    if arguments.json:
        return print_json(report.document)
    print(report.verdict)
    print(f"\nreport: {report.html_path}")
    return 0


def compare(arguments: Namespace) -> int:
    """Two sweeps cell by cell, or two cells seed by seed."""
    registry, (a, b) = _named(arguments.root, [arguments.a, arguments.b])
    found = _analysis().versus(registry, a, b, metric=arguments.metric, goal=arguments.goal)
    if arguments.json:
        return print_json(found.document)
    print(found.text)
    return 0


def _analysis() -> ModuleType:
    import analysis

    if not hasattr(analysis, "analyze"):
        raise EnvironmentFailure(
            f"{analysis.__file__ or 'a folder called analysis'} hides sweeper's own package of "
            "that name: take its folder off PYTHONPATH, or type `sweeper` for `python -m sweeper`"
        )
    return analysis


def _named(root: str | None, given: list[str]) -> tuple["Registry", list[str]]:
    """A registry that has all of them, and their names: a sweep may be given as its folder."""
    from sweeper.registry import Registry

    roots: list[str] = []
    names: list[str] = []
    for name in given:
        folder = os.path.abspath(name)
        if os.path.isfile(os.path.join(folder, "sweep.json")):
            roots.append(os.path.dirname(folder))
            names.append(os.path.basename(folder))
        else:  # a name, or the path of a folder with runs of anyone's
            roots.append(root or default_root())
            names.append(name)
    return Registry(*dict.fromkeys(roots)), names


def engine(arguments: Namespace) -> int:
    """Serve, look for, or stop the local engine."""
    from sweeper.engine.__main__ import main

    return main(arguments.rest)


def doctor(arguments: Namespace) -> int:
    """Say whether what a sweep needs is there."""
    from sweeper.doctor import examine

    checks = examine(arguments.root or default_root())
    if arguments.json:
        print_json({"schema": 1, "checks": [check._asdict() for check in checks]})
    else:
        marks = {True: "ok", False: "MISSING"}
        rows = [(c.name, marks[c.good] if c.needed or c.good else "-", c.found) for c in checks]
        print_table(("check", "", "found"), rows)
    return 0 if all(check.good or not check.needed for check in checks) else 6
