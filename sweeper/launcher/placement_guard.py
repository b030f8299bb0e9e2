"""Refuses to launch a sweep at another place (queue or cluster) while it has jobs at the earlier
place. A launcher at the other place would not find these jobs, count them as lost, and start each a
second time."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.hint import hint
from sweeper.sweep.labels import first_of
from sweeper.sweep.plan import Plan
from sweeper.sweep.run_table import WITHDRAWN
from sweeper.sweep.states import OPEN, RunState, State, cancel_asked, fold

Located: TypeAlias = Sequence[Mapping[str, str]]
"""The places of a sweep, in order, each with the fields that identify it."""

_NAMED = 3
_ANSWER_SECONDS = 20.0
"""Seconds to wait for a backend's answer. Some backends check for 15 s before they report a job
as missing."""
_CANCEL = "use `sweeper cancel`, launch, and use `sweeper retry` for these runs"


def place_of(backend: Backend) -> dict[str, str]:
    """Return the fields that identify the place where a backend's jobs run."""
    return {"backend": backend.name, **backend.location()}


def located(backends: Mapping[str, Backend], before: Located = ()) -> list[dict[str, str]]:
    """Return the places of all backends of a sweep. For a backend that could not be opened, return
    its place in `before` (the recorded places); if it has none there, return only its name."""
    recorded = {place["backend"]: dict(place) for place in before}
    return [
        recorded.get(name, place_of(backend)) if isinstance(backend, Away) else place_of(backend)
        for name, backend in backends.items()
    ]


def refuse_another(before: Located, name: str, backend: Backend) -> None:
    """Raise `EnvironmentFailure` if the backend `name` runs jobs at a different place than `before`
    records."""
    here = place_of(backend) | {"backend": name}
    for place in before:
        if place["backend"] == name and not _is_part(place, here):
            raise EnvironmentFailure(
                f"the jobs are at {_shown(place)}, but on this machine {name} is {_shown(here)}"
            )


