"""What the verbs of the command line do: each takes the parsed arguments and gives an exit code."""

import os
import sys
from argparse import Namespace
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from sweeper.errors import EnvironmentFailure, NotFound, UsageError
from sweeper.start import default_root
from sweeper.terminal import number, print_json, print_table, warn

if TYPE_CHECKING:
    from sweeper.planner import Plan

__all__ = ["analyze", "attach", "doctor", "engine", "launch", "plan"]

_SHOWN = 40
"""How many runs `plan` lists unless asked for all."""


def launch(arguments: Namespace) -> int:
    """Start a grid, or go on with it."""
    from sweeper import start
    from sweeper.progress import exit_code, showing_progress

    planned = _plan(arguments)
    for warning in planned.warnings:
        warn(f"warning: {warning}")
    print(f"{planned.name}: {len(planned.runs)} runs of {_short(planned.recipe.reference)}")
    where = f"{planned.name} --root {arguments.root}" if arguments.root else planned.name
    if not arguments.wait:
        start.launch(planned, arguments.root, wait=False, tell=warn)
        print(f"launched; watch it with `sweeper status {where} --follow`", end="")
        print(f" or `sweeper attach {where}`" if planned.launch.backend == "tmux" else "")
        return 0
    if planned.launch.backend == "tmux":
        print(f"watch it with `sweeper attach {where}` from another terminal", flush=True)
    with showing_progress() as notify:
        try:
            launched = start.launch(planned, arguments.root, wait=True, notify=notify, tell=warn)
        except KeyboardInterrupt:
            print(
                f"sweeper: interrupted; what runs goes on, `sweeper launch {arguments.grid}` "
                "takes up the rest",
                file=sys.stderr,
            )
            return 130
    return exit_code(launched.summary) if launched.summary else 4


def _short(reference: str) -> str:
    """A recipe's reference on a line of its own; a command may be long and have several."""
    line = " ".join(reference.split())
    return line if len(line) <= 60 else line[:57] + "..."


def _plan(arguments: Namespace) -> "Plan":
    from sweeper.planner import plan as make_plan

    overrides = list(arguments.overrides)
    if arguments.backend:
        overrides.append(f"launch.backend={arguments.backend}")
    if arguments.max_parallel is not None:
        overrides.append(f"launch.max_parallel={arguments.max_parallel}")
    return make_plan(arguments.grid, overrides, validate=not arguments.no_validate)


def plan(arguments: Namespace) -> int:
    """Show what `launch` would start, and what is there already."""
    from sweeper.states import State
    from sweeper.store import open_store
    from sweeper.sweeps import read_plan, read_states

    planned = _plan(arguments)
    store = open_store(arguments.root or default_root())
    states = read_states(store, planned.name)
    names: dict[str, str] = {}
    with suppress(NotFound):  # runs that are on record keep the name they are known by
        names = {run["id"]: run["name"] for run in read_plan(store, planned.name)["runs"]}
    rows = [
        (
            run._replace(name=names.get(run.id, run.name)),
            states[run.id].state if run.id in states else State.PLANNED,
        )
        for run in planned.runs
    ]
    if arguments.json:
        document = planned.document()
        for run, (_, state) in zip(document["runs"], rows, strict=True):
            run["state"] = state.value
        document["warnings"] = list(planned.warnings)
        return print_json(document)
    for warning in planned.warnings:
        warn(f"warning: {warning}")
    recipe = _short(planned.recipe.reference)
    print(f"{planned.name}: {recipe} on {planned.launch.backend}, ", end="")
    print(f"service {planned.service}, at most {planned.launch.max_parallel} at once")
    for axis, values in planned.axes.items():
        print(f"  {axis}: {', '.join(map(number, values))}")
    cells = len({run.cell for run in planned.runs})
    counts = Counter(state for _, state in rows)
    present = [state for state in State if counts[state] and state is not State.PLANNED]
    known = "".join(f", {counts[state]} {state.value}" for state in present)
    print(f"  {cells} cells, {len(rows)} runs: {counts[State.PLANNED]} to start{known}\n")
    shown = rows if arguments.full else rows[:_SHOWN]
    if arguments.full:
        keys = list(dict.fromkeys(key for run, _ in shown for key in run.config))
        columns = ["run", "id", "state", *keys]
        print_table(columns, [(r.name, r.id, s.value, *map(r.config.get, keys)) for r, s in shown])
    else:
        print_table(["run", "id", "state"], [(r.name, r.id, s.value) for r, s in shown])
        if len(rows) > len(shown):
            print(f"... and {len(rows) - len(shown)} more (--full shows all)")
    return 0


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
    import analysis

    if not hasattr(analysis, "analyze"):
        raise EnvironmentFailure(
            f"{analysis.__file__ or 'a folder called analysis'} hides sweeper's own package of "
            "that name: take its folder off PYTHONPATH, or type `sweeper` for `python -m sweeper`"
        )
    from sweeper.registry import Registry

    registry = Registry(arguments.root or default_root())
    report = analysis.analyze(
        registry,
        arguments.sweep,
        metric=arguments.metric,
        goal=arguments.goal,
        out=arguments.out,
    )
    if arguments.json:
        return print_json(report.document)
    print(report.verdict)
    print(f"\nreport: {report.html_path}")
    return 0


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
