"""Keeps a sweep where its jobs are. A launcher that looked for them in another queue, or on another
cluster, would find none, take those that wait for lost, and start each a second time."""

import time
from collections.abc import Mapping, Sequence

from sweeper.backends import may_restart, open_backend, options_of
from sweeper.backends.base import Backend
from sweeper.errors import (
    EnvironmentFailure,
    NotFound,
    StoreError,
    SweeperError,
    Unreachable,
    UsageError,
)
from sweeper.model.plan import Plan
from sweeper.model.states import OPEN, State, cancel_asked, fold
from sweeper.storage.files import Store
from sweeper.storage.layout import token
from sweeper.storage.sweeps import read_events, read_plan, service_of

__all__ = ["moved_from", "place_of", "refuse_moved_sweep"]

_NAMED = 3
_ANSWER_SECONDS = 20.0
"""How long a backend may take to answer: some look for 15 s before they believe that a job is
gone."""
_CANCEL = "`sweeper cancel` them, launch, and `sweeper retry` them"


def place_of(backend: Backend) -> dict[str, str]:
    """What distinguishes the place where a backend's jobs wait from others."""
    return {"backend": backend.name, **backend.location()}


def refuse_moved_sweep(store: Store, sweep: str, place: Mapping[str, str]) -> None:
    """Refuse a launch at `place` while jobs of the sweep may be elsewhere.

    A job that a user has cancelled may be: if it starts, its worker finds the request. For runs
    that may or may not have been submitted the earlier place is asked. Raises `UsageError`.
    """
    try:
        plan = read_plan(store, sweep)
    except NotFound:
        return  # it was never launched
    submitted, opened = _left(store, sweep, plan)
    # A backend without a location of its own is known by its name, which the plan has.
    needed = bool(submitted or opened) and set(place) != {"backend"}
    before = _place_before(store, sweep, plan, needed=needed)
    if _is_part(before, place):
        return
    there, here = _shown(before), _shown(place)
    unknown: Exception | None = None
    if opened:
        try:
            found = _asked(_backend_before(store, sweep, plan, before), list(opened))
            submitted += [name for job, name in opened.items() if job in found]
        except SweeperError as error:
            unknown = error
    if submitted:
        raise UsageError(
            f"{sweep}: runs that were submitted to {there} are not over, and a launch to {here} "
            f"would not find their jobs: launch with the earlier setting, or {_CANCEL} "
            f"({_some(submitted)})"
        )
    if unknown is not None:
        raise UsageError(
            f"{sweep}: whether {there} has jobs of runs that are not over cannot be told "
            f"({unknown}), and a launch to {here} would not find them: launch again when it can "
            f"be, or {_CANCEL} ({_some(list(opened.values()))})"
        )


def moved_from(store: Store, sweep: str, plan: Plan, place: Mapping[str, str]) -> str | None:
    """Where the sweep was submitted to, in words, if that is not `place`; else None."""
    before = _place_before(store, sweep, plan)
    return None if _is_part(before, place) else _shown(before)


def _place_before(
    store: Store, sweep: str, plan: Plan, *, needed: bool = False
) -> Mapping[str, str]:
    """Where the sweep was submitted to. If that cannot be read, it raises `StoreError` where it is
    `needed`, since there may be jobs; else it is going to be written anew."""
    before: dict[str, str] = {"backend": plan.launch.backend}
    try:
        return service_of(store, sweep).place or before
    except NotFound:
        return before
    except StoreError as error:
        if needed:
            raise StoreError(
                f"{error}; so where its jobs wait is not known: `sweeper cancel {sweep}`, and "
                "launch again when they have ended"
            ) from error
        return before


def _is_part(before: Mapping[str, str], place: Mapping[str, str]) -> bool:
    return all(place.get(key, value) == value for key, value in before.items())


def _backend_before(store: Store, sweep: str, plan: Plan, before: Mapping[str, str]) -> Backend:
    """Open the backend that the sweep was submitted to. Raises `EnvironmentFailure` if its name
    means another place from here."""
    launch = plan.launch
    folder = f"{store.root}/{sweep}"
    backend = open_backend(launch.backend, sweep, folder, options_of(launch))
    if not _is_part(before, place_of(backend)):
        raise EnvironmentFailure("it is out of reach from here")
    return backend


def _asked(backend: Backend, tokens: Sequence[str]) -> Mapping[str, str]:
    """Ask a backend which jobs it finds. One that does not believe its own answer yet is given
    time."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            return backend.find(tokens)
        except Unreachable:
            if time.monotonic() > deadline:
                raise
        time.sleep(1.0)


def _left(store: Store, sweep: str, plan: Plan) -> tuple[list[str], dict[str, str]]:
    """Of the runs that are not to be stopped: the names of those that were submitted and have not
    ended; and token -> name of those that were opened, of which only the backend knows more."""
    launch = plan.launch
    # Where the backend restarts jobs by itself, preempted ones wait in its queue again.
    restarted = may_restart(launch)
    counted = {*OPEN, State.PREEMPTED} if restarted else OPEN
    events = read_events(store, sweep)
    submitted: list[str] = []
    opened: dict[str, str] = {}
    for run in plan.runs:
        happened = events.get(run.id, set())
        state = fold(happened)
        if cancel_asked(happened):
            continue
        if state.state in counted:
            submitted.append(run.name)
        elif state.unacknowledged:
            opened[token(run.id, state.opened)] = run.name
    return submitted, opened


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _shown(place: Mapping[str, str]) -> str:
    """`slurm (cluster a)`."""
    about = ", ".join(f"{key} {value}" for key, value in place.items() if key != "backend")
    return f"{place.get('backend')} ({about})" if about else str(place.get("backend"))