def refuse_moved_sweep(
    folder: SweepFolder,
    places: Located,
    tell: Callable[[str], None] = lambda _: None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Raise `UsageError` if jobs of the sweep may be at a recorded place that is not in `places`.
    Cancelled jobs do not count: if such a job starts, its worker sees the request to cancel and
    ends. If it is unknown whether an attempt was submitted, ask the backend at the recorded place.
    If the record of places is damaged, tell the user; raise `StoreError` if the check needs the
    record."""
    try:
        plan = folder.read_plan()
    except NotFound:
        return  # The sweep was never launched.
    left = _left(folder, plan)
    # A backend without a location is identified by its name, which the plan has.
    needed = bool(left) and any(set(place) != {"backend"} for place in places)
    before = _places_before(folder, plan, needed=needed, tell=tell)
    for there in before:
        gone = [attempt for attempt in left if _was_at(folder, attempt, before, places) == there]
        if gone:
            find = partial(_find, clock=clock, sleep=sleep)
            _refuse_unless_none(folder, plan, gone, there, places, find)


class _Left(NamedTuple):
    """An unfinished attempt. If `submitted` is False, it is unknown whether the attempt was
    submitted."""

    run: str
    attempt: int
    name: str
    submitted: bool


def _was_at(
    folder: SweepFolder, attempt: _Left, before: Located, places: Located
) -> Mapping[str, str] | None:
    """Return the place in `before` to which the attempt was submitted; None if that place is in
    `places`."""
    at = None
    if len(before) > 1 or len(places) > 1:
        try:
            at = folder.place_of(attempt.run, attempt.attempt)
        except Damaged:  # The attempt may be at any of the places.
            places_before = [
                there for there in before if any(_is_part(there, place) for place in places)
            ]
            return next((there for there in before if there not in places_before), None)
    there = next((place for place in before if place["backend"] == at), before[0])
    # Attempts recorded by a version without several places belong to the first place.
    here = places if at is not None or len(places) == 1 else places[:1]
    return None if any(_is_part(there, place) for place in here) else there


def _refuse_unless_none(
    folder: SweepFolder,
    plan: Plan,
    left: Sequence[_Left],
    before: Mapping[str, str],
    places: Located,
    find: Callable[[Backend, Sequence[str]], Mapping[str, str]],
) -> None:
    """Raise `UsageError` if attempts in `left` have, or may have, jobs at the place `before`. If it
    is unknown whether an attempt was submitted, ask the backend at `before`."""
    sweep, there, here = plan.name, _shown(before), " and ".join(map(_shown, places))
    submitted = [attempt.name for attempt in left if attempt.submitted]
    opened = {
        token(attempt.run, attempt.attempt): attempt.name
        for attempt in left
        if not attempt.submitted
    }
    unknown: Exception | None = None
    if opened:
        try:
            jobs = find(_backend_before(folder, plan, before), list(opened))
            submitted += [name for job, name in opened.items() if job in jobs]
        except SweeperError as error:
            unknown = error
    if submitted:
        raise UsageError(
            f"{sweep}: unfinished runs were submitted to {there}, and a launch to {here} "
            f"would not find their jobs: launch with the earlier setting, or {_CANCEL}: "
            f"{first_of(submitted, _NAMED)}"
        )
    if unknown is not None:
        raise UsageError(
            f"{sweep}: {there} may have jobs of unfinished runs ({unknown}), and a launch to "
            f"{here} would not find them: launch again when these jobs can be listed, or "
            f"{_CANCEL}: {first_of(list(opened.values()), _NAMED)}"
        )


def moved_from(folder: SweepFolder, plan: Plan, places: Located) -> str | None:
    """Return a description of a recorded place of the sweep that is not in `places`; None if all
    recorded places are in `places`."""
    for before in _places_before(folder, plan):
        if not any(_is_part(before, place) for place in places):
            return _shown(before)
    return None


def _places_before(
    folder: SweepFolder,
    plan: Plan,
    *,
    needed: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Located:
    """Return the recorded places of the sweep; the plan's places if nothing is recorded. If the
    record cannot be read and is `needed`, raise `StoreError`. If the record is not needed, tell the
    user that it will be rewritten, and return the plan's places."""
    before = [{"backend": place} for place in plan.launch.places]
    try:
        return folder.read_service().places or before
    except NotFound:
        return before
    except StoreError as error:
        if needed:
            raise StoreError(
                f"{error}, so it is unknown where the sweep's jobs are: run "
                f"`{hint('cancel', folder.name, root=folder.store.root)}`, and launch "
                "again when the jobs have ended"
            ) from error
        tell(f"{error}; the file is not needed and will be rewritten")
        return before


def is_same(before: Located, places: Located) -> bool:
    """Return whether `places` are the places `before`, in the same order. A place in `before`
    without a location (its backend did not answer) is compared only by the backend's name."""
    pairs = zip(before, places, strict=False)
    return len(before) == len(places) and all(_is_part(*pair) for pair in pairs)


def _is_part(before: Mapping[str, str], place: Mapping[str, str]) -> bool:
    return all(place.get(key, value) == value for key, value in before.items())


def _backend_before(folder: SweepFolder, plan: Plan, before: Mapping[str, str]) -> Backend:
    """Open the backend at the place `before`. Raises `EnvironmentFailure` if the backend of this
    name on this machine runs jobs at another place."""
    name = before["backend"]
    backend = open_backend(name, folder.name, folder.address, options_of(plan.launch, name))
    if not _is_part(before, place_of(backend)):
        raise EnvironmentFailure("it cannot be reached from here")
    return backend


def _find(
    backend: Backend,
    tokens: Sequence[str],
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Mapping[str, str]:
    """Return a dict from token to job id, for the tokens with jobs at the backend. Ask again while
    the backend is unreachable. Raises `Unreachable` after `_ANSWER_SECONDS`."""
    deadline = clock() + _ANSWER_SECONDS
    while True:
        try:
            return backend.find(tokens)
        except Unreachable:
            if clock() > deadline:
                raise
        sleep(1.0)


def _left(folder: SweepFolder, plan: Plan) -> list[_Left]:
    """Return the unfinished attempts of all runs except those with a request to cancel."""
    launch = plan.launch
    # A backend that restarts jobs by itself has preempted jobs in its queue again.
    restarted = may_restart(launch)
    events = folder.read_events()
    remaining: list[_Left] = []
    for run in plan.runs:
        happened = events.get(run.id, set())
        state = fold(happened)
        if cancel_asked(happened):
            continue
        waits = restarted and state.state is State.PREEMPTED
        if state.state in OPEN or (waits and _is_requeued(folder, plan, run.id, state)):
            remaining.append(_Left(run.id, state.attempt, run.name, True))
        elif state.unacknowledged:
            remaining.append(_Left(run.id, state.opened, run.name, False))
    return remaining


def _is_requeued(folder: SweepFolder, plan: Plan, run: str, state: RunState) -> bool:
    """Return whether the backend may have requeued the job of a preempted attempt. Return False if
    a launcher has withdrawn the attempt (claimed it, so that no worker trains it)."""
    launch = plan.launch
    try:
        if folder.read_outcome(run, state).reason == WITHDRAWN:
            return False
        at = folder.place_of(run, state.attempt) if launch.backends else None
    except Damaged:
        return True
    at = at if at in launch.places else launch.places[0]
    return not launch.backends or restarts_at(launch, at)


def _shown(place: Mapping[str, str]) -> str:
    """Format a place for messages: `slurm (cluster a)`."""
    about = ", ".join(f"{key} {value}" for key, value in place.items() if key != "backend")
    return f"{place.get('backend')} ({about})" if about else str(place.get("backend"))
