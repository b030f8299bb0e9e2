"""What follows from how attempts end: an excuse, or that nothing more is started."""

from sweeper.model.states import OPEN, Event, RunState, State
from sweeper.scheduler.circuit_breaker import Breaker, Failure
from sweeper.scheduler.outcomes import Outcomes
from sweeper.scheduler.retry_delay import EXCUSED, SERVICE_TRIES
from sweeper.scheduler.run_table import RunTable
from sweeper.worker.outcome import LIMIT

__all__ = ["FailurePolicy"]


class FailurePolicy:
    """Looks at the ends of attempts once a step.

    `held` says, in a line for people, why nothing more is started; None while nothing is amiss.
    `smoke` is true until one run has succeeded, where that was asked for; `first` is that run, as
    long as no other may be started.
    What had ended before the first look teaches nothing: it was another launch's.
    """

    def __init__(self, board: RunTable, ends: Outcomes, *, smoke: bool) -> None:
        self._board = board
        self._ends = ends
        self._breaker = Breaker()
        self._begun = False
        self._known: set[tuple[str, int]] = set()
        # Outcomes in this launch after which the run was to be started again, until a user says no.
        self._open: dict[str, RunState] = {}
        self.smoke = smoke
        self.first: str | None = None
        self.held: str | None = None

    def started(self, runs: list[str]) -> None:
        """These runs are about to be started."""
        if self.smoke and runs:
            self.first = runs[0]

    def look(self) -> str | None:
        """Learn from what has ended since the last time; what has stopped a run meanwhile that was
        not its own doing (see `labels.LOWERED`)."""
        refused: str | None = None
        self._ends.begin()
        for run, view in self._board.views.items():
            state = view.state
            if not state.attempt or state.at_work:
                continue
            fresh = self._ends.note(run, state, self._board.events(run))
            if view.retry:
                self._ends.hurry(run)
            end = self._ends.end(run)
            if fresh and end is not None and end.reason in EXCUSED:
                if self._begun and end.reason == "quota":
                    refused = "service"
                self._excuse(run, state.attempt, EXCUSED[end.reason])
            if fresh and end is not None and end.reason == LIMIT and self._begun:
                refused = refused or "machine"
            if fresh and self._begun:
                self._open[run] = state
                self._try(run, state.state)
            if self._open.get(run) == state and not self._board.views[run].wants:
                del self._open[run]
                self._learn(run, state.state)
        self._go_on()
        self._hold()
        self._begun = True
        return refused

    def _excuse(self, run: str, attempt: int, why: str) -> None:
        """What the service stopped is tried again, and is no failure."""
        tries = sum(event is Event.RETRY for _, event in self._board.events(run))
        retired = run in self._board.retired
        if tries < SERVICE_TRIES and not retired and not self._board.views[run].cancel:
            body = {"by": f"the launcher, because {why}"}
            self._board.add(run, attempt, Event.RETRY, body)
            self._known.add((run, attempt))

    @property
    def waiting_for_retries(self) -> bool:
        """Whether the first attempts failed alike, and their retries are still to come. No new run
        is started meanwhile."""
        suspects = self._breaker.suspects() if self.held is None else ()
        unknown = self._board.unacknowledged()
        views = {run: self._board.views[run] for run in suspects}
        return any(v.wants or v.state.state in OPEN or r in unknown for r, v in views.items())

    def _try(self, run: str, state: State) -> None:
        """An attempt of a run has ended, in this launch."""
        if state is State.SUCCEEDED:
            self._breaker.see_first(run, None)
        elif state is State.FAILED and self._ends.failure(run).reason not in EXCUSED:
            self._breaker.see_first(run, self._ends.failure(run))

    def _learn(self, run: str, state: State) -> None:
        """A run has ended for good, in this launch."""
        if state is State.SUCCEEDED:
            self.smoke, self.first = False, None
            self._breaker.see(run, None)
        elif state is State.FAILED:
            self._breaker.see(run, self._ends.failure(run))
        if self.smoke and self.held is None:
            failure = self._ends.failure(run) if state is State.FAILED else None
            why = f" ({failure.line or _cause(failure)})" if failure else ""
            name = self._board.runs[run].name
            self.held = f"the first run, {name}, is {state.value}{why}: nothing else is started"

    def _go_on(self) -> None:
        """Forget what was held against the sweep when a user has asked for a retry since."""
        asked = {
            (run, attempt)
            for run, view in self._board.views.items()
            if view.retry
            for attempt, event in self._board.events(run)
            if event is Event.RETRY
        }
        if self._begun and asked - self._known:
            self.first = self.held = None
            self._breaker.reset()
        self._known |= asked

    def _hold(self) -> None:
        alive = len(self._board.runs) - len(self._board.retired)
        cause = self._breaker.tripped(alive)
        if cause is not None and self.held is None and self._left():
            self.held = (
                f"the first runs to end all failed alike ({_cause(cause)}): nothing "
                "else is started; `sweeper logs` shows more, a relaunch or `sweeper retry` goes on"
            )

    def _left(self) -> bool:
        """Whether there is anything that could be held back."""
        wanting = any(view.wants for view in self._board.views.values())
        return wanting or bool(self._board.unacknowledged())


def _cause(failure: Failure) -> str:
    """Why, in a few words: the last line that was printed says more than a number."""
    if failure.line or failure.code is None:
        return ": ".join(filter(None, (failure.reason, failure.line)))
    return f"{failure.reason}: exit code {failure.code}, and nothing printed"
