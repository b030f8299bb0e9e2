"""Alarms on record: one file each, created once and never changed.

    alarms/<run>.<attempt>.<rule>.json

The name says what is said once: a run's attempt and a rule. Whoever finds the file there already
has nothing to say.
"""

import re
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, NamedTuple

from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.metrics import as_float
from sweeper.model.parts import Part
from sweeper.sanitize import sanitize
from sweeper.storage.documents import SCHEMA, encode, read_as, strict
from sweeper.storage.files import Store
from sweeper.storage.layout import Layout

__all__ = ["Action", "Alarm", "Name", "alarms", "names", "put", "read", "read_action"]

_NAME = re.compile(r"([^./]+)\.([1-9][0-9]*)\.([a-z_]+)\.json\Z")
_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class Name(NamedTuple):
    """What an alarm is about, as the name of its file tells it."""

    run: str
    attempt: int
    rule: str


class Alarm(NamedTuple):
    """Something is wrong with a run.

    `run` is its id, `name` what people call it, `time` when it was noticed (UTC, ISO 8601). The
    evidence: `key` was `value` at `step`, where `bound` is the most or the least that is right;
    each is None where there is no such thing. `message` says so in a sentence, `advice` what to do.
    `actions` are those of `on_alarm` that it was to set off: "run", "stop run", "stop sweep".
    """

    run: str
    name: str
    attempt: int
    rule: str
    time: str
    key: str | None
    step: float | None
    value: float | None
    bound: float | None
    message: str
    advice: str
    actions: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """As it is kept, and as `--json` has it."""
        return strict(self._asdict() | {"actions": list(self.actions)})


def alarms(store: Store, sweep: str) -> list[Alarm]:
    """The alarms of a sweep, oldest first."""
    return read(store, Layout(sweep))


def read(
    store: Store,
    layout: Layout,
    known: MutableMapping[str, Alarm] | None = None,
    told: Callable[[StoreError], None] | None = None,
) -> list[Alarm]:
    """The alarms of a sweep, oldest first: one listing, and a read for each. A caller who looks
    again and again gives the same `known` each time (empty at first): what is in it is not read
    again. A record that is damaged is passed over; `told` hears of it. Raises `StoreError` for a
    store that does not answer the listing."""
    known = {} if known is None else known
    found: list[Alarm] = []
    for path, name in _listed(store, layout):
        alarm = known.get(path)
        try:
            alarm = alarm or read_as(store, path, partial(_alarm, name))
        except NotFound:
            continue
        except StoreError as error:
            if told is not None:
                told(error)
            continue
        known[path] = alarm
        found.append(alarm)
    return sorted(found, key=lambda alarm: (alarm.time, alarm.run, alarm.attempt, alarm.rule))


def names(store: Store, layout: Layout) -> list[Name]:
    """Which alarms there are, from the listing alone: to count them."""
    return [name for _, name in _listed(store, layout)]


def put(store: Store, layout: Layout, alarm: Alarm) -> bool:
    """Put an alarm on record; whether it was news. Raises `StoreError`."""
    path = layout.alarm(alarm.run, alarm.attempt, alarm.rule)
    try:
        store.create(path, encode({"schema": SCHEMA} | alarm.document()))
    except AlreadyExists:
        return False
    return True


def _listed(store: Store, layout: Layout) -> list[tuple[str, Name]]:
    found: list[tuple[str, Name]] = []
    for path in store.names(layout.alarms):
        match = _NAME.match(path.rpartition("/")[2])
        if match:
            found.append((path, Name(match[1], int(match[2]), match[3])))
    return found


def _alarm(name: Name, document: object, place: str) -> Alarm:
    """The record in the file `place`, whose name is `name`. Raises `StoreError`."""
    record = Part(document, place)
    return Alarm(
        run=name.run,
        name=record.text_or("name", None) or name.run,
        attempt=name.attempt,
        rule=name.rule,
        time=record.text_or("time", ""),
        key=record.text_or("key", None),
        step=_number(record, "step"),
        value=_number(record, "value"),
        bound=_number(record, "bound"),
        message=record.text_or("message", None) or name.rule,
        advice=sanitize(record.text_or("advice", "")),
        actions=tuple(record.texts_or("actions", [])),
    )


def _number(record: Part, key: str) -> float | None:
    """What a recipe recorded, which may be anything that is a number."""
    value = record.document.get(key)
    number = _NUMBERS.get(value) if isinstance(value, str) else as_float(value)
    if number is None and value is not None:
        record.refuse(key, "a number")
    return number


class Action(NamedTuple):
    """What was done about an alarm: by which launcher, and how that ended, in a word or a sentence;
    None while it is under way."""

    by: str | None
    outcome: str | None


def read_action(store: Store, layout: Layout, alarm: Alarm) -> Action:
    """The record of what was done about an alarm. Raises `NotFound`, `StoreError`."""
    path = layout.action(alarm.run, alarm.attempt, alarm.rule)

    def read(document: object, place: str) -> Action:
        record = Part(document, place)
        return Action(record.text_or("by", None), record.text_or("outcome", None))

    return read_as(store, path, read)
