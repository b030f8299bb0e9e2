"""The requests of users to a launcher (pause, stop, parallel, a new plan, cancel), read from the
store so that the next launcher reads them too; and the jobs that backends are asked to stop."""

from functools import partial

from sweeper.common.logs import Changes, Log
from sweeper.scheduler.budgets import Spending
from sweeper.scheduler.context import Context
from sweeper.scheduler.engine_watch import EngineWatch
from sweeper.scheduler.places import Places, TryCall
from sweeper.sweep import sweep_requests
from sweeper.sweep.folder import token
from sweeper.sweep.request import Asked, Pause
from sweeper.sweep.run_table import RunTable

_LOG = Log(__name__)

_NAMES = ("pause", "parallel", "stop", "plan", "cancel")


class Requests:
    """The requests to a launcher, as of the last check. `stop`: a user wants it to end.
    `replanned`: there is another plan. `parallel`: the requested number of jobs at once.
    `cancel`: a user has cancelled the whole sweep."""

    def __init__(self, context: Context) -> None:
        self._folder = context.folder
        self._stamps: dict[str, int] = {}
        self.stop: Asked | None = None
        self.cancel: Asked | None = None
        self.pause: Pause | None = None
        self._paused = Changes(_LOG, "paused", "resumed")
        self.parallel: int | None = None
        self.replanned = False

    @property
    def held(self) -> str | None:
        """Why a user's request keeps runs from starting, for people; None if there is no such
        request."""
        return None if self.pause is None else self.pause.told(self._folder.name)

    def look(self) -> None:
        """Read what has changed since the last check. Raises `StoreError`."""
        names = {self._folder.request(name): name for name in _NAMES}
        listed = self._folder.store.list(self._folder.launcher)
        stamps = {names[entry.path]: entry.stamp for entry in listed if entry.path in names}
        if stamps == self._stamps:
            return
        self.pause = sweep_requests.asked_pause(self._folder) if "pause" in stamps else None
        self._paused.see(self.held)
        self.parallel = (
            sweep_requests.asked_parallel(self._folder) if "parallel" in stamps else None
        )
        self.stop = sweep_requests.asked_stop(self._folder) if "stop" in stamps else None
        self.cancel = sweep_requests.asked_cancel(self._folder) if "cancel" in stamps else None
        self.replanned = "plan" in stamps
        self._stamps = stamps


NOT_YET_SECONDS = 5.0
"""Wait before a backend is asked again to stop a job that it could not stop yet."""


class Cancellations:
    """Has jobs stopped. `stopping` has the tokens of those that their backend was asked to stop.
    `spending` and `engine` are None if no job is stopped because of them."""

    def __init__(
        self,
        context: Context,
        run_table: RunTable,
        places: Places,
        requests: Requests,
        spending: Spending | None,
        engine: EngineWatch | None,
    ) -> None:
        self._clock = context.clock
        self._run_table = run_table
        self._places = places
        self._requests = requests
        self._spending = spending
        self._engine = engine
        self._not_yet: dict[str, float] = {}  # jobs to retry, and when
        self.stopping: set[str] = set()

    def look(self, try_call: TryCall, *, away: bool) -> None:
        """Tell the backends which jobs to stop: each once, except those that they cannot stop yet.
        Their workers check for the request as well. While the engine is `away` it is unknown
        which jobs have lost it."""
        opened = self._run_table.open()
        tokens = {token(run, n) for run, n in opened.items() if self._run_table.views[run].cancel}
        if self._engine is not None and not away:
            tokens |= {token(run, n) for run, n in opened.items() if self._engine.orphaned(run, n)}
        if self._spending is not None and self._spending.is_over:
            tokens |= {token(run, n) for run, n in opened.items()}
        if self._requests.pause is not None and self._requests.pause.runs:
            tokens |= {token(run, n) for run, n in opened.items()}
        self.stopping &= tokens
        now = self._clock()
        waiting = {job for job, due in self._not_yet.items() if now < due}
        fresh = tokens - self.stopping - waiting
        if not fresh:
            return
        self._not_yet = {job: self._not_yet[job] for job in waiting}
        for place, jobs_there in self._places.of_each(opened).items():
            if jobs := sorted(fresh & jobs_there.keys()):
                try_call(partial(self._cancel, place, jobs))

    def _cancel(self, place: str, jobs: list[str]) -> None:
        """Ask one place's backend to stop jobs. Raises `Unreachable`."""
        not_yet = set(self._places.ask(place, lambda backend: backend.cancel(jobs)) or ())
        self._not_yet |= dict.fromkeys(not_yet, self._clock() + NOT_YET_SECONDS)
        self.stopping |= set(jobs) - not_yet
