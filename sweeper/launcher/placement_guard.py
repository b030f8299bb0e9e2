"""Keeps a sweep where its jobs are. A launcher that looked for them in another queue, or on another
cluster, would find none, take those that wait for lost, and start each a second time."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from sweeper.backends import Away, may_restart, open_backend, options_of, restarts_at
from sweeper.backends.base import Backend
from sweeper.errors import (
    Damaged,
    EnvironmentFailure,
    NotFound,
    StoreError,
    SweeperError,
    Unreachable,
    UsageError,
)
from sweeper.labels import first_of
from sweeper.model.plan import Plan
from sweeper.model.states import OPEN, RunState, State, cancel_asked, fold
from sweeper.scheduler.run_table import WITHDRAWN
from sweeper.storage.base import Store
from sweeper.storage.layout import token
from sweeper.storage.sweeps import (
    read_events,
    read_outcome,
    read_plan,
    service_of,
    submitted_to,
)

__all__ = [
    "Located",
    "is_same",
    "located",
    "moved_from",
    "place_of",
    "refuse_another",
    "refuse_moved_sweep",
]

Located: TypeAlias = Sequence[Mapping[str, str]]
"""The places of a sweep, in their order, each with what distinguishes it from others."""

_NAMED = 3
_ANSWER_SECONDS = 20.0
"""How long a backend may take to answer: some look for 15 s before they believe that a job is
gone."""
_CANCEL = "`sweeper cancel` them, launch, and `sweeper retry` them"


def place_of(backend: Backend) -> dict[str, str]:
    """What distinguishes the place where a backend's jobs wait from others."""
    return {"backend": backend.name, **backend.location()}


def located(backends: Mapping[str, Backend], before: Located = ()) -> list[dict[str, str]]:
    """The same of all backends of a sweep. One that could not be opened is where it was `before`,
    if that is known."""
    known = {place["backend"]: dict(place) for place in before}
    return [
        known.get(name, place_of(backend)) if isinstance(backend, Away) else place_of(backend)
        for name, backend in backends.items()
    ]


def refuse_another(before: Located, name: str, backend: Backend) -> None:
    """Refuse a backend of the place `name` that leads to another place than `before`. Raises
    `EnvironmentFailure`."""
    here = place_of(backend) | {"backend": name}
    for place in before:
        if place["backend"] == name and not _is_part(place, here):
            raise EnvironmentFailure(
                f"jobs are at {_shown(place)}, and from here is {_shown(here)}"
            )


def refuse_moved_sweep(
    store: Store, sweep: str, places: Located, tell: Callable[[str], None] = lambda _: None
) -> None:
    """Refuse a launch to `places` while jobs of the sweep may be elsewhere.

    A job that a user has cancelled may be: if it starts, its worker finds the request. For runs
    that may or may not have been submitted the earlier place is asked. `tell` hears of a record
    that is damaged where none of it is needed. Raises `UsageError`, and `StoreError` where it is.
    """
    try:
        plan = read_plan(store, sweep)
    except NotFound:
        return  # it was never launched
    left = _left(store, sweep, plan)
    # A backend without a location of its own is known by its name, which the plan has.
    needed = bool(left) and any(set(place) != {"backend"} for place in places)
    before = _places_before(store, sweep, plan, needed=needed, tell=tell)
    for there in before:
        gone = [one for one in left if _was_at(store, sweep, one, before, places) == there]
        if gone:
            _refuse_unless_none(store, plan, gone, there, places)


class _Left(NamedTuple):
    """An attempt that is not over; one that is not `submitted` may have been, or not."""

    run: str
    attempt: int
    name: str
    submitted: bool


def _was_at(
    store: Store, sweep: str, one: _Left, before: Located, places: Located
) -> Mapping[str, str] | None:
    """The place of an attempt, of those `before`, where a launch to `places` would not find it;
    None where it would."""
    at = None
    if len(before) > 1 or len(places) > 1:
        try:
            at = submitted_to(store, sweep, one.run, one.attempt)
        except Damaged:  # it may be at any of them
            kept = [there for there in before if any(_is_part(there, place) for place in places)]
            return next((there for there in before if there not in kept), None)
    there = next((place for place in before if place["backend"] == at), before[0])
    # Of an attempt from before there could be several places the launcher takes the first for its.
    here = places if at is not None or len(places) == 1 else places[:1]
    return None if any(_is_part(there, place) for place in here) else there


