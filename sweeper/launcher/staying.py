"""A sweep stays where its jobs are. A launcher that looks for them in another queue, or on another
cluster, finds none, takes those that wait for lost, and starts each a second time."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sweeper.backends import options_of, terms_of
from sweeper.backends.base import Backend, Placed
from sweeper.errors import NotFound, StoreError, UsageError
from sweeper.states import OPEN, State, cancel_asked, fold
from sweeper.store.documents import read_json
from sweeper.store.files import Store
from sweeper.store.layout import Layout
from sweeper.store.sweeps import read_events, read_plan

__all__ = ["moved_from", "place_of", "stay"]

_NAMED = 3


def place_of(backend: Backend) -> dict[str, str]:
    """What tells the place where a backend's jobs wait from others."""
    return {"backend": backend.name, **(backend.place() if isinstance(backend, Placed) else {})}


def stay(store: Store, sweep: str, place: Mapping[str, str]) -> None:
    """See that no job of the sweep may wait or be at work elsewhere than at `place`. One that a
    user has cancelled may: should it start, its worker finds the request. Raises `UsageError`."""
    try:
        plan = read_plan(store, sweep)
    except NotFound:
        return  # it was never launched
    before = moved_from(store, sweep, plan, place)
    left = [] if before is None else _with_a_job(store, sweep, plan)
    if left:
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        raise UsageError(
            f"{sweep}: runs that were submitted to {before} are not over, and a launch to "
            f"{_shown(place)} would not find their jobs: launch with the earlier setting, or "
            f"`sweeper cancel` them first ({', '.join(left[:_NAMED])}{more})"
        )


def moved_from(
    store: Store, sweep: str, plan: Mapping[str, Any], place: Mapping[str, str]
) -> str | None:
    """Where the sweep with this plan was submitted to, for people, where that is not `place`."""
    before: dict[str, str] = {"backend": plan["launch"]["backend"]}
    with suppress(NotFound, StoreError):  # one that is damaged is written anew
        before = read_json(store, Layout(sweep).service).get("place") or before
    if all(place.get(key, value) == value for key, value in before.items()):
        return None
    return _shown(before)


def _with_a_job(store: Store, sweep: str, plan: Mapping[str, Any]) -> list[str]:
    """The names of the runs that may have a job, and are not to be stopped."""
    launch = plan["launch"]
    # What was preempted waits in the queue again where the backend restarts jobs by itself.
    restarted = terms_of(str(launch["backend"]), options_of(launch)).restarts is not None
    counted = {*OPEN, State.PREEMPTED} if restarted else OPEN
    events = read_events(store, sweep)
    found: list[str] = []
    for run in plan["runs"]:
        happened = events.get(run["id"], set())
        state = fold(happened)
        if (state.state in counted or state.unacknowledged) and not cancel_asked(happened):
            found.append(run["name"])
    return found


def _shown(place: Mapping[str, str]) -> str:
    """`slurm (cluster a)`."""
    about = ", ".join(f"{key} {value}" for key, value in place.items() if key != "backend")
    return f"{place.get('backend')} ({about})" if about else str(place.get("backend"))
