"""The verb `alarms`: what is wrong with the runs of a sweep, by what evidence, what to do."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from sweeper.alarms import Alarm, read
from sweeper.errors import NotFound, StoreError
from sweeper.records.selecting import pick
from sweeper.registry import Registry
from sweeper.store.documents import SCHEMA, read_json
from sweeper.store.files import Store, default_root
from sweeper.store.layout import Layout
from sweeper.terminal import print_json, print_table, say

__all__ = ["alarms"]


def alarms(arguments: Namespace) -> int:
    """Print the alarms of the chosen runs, oldest first."""
    sweep = Registry(arguments.root or default_root()).sweep(arguments.sweep)
    runs = pick(sweep.runs, arguments.runs, arguments.state, arguments.where)
    attempts = {run.id: run.attempts for run in runs}
    found = [alarm for alarm in read(sweep.store, sweep.layout) if alarm.run in attempts]
    done = {alarm: _done(sweep.store, sweep.layout, alarm) for alarm in found if alarm.actions}
    if arguments.json:
        records = [_record(alarm, attempts[alarm.run], done.get(alarm)) for alarm in found]
        return print_json({"schema": SCHEMA, "sweep": sweep.name, "alarms": records})
    if not found:
        say(f"{sweep.name}: no alarms")
        return 0
    rows = [(a.name, a.attempt, a.rule, _what(a, done.get(a)), a.time) for a in found]
    print_table(["run", "attempt", "alarm", "evidence", "time"], rows)
    print()
    for line in _advice(found):
        say(line)
    return 0


def _record(alarm: Alarm, attempts: int, outcome: str | None) -> dict[str, Any]:
    """`current`: it is about the newest attempt. `outcome`: of what `on_alarm` set off."""
    return alarm.document() | {"current": alarm.attempt == attempts, "outcome": outcome}


def _done(store: Store, layout: Layout, alarm: Alarm) -> str | None:
    """What became of what the alarm set off; None while nobody knows."""
    try:
        document = read_json(store, layout.action(alarm.run, alarm.attempt, alarm.rule))
    except (NotFound, StoreError):
        return None
    outcome: Any = document.get("outcome")
    if isinstance(outcome, str):
        return outcome
    return "done" if "run" not in alarm.actions else None


def _what(alarm: Alarm, outcome: str | None) -> str:
    if not alarm.actions:
        return alarm.message
    return f"{alarm.message} (on_alarm: {', '.join(alarm.actions)}: {outcome or 'under way'})"


def _advice(found: Sequence[Alarm]) -> list[str]:
    """What to do, once for each rule."""
    advice = {alarm.rule: alarm.advice for alarm in found if alarm.advice}
    return [f"{rule}: {text}" for rule, text in advice.items()]
