"""Printing of a sweep's status: a table of the runs, then facts about the sweep."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from sweeper.common.sanitize import sanitize
from sweeper.errors import UsageError
from sweeper.results.progress import Reached, reached
from sweeper.results.selectors import pick
from sweeper.results.status import NOBODY, Status, alarms_of
from sweeper.sweep.hint import hint
from sweeper.sweep.labels import plural
from sweeper.sweep.states import OPEN, State
from sweeper.terminal import duration, print_json, print_table, say, shortened

if TYPE_CHECKING:
    from sweeper.alarms import Alarm
    from sweeper.results.runs import RecordedRun
    from sweeper.results.sweeps import Sweep
    from sweeper.sweep.heartbeats import Heartbeat
    from sweeper.sweep.run_record import RunRecord

_SHOWN = 50
_REASON = 80
"""The largest number of characters of a failure's reason in the table."""


def counted(states: Mapping[str, int]) -> str:
    """Format the number of runs in each state, as `2 failed, 7 succeeded`."""
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def print_status(
    sweep: "Sweep",
    seen: Status,
    arguments: Namespace,
    most: int = _SHOWN,
    problems: Sequence[str] = (),
) -> None:
    """Print the status of a sweep. If there are more than `most` runs, list only the most important
    runs. With `--state`, `--where` or `--json`, list all selected runs."""
    observed = seen.observed
    runs = pick(sweep.runs, (), arguments.state, arguments.where)
    alarms = alarms_of(sweep, runs)
    if arguments.json:
        records = [
            run.record() | {"observed": observed.get(run.id), "detail": run.outcome.detail}
            for run in runs
        ]
        document = {
            "schema": 1,
            "sweep": sweep.name,
            **seen.published(),
            "costs": _costs(seen, as_document=True),
            "runs": records,
            "alarms": [alarm.document() for alarm in alarms],
            "problems": problems,
        }
        print_json(document)
        return
    more = 0
    if len(runs) > most and not (arguments.state or arguments.where):
        more = len(runs) - most
        runs = sorted(runs, key=_interest)[:most]
    _print_runs(sweep, runs, observed)
    if more:
        every = hint("ls", sweep.name, root=sweep.root)
        say(f"... and {more} more: `{every}` shows all runs, --state chooses runs by state")
    if not sweep.plan.stages:
        print()
    _print_sweep(sweep, seen)
    _print_alarms(sweep, alarms)


def _print_runs(sweep: "Sweep", runs: Sequence["RecordedRun"], observed: Mapping[str, str]) -> None:
    """Print a table with a line for each run. If the sweep has stages, print one table for each
    stage."""
    if not sweep.plan.stages:
        _print_table(sweep, runs, observed, sweep.metric)
        return
    from sweeper.results.stage_graph import of_stage  # imported late: most sweeps have no stages

    for stage in sweep.plan.stages:
        chosen = [run for run in runs if run.stage == stage.name]
        unknown = sweep.plan.unknown.get(stage.name, 0)
        more = f"; {plural(unknown, 'run')} to come" if unknown else ""
        say(f"{stage.name}: {of_stage(stage)}{more}")
        if chosen:
            _print_table(sweep, chosen, observed, sweep.metric_of(stage.name))
        print()


def _print_table(
    sweep: "Sweep",
    runs: Sequence["RecordedRun"],
    observed: Mapping[str, str],
    judged: Mapping[str, str] | None,
) -> None:
    metric, plan = (judged or {}).get("name"), sweep.plan
    several = ["backend"] if plan.launch.backends else []
    pinned = plan.launch.gpus or any(stage.launch.get("gpus") for stage in plan.stages)
    gpus = ["gpu"] if pinned else []
    rows: list[tuple[object, ...]] = []
    for run in runs:
        record = run.record()
        state = run.state.value + (f" ({observed[run.id]})" if run.id in observed else "")
        step = run.readable(partial(reached, run), Reached()).step
        beat = _beat(sweep, run)
        spent = duration(_seconds(record, beat))
        at = (run.backend,) if several else ()
        at += ((beat and beat.gpus) or run.outcome.gpus,) if gpus else ()
        row = (run.name, state, *at, run.attempts, step, spent)
        why = shortened(run.explained or "", _REASON)
        rows.append((*row, *((record["value"],) if metric else ()), why))
    last = [metric, "reason"] if metric else ["reason"]
    print_table(["run", "state", *several, *gpus, "attempts", "step", "time", *last], rows)


