"""Reading a sweep back from its store: its plan, and where each of its runs stands.

One listing of `state/` answers for every run, since the names of the files carry the events.
"""

from typing import Any

from sweeper.errors import NotFound, StoreError
from sweeper.states import ENDED, Event, RunState, fold, parse_name
from sweeper.store.documents import read_json
from sweeper.store.files import Store
from sweeper.store.layout import Layout

__all__ = ["Events", "find_sweeps", "read_events", "read_outcome", "read_plan", "read_states"]

Events = dict[str, set[tuple[int, Event]]]
"""Run id -> what happened to it, as pairs of attempt and event."""


def find_sweeps(store: Store) -> list[str]:
    """Names of the sweeps at the store's root, sorted."""
    return sorted(store.folders_with("sweep.json"))


def read_plan(store: Store, sweep: str) -> dict[str, Any]:
    """`sweep.json`: the plan as it was launched. Raises `NotFound` with a hint."""
    try:
        return read_json(store, Layout(sweep).plan)
    except NotFound as error:
        known = find_sweeps(store)
        hint = f"there is {', '.join(known[:5])}" if known else "there is none"
        raise NotFound(f"no sweep {sweep!r} in {store.root}: {hint}") from error


def read_events(store: Store, sweep: str) -> Events:
    """Every event on record, for every run of which there is any."""
    events: Events = {}
    known: dict[str, tuple[int, Event] | None] = {}  # there are few names, and many files
    for path in store.names(Layout(sweep).state):
        folder, _, name = path.rpartition("/")
        if name not in known:
            known[name] = parse_name(name)
        parsed = known[name]
        if parsed is not None:
            events.setdefault(folder.rpartition("/")[2], set()).add(parsed)
    return events


def read_states(store: Store, sweep: str) -> dict[str, RunState]:
    """Run id -> state, for every run of which there is any event."""
    return {run: fold(events) for run, events in read_events(store, sweep).items()}


def read_outcome(store: Store, sweep: str, run: str, state: RunState) -> dict[str, Any]:
    """The body of the event that decided `state`: for an ended attempt its outcome (code, signal,
    reason, times). Empty when there is none, or none that can be read."""
    if state.event is None or state.event not in ENDED | {Event.LOST, Event.CLAIMED}:
        return {}
    try:
        return read_json(store, Layout(sweep).event(run, state.attempt, state.event))
    except (NotFound, StoreError):
        return {}
