"""Decides what happens after an attempt has ended: when its run is retried, whether the failure
counts, and whether the sweep stops because the first runs all failed with the same error."""

import calendar
import hashlib
import math
import re
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from sweeper.alarms.history import Failed
from sweeper.backends.base import Backend
from sweeper.common.backoff import delay
from sweeper.common.last_line import cause, last_line
from sweeper.common.logs import Log
from sweeper.errors import EnvironmentFailure, NotFound, StoreError
from sweeper.scheduler.context import Context
from sweeper.sweep.event import NOTHING, Outcome
from sweeper.sweep.run_table import RunTable
from sweeper.sweep.states import OPEN, RETRIES, Event, RunState, State
from sweeper.worker.outcome import LIMIT

_LOG = Log(__name__)

EXCUSED = {"quota": "of the service's quota", "service": "its engine ended or restarted"}
"""Reasons of failures that the service caused, each with its words in messages. Such failures use
up no retry."""
SERVICE_TRIES = 20
"""How often a run is restarted after such failures before it counts as failed."""


class _Wait(NamedTuple):
    base: float
    most: float


_WAITS = {
    Event.FAILED: _Wait(5.0, 300.0),
    Event.PREEMPTED: _Wait(2.0, 120.0),
    Event.LOST: _Wait(2.0, 120.0),
}
_QUOTA = _Wait(30.0, 900.0)


def backoff(event: Event | None, reason: str | None, ends: int, run: str, attempt: int) -> float:
    """Return the seconds to wait between the end of `attempt` and the next attempt. `event` is how
    the attempt ended, `reason` is why. `ends` counts the run's attempts that ended by `event`.

    The wait is `base * 2 ** (ends - 1) * (0.5 + u)`, at most `most`. The event, or the reason
    `quota`, determines `base` and `most`. `u` is a hash of the run and the attempt, scaled to [0,
    1). So runs that failed together do not restart together, and a restarted launcher computes the
    same wait. The wait is 0 after a success or a cancellation. It is also 0 after a run's first
    preemption or first lost worker, if the machine was not full.
    """
    wait = _QUOTA if reason == "quota" else _WAITS.get(event) if event is not None else None
    if wait is None:
        return 0.0
    if event is not Event.FAILED and ends <= 1 and reason != LIMIT:
        return 0.0
    digest = hashlib.sha256(f"{run}.{attempt}".encode()).digest()
    spread = 0.5 + int.from_bytes(digest[:4]) / 2**32
    return delay(wait.base * spread, max(ends, 1) - 1, wait.most)


NEEDED = 3
"""How many of the first runs must fail with the same error to stop the sweep."""

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{12,}\b|\d+(?:[.,:]\d+)*(?:e[+-]?\d+)?")
_PATH = re.compile(r"(?:[A-Za-z]+:/)?(?:/[^\s/'\":,;()<>]+)+/?")


class Failure(NamedTuple):
    """Why a run failed. Two failures count as the same error if they differ only in the numbers and
    paths of their `line`."""

    reason: str | None
    code: int | None
    line: str

    def alike(self, other: "Failure") -> bool:
        """Return whether both failures count as the same error."""
        return (self.reason, self.code, normalised(self.line)) == (
            other.reason,
            other.code,
            normalised(other.line),
        )


class CircuitBreaker:
    """A detector of launches whose first attempts or runs all fail with the same error. In its
    methods, a failure of None stands for a success."""

    def __init__(self) -> None:
        self._runs: dict[str, Failure | None] = {}
        self._attempts: dict[str, Failure | None] = {}

    def attempt_ended(self, run: str, failure: Failure | None) -> None:
        """Note the end of an attempt. A success replaces the run's earlier failure."""
        if failure is None:
            self._attempts[run] = None
        elif len(self._attempts) < NEEDED:
            self._attempts.setdefault(run, failure)

    def run_ended(self, run: str, failure: Failure | None) -> None:
        """Note the end of a run that will not be retried."""
        if len(self._runs) < NEEDED:
            self._runs.setdefault(run, failure)

    def suspects(self) -> Collection[str]:
        """Return the first `NEEDED` runs with a failed attempt. Return nothing if there are fewer,
        if their errors differ, or if any run has succeeded."""
        if len(self._attempts) < NEEDED or _common(self._attempts.values()) is None:
            return ()
        return self._attempts.keys()

    def tripped(self, runs: int) -> Failure | None:
        """Return the failure that the first runs to end have in common. Return None if they have
        none in common, or if fewer than `min(NEEDED, runs)` runs have ended."""
        return None if len(self._runs) < min(NEEDED, runs) else _common(self._runs.values())

    def reset(self) -> None:
        """Forget all attempts and runs."""
        self._runs.clear()
        self._attempts.clear()


