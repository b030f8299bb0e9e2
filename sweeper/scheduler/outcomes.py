"""Reads how attempts ended: when the next may start, and what a failed run printed."""

import calendar
import math
import time
from collections import Counter, deque
from contextlib import suppress
from typing import NamedTuple

from sweeper.backends.base import Backend
from sweeper.common.last_line import cause, last_line
from sweeper.errors import EnvironmentFailure, NotFound, StoreError
from sweeper.scheduler.circuit_breaker import Failure, failure_of
from sweeper.scheduler.context import Context
from sweeper.scheduler.retry_delay import EXCUSED, backoff
from sweeper.sweep.event import NOTHING, Outcome
from sweeper.sweep.states import Event, RunState, State

_TAIL_BYTES = 16_384
_LAST_LINES = 50
_TRIES = 5
_SET_SECONDS = 2.0


def last_words(backend: Backend, token: str) -> str:
    """The last line that a job printed, from its backend. A job whose worker never began has no
    other log. Empty if there is none."""
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    with suppress(EnvironmentFailure):
        lines.extend(backend.logs(token))
    return last_line("\n".join(lines).encode("utf-8", "replace"))


class End(NamedTuple):
    """The end of a run's latest attempt, and the time when the next may start: `due` by the
    launcher's monotonic clock, `until` in Unix seconds."""

    state: RunState
    reason: str | None
    outcome: Outcome
    due: float
    until: float


class Outcomes:
    """Reads each outcome once.

    The times in outcomes come from workers, whose clocks may be wrong by hours. So an attempt is
    taken to have ended after the last look that saw it running.
    """

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._sweep = context.sweep
        self._folder = context.folder
        self._clock = context.clock
        self._wall = context.wall
        self._ends: dict[str, End] = {}
        self._looks = (-math.inf, -math.inf)  # when the last two began
        self._not_before: dict[str, tuple[RunState, float]] = {}
        self._unread: dict[str, int] = {}

    def begin(self) -> None:
        """Begins a look at all runs. Attempts that it finds ended have ended since the look
        before."""
        self._looks = (self._looks[1], self._clock())

    def note(self, run: str, state: RunState, events: set[tuple[int, Event]]) -> bool:
        """Records that the latest attempt of a run has ended. Returns whether that is new."""
        known = self._ends.get(run)
        if known is not None and known.state == state and run not in self._unread:
            return False
        outcome = NOTHING
        if state.state in (State.FAILED, State.PREEMPTED, State.LOST):
            with suppress(StoreError):  # unreadable for a moment, or damaged: it is tried again
                outcome = self._folder.read_outcome(run, state)
            tries = self._unread.pop(run, 0)
            if outcome is NOTHING and tries < _TRIES:
                self._unread[run] = tries + 1
        reason = outcome.reason
        kinds = Counter(event for _, event in events)
        count = kinds[state.event] if state.event is not None else 0
        delay = backoff(state.event, reason, count, run, state.attempt)
        seen, since = self._not_before.get(run, (None, 0.0))
        if seen != state:
            since = self._looks[0]
            self._not_before[run] = (state, since)
        most = min(delay, self._clock() - since)
        left = delay - self._passed(outcome, most)
        self._ends[run] = End(state, reason, outcome, self._clock() + left, self._wall() + left)
        return run not in self._unread

    def end(self, run: str) -> End | None:
        """The end of a run's latest attempt, if it was recorded."""
        return self._ends.get(run)

    def waits(self, run: str) -> End | None:
        """The end after which a run must still wait; None if it may start."""
        end = self._ends.get(run)
        left = 0.0 if end is None else end.due - self._clock()
        if end is None or left <= 0.0:
            return None
        until = self._wall() + left
        if abs(until - end.until) > _SET_SECONDS:  # somebody has set the clock
            end = self._ends[run] = end._replace(until=until)
        return end

    def hurry(self, run: str) -> None:
        """Ends a run's wait because a user wants it started now. A run that the service stopped
        waits anyway."""
        end = self._ends.get(run)
        if end is not None and end.reason not in EXCUSED and end.due > self._clock():
            self._ends[run] = end._replace(due=self._clock())

    def failure(self, run: str) -> Failure:
        """Why a run failed: from its outcome, or else from the last lines of its log."""
        end = self._ends[run]
        log = self._folder.log(run, end.state.attempt)
        line = "" if end.outcome.detail else cause(self._tail(log))
        return failure_of(end.outcome, line)

    def _passed(self, outcome: Outcome, most: float) -> float:
        """How many seconds of a delay have passed, by the time in the outcome, at most `most`. A
        time in the future counts as now."""
        text = outcome.ended or outcome.time
        with suppress(ValueError, TypeError, OverflowError):
            ended = calendar.timegm(time.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ"))
            passed = self._wall() - ended
            return min(passed, most) if passed >= 0 else 0.0
        return 0.0

    def _tail(self, path: str) -> bytes:
        """The end of a log; empty if it cannot be read."""
        folder = path.rpartition("/")[0]
        with suppress(NotFound, StoreError):
            for entry in self._store.list(folder):
                if entry.path == path:
                    start = max(0, entry.size - _TAIL_BYTES)
                    return self._store.read_range(path, start, entry.size)
        return b""
