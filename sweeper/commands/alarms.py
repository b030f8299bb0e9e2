"""`sweeper alarms`: prints the alarms of a sweep's runs, with evidence and advice."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from sweeper.alarms import Alarm, read, read_action
from sweeper.commands import arguments as shared
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import newest, open_registry, split_sweep
from sweeper.common.codec import SCHEMA
from sweeper.errors import NotFound, StoreError
from sweeper.results.problems import tell_problems
from sweeper.results.selectors import pick
from sweeper.results.sweeps import Sweep
from sweeper.terminal import print_table, say


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper alarms`."""
    shared.runs_of_optional_sweep(verb)
    shared.select(verb)
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Print the alarms of the chosen runs, oldest first."""
    registry = open_registry(arguments, snapshot=True)
    name, names = split_sweep(arguments)
    sweep = registry.sweep(name or newest(registry))
    runs = pick(sweep.runs, names, arguments.state, arguments.where)
    attempts = {run.id: run.attempts for run in runs}
    recorded = read(sweep.folder, on_error=sweep.unreadable)
    shown = [alarm for alarm in recorded if alarm.run in attempts]
    done = {alarm: _done(sweep, alarm) for alarm in shown if alarm.actions}
    if arguments.json:
        records = [_record(alarm, attempts[alarm.run], done.get(alarm)) for alarm in shown]
        document = {"schema": SCHEMA, "sweep": sweep.name, "alarms": records}
        return print_json_answer(document, registry.problems)
    if not shown:
        say(f"{sweep.name}: no alarms")
        return tell_problems(registry.problems)
    rows = [(a.name, a.attempt, a.rule, _what(a, done.get(a)), a.time) for a in shown]
    print_table(["run", "attempt", "alarm", "evidence", "time"], rows)
    print()
    for line in _advice(shown):
        say(line)
    return tell_problems(registry.problems)


def _record(alarm: Alarm, attempts: int, outcome: str | None) -> dict[str, object]:
    return {**alarm.document(), "current": alarm.attempt == attempts, "outcome": outcome}


def _done(sweep: Sweep, alarm: Alarm) -> str | None:
    """Return the result of an alarm's actions. Return None if there is no result yet or the record
    cannot be read. Without the action `run`, the result is `done` once the actions have begun."""
    try:
        outcome = read_action(sweep.folder, alarm).outcome
    except NotFound:
        return None
    except StoreError as error:
        sweep.unreadable(error)
        return None
    if outcome is None and "run" not in alarm.actions:
        return "done"
    return outcome


def _what(alarm: Alarm, outcome: str | None) -> str:
    if not alarm.actions:
        return alarm.message
    return f"{alarm.message} (on_alarm: {', '.join(alarm.actions)}: {outcome or 'under way'})"


def _advice(alarms: Sequence[Alarm]) -> list[str]:
    """Return a line of advice for each rule that raised one of the alarms."""
    advice = {alarm.rule: alarm.advice for alarm in alarms if alarm.advice}
    return [f"{rule}: {text}" for rule, text in advice.items()]