def _common(failures: Iterable[Failure | None]) -> Failure | None:
    """Return the last of the failures if all count as the same error, else None."""
    last: Failure | None = None
    for failure in failures:
        if failure is None or (last is not None and not failure.alike(last)):
            return None
        last = failure
    return last


def normalised(line: str) -> str:
    """Replace the parts of a log line that differ between runs: numbers, hashes, paths."""
    return _NUMBER.sub("#", _PATH.sub("/", line)).strip()


def failure_of(outcome: Outcome, line: str) -> Failure:
    """Return the `Failure` of a failed attempt. `line` is the last line that the attempt printed,
    which is used if the outcome has no details."""
    return Failure(outcome.reason, outcome.code, outcome.detail or line)


_TAIL_BYTES = 16_384
_LAST_LINES = 50
_TRIES = 5
_SET_SECONDS = 2.0


def last_words(backend: Backend, token: str) -> str:
    """Return the last line that a job printed, from its backend; empty if the job printed nothing
    or the backend does not answer."""
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    with suppress(EnvironmentFailure):
        lines.extend(backend.logs(token))
    return last_line("\n".join(lines).encode("utf-8", "replace"))


class End(NamedTuple):
    """The end of a run's latest attempt. `due` (by the launcher's monotonic clock) and `until` (in
    Unix seconds) are the time at which the next attempt may start."""

    state: RunState
    reason: str | None
    outcome: Outcome
    due: float
    until: float


