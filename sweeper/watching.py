"""The verbs that look at what runs and what ran: status, ls, logs. Each takes the parsed arguments
and gives an exit code."""

import sys
import time
from argparse import Namespace
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sweeper.errors import UsageError
from sweeper.registry import Registry
from sweeper.start import default_root
from sweeper.terminal import duration, print_json, print_table, warn

if TYPE_CHECKING:
    from sweeper.records import RecordedRun, Sweep

__all__ = ["logs", "ls", "status"]

_FOLLOW_SECONDS = 2.0


def status(arguments: Namespace) -> int:
    """Where sweeps, or the runs of one, stand."""
    if arguments.sweep is None:
        return _status_of_all(arguments)
    while True:
        sweep = Registry(arguments.root or default_root()).sweep(arguments.sweep)
        at_work, finished = _progress(sweep)
        if arguments.follow and sys.stdout.isatty():
            print("\x1b[H\x1b[2J\x1b[3J", end="")
        _print_status(sweep, arguments)
        if not arguments.follow or not at_work:
            break
        sys.stdout.flush()
        time.sleep(_FOLLOW_SECONDS)
    if not finished:
        return 4
    return 0 if all(run.state.value == "succeeded" for run in _active(sweep)) else 3


def _status_of_all(arguments: Namespace) -> int:

    found = Registry(arguments.root or default_root()).sweep_records()
    if arguments.json:
        return print_json({"schema": 1, "sweeps": found})
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

    observed: dict[str, str] = {}
    waiting = None
    if sweep.store.exists(sweep.layout.observations):
        document = read_json(sweep.store, sweep.layout.observations)
        observed, waiting = document["observed"], document["unreachable"]
    runs = _selected(_active(sweep), arguments)
    if arguments.json:
        records = [run.record() | {"observed": observed.get(run.id)} for run in runs]
        print_json({"schema": 1, "sweep": sweep.name, "runs": records})
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
    """The runs that the grid still has, and those that it had and that still run."""
    from sweeper.states import OPEN

    return [run for run in sweep.runs if not run.retired or run.state in OPEN]


def _progress(sweep: "Sweep") -> tuple[bool, bool]:
    """Whether anything is at work on the sweep (a job, a launcher), and whether it has finished:
    nothing runs, and by the runs' own histories nothing is left to start."""
    from sweeper.lock import is_held
    from sweeper.states import OPEN, fold, wants_attempt
    from sweeper.sweeps import read_events

    retries = sweep.document["launch"]["retries"]
    events = read_events(sweep.store, sweep.name)
    ids = [run.id for run in _active(sweep)]
    states = [fold(events.get(run, ())) for run in ids]
    open_ = any(state.state in OPEN for state in states)
    left = any(wants_attempt(events.get(run, ()), retries) for run in ids)
    unknown = any(state.unacknowledged for state in states)
    at_work = open_ or is_held(sweep.store, sweep.name)
    return at_work, not (open_ or left or unknown)


def _selected(runs: "list[RecordedRun]", arguments: Namespace) -> "list[RecordedRun]":
    from sweeper.states import State
    from sweeper.where import parse_where, select

    known = {state.value for state in State}
    for state in arguments.state or ():
        if state not in known:
            raise UsageError(f"no state {state!r}: there is {', '.join(sorted(known))}")
    if arguments.state:
        runs = [run for run in runs if run.state.value in arguments.state]
    if arguments.where:
        records = {run.id: run for run in runs}
        chosen = select(parse_where(arguments.where), [run.record() for run in runs])
        runs = [records[record["id"]] for record in chosen]
    return runs


def ls(arguments: Namespace) -> int:
    """Runs and what they reached."""

    records = Registry(arguments.root or default_root()).records(
        arguments.sweep, arguments.state, arguments.where
    )
    if arguments.json:
        return print_json({"schema": 1, "runs": records})
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
    run = Registry(arguments.root or default_root()).run(arguments.run)
    path = run.layout.log(run.id, run.attempts)
    data = run.store.read(path) if run.store.exists(path) else b""
    text = data.decode("utf-8", "replace") if arguments.follow else run.log()
    if arguments.lines is not None:
        text = "".join(text.splitlines(keepends=True)[-arguments.lines :])
    sys.stdout.write(text)
    if arguments.follow:
        _follow_log(run, len(data))
    elif not text:
        warn(f"{run.name} has printed nothing ({run.state.value})")
    return 0


def _follow_log(run: "RecordedRun", offset: int) -> None:
    """Print what is added to the newest attempt's log from `offset` on, until the run has ended."""
    import codecs

    from sweeper.states import OPEN, State, fold
    from sweeper.sweeps import read_events

    store, layout = run.store, run.layout
    attempt = run.attempts
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may split a character
    while True:
        state = fold(read_events(store, layout.sweep).get(run.id, ()))
        if state.opened > attempt:
            attempt, offset = state.opened, 0
        path = layout.log(run.id, attempt)
        while store.exists(path) and (data := store.read_range(path, offset, offset + (1 << 16))):
            offset += len(data)
            sys.stdout.write(decoder.decode(data))
        sys.stdout.flush()
        if state.state not in OPEN and state.state is not State.PLANNED:
            return
        time.sleep(0.5)