def _refuse_unless_none(
    store: Store, plan: Plan, left: Sequence[_Left], before: Mapping[str, str], places: Located
) -> None:
    """Refuse to leave these attempts behind at a place, unless it says that it has none of them."""
    sweep, there, here = plan.name, _shown(before), " and ".join(map(_shown, places))
    submitted = [one.name for one in left if one.submitted]
    opened = {token(one.run, one.attempt): one.name for one in left if not one.submitted}
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
            f"({first_of(submitted, _NAMED)})"
        )
    if unknown is not None:
        raise UsageError(
            f"{sweep}: whether {there} has jobs of runs that are not over cannot be told "
            f"({unknown}), and a launch to {here} would not find them: launch again when it can "
            f"be, or {_CANCEL} ({first_of(list(opened.values()), _NAMED)})"
        )


def moved_from(store: Store, sweep: str, plan: Plan, places: Located) -> str | None:
    """Where the sweep was submitted to, in words, if that is not among `places`; else None."""
    for before in _places_before(store, sweep, plan):
        if not any(_is_part(before, place) for place in places):
            return _shown(before)
    return None


def _places_before(
    store: Store,
    sweep: str,
    plan: Plan,
    *,
    needed: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Located:
    """Where the sweep was submitted to. If that cannot be read, it raises `StoreError` where it is
    `needed`, since there may be jobs; else it is going to be written anew, of which `tell` hears.
    """
    before = [{"backend": place} for place in plan.launch.places]
    try:
        return service_of(store, sweep).places or before
    except NotFound:
        return before
    except StoreError as error:
        if needed:
            raise StoreError(
                f"{error}; so where its jobs wait is not known: `sweeper cancel {sweep}`, and "
                "launch again when they have ended"
            ) from error
        tell(f"{error}; nothing of it is needed, and it is written anew")
        return before


def is_same(before: Located, places: Located) -> bool:
    """Whether these are the places from before, in their order. Of one that was away then it was
    not known where it is."""
    pairs = zip(before, places, strict=False)
    return len(before) == len(places) and all(_is_part(*pair) for pair in pairs)


def _is_part(before: Mapping[str, str], place: Mapping[str, str]) -> bool:
    return all(place.get(key, value) == value for key, value in before.items())


def _backend_before(store: Store, sweep: str, plan: Plan, before: Mapping[str, str]) -> Backend:
    """Open the backend that the sweep was submitted to. Raises `EnvironmentFailure` if its name
    means another place from here."""
    name = before["backend"]
    folder = f"{store.root}/{sweep}"
    backend = open_backend(name, sweep, folder, options_of(plan.launch, name))
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


def _left(store: Store, sweep: str, plan: Plan) -> list[_Left]:
    """The attempts that are not over, of runs that are not to be stopped."""
    launch = plan.launch
    # Where the backend restarts jobs by itself, preempted ones wait in its queue again.
    restarted = may_restart(launch)
    events = read_events(store, sweep)
    found: list[_Left] = []
    for run in plan.runs:
        happened = events.get(run.id, set())
        state = fold(happened)
        if cancel_asked(happened):
            continue
        waits = restarted and state.state is State.PREEMPTED
        if state.state in OPEN or (waits and _is_requeued(store, plan, run.id, state)):
            found.append(_Left(run.id, state.attempt, run.name, True))
        elif state.unacknowledged:
            found.append(_Left(run.id, state.opened, run.name, False))
    return found


def _is_requeued(store: Store, plan: Plan, run: str, state: RunState) -> bool:
    """Whether the job of a preempted attempt may wait where it was, to be started again. None is
    left of one that was withdrawn: should its job begin all the same, it finds that and ends."""
    launch = plan.launch
    try:
        if read_outcome(store, plan.name, run, state).reason == WITHDRAWN:
            return False
        at = submitted_to(store, plan.name, run, state.attempt) if launch.backends else None
    except Damaged:
        return True
    at = at if at in launch.places else launch.places[0]
    return not launch.backends or restarts_at(launch, at)


def _shown(place: Mapping[str, str]) -> str:
    """`slurm (cluster a)`."""
    about = ", ".join(f"{key} {value}" for key, value in place.items() if key != "backend")
    return f"{place.get('backend')} ({about})" if about else str(place.get("backend"))