def _print_sweep(sweep: "Sweep", seen: Status) -> None:
    """Print the number of runs in each state, the costs, and the reasons why the sweep waits."""
    say(f"{sweep.name}: {counted({state.value: n for state, n in seen.counts.items()})}")
    if sweep.race is not None:
        say(sweep.race)
    if seen.unreachable:
        say(f"the launcher waits: {seen.unreachable}")
    if seen.limit is not None:
        most = sweep.plan.launch.max_parallel
        say(f"at most {plural(seen.limit, 'job')} at once, not {most}: {seen.limit_why}")
    for line in seen.waits:
        say(line)
    if (costs := _costs(seen)) is not None:
        say(
            f"{costs}"
            if seen.finished or seen.launcher
            else f"{costs} (up to the end of the last launcher)"
        )
    if seen.held:
        say(f"held: {seen.held}")
    if not (seen.launcher or seen.finished):
        say(NOBODY)


def _costs(seen: Status, *, as_document: bool = False) -> object:
    """Describe the usage of a sweep and its expected total, as text or (`as_document`) as a dict
    for JSON. Return None if no usage is recorded, or if the price table cannot be read."""
    if seen.usage is None:
        return None
    from sweeper.money import forecast, prices

    # If the price table is unreadable, `sweeper costs --prices` reports the error.
    with suppress(UsageError):
        return (forecast.document if as_document else forecast.sentence)(seen.usage, prices.load())
    return None


def _print_alarms(sweep: "Sweep", alarms: Sequence["Alarm"]) -> None:
    """Print the first alarm of each rule, and how many further alarms the rule has raised."""
    by_rule: dict[str, list[Alarm]] = {}
    for alarm in alarms:
        by_rule.setdefault(alarm.rule, []).append(alarm)
    for first, *others in by_rule.values():
        say(alarm_line(first, len(others)))
    if len(alarms) > len(by_rule):
        say(f"`{hint('alarms', sweep.name, root=sweep.root)}` shows all alarms")


def alarm_line(alarm: "Alarm", more: int = 0) -> str:
    """Format an alarm, such as `alarm: x=1 and 3 more: nan: loss is NaN at step 12; lower the
    learning rate`. `more` is the number of other alarms of the same rule."""
    others = f" and {more} more" if more else ""
    line = f"alarm: {alarm.name}{others}: {alarm.rule}: {alarm.message}"
    return sanitize(line + (f"; {alarm.advice}" if alarm.advice else ""))


def _interest(run: "RecordedRun") -> int:
    """Return the rank of a run by importance. Submitted and running runs come first, then failed
    and cancelled runs, then planned runs, and succeeded runs last."""
    if run.state in OPEN:
        return 0
    return 2 if run.state is State.PLANNED else 3 if run.state is State.SUCCEEDED else 1


def _beat(sweep: "Sweep", run: "RecordedRun") -> "Heartbeat | None":
    """Return the last heartbeat of a run's worker; None if the run is not running."""
    if run.state is not State.RUNNING:
        return None
    from sweeper.sweep.heartbeats import read_heartbeat  # imported late: only running runs need it

    return read_heartbeat(sweep.store, sweep.folder.heartbeat(run.id, run.attempts))


def _seconds(record: "RunRecord", beat: "Heartbeat | None") -> float | None:
    """Return how many seconds a run took, or has taken so far; None if no time was measured.
    Workers measure the time, since the clocks of hosts differ."""
    if beat is None or beat.up_s is None:
        return record["wall_s"]
    return (record["wall_s"] or 0.0) + beat.up_s
