"""The verbs that look at what runs and what ran: status, logs. Each takes the parsed arguments
and gives an exit code."""

import sys
import time
from argparse import Namespace
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sweeper.records.selecting import pick
from sweeper.registry import Registry
from sweeper.store.files import default_root
from sweeper.terminal import duration, print_json, print_table, warn

if TYPE_CHECKING:
    from sweeper.records.runs import RecordedRun, Sweep

__all__ = ["logs", "status"]

_FOLLOW_SECONDS = 2.0
_SHOWN = 50


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
    seen = _observations(sweep)
    observed: dict[str, str] = seen["observed"]
    runs = pick(_active(sweep), (), arguments.state, arguments.where)
    if arguments.json:
        records = [run.record() | {"observed": observed.get(run.id)} for run in runs]
        print_json({"schema": 1, "sweep": sweep.name, **seen, "runs": records})
        return
    more = 0
    if len(runs) > _SHOWN and not (arguments.state or arguments.where):
        more = len(runs) - _SHOWN
        runs = sorted(runs, key=_interest)[:_SHOWN]
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
    if more:
        print(f"... and {more} more: `sweeper ls {sweep.name}` has them all, --state chooses")
    counts = Counter(run.state.value for run in _active(sweep))
    print(f"\n{sweep.name}: {_counted(counts)}")
    if seen["unreachable"]:
        print(f"the launcher waits: {seen['unreachable']}")
    if seen["limit"] is not None:
        most = sweep.document["launch"]["max_parallel"]
        print(f"at most {seen['limit']} at once, not {most}: the service holds runs back")
    if seen["held"]:
        print(f"held: {seen['held']}")


def _observations(sweep: "Sweep") -> dict[str, Any]:
    """What the launcher has published: `observed` (run -> in words), `unreachable`, `limit`, which
    hold only while it is at work (`launcher`), and `held`, which holds until the next."""
    from sweeper.errors import NotFound
    from sweeper.states import State
    from sweeper.store.documents import read_json
    from sweeper.store.lock import is_held

    at_work = is_held(sweep.store, sweep.name)
    seen: dict[str, Any] = {"launcher": at_work, "observed": {}, "unreachable": None}
    seen |= {"limit": None, "held": None}
    try:
        document = read_json(sweep.store, sweep.layout.observations)
    except NotFound:
        return seen
    seen["held"] = document.get("held")
    if at_work:
        over = {r.id for r in sweep.runs if r.state in (State.SUCCEEDED, State.CANCELLED)}
        observed: dict[str, str] = document["observed"]
        seen["observed"] = {run: said for run, said in observed.items() if run not in over}
        seen |= {key: document.get(key) for key in ("unreachable", "limit")}
    return seen


def _interest(run: "RecordedRun") -> int:
    """What to show of many: first what is at work, then what went wrong, what waits, what is
    done."""
    from sweeper.states import OPEN, State

    if run.state in OPEN:
        return 0
    return 2 if run.state is State.PLANNED else 3 if run.state is State.SUCCEEDED else 1


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
    from sweeper.states import OPEN, State, fold, wants_attempt
    from sweeper.store.lock import is_held

    retries = sweep.document["launch"]["retries"]
    runs = [run for run in _active(sweep) if run.state is not State.SUCCEEDED]
    histories = [sweep.events.get(run.id, ()) for run in runs]
    open_ = any(run.state in OPEN for run in runs)
    left = any(wants_attempt(events, retries) for events in histories)
    unknown = any(fold(events).unacknowledged for events in histories)
    at_work = open_ or is_held(sweep.store, sweep.name)
    return at_work, not (open_ or left or unknown)


def logs(arguments: Namespace) -> int:
    """What a run printed; with `--follow` until it has ended."""
    run = Registry(arguments.root or default_root()).run(arguments.run)
    data = run.read(run.layout.log(run.id, run.attempts))
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
    from sweeper.store.sweeps import read_events
    from sweeper.tables.sources import Files

    store, layout = run.store, run.layout
    attempt = run.attempts
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may split a character
    while True:
        state = fold(read_events(store, layout.sweep).get(run.id, ()))
        if state.opened > attempt:
            attempt, offset = state.opened, 0
        source = Files(store, layout.attempt(run.id, attempt)).source(layout.log(run.id, attempt))
        if source is not None and source.stamp.size > offset:
            data = source.read(offset)[1]
            offset += len(data)
            sys.stdout.write(decoder.decode(data))
        sys.stdout.flush()
        if state.state not in OPEN and state.state is not State.PLANNED:
            return
        time.sleep(0.5)
