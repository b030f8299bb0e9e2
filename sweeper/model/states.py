"""Events, and the state of a run that follows from them. Pure: no clock, no disk.

An event is a file `state/<run>/<attempt>.<event>.json`, created once and never changed. The state
of a run is a function of the set of its event names, so it does not depend on the order in which
they were written, listed or read:

- the highest attempt with anything but an intent decides;
- among that attempt's events the one of highest precedence decides.

An `intent` alone says that a launcher was about to submit: it opens an attempt and changes
no state.

Two of the names are requests, written by whoever asks and not by who does:

- `cancel`: stop this attempt and start no other. It stands until a `retry` of the same or a later
  attempt. A run of which nothing was started, and one that waited to be started again after a
  preemption or a loss, is cancelled by it at once; one at work when its worker has ended.
- `retry`: after this attempt's end the run wants another one. It takes a `cancel` back, and the
  failure, loss or preemption of its attempt does not count any more.

A request may name the attempt after the last: asked to cancel a run that waits for its retry, say.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "ENDED",
    "OPEN",
    "OUTCOMES",
    "Event",
    "NoState",
    "RunState",
    "State",
    "cancel_asked",
    "fold",
    "is_finished",
    "parse_name",
    "retry_asked",
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


class NoState(StrEnum):
    """What is said of a run that has no events: a folder that somebody else's program wrote."""

    UNKNOWN = "unknown"


class Event(StrEnum):
    """What happened to an attempt, in order of precedence: a later one outweighs those above it."""

    CANCEL = "cancel"  # a request: stop this attempt, start no other
    RETRY = "retry"  # a request: after this attempt's end, start another
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

OUTCOMES = (Event.SUCCEEDED, Event.FAILED, Event.CANCELLED, Event.PREEMPTED)
"""Events that end an attempt, the most telling first; their body is its outcome."""

ENDED = frozenset(OUTCOMES)

_BETWEEN = frozenset({Event.PREEMPTED, Event.LOST})
"""After these a run waits to be started again, unless a user has asked that it be not."""


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

    @property
    def at_work(self) -> bool:
        """Whether a job of the run may be at work."""
        return self.state in OPEN or self.unacknowledged


def fold(events: Iterable[tuple[int, Event]]) -> RunState:
    """The state that follows from `events`, pairs of attempt and event, in any order."""
    opened = 0
    best: tuple[int, int] = (0, -1)
    deciding: Event | None = None
    cancel = retry = 0
    for attempt, event in events:
        if event is Event.CANCEL:
            cancel = max(cancel, attempt)
            continue
        if event is Event.RETRY:
            retry = max(retry, attempt)
            continue
        opened = max(opened, attempt)
        rank = (attempt, _PRECEDENCE[event])
        if event is not Event.INTENT and rank > best:
            best, deciding = rank, event
    asked = cancel > retry and cancel >= max(opened, 1)
    if deciding is None:
        if asked and not opened:
            return RunState(State.CANCELLED, 0, 0, Event.CANCEL)
        return RunState(State.PLANNED, 0, opened, None)
    state = _STATE_AFTER[deciding]
    if asked and deciding in _BETWEEN and best[0] == opened:
        state = State.CANCELLED
    return RunState(state, best[0], opened, deciding)


def cancel_asked(events: Collection[tuple[int, Event]]) -> bool:
    """Whether a user wants the run stopped, and has not asked for a retry since."""
    last = _last(events, Event.CANCEL)
    return last > _last(events, Event.RETRY) and last >= max(fold(events).opened, 1)


def retry_asked(events: Collection[tuple[int, Event]]) -> bool:
    """Whether another attempt is asked for that is not opened yet."""
    last = _last(events, Event.RETRY)
    return last >= max(fold(events).opened, 1) and not cancel_asked(events)


def wants_attempt(events: Collection[tuple[int, Event]], retries: int) -> bool:
    """Whether a run with these events is to be started (again). `retries` is how many failures
    are made good for; preemptions and losses are, within reason. What was asked for by `retry`
    counts as neither."""
    state = fold(events)
    if state.unacknowledged or state.state in OPEN or state.state is State.SUCCEEDED:
        return False
    if cancel_asked(events):
        return False
    if state.state is State.PLANNED or retry_asked(events):
        return True
    excused = {attempt for attempt, event in events if event is Event.RETRY}
    happened = [event for attempt, event in events if attempt not in excused]
    if state.state is State.FAILED:
        return happened.count(Event.FAILED) <= retries
    if state.state in (State.PREEMPTED, State.LOST):
        return happened.count(Event.PREEMPTED) + happened.count(Event.LOST) <= _MOST_RESTARTS
    return False


def is_finished(
    events: Collection[tuple[int, Event]], retries: int, *, retired: bool = False
) -> bool:
    """Whether nothing more is to come of a run with these events: no job of it is at work, and no
    launcher would start one, or look for one. `retired`: the grid has it no more; what was only
    about to be submitted of it is left there."""
    state = fold(events)
    if state.state in OPEN:
        return False
    return retired or not (state.unacknowledged or wants_attempt(events, retries))


def _last(events: Iterable[tuple[int, Event]], kind: Event) -> int:
    """The highest attempt with an event of that kind; 0 for none."""
    return max((attempt for attempt, event in events if event is kind), default=0)


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
