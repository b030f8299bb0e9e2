"""Events, and the state of a run that follows from them. Does no I/O."""

# An event is a file `state/<run>/<attempt>.<event>.json`, created once and never changed. The state
# of a run follows from the set of its event names alone. The order in which events were written,
# listed or read does not matter:
#
# - the highest attempt with any event other than an intent decides;
# - among that attempt's events, the one of highest precedence decides.
#
# An `intent` alone means that a launcher was about to submit the attempt. It opens the attempt and
# changes no state.
#
# Three events are requests, written by the process that makes the request:
#
# - `cancel`: stop this attempt and start no other. It holds until a `retry` of the same or a later
#   attempt. It cancels a run immediately if nothing was started, or if the run waited to be
#   restarted after a preemption or a loss; a running run is cancelled when its worker has ended.
# - `retry`: start another attempt after this one ends. It revokes a `cancel`, and the failure, loss
#   or preemption of its attempt no longer counts.
# - `again`: like `retry`, but for an attempt that has succeeded, or is about to succeed. Only this
#   request starts a run again after a success. The next attempt uses no earlier files.
#
# A request may name the attempt after the last one, for example to cancel a run that waits for its
# retry.

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

_MOST_RESTARTS = 20
"""The largest number of restarts of a run after preemptions and losses. This number is high enough
for any spot market, but limits a run that crashes its machine."""


class State(StrEnum):
    PLANNED = "planned"
    SUBMITTED = "submitted"
    RUNNING = "running"
    LOST = "lost"
    PREEMPTED = "preempted"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"


class NoState(StrEnum):
    """The state shown for a run without events, such as a run that another program has written."""

    UNKNOWN = "unknown"


class Event(StrEnum):
    """An event of an attempt. If an attempt has several events, the one that this class defines
    last decides the attempt's state."""

    CANCEL = "cancel"  # a request: stop this attempt, start no other
    RETRY = "retry"  # a request: start another attempt after this one ends
    AGAIN = "again"  # a request: like RETRY, also after a success, and without earlier files
    INTENT = "intent"  # the launcher is about to submit
    SUBMITTED = "submitted"  # the backend has accepted the job
    CLAIMED = "claimed"  # a worker holds the attempt, exclusively
    LOST = "lost"  # the lease expired and the backend has no such job
    RETURNED = "returned"  # the worker was declared lost but is alive
    PREEMPTED = "preempted"  # stopped from outside; may be resumed
    FAILED = "failed"
    CANCELLED = "cancelled"  # stopped because a user requested it
    SUCCEEDED = "succeeded"


_PRECEDENCE = {event: rank for rank, event in enumerate(Event)}

_STATE_AFTER = {
    Event.SUBMITTED: State.SUBMITTED,
    Event.CLAIMED: State.RUNNING,
    Event.LOST: State.LOST,
    Event.RETURNED: State.RUNNING,
    Event.PREEMPTED: State.PREEMPTED,
    Event.FAILED: State.FAILED,
    Event.CANCELLED: State.CANCELLED,
    Event.SUCCEEDED: State.SUCCEEDED,
}

RETRIES = frozenset({Event.RETRY, Event.AGAIN})
"""Requests to start another attempt."""

OPEN = frozenset({State.SUBMITTED, State.RUNNING})
"""States in which a job may be running."""

OUTCOMES = (Event.SUCCEEDED, Event.FAILED, Event.CANCELLED, Event.PREEMPTED)
"""Events that end an attempt, the most informative first. The event's body is the attempt's
outcome."""

ENDED = frozenset(OUTCOMES)

_BETWEEN = frozenset({Event.PREEMPTED, Event.LOST})
"""After these events a run waits to be restarted, unless a user has cancelled it."""


class RunState(NamedTuple):
    """The state of a run according to its events.

    `attempt` is the attempt that decides the state (0: none yet), and `event` is the deciding
    event. `opened` is the number of the latest recorded attempt, which a launcher may not have
    submitted yet.
    """

    state: State
    attempt: int
    opened: int
    event: Event | None

    @property
    def unacknowledged(self) -> bool:
        """Whether the latest attempt is recorded, but perhaps not submitted."""
        return self.opened > self.attempt

    @property
    def at_work(self) -> bool:
        """Whether a job of the run may be running."""
        return self.state in OPEN or self.unacknowledged


