"""Decides what follows from ended attempts: a failure is excused, or nothing more is started."""

from sweeper.scheduler.circuit_breaker import CircuitBreaker, Failure
from sweeper.scheduler.outcomes import Outcomes
from sweeper.scheduler.retry_delay import EXCUSED, SERVICE_TRIES
from sweeper.scheduler.run_table import RunTable
from sweeper.sweep.states import OPEN, RETRIES, Event, RunState, State
from sweeper.worker.outcome import LIMIT


class FailurePolicy:
    """Judges ended attempts once per step.

    `held` says, in a line for people, why nothing more is started; None if there is no problem.
    With `smoke` only the run `first` may start until it succeeds; then `smoke` becomes false.
    Attempts that had ended before the first look belong to an earlier launch and do not count.
    """

    def __init__(self, run_table: RunTable, outcomes: Outcomes, *, smoke: bool) -> None:
        self._run_table = run_table
        self._outcomes = outcomes
        self._breaker = CircuitBreaker()
        self._begun = False
        self._known: set[tuple[str, int]] = set()
        # Outcomes in this launch after which the run was to be started again, until a user says no.
        self._open: dict[str, RunState] = {}
        self.smoke = smoke
        self.first: str | None = None
        self.held: str | None = None

    def started(self, runs: list[str]) -> None:
        """Records that these runs are about to start. With `smoke`, one of them is the first."""
        if self.smoke and runs:
            self.first = runs[0]

    def look(self) -> str | None:
        """Judges the attempts that ended since the last look. Returns what stopped one of them
        through no fault of its own, as a key of `labels.LOWERED`; None if nothing did."""
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
                self._try(run, state.state)
            if self._open.get(run) == state and not self._run_table.views[run].wants:
                del self._open[run]
                self._learn(run, state.state)
        self._go_on()
        self._hold()
        self._begun = True
        return refused

    def excuse(self, run: str, attempt: int, why: str) -> None:
        """Starts a run again that was stopped through no fault of its own, if it is still wanted,
        without using up a retry. A user's `cancel` at this very moment would count as one before
        the retry, so it then applies to the next attempt."""
        if run not in self._run_table.retired and not self._run_table.views[run].cancel:
            body = {"by": f"the launcher, {why}"}
            fresh = self._run_table.add(run, attempt, Event.RETRY, body)
            self._known.add((run, attempt))
            if fresh and self._run_table.is_cancelled(run, attempt):
                self._run_table.add(run, attempt + 1, Event.CANCEL, body)

    def _has_tries(self, run: str) -> bool:
        """Whether a run may start again after a failure of the service: only a limited number of
        times. Withdrawn attempts did nothing and do not count."""
        events = self._run_table.events(run)
        tries = sum(
            event is Event.RETRY and (attempt, Event.FAILED) in events for attempt, event in events
        )
        return tries < SERVICE_TRIES

    @property
    def waiting_for_retries(self) -> bool:
        """Whether the first attempts failed alike and their retries are still to come. Until then
        no new run is started."""
        suspects = self._breaker.suspects() if self.held is None else ()
        unknown = self._run_table.unacknowledged()
        views = {run: self._run_table.views[run] for run in suspects}
        return any(v.wants or v.state.state in OPEN or r in unknown for r, v in views.items())

    def _try(self, run: str, state: State) -> None:
        """Tells the circuit breaker that an attempt of this launch has ended."""
        if state is State.SUCCEEDED:
            self._breaker.attempt_ended(run, None)
        elif state is State.FAILED and self._outcomes.failure(run).reason not in EXCUSED:
            self._breaker.attempt_ended(run, self._outcomes.failure(run))

    def _learn(self, run: str, state: State) -> None:
        """Tells the circuit breaker that a run has ended for good in this launch, and checks
        whether it was the one that had to succeed first."""
        if state is State.SUCCEEDED:
            self.smoke, self.first = False, None
            self._breaker.run_ended(run, None)
        elif state is State.FAILED:
            self._breaker.run_ended(run, self._outcomes.failure(run))
        if self.smoke and self.held is None:
            failure = self._outcomes.failure(run) if state is State.FAILED else None
            why = f" ({failure.line or _cause(failure)})" if failure else ""
            name = self._run_table.runs[run].name
            self.held = f"the first run, {name}, is {state.value}{why}: nothing else is started"

    def _go_on(self) -> None:
        """Resets the judgement if a user has asked for a retry since the last look."""
        asked = {
            (run, attempt)
            for run, view in self._run_table.views.items()
            if view.retry
            for attempt, event in self._run_table.events(run)
            if event in RETRIES
        }
        if self._begun and asked - self._known:
            self.first = self.held = None
            self._breaker.reset()
        self._known |= asked

    def _hold(self) -> None:
        alive = len(self._run_table.runs) - len(self._run_table.retired)
        cause = self._breaker.tripped(alive)
        if cause is not None and self.held is None and self._left():
            self.held = (
                f"the first runs to end all failed alike ({_cause(cause)}): nothing "
                "else is started; `sweeper logs` shows more, a relaunch or `sweeper retry` goes on"
            )

    def _left(self) -> bool:
        """Whether any run is still to be started, and so could be held back."""
        wanting = any(view.wants for view in self._run_table.views.values())
        return wanting or bool(self._run_table.unacknowledged())


def _cause(failure: Failure) -> str:
    """Describes a failure briefly. Its last line says more than its exit code."""
    if failure.line or failure.code is None:
        return ": ".join(filter(None, (failure.reason, failure.line)))
    return f"{failure.reason}: exit code {failure.code}, and nothing printed"