class Outcomes:
    """The outcomes of ended attempts, each read once.

    Workers write the times in outcomes, and their clocks may be wrong by hours. If a recorded end
    is earlier than the last check that did not find it, the time of that check is used instead.
    """

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._sweep = context.sweep
        self._folder = context.folder
        self._clock = context.clock
        self._wall = context.wall
        self._ends: dict[str, End] = {}
        self._looks = (-math.inf, -math.inf)  # the times of the last two checks
        self._not_before: dict[str, tuple[RunState, float]] = {}
        self._unread: dict[str, int] = {}

    def begin(self) -> None:
        """Begin a check of all runs, and remember its time."""
        self._looks = (self._looks[1], self._clock())

    def note(self, run: str, state: RunState, events: set[tuple[int, Event]]) -> bool:
        """Record that a run's latest attempt has ended, and read its outcome. Return False if an
        earlier call did this, or if a later call must try to read the outcome again."""
        earlier = self._ends.get(run)
        if earlier is not None and earlier.state == state and run not in self._unread:
            return False
        outcome = NOTHING
        if state.state in (State.FAILED, State.PREEMPTED, State.LOST):
            # An outcome that is damaged or cannot be read now is read again later.
            with suppress(StoreError):
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
        remaining_s = delay - self._passed(outcome, most)
        self._ends[run] = End(
            state, reason, outcome, self._clock() + remaining_s, self._wall() + remaining_s
        )
        if state.state in (State.FAILED, State.PREEMPTED, State.LOST):
            ended = f"{run}-a{state.attempt}", state.state.value, reason or ("no reason recorded")
            _LOG.info("%s: %s (%s); a retry would wait %.0f s", *ended, max(0.0, remaining_s))
        return run not in self._unread

    def end(self, run: str) -> End | None:
        """Return the end of a run's latest attempt, or None if it was not recorded."""
        return self._ends.get(run)

    def waits(self, run: str) -> End | None:
        """Return the end of a run's latest attempt while the run must wait for its next attempt,
        else None."""
        end = self._ends.get(run)
        remaining_s = 0.0 if end is None else end.due - self._clock()
        if end is None or remaining_s <= 0.0:
            return None
        until = self._wall() + remaining_s
        if abs(until - end.until) > _SET_SECONDS:  # The system clock was changed.
            end = self._ends[run] = end._replace(until=until)
        return end

    def hurry(self, run: str) -> None:
        """End a run's wait for its next attempt. After a failure that the service caused
        (`EXCUSED`), do nothing."""
        end = self._ends.get(run)
        if end is not None and end.reason not in EXCUSED and end.due > self._clock():
            self._ends[run] = end._replace(due=self._clock())

    def failure(self, run: str) -> Failure:
        """Return why a run failed, from its outcome or else from the last lines of its log."""
        end = self._ends[run]
        log = self._folder.log(run, end.state.attempt)
        line = "" if end.outcome.detail else cause(self._tail(log))
        return failure_of(end.outcome, line)

    def failed(self, run: str) -> Failed | None:
        """Return the reason and the last line of a run's failure, or None if no end is recorded."""
        if run not in self._ends:
            return None
        failure = self.failure(run)
        return Failed(failure.reason, failure.line)

    def _passed(self, outcome: Outcome, most: float) -> float:
        """Return how many seconds ago an attempt ended according to its outcome, at most `most`.
        Return 0 if the outcome's time is in the future or cannot be read."""
        text = outcome.ended or outcome.time
        with suppress(ValueError, TypeError, OverflowError):
            ended = calendar.timegm(time.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ"))
            passed = self._wall() - ended
            return min(passed, most) if passed >= 0 else 0.0
        return 0.0

    def _tail(self, path: str) -> bytes:
        """Return the end of a log; empty if it cannot be read."""
        folder = path.rpartition("/")[0]
        with suppress(NotFound, StoreError):
            for entry in self._store.list(folder):
                if entry.path == path:
                    start = max(0, entry.size - _TAIL_BYTES)
                    return self._store.read_range(path, start, entry.size)
        return b""


class FailurePolicy:
    """The decisions about ended attempts. Each step of the scheduler calls `check` once.

    `held` is the reason why no more runs are started, as one line, or None. With `smoke`, only the
    run `first` may start. `smoke` becomes false when a run has succeeded. Attempts that had ended
    before the first step belong to an earlier launch and do not count.
    """

    def __init__(self, run_table: RunTable, outcomes: Outcomes, *, smoke: bool) -> None:
        self._run_table = run_table
        self._outcomes = outcomes
        self._breaker = CircuitBreaker()
        self._begun = False
        self._retried: set[tuple[str, int]] = set()
        # The outcomes of this launch whose runs are to be started again, unless a user cancels
        # them.
        self._open: dict[str, RunState] = {}
        self.smoke = smoke
        self.first: str | None = None
        self.held: str | None = None

    def started(self, runs: list[str]) -> None:
        """Record that these runs are about to start. With `smoke`, the first of these runs becomes
        `first`."""
        if self.smoke and runs:
            self.first = runs[0]

    def check(self) -> str | None:
        """Judge the attempts that ended since the last step. Return `service` if the service's
        quota stopped one of them, else `machine` if a full machine stopped one, else None."""
        refused: str | None = None
        self._outcomes.begin()
        for run, view in self._run_table.views.items():
            state = view.state
            if not state.attempt or state.at_work:
                continue
            fresh = self._outcomes.note(run, state, self._run_table.events(run))
            if view.retry:
                self._outcomes.hurry(run)
            end = self._outcomes.end(run)
            if fresh and end is not None and end.reason in EXCUSED:
                if self._begun and end.reason == "quota":
                    refused = "service"
                if self._has_tries(run):
                    self.excuse(run, state.attempt, f"because {EXCUSED[end.reason]}")
            if fresh and end is not None and end.reason == LIMIT and self._begun:
                refused = refused or "machine"
            if fresh and self._begun:
                self._open[run] = state
                self._note_attempt(run, state.state)
            if self._open.get(run) == state and not self._run_table.views[run].wants:
                del self._open[run]
                self._note_run(run, state.state)
        self._forget_failures()
        self._hold_if_tripped()
        self._begun = True
        return refused

    def excuse(self, run: str, attempt: int, why: str) -> None:
        """Restart a run that was stopped through no fault of its own, without using up a retry. Do
        nothing if the run is retired or cancelled. If a user cancels `attempt` during this call,
        the next attempt is cancelled too."""
        if run not in self._run_table.retired and not self._run_table.views[run].cancel:
            body = {"by": f"the launcher, {why}"}
            fresh = self._run_table.add(run, attempt, Event.RETRY, body)
            self._retried.add((run, attempt))
            if fresh and self._run_table.is_cancelled(run, attempt):
                self._run_table.add(run, attempt + 1, Event.CANCEL, body)

    def _has_tries(self, run: str) -> bool:
        """Return whether a run has fewer than `SERVICE_TRIES` RETRY events after failed
        attempts."""
        events = self._run_table.events(run)
        tries = sum(
            event is Event.RETRY and (attempt, Event.FAILED) in events for attempt, event in events
        )
        return tries < SERVICE_TRIES

    @property
    def waiting_for_retries(self) -> bool:
        """Whether the first attempts failed with the same error and their retries have not ended
        yet. Until then no new run is started."""
        suspects = self._breaker.suspects() if self.held is None else ()
        unknown = self._run_table.unacknowledged()
        views = {run: self._run_table.views[run] for run in suspects}
        return any(v.wants or v.state.state in OPEN or r in unknown for r, v in views.items())

    def _note_attempt(self, run: str, state: State) -> None:
        if state is State.SUCCEEDED:
            self._breaker.attempt_ended(run, None)
        elif state is State.FAILED and self._outcomes.failure(run).reason not in EXCUSED:
            self._breaker.attempt_ended(run, self._outcomes.failure(run))

    def _note_run(self, run: str, state: State) -> None:
        """Tell the circuit breaker that a run of this launch is over. With `smoke`, hold the sweep
        if the run has not succeeded."""
        if state is State.SUCCEEDED:
            self.smoke, self.first = False, None
            self._breaker.run_ended(run, None)
        elif state is State.FAILED:
            self._breaker.run_ended(run, self._outcomes.failure(run))
        if self.smoke and self.held is None:
            failure = self._outcomes.failure(run) if state is State.FAILED else None
            why = f" ({failure.line or _cause(failure)})" if failure else ""
            name = self._run_table.runs[run].name
            verb = "failed" if failure else f"was {state.value}"
            self.held = f"the first run, {name}, {verb}{why}: no more runs are started"

    def _forget_failures(self) -> None:
        """Forget the earlier failures and set `held` to None if a user has asked for a retry since
        the last step."""
        retried = {
            (run, attempt)
            for run, view in self._run_table.views.items()
            if view.retry
            for attempt, event in self._run_table.events(run)
            if event in RETRIES
        }
        if self._begun and retried - self._retried:
            self.first = self.held = None
            self._breaker.reset()
        self._retried |= retried

    def _hold_if_tripped(self) -> None:
        alive = len(self._run_table.runs) - len(self._run_table.retired)
        cause = self._breaker.tripped(alive)
        if cause is not None and self.held is None and self._has_runs_to_start():
            self.held = (
                f"the first runs failed with the same error ({_cause(cause)}), so no other "
                "run is started: see `sweeper logs`, fix it, then run `sweeper retry`"
            )

    def _has_runs_to_start(self) -> bool:
        wanting = any(view.wants for view in self._run_table.views.values())
        return wanting or bool(self._run_table.unacknowledged())


def _cause(failure: Failure) -> str:
    """Describe a failure briefly, by its last line if there is one, else by its exit code."""
    if failure.line or failure.code is None:
        return ": ".join(filter(None, (failure.reason, failure.line)))
    return f"{failure.reason}: exit code {failure.code}, no output"
