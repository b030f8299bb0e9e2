"""What the verbs of the command line do: each takes the parsed arguments and gives an exit code."""

import json
import os
import sys
import time
from argparse import Namespace
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sweeper.errors import NotFound, UsageError
from sweeper.start import default_root

if TYPE_CHECKING:
    from sweeper.planner import Plan
    from sweeper.records import RecordedRun, Sweep
    from sweeper.registry import Registry

__all__ = ["analyze", "attach", "doctor", "engine", "launch", "logs", "ls", "plan", "status"]

_FOLLOW_SECONDS = 2.0
_SHOWN = 40
"""How many runs `plan` lists unless asked for all."""


def launch(arguments: Namespace) -> int:
    """Start a grid, or go on with it."""
    from sweeper import start
    from sweeper.progress import exit_code, showing_progress

    planned = _plan(arguments)
    for warning in planned.warnings:
        print(f"sweeper: warning: {warning}", file=sys.stderr)
    print(f"{planned.name}: {len(planned.runs)} runs of {planned.recipe.reference}")
    if not arguments.wait:
        launched = start.launch(planned, arguments.root, wait=False)
        print(f"launched; watch it with `sweeper status {launched.name} --follow`", end="")
        print(f" or `sweeper attach {launched.name}`" if planned.launch.backend == "tmux" else "")
        return 0
    if planned.launch.backend == "tmux":
        print(f"watch it with `sweeper attach {planned.name}` from another terminal")
    with showing_progress() as notify:
        try:
            launched = start.launch(planned, arguments.root, wait=True, notify=notify)
        except KeyboardInterrupt:
            print(
                f"sweeper: interrupted; what runs goes on, `sweeper launch {arguments.grid}` "
                "takes up the rest",
                file=sys.stderr,
            )
            return 130
    return exit_code(launched.summary) if launched.summary else 4


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
    from sweeper.sweeps import read_states
    from sweeper.tables import number, print_table

    planned = _plan(arguments)
    states = read_states(open_store(arguments.root or default_root()), planned.name)
    rows = [
        (run, states[run.id].state if run.id in states else State.PLANNED) for run in planned.runs
    ]
    if arguments.json:
        document = planned.document()
        for run, (_, state) in zip(document["runs"], rows, strict=True):
            run["state"] = state.value
        document["warnings"] = list(planned.warnings)
        return _print_json(document)
    for warning in planned.warnings:
        print(f"sweeper: warning: {warning}", file=sys.stderr)
    print(f"{planned.name}: {planned.recipe.reference} on {planned.launch.backend}, ", end="")
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


def status(arguments: Namespace) -> int:
    """Where sweeps, or the runs of one, stand."""
    if arguments.sweep is None:
        return _status_of_all(arguments)
    while True:
        sweep = _registry(arguments).sweep(arguments.sweep)
        finished = _finished(sweep)
        if arguments.follow and sys.stdout.isatty():
            print("\x1b[H\x1b[2J\x1b[3J", end="")
        _print_status(sweep, arguments)
        if finished or not arguments.follow:
            break
        sys.stdout.flush()
        time.sleep(_FOLLOW_SECONDS)
    if not finished:
        return 4
    return 0 if all(run.state.value == "succeeded" for run in _active(sweep)) else 3


def _status_of_all(arguments: Namespace) -> int:
    from sweeper.tables import print_table

    found = _registry(arguments).sweep_records()
    if arguments.json:
        return _print_json({"schema": 1, "sweeps": found})
    columns = ("sweep", "recipe", "runs", "states", "created")
    rows = [
        (s["sweep"], s["recipe"], s["runs"], _counted(s["states"]), s["created"]) for s in found
    ]
    print_table(columns, rows)
    return 0


def _counted(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def _print_status(sweep: "Sweep", arguments: Namespace) -> None:
    from sweeper.documents import read_json
    from sweeper.tables import duration, print_table

    observed: dict[str, str] = {}
    waiting = None
    if sweep.store.exists(sweep.layout.observations):
        document = read_json(sweep.store, sweep.layout.observations)
        observed, waiting = document["observed"], document["unreachable"]
    runs = _selected(_active(sweep), arguments)
    if arguments.json:
        records = [run.record() | {"observed": observed.get(run.id)} for run in runs]
        _print_json({"schema": 1, "sweep": sweep.name, "runs": records})
        return
    metric = (sweep.metric or {}).get("name")
    rows: list[tuple[Any, ...]] = []
    for run in runs:
        record = run.record()
        state = run.state.value + (f" ({observed[run.id]})" if run.id in observed else "")
        steps = [row["step"] for row in run.history.rows if row.get("step") is not None]
        spent = duration(_seconds(record))
        row = (run.name, state, run.attempts, max(steps, default=None), spent)
        rows.append((*row, *((record["value"],) if metric else ()), record["reason"] or ""))
    print_table(
        ["run", "state", "attempts", "step", "time", *([metric] if metric else []), "reason"], rows
    )
    counts = Counter(run.state.value for run in _active(sweep))
    print(f"\n{sweep.name}: {_counted(counts)}")
    if waiting:
        print(f"the launcher waits: {waiting}")


def _seconds(record: dict[str, Any]) -> float | None:
    """How long a run took, or has taken until now (as far as the two hosts' clocks agree)."""
    if record["state"] != "running" or record["started"] is None:
        return record["wall_s"]
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(record["started"])).total_seconds())


