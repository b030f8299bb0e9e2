"""Reading a sweep back from its store: its plan, and where each of its runs stands.

One listing of `state/` answers for every run, since the names of the files carry the events.
"""

import os
from collections.abc import Iterable
from contextlib import suppress

from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.model import event as bodies
from sweeper.model import launcher as launchers
from sweeper.model import plan_file
from sweeper.model.event import NOTHING, Outcome
from sweeper.model.launcher import NO_OBSERVATIONS, Observations, Service
from sweeper.model.plan import Plan
from sweeper.model.stage_inputs import Choice, Chosen, read_chosen
from sweeper.model.stage_runs import grown
from sweeper.model.states import ENDED, Event, RunState, fold, parse_name
from sweeper.storage.base import Store
from sweeper.storage.documents import read_as
from sweeper.storage.hint import hint
from sweeper.storage.layout import Layout
from sweeper.storage.sweep_requests import asked_pause

__all__ = [
    "TELLING",
    "Events",
    "chosen_of",
    "ensure_identity",
    "find_sweeps",
    "identity",
    "look_at_events",
    "read_event",
    "read_events",
    "read_observations",
    "read_outcome",
    "read_plan",
    "read_states",
    "service_of",
    "submitted_to",
    "with_chosen",
]

TELLING = ENDED | {Event.LOST, Event.CLAIMED}
"""Events whose body says more than that they happened."""

Events = dict[str, set[tuple[int, Event]]]
"""Run id -> what happened to it, as pairs of attempt and event."""

_NAMED = 5  # sweeps, of those that there are where one is not


def find_sweeps(store: Store) -> list[str]:
    """Names of the sweeps at the store's root, sorted."""
    return sorted(store.folders_with("sweep.json"))


def read_plan(store: Store, sweep: str) -> Plan:
    """Read `sweep.json`: the plan as it was launched, with the runs that have come to be by what
    was chosen since. Raises `NotFound` with a hint, `StoreError` when it is damaged, or a link to a
    place that is away."""
    try:
        return with_chosen(store, sweep, read_as(store, Layout(sweep).plan, plan_file.read))
    except NotFound as error:
        known = find_sweeps(store)
        if sweep in known:
            raise StoreError(
                f"{store.root}/{sweep}: a link that leads nowhere: is its disk mounted?"
            ) from error
        there = f"there is {', '.join(known[:_NAMED])}" if known else "there is none"
        if len(known) > _NAMED:
            there += f" and {len(known) - _NAMED} more (`{hint('status', root=store.root)}`)"
        raise NotFound(f"no sweep {sweep!r} in {store.root}: {there}") from error


def identity(store: Store, sweep: str) -> str | None:
    """What tells a sweep from any that was, or on another machine is, called the same; None until a
    launcher has made it. Raises `StoreError`."""
    try:
        return store.read(Layout(sweep).identity).decode("ascii", "replace").strip()
    except NotFound:
        return None


def ensure_identity(store: Store, sweep: str) -> str:
    """The same, made where there is none. Raises `StoreError`."""
    found = identity(store, sweep)
    if found:
        return found
    made = os.urandom(8).hex()
    try:
        store.create(Layout(sweep).identity, f"{made}\n".encode())
    except AlreadyExists:
        return identity(store, sweep) or ""
    return made


def with_chosen(store: Store, sweep: str, plan: Plan) -> Plan:
    """A plan with all runs of its stages that are known by what is on record of the sweep, whose
    folder may have another name than its plan once it was moved. Raises `StoreError`."""
    if not plan.stages:
        return plan

    def taken(choice: Choice) -> tuple[str, ...] | None:
        found = chosen_of(store, sweep, choice)
        return None if found is None else found.runs

    return grown(plan, taken)


def chosen_of(store: Store, sweep: str, choice: Choice) -> Chosen | None:
    """What was chosen; None where nothing was yet. Raises `StoreError`."""
    try:
        return read_as(store, Layout(sweep).chosen(choice.take.stage, choice.key), read_chosen)
    except NotFound:
        return None


