"""Recorded alarms: one file each, created once and never changed.
    alarms/<run>.<attempt>.<rule>.json
There is at most one alarm for each attempt and rule. If its file exists already, nothing is
written.
"""

import re
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Annotated, Any, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, Default, Parse, Unstored, Wrong
from sweeper.common.sanitize import sanitize
from sweeper.errors import AlreadyExists, StoreError
from sweeper.metrics.rows import as_float
from sweeper.store.documents import encode, read_as, read_each, strict
from sweeper.sweep.folder import SweepFolder

_NAME = re.compile(r"([^./]+)\.([1-9][0-9]*)\.([a-z_]+)\.json\Z")
_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class Name(NamedTuple):
    """The parts of an alarm's file name: the alarm's run, attempt and rule."""

    run: str
    attempt: int
    rule: str


def _number(value: Any) -> float:
    """Convert a stored number, which may be NaN or infinite, to a float."""
    number = _NUMBERS.get(value) if isinstance(value, str) else as_float(value)
    if number is None:
        raise Wrong("a number", value)
    return number


_Number = Annotated[float | None, Parse(_number)]
_Text = Annotated[str, Default("")]


class Alarm(NamedTuple):
    """An alarm about a problem of a run. `run` is the run's id, `name` its name, and `time` when
    the alarm was raised (UTC, ISO 8601).

    The evidence: `key` had `value` at `step`, and `bound` is the threshold. Each of these may be
    None. `message` describes the problem, and `advice` says what to do. `actions` has the actions
    from the grid's `on_alarm`: "run" (run a command), "stop run" or "stop sweep". `stacks` has the
    Python stacks of a stalled recipe's threads.
    """

    run: Unstored[str]
    name: _Text
    attempt: Unstored[int]
    rule: Unstored[str]
    time: _Text
    key: str | None
    step: _Number
    value: _Number
    bound: _Number
    message: _Text
    advice: _Text
    actions: tuple[str, ...] = ()
    stacks: str | None = None

    def document(self) -> dict[str, object]:
        """Return the JSON document of the alarm, for the store and for `--json`."""
        return strict(self._asdict() | {"actions": list(self.actions)})


def alarms(folder: SweepFolder) -> list[Alarm]:
    """Return the alarms of a sweep, oldest first."""
    return read(folder)


def read(
    folder: SweepFolder,
    known: MutableMapping[str, Alarm] | None = None,
    on_error: Callable[[StoreError], None] | None = None,
) -> list[Alarm]:
    """Read the alarms of a sweep, oldest first. Damaged alarms are skipped, and `on_error` gets
    their errors. `known` is a cache: if several calls pass the same dict, each alarm is read only
    once. Raises `StoreError` if the alarms cannot be listed."""
    readers = {path: partial(_alarm, name) for path, name in _listed(folder)}
    documents = read_each(folder.store, readers, known, on_error)
    return sorted(documents, key=lambda alarm: (alarm.time, alarm.run, alarm.attempt, alarm.rule))


def names(folder: SweepFolder) -> list[Name]:
    """Return the run, attempt and rule of each alarm of a sweep, without reading the alarms."""
    return [name for _, name in _listed(folder)]


def put(folder: SweepFolder, alarm: Alarm) -> bool:
    """Record an alarm. Return False if the alarm was recorded earlier. Raises `StoreError`."""
    path = folder.alarm(alarm.run, alarm.attempt, alarm.rule)
    try:
        folder.store.create(path, encode({"schema": SCHEMA} | alarm.document()))
    except AlreadyExists:
        return False
    return True


def _listed(folder: SweepFolder) -> list[tuple[str, Name]]:
    names: list[tuple[str, Name]] = []
    for path in folder.store.names(folder.alarms):
        match = _NAME.match(path.rpartition("/")[2])
        if match:
            names.append((path, Name(match[1], int(match[2]), match[3])))
    return names


def _alarm(name: Name, document: object, place: str) -> Alarm:
    """Convert `document` to an alarm. `place` is the document's file, for messages. Raises
    `StoreError`."""
    alarm = codec.read(Alarm, document, place)._replace(**name._asdict())
    return alarm._replace(
        name=alarm.name or name.run,
        message=alarm.message or name.rule,
        advice=sanitize(alarm.advice),
    )


class Action(NamedTuple):
    """The recorded reaction to an alarm. `by` identifies the launcher that reacted. `outcome` says
    how the command of `on_alarm` ended (None: there is no command, or it has not ended)."""

    by: str | None
    outcome: str | None


def read_action(folder: SweepFolder, alarm: Alarm) -> Action:
    """Read the recorded reaction to an alarm. Raises `NotFound` if no reaction is recorded, and
    `StoreError` for other failures."""
    path = folder.action(alarm.run, alarm.attempt, alarm.rule)
    return read_as(folder.store, path, partial(codec.read, Action))
