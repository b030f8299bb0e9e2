"""Records users' requests to stop a run or start it again. Each request is an event, created
once, so repeating a request changes nothing."""

from contextlib import suppress
from typing import NamedTuple

from sweeper.common.codec import SCHEMA
from sweeper.errors import AlreadyExists
from sweeper.store.documents import encode, timestamp
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import (
    OPEN,
    Event,
    State,
    cancel_asked,
    fold,
    last_retry,
    retry_asked,
    wants_attempt,
)
from sweeper.sweep.sweep_requests import user

_OPENED = (
    "an attempt is already open, but it is unknown whether it was submitted: the "
    "launcher checks that and submits it if needed"
)
"""The message about a run whose next attempt is recorded, but perhaps not submitted. No request
is needed then."""

Happened = set[tuple[int, Event]]
"""The events of a run, each with its attempt."""


class Requested(NamedTuple):
    """The result of a request. `accepted` is False if the state of the run does not allow the
    request. `why` describes the result, for people. With `waits`, the run's next attempt is already
    recorded, but perhaps not submitted yet."""

    run: str
    accepted: bool
    why: str
    waits: bool = False


def request_cancel(
    folder: SweepFolder, run: str, happened: Happened, retries: int, by: str | None = None
) -> Requested:
    """Request to stop a run and not to start it again. `by` is the user (None: the user of this
    process)."""
    state = fold(happened)
    at_work = state.at_work
    waits = state.state in (State.PLANNED, State.PREEMPTED, State.LOST)
    waits = waits or wants_attempt(happened, retries)
    if cancel_asked(happened) or not (at_work or waits):
        word = "cancelled" if state.state is State.CANCELLED else f"{state.state.value} already"
        return Requested(run, cancel_asked(happened), word)
    attempt = max(state.opened, 1)
    if at_work:
        _request(folder, run, (attempt, Event.CANCEL), happened, by)
    last = last_retry(happened)
    if last >= attempt or not at_work:
        # A retry of this attempt would revoke the request, so the request names the next attempt.
        after = max(attempt, last + 1)
        _request(folder, run, (after, Event.CANCEL), happened, by)
    return Requested(run, True, "cancelled")


def asked_again(run: str, happened: Happened, *, succeeded: bool = False) -> Requested:
    """Return what `request_retry` would return, but record no request."""
    state = fold(happened)
    if state.state is State.SUCCEEDED and not succeeded:
        return Requested(run, False, "succeeded already")
    if state.at_work and cancel_asked(happened):
        return Requested(run, False, "being cancelled: retry once that is done")
    if state.state in OPEN:
        return Requested(run, False, "still running")
    if state.unacknowledged:
        return Requested(run, True, _OPENED, waits=True)
    return Requested(run, True, "already requested" if retry_asked(happened) else "requested")


def request_retry(
    folder: SweepFolder, run: str, happened: Happened, *, succeeded: bool = False
) -> Requested:
    """Request another attempt of a run. For a run that has succeeded, the request is accepted only
    with `succeeded`."""
    request = asked_again(run, happened, succeeded=succeeded)
    if request.accepted and not request.waits and not retry_asked(happened):
        last = max((n for n, event in happened if event is Event.CANCEL), default=0)
        attempt = max(fold(happened).opened, last, 1)
        is_over = fold(happened).state is State.SUCCEEDED
        event = Event.AGAIN if is_over else Event.RETRY
        _request(folder, run, (attempt, event), happened, None)
    return request


def _request(
    folder: SweepFolder, run: str, attempt: tuple[int, Event], happened: Happened, by: str | None
) -> None:
    body = {"schema": SCHEMA, "time": timestamp(), "by": by or user()}
    with suppress(AlreadyExists):
        folder.store.create(folder.event(run, *attempt), encode(body))
    happened.add(attempt)
