"""Reading a sweep back from its store: its plan, and where each of its runs stands.

One listing of `state/` answers for every run, since the names of the files carry the events.
"""

import json
from typing import Any

from sweeper.errors import NotFound, StoreError
from sweeper.layout import Layout
from sweeper.states import ENDED, Event, RunState, fold, parse_name
from sweeper.store import Store

__all__ = ["SCHEMA", "find_sweeps", "read_json", "read_outcome", "read_plan", "read_states"]

SCHEMA = 1
"""The version of every document that sweeper writes."""


def read_json(store: Store, path: str) -> dict[str, Any]:
    """A JSON object of ours. Raises `NotFound`, or `StoreError` when it is damaged or newer."""
    try:
        document: Any = json.loads(store.read(path))
    except ValueError as error:
        raise StoreError(f"{store.root}/{path}: damaged ({error})") from error
    if not isinstance(document, dict) or document.get("schema", 0) > SCHEMA:  # pyright: ignore[reportUnknownMemberType]
        raise StoreError(f"{store.root}/{path}: written by a newer sweeper; upgrade to read it")
    return document  # pyright: ignore[reportUnknownVariableType]


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


def read_states(store: Store, sweep: str) -> dict[str, RunState]:
    """Run id -> state, for every run of which there is any event."""
    events: dict[str, list[tuple[int, Event]]] = {}
    for entry in store.list(Layout(sweep).state):
        run, _, name = entry.path.rpartition("/")
        parsed = parse_name(name)
        if parsed is not None:
            events.setdefault(run.rpartition("/")[2], []).append(parsed)
    return {run: fold(found) for run, found in events.items()}


def read_outcome(store: Store, sweep: str, run: str, state: RunState) -> dict[str, Any]:
    """The body of the event that decided `state`: for an ended attempt its outcome (code, signal,
    reason, times). Empty when there is none, or none that can be read."""
    if state.event is None or state.event not in ENDED | {Event.LOST, Event.CLAIMED}:
        return {}
    try:
        return read_json(store, Layout(sweep).event(run, state.attempt, state.event))
    except (NotFound, StoreError):
        return {}