def _active(sweep: "Sweep") -> list["RecordedRun"]:
    """The runs that the grid still has."""
    return [run for run in sweep.runs if not run.retired]


def _finished(sweep: "Sweep") -> bool:
    """Nothing of the sweep runs, and nobody is at work to start more."""
    from sweeper.lock import is_held

    ended = {"succeeded", "failed", "cancelled"}
    if all(run.state.value in ended for run in _active(sweep)):
        return not is_held(sweep.store, sweep.name)
    return False


def _selected(runs: "list[RecordedRun]", arguments: Namespace) -> "list[RecordedRun]":
    from sweeper.where import parse_where, select

    if arguments.state:
        runs = [run for run in runs if run.state.value in arguments.state]
    if arguments.where:
        records = {run.id: run for run in runs}
        chosen = select(parse_where(arguments.where), [run.record() for run in runs])
        runs = [records[record["id"]] for record in chosen]
    return runs


def ls(arguments: Namespace) -> int:
    """Runs and what they reached."""
    from sweeper.tables import duration, print_table

    records = _registry(arguments).records(arguments.sweep, arguments.state, arguments.where)
    if arguments.json:
        return _print_json({"schema": 1, "runs": records})
    columns = ("sweep", "run", "state", "attempts", "time", "metric", "value")
    print_table(
        columns,
        [
            (
                *(r["sweep"], r["name"], r["state"], r["attempts"]),
                *(duration(r["wall_s"]), r["metric"], r["value"]),
            )
            for r in records
        ],
    )
    return 0


def logs(arguments: Namespace) -> int:
    """What a run printed; with `--follow` until it has ended."""
    reference: str = arguments.run
    run = _registry(arguments).run(reference)
    text = run.log()
    if arguments.lines is not None:
        text = "".join(text.splitlines(keepends=True)[-arguments.lines :])
    sys.stdout.write(text)
    if not text and not arguments.follow:
        print(f"sweeper: {run.name} has printed nothing ({run.state.value})", file=sys.stderr)
    if arguments.follow:
        _follow_log(run)
    return 0


def _follow_log(run: "RecordedRun") -> None:
    """Print what is added to the newest attempt's log, until the run has ended."""
    from sweeper.states import OPEN, State, fold
    from sweeper.sweeps import read_events

    store, layout = run.store, run.layout
    attempt = run.attempts
    offset = len(store.read(layout.log(run.id, attempt))) if run.log() else 0
    while True:
        state = fold(read_events(store, layout.sweep).get(run.id, ()))
        if state.opened > attempt:
            attempt, offset = state.opened, 0
        path = layout.log(run.id, attempt)
        while store.exists(path) and (data := store.read_range(path, offset, offset + (1 << 16))):
            offset += len(data)
            sys.stdout.write(data.decode("utf-8", "replace"))
        sys.stdout.flush()
        if state.state not in OPEN and state.state is not State.PLANNED:
            return
        time.sleep(0.5)


def attach(arguments: Namespace) -> int:
    """Become a tmux client that shows a sweep's windows."""
    from sweeper.backends.tmux import TmuxServer, socket_name

    found = _registry(arguments).sweep_records()
    names = [s["sweep"] for s in sorted(found, key=lambda s: s["created"] or "")]
    if not names:
        raise NotFound(f"no sweep in {arguments.root or default_root()}")
    name = arguments.sweep or names[-1]
    sweep = _registry(arguments).sweep(name)
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

    registry = _registry(arguments)
    report = analysis.analyze(
        registry,
        arguments.sweep,
        metric=arguments.metric,
        goal=arguments.goal,
        out=arguments.out,
    )
    if arguments.json:
        return _print_json(report.document)
    print(report.verdict)
    print(f"\nreport: {report.html_path}")
    return 0


def engine(arguments: Namespace) -> int:
    """Serve, look for, or stop the local engine."""
    from sweeper.engine import lifecycle

    if arguments.action == "serve":
        lifecycle.serve(host=arguments.host, port=arguments.port)
        return 0
    if arguments.action == "stop":
        print("stopped" if lifecycle.stop() else "no engine is running")
        return 0
    found = lifecycle.find()
    if found is None:
        print("no engine is running: `sweeper engine serve` starts one")
        return 5
    print(f"{found.url}, pid {found.pid}, since {found.started}")
    return 0


def doctor(arguments: Namespace) -> int:
    """Say whether what a sweep needs is there."""
    from sweeper.doctor import examine
    from sweeper.tables import print_table

    checks = examine(arguments.root or default_root())
    if arguments.json:
        _print_json({"schema": 1, "checks": [check._asdict() for check in checks]})
    else:
        marks = {True: "ok", False: "MISSING"}
        rows = [(c.name, marks[c.good] if c.needed or c.good else "-", c.found) for c in checks]
        print_table(("check", "", "found"), rows)
    return 0 if all(check.good or not check.needed for check in checks) else 6


def _registry(arguments: Namespace) -> "Registry":
    from sweeper.registry import Registry

    return Registry(arguments.root or default_root())


def _print_json(document: dict[str, Any]) -> int:
    json.dump(document, sys.stdout, indent=1)
    print()
    return 0