def service_of(store: Store, sweep: str) -> Service:
    """Read `service.json`: what the last launch gave to the runs. Raises `NotFound`,
    `StoreError`."""
    return read_as(store, Layout(sweep).service, launchers.read_service)


def read_events(store: Store, sweep: str) -> Events:
    """Read the events of every run that has any. Raises `NotFound` where there is no such sweep: if
    it was removed, or its disk is away, none of its runs is known not to be at work."""
    events = _events_in(store.names(Layout(sweep).state))
    if not events and not store.exists(Layout(sweep).plan):
        raise NotFound(f"{store.root}/{sweep}: is not there")
    return events


def _events_in(paths: Iterable[str]) -> Events:
    events: Events = {}
    known: dict[str, tuple[int, Event] | None] = {}  # there are few names, and many files
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name not in known:
            known[name] = parse_name(name)
        parsed = known[name]
        if parsed is not None:
            events.setdefault(folder.rpartition("/")[2], set()).add(parsed)
    return events


def look_at_events(store: Store, sweep: str, listed: Iterable[str] | None = None) -> Events:
    """Read all events in half the time, for callers that do not change them: most runs have the
    same events, and share one set. `listed`: the paths of the files, if they are known."""
    top = store.local_path(Layout(sweep).state)
    if top is None or listed is not None:
        return read_events(store, sweep) if listed is None else _events_in(listed)
    events: Events = {}
    known: dict[frozenset[str], set[tuple[int, Event]]] = {}
    try:
        for run in os.listdir(top):
            names = frozenset(_names_in(f"{top}/{run}"))
            found = known.get(names)
            if found is None:
                found = known[names] = _events_of(names)
            if found:
                events[run] = found
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StoreError(f"{error.filename}: {error.strerror}") from error
    return events


def _events_of(names: Iterable[str]) -> set[tuple[int, Event]]:
    return {event for name in names if (event := parse_name(name))}


def _names_in(folder: str) -> list[str]:
    """The names in a folder; none when it is none."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_observations(store: Store, sweep: str) -> Observations:
    """Read what a launcher last published, some of which holds only while it is at work. A pause
    that was asked for or taken back since counts."""
    try:
        found = read_as(store, Layout(sweep).observations, launchers.read_observations)
    except NotFound:
        found = NO_OBSERVATIONS
    pause = asked_pause(store, sweep)
    if pause is not None and not found.paused:
        return found._replace(held=found.held or pause.told(sweep), paused=True)
    if pause is None and found.paused:
        return found._replace(held=None, paused=False)
    return found


def read_states(store: Store, sweep: str) -> dict[str, RunState]:
    """Read the state of every run that has any event."""
    return {run: fold(events) for run, events in read_events(store, sweep).items()}


def read_outcome(store: Store, sweep: str, run: str, state: RunState) -> Outcome:
    """Read the body of the event that decided `state`: of an ended attempt its outcome; empty if
    there is none. Raises `StoreError` for one that is damaged or cannot be read."""
    if state.event is None or state.event not in TELLING:
        return NOTHING
    try:
        return read_event(store, sweep, run, state.attempt, state.event)
    except NotFound:
        return NOTHING


def submitted_to(store: Store, sweep: str, run: str, attempt: int) -> str | None:
    """The place of an attempt, as its intent has it, which is on record before it is submitted.
    None: none is on record, as with older versions. One that an older version's worker has opened
    is where the attempt before it was. Raises `StoreError`."""
    for number in range(attempt, 0, -1):
        with suppress(NotFound):
            place = read_event(store, sweep, run, number, Event.INTENT).place
            if place is not None:
                return place
    return None


def read_event(store: Store, sweep: str, run: str, attempt: int, event: Event) -> Outcome:
    """Read the body of an event. Raises `NotFound`, `StoreError`."""
    return read_as(store, Layout(sweep).event(run, attempt, event), bodies.read)
