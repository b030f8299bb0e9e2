"""Events, and the state of a run that follows from them. Pure: no clock, no disk.

An event is a file `state/<run>/<attempt>.<event>.json`, created once and never changed. The state
of a run is a function of the set of its event names, so it does not depend on the order in which
they were written, listed or read:

- the highest attempt with anything but an intent decides;
- among that attempt's events the one of highest precedence decides.

An `intent` alone says that a launcher was about to submit: it opens an attempt and changes
no state.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "ENDED",
    "OPEN",
    "TRANSITIONS",
    "Event",
    "RunState",
    "State",
    "fold",
    "parse_name",
    "wants_attempt",
]

_MOST_RESTARTS = 20
"""How often a run that was preempted or lost is started again: enough for any spot market, and an
end to a run that kills its machine."""


class State(StrEnum):
    """Where a run stands."""

    PLANNED = "planned"
    SUBMITTED = "submitted"
    RUNNING = "running"
    LOST = "lost"
    PREEMPTED = "preempted"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"


class Event(StrEnum):
    """What happened to an attempt, in order of precedence: a later one outweighs those above it."""

    INTENT = "intent"  # the launcher is about to submit
    SUBMITTED = "submitted"  # the backend has accepted the job
    CLAIMED = "claimed"  # a worker holds the attempt, exclusively
    LOST = "lost"  # the lease ran out and the backend knows no such job
    RETURNED = "returned"  # the worker found itself declared lost, and lives
    PREEMPTED = "preempted"  # stopped from outside; may be resumed
    FAILED = "failed"
    CANCELLED = "cancelled"  # stopped because a user asked
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

OPEN = frozenset({State.SUBMITTED, State.RUNNING})
"""States in which a job may be at work."""

ENDED = frozenset({Event.PREEMPTED, Event.FAILED, Event.CANCELLED, Event.SUCCEEDED})
"""Events that end an attempt; their body is its outcome."""

TRANSITIONS: dict[State, frozenset[State]] = {
    # A worker may claim, and even end, before its launcher's acknowledgement is written.
    State.PLANNED: frozenset(
        {State.SUBMITTED, State.RUNNING, State.FAILED, State.LOST, State.CANCELLED}
    ),
    State.SUBMITTED: frozenset({State.RUNNING, State.FAILED, State.CANCELLED, State.LOST}),
    State.RUNNING: frozenset(
        {State.SUCCEEDED, State.FAILED, State.PREEMPTED, State.CANCELLED, State.LOST}
    ),
    # The worker came back before a newer attempt, or a newer attempt was submitted.
    State.LOST: frozenset(
        {
            State.RUNNING,
            State.SUCCEEDED,
            State.FAILED,
            State.PREEMPTED,
            State.CANCELLED,
            State.SUBMITTED,
        }
    ),
    State.PREEMPTED: frozenset({State.SUBMITTED, State.RUNNING, State.FAILED, State.CANCELLED}),
    State.FAILED: frozenset({State.SUBMITTED, State.RUNNING, State.CANCELLED, State.SUCCEEDED}),
    State.CANCELLED: frozenset({State.SUBMITTED, State.RUNNING, State.SUCCEEDED}),
    State.SUCCEEDED: frozenset(),
}
"""Which state may follow which as events arrive. The launcher's word that a job failed can be
outweighed by the worker's own `succeeded` for the same attempt, never the other way round."""


class RunState(NamedTuple):
    """A run as its events tell it.

    `attempt` is the one that decided the state (0: none yet), `opened` the highest attempt of
    which there is any event, and so at least `attempt`; `event` is the deciding event.
    """

    state: State
    attempt: int
    opened: int
    event: Event | None

    @property
    def unacknowledged(self) -> bool:
        """An attempt was opened and nothing more is known of it: submitted or not, only the
        backend can tell."""
        return self.opened > self.attempt


def fold(events: Iterable[tuple[int, Event]]) -> RunState:
    """The state that follows from `events`, pairs of attempt and event, in any order."""
    opened = 0
    best: tuple[int, int] = (0, -1)
    deciding: Event | None = None
    for attempt, event in events:
        opened = max(opened, attempt)
        rank = (attempt, _PRECEDENCE[event])
        if event is not Event.INTENT and rank > best:
            best, deciding = rank, event
    if deciding is None:
        return RunState(State.PLANNED, 0, opened, None)
    return RunState(_STATE_AFTER[deciding], best[0], opened, deciding)


def wants_attempt(events: Collection[tuple[int, Event]], retries: int) -> bool:
    """Whether a run with these events is to be started (again). `retries` is how many failures
    are made good for; preemptions and losses are, within reason."""
    state = fold(events)
    if state.unacknowledged:
        return False
    if state.state is State.PLANNED:
        return True
    happened = [event for _, event in events]
    if state.state is State.FAILED:
        return happened.count(Event.FAILED) <= retries
    if state.state in (State.PREEMPTED, State.LOST):
        return happened.count(Event.PREEMPTED) + happened.count(Event.LOST) <= _MOST_RESTARTS
    return False


def parse_name(name: str) -> tuple[int, Event] | None:
    """`"2.claimed.json"` -> `(2, Event.CLAIMED)`; None for a name that is no event's (a newer
    version's, or a stray file): readers pass over it."""
    parts = name.split(".")
    if len(parts) != 3 or parts[2] != "json" or not parts[0].isdecimal():
        return None
    try:
        return int(parts[0]), Event(parts[1])
    except ValueError:
        return None