def fold(events: Iterable[tuple[int, Event]]) -> RunState:
    """Return the state that follows from `events`, pairs of attempt and event in any order."""
    opened = 0
    best: tuple[int, int] = (0, -1)
    deciding: Event | None = None
    cancel = retry = 0
    for attempt, event in events:
        if event is Event.CANCEL:
            cancel = max(cancel, attempt)
            continue
        if event in RETRIES:
            retry = max(retry, attempt)
            continue
        opened = max(opened, attempt)
        rank = (attempt, _PRECEDENCE[event])
        if event is not Event.INTENT and rank > best:
            best, deciding = rank, event
    cancelled = cancel > retry and cancel >= max(opened, 1)
    if deciding is None:
        if cancelled and not opened:
            return RunState(State.CANCELLED, 0, 0, Event.CANCEL)
        return RunState(State.PLANNED, 0, opened, None)
    state = _STATE_AFTER[deciding]
    if cancelled and deciding in _BETWEEN and best[0] == opened:
        state = State.CANCELLED
    return RunState(state, best[0], opened, deciding)


def cancel_asked(events: Collection[tuple[int, Event]]) -> bool:
    """Return whether a request to cancel the run is in effect. A later retry or a later attempt
    ends the request's effect."""
    last = _last(events, Event.CANCEL)
    return last > last_retry(events) and last >= max(fold(events).opened, 1)


def retry_asked(events: Collection[tuple[int, Event]]) -> bool:
    """Return whether a user has requested another attempt that is neither recorded nor cancelled
    yet."""
    return last_retry(events) >= max(fold(events).opened, 1) and not cancel_asked(events)


def wants_attempt(events: Collection[tuple[int, Event]], retries: int) -> bool:
    """Return whether a run with these events should be started (again). A run is restarted at most
    `retries` times after failures, and at most `_MOST_RESTARTS` times after preemptions and losses.
    An attempt for which a user has requested a retry does not count towards these limits."""
    state = fold(events)
    if state.unacknowledged or state.state in OPEN or cancel_asked(events):
        return False
    if state.state is State.SUCCEEDED:
        return _last(events, Event.AGAIN) >= state.opened
    if state.state is State.PLANNED or retry_asked(events):
        return True
    excused = {attempt for attempt, event in events if event in RETRIES}
    happened = [event for attempt, event in events if attempt not in excused]
    if state.state is State.FAILED:
        return happened.count(Event.FAILED) <= retries
    if state.state in (State.PREEMPTED, State.LOST):
        return happened.count(Event.PREEMPTED) + happened.count(Event.LOST) <= _MOST_RESTARTS
    return False


def is_finished(
    events: Collection[tuple[int, Event]], retries: int, *, retired: bool = False
) -> bool:
    """Return whether a run with these events is finished: no job of the run may be running, and no
    launcher would start a job. Launchers start no job for a `retired` run (no longer in the grid),
    not even for an attempt that was recorded before."""
    state = fold(events)
    if state.state in OPEN:
        return False
    return retired or not (state.unacknowledged or wants_attempt(events, retries))


def last_retry(events: Iterable[tuple[int, Event]]) -> int:
    """Return the latest attempt after which a user has requested another attempt; 0 if none."""
    return max((attempt for attempt, event in events if event in RETRIES), default=0)


def begun_anew(events: Iterable[tuple[int, Event]], attempt: int) -> int:
    """Return the earliest attempt whose files `attempt` may reuse: the attempt after the last
    request to start without earlier files (`Event.AGAIN`), or 1 without such a request."""
    attempts = (n for n, event in events if event is Event.AGAIN and n < attempt)
    return max(attempts, default=0) + 1


def _last(events: Iterable[tuple[int, Event]], kind: Event) -> int:
    return max((attempt for attempt, event in events if event is kind), default=0)


def parse_name(name: str) -> tuple[int, Event] | None:
    """Parse `"2.claimed.json"` to `(2, Event.CLAIMED)`. Return None if `name` is not the name of an
    event."""
    parts = name.split(".")
    if len(parts) != 3 or parts[2] != "json" or not parts[0].isdecimal():
        return None
    try:
        return int(parts[0]), Event(parts[1])
    except ValueError:
        return None
