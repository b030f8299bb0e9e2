"""Claims an attempt for one of its workers, since a backend may start several workers for it. Opens
the next attempt when the backend itself has restarted a job."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Never, TypeVar

from sweeper.common.backoff import retried
from sweeper.common.codec import SCHEMA
from sweeper.errors import AlreadyExists, Damaged, NotFound, StoreError
from sweeper.store.base import Store
from sweeper.store.documents import encode, read_as, read_json, timestamp
from sweeper.sweep import event
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import ENDED, Event, RunState, State, fold, parse_name, wants_attempt

T = TypeVar("T")
_NOTHING: Mapping[str, Never] = MappingProxyType({})
RETRY_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between the tries of `with_retries`."""


def with_retries(action: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """Call `action`, with a few retries while the store does not answer. `NotFound` and
    `AlreadyExists` are raised immediately."""
    return retried(action, RETRY_PAUSES, _is_unanswered, sleep=sleep)


def _is_unanswered(error: Exception) -> bool:
    return isinstance(error, StoreError) and not isinstance(error, AlreadyExists)


def claim(
    folder: SweepFolder,
    run: str,
    attempt: int,
    submitted: int | None = None,
    origin: Mapping[str, object] = _NOTHING,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Claim the attempt. Return False if another worker has claimed it, or if the next attempt has
    begun. If the store's reply is lost, a random nonce in the claim shows that the claim is ours.
    `origin` has the fields that say which code the attempt runs. `sleep` waits between retries."""
    nonce = os.urandom(8).hex()
    path = folder.event(run, attempt, Event.CLAIMED)
    body = {
        "schema": SCHEMA,
        "time": timestamp(),
        "started": timestamp(),
        "nonce": nonce,
        "submitted": attempt if submitted is None else submitted,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        **origin,
    }
    if with_retries(lambda: newer_attempt(folder, run, attempt), sleep):
        return False
    try:
        with_retries(lambda: folder.store.create(path, encode(body)), sleep)
    except AlreadyExists:
        return with_retries(lambda: read_as(folder.store, path, event.read), sleep).nonce == nonce
    return True


def newer_attempt(folder: SweepFolder, run: str, attempt: int) -> bool:
    """Return whether the next attempt has begun, so that `attempt` must not run any more."""
    return folder.store.exists(folder.event(run, attempt + 1, Event.INTENT))


_GO_ON = (State.PLANNED, State.SUBMITTED, State.RUNNING, State.LOST, State.PREEMPTED)


def restarts(variable: str, first: int | None, environ: Mapping[str, str] = os.environ) -> int:
    """Return how often the backend has restarted this job. `variable` names the environment
    variable with the backend's counter, and `first` is the counter's value at the first start. If
    `first` is None (jobs of older launchers), 1 is used if the variable's name ends with
    `_ATTEMPT`, else 0. If the counter is not a number, return 0."""
    text = environ.get(variable, "")
    if first is None:
        first = 1 if variable.endswith("_ATTEMPT") else 0
    return max(0, int(text) - first) if text.isdecimal() else 0


def reopen(folder: SweepFolder, run: str, submitted: int, attempt: int) -> bool:
    """Record that `attempt` begins, for a job that the backend has restarted. The job was submitted
    for the attempt `submitted`. Return False if there is nothing to continue: the run has ended, is
    being stopped, was restarted too often, or is executed by another job. Can be repeated."""
    events = with_retries(lambda: read_run_events(folder, run))
    if (attempt, Event.INTENT) not in events:
        # If later attempts are open, this one was given up, which the claim will notice.
        state = fold(events)
        preempted = events | {(state.opened, Event.PREEMPTED)}
        if state.state not in _GO_ON or not wants_attempt(preempted, 0):
            return False  # The run has ended, or was restarted too often.
        if _anothers(folder, run, submitted, state, events):
            return False
        # Open the attempts in between too, though they have no worker. A worker that was wrongly
        # taken for dead looks for the attempt after its own.
        opened = {number for number, event in events if event is Event.INTENT}
        for number in range(submitted + 1, attempt + 1):
            if number not in opened:
                _open(folder, run, submitted, number)
    earlier = {event for number, event in events if number == attempt - 1}
    if Event.CLAIMED in earlier and not earlier & {*ENDED, Event.LOST}:
        # The worker died without recording an outcome. If it lives after all, it finds a newer
        # attempt and stops. Its own outcome then takes precedence over this one, or is the same.
        body = {"schema": SCHEMA, "time": timestamp(), "reason": "restarted"}
        body |= {"detail": "the backend restarted the job", "code": None, "signal": None}
        body |= dict.fromkeys(("started", "ended", "wall_s", "max_rss_bytes", "host"))
        with_retries(
            lambda: _create(folder.store, folder.event(run, attempt - 1, Event.PREEMPTED), body)
        )
    return True


def _anothers(
    folder: SweepFolder, run: str, submitted: int, state: RunState, events: set[tuple[int, Event]]
) -> bool:
    """Return whether another job is executing the newest attempt."""
    number = state.opened
    ended = {event for n, event in events if n == number} & {*ENDED, Event.LOST}
    if number <= submitted or (number, Event.CLAIMED) not in events or ended:
        return False
    path = folder.event(run, number, Event.CLAIMED)
    owner = with_retries(lambda: read_as(folder.store, path, event.read)).submitted
    return owner not in (None, submitted)


def _open(folder: SweepFolder, run: str, submitted: int, attempt: int) -> None:
    launch = with_retries(lambda: _describe(folder, run, submitted, attempt))
    body = {"schema": SCHEMA, "time": timestamp(), "by": "the backend, which restarted it"}
    place = with_retries(lambda: _place(folder, run, submitted))
    body |= {} if place is None else {"place": place}  # The job is still at the same place.
    body |= {} if launch is None else {"launch": launch}
    with_retries(lambda: _create(folder.store, folder.event(run, attempt, Event.INTENT), body))


def _place(folder: SweepFolder, run: str, submitted: int) -> str | None:
    """Return the backend to which the job was submitted. Return None if no record names the
    backend, or if the record is damaged."""

    with suppress(Damaged):
        return folder.place_of(run, submitted)
    return None


def read_run_events(folder: SweepFolder, run: str) -> set[tuple[int, Event]]:
    """Return the events of one run, each with its attempt. Raises `StoreError`."""
    states = f"{folder.state}/{run}"
    names = (parse_name(path.rpartition("/")[2]) for path in folder.store.names(states))
    return {event for event in names if event is not None}


def _describe(folder: SweepFolder, run: str, submitted: int, attempt: int) -> object:
    """Copy the job description and the code diff from the attempt `submitted` to `attempt`. Return
    the launch id in the description, or None if the description has none."""
    job = read_json(folder.store, folder.job(run, submitted))
    folder.store.replace(folder.job(run, attempt), encode(job | {"attempt": attempt}))
    path = f"{folder.log_path(run, submitted)}/code.diff"
    try:
        diff = folder.store.read(path)
    except NotFound:
        return job.get("launch")  # The code had no changes to its commit.
    folder.store.replace(f"{folder.log_path(run, attempt)}/code.diff", diff, durable=False)
    return job.get("launch")


def _create(store: Store, path: str, body: Mapping[str, object]) -> None:
    try:
        store.create(path, encode({**body}))
    except AlreadyExists:
        return  # An earlier request has written it, or another process that knew more.
