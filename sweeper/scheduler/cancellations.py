"""Tells the backends which jobs are to be stopped: those of runs that a user has cancelled, those
whose engine is gone, and all where the budget is over or the sweep is paused with its runs."""

from functools import partial

from sweeper.scheduler.context import Context
from sweeper.scheduler.engine_watch import EngineWatch
from sweeper.scheduler.places import Places, TryCall
from sweeper.scheduler.requests import Requests
from sweeper.scheduler.run_table import RunTable
from sweeper.scheduler.spending import Spending
from sweeper.sweep.folder import token

NOT_YET_SECONDS = 5.0
"""Wait before a backend is asked again to stop a job that it could not stop yet."""


class Cancellations:
    """Has jobs stopped. `stopping`: the tokens of those whose backend was told so. `spending` and
    `engine` are None where no job is stopped for their sake."""

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
        """Tell the backends of the jobs that are to be stopped: once, but for those that they
        cannot stop yet. Their workers look for the request as well. While the engine is `away`
        nobody knows which jobs have lost it."""
        opened = self._run_table.open()
        asked = {token(run, n) for run, n in opened.items() if self._run_table.views[run].cancel}
        if self._engine is not None and not away:
            asked |= {token(run, n) for run, n in opened.items() if self._engine.orphaned(run, n)}
        if self._spending is not None and self._spending.is_over:
            asked |= {token(run, n) for run, n in opened.items()}
        if self._requests.pause is not None and self._requests.pause.runs:
            asked |= {token(run, n) for run, n in opened.items()}
        self.stopping &= asked
        now = self._clock()
        waiting = {job for job, due in self._not_yet.items() if now < due}
        fresh = asked - self.stopping - waiting
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
