"""The parts of a scheduler. Each part is created once and gets the other parts that it uses."""

import math
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from sweeper.alarms.actions import Watched
from sweeper.alarms.monitor import AlarmMonitor
from sweeper.alarms.notifier import notifier
from sweeper.common.logs import Changes, Log
from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.metrics.objective import sign_of
from sweeper.results.race import contenders, level, next_round
from sweeper.scheduler import engine_watch
from sweeper.scheduler.budgets import AttemptUsage, Spending, SweepUsageWatch, account_budget
from sweeper.scheduler.context import Context
from sweeper.scheduler.engine_watch import EngineWatch
from sweeper.scheduler.failures import FailurePolicy, Outcomes
from sweeper.scheduler.lost_workers import LostWorkers
from sweeper.scheduler.parallelism import Parallelism
from sweeper.scheduler.places import Places, TryCall, Withdrawals
from sweeper.scheduler.progress import Publisher, StatusDisplay
from sweeper.scheduler.stages import Stages
from sweeper.scheduler.submitter import Submitter
from sweeper.store.documents import encode, timestamp
from sweeper.sweep import sweep_requests
from sweeper.sweep.folder import token
from sweeper.sweep.heartbeats import Heartbeats
from sweeper.sweep.launcher import Service
from sweeper.sweep.metric import Metric
from sweeper.sweep.plan import Ended, Race, Round, Run
from sweeper.sweep.race import judged
from sweeper.sweep.request import Pause, Request
from sweeper.sweep.run_table import RunTable
from sweeper.sweep.states import State


class _Results(NamedTuple):
    """`values` maps each cell to its runs' values of the metric. `diverged` has the cells with a
    run whose value is not finite. These cells are not in `values`."""

    values: dict[str, list[float]]
    diverged: set[str]


class Racing(Stages):
    """The race of one sweep (rounds that drop the worst cells), as of the last `check`. A sweep
    with a race has no stages, so this class is used instead of `Stages`."""

    def __init__(self, context: Context, run_table: RunTable) -> None:
        super().__init__(context, run_table)
        self._why_not: str | None = None

    @property
    def messages(self) -> tuple[str, ...]:
        """The reason why the race waits for the user, as a message; empty if it does not wait."""
        runs = sum(self._plan.unknown.values())
        return (
            () if self._why_not is None else (f"race: {self._why_not} (up to {runs} runs to come)",)
        )

    @property
    def to_come(self) -> int:
        """The largest number of runs that the race may still start; 0 while it waits for the
        user."""
        return 0 if self._why_not is not None else sum(self._plan.unknown.values())

    @property
    def held_back(self) -> int:
        """While the race waits for the user, the largest number of runs that it could start; else
        0."""
        return 0 if self._why_not is None else sum(self._plan.unknown.values())

    def check(self, cancelled: Request | None = None) -> None:
        """Record the next round if all runs of the last round have ended and the sweep was not
        `cancelled`. If a file cannot be read, `trouble` has the error until the next check."""
        self._recorded, self.trouble, self._why_not = None, (), None
        race, metric = self._plan.race, self._plan.metric
        if race is None or metric is None or not self._plan.unknown:
            return
        if cancelled is not None:
            advice = "the next launch or retry continues the race"
            self._why_not = f"{cancelled.by} cancelled the sweep: {advice}"
            return
        fates = Counter(self._fate(run.id) for run in self._planned())
        if fates["open"]:
            return
        if fates["cancelled"]:
            self._why_not = "waits for runs that were cancelled: retry them, or launch again"
            return
        try:
            decision = self._decide(race, metric)
            if decision is not None:
                self._record(decision)
        except StoreError as error:
            self.trouble = (str(error),)

    def _planned(self) -> Iterator[Run]:
        return (run for run in self._plan.runs if not run.retired)

    def _decide(self, race: Race, metric: Metric) -> Round | None:
        """Return the next round, or None if fewer than two cells have a result."""
        results = self._results(metric)
        if len(results.values.keys() | results.diverged) < 2 or not results.values:
            self._why_not = f"waits for cells with a value of {metric.name}: see why runs failed"
            return None
        last = self._plan.rounds[-1].seeds if self._plan.rounds else race.least
        seeds = min(max(race.least, last), race.most)
        alive = contenders(results.values, sign_of(metric.goal), level(seeds, race.most))
        ended: Ended | None = "identical" if alive is None else None
        runs: tuple[str, ...] = ()
        if alive is not None and len(alive) == 1:
            ended = "clear"
        elif alive is not None:
            seeds, runs = self._next_runs(race, set(alive), seeds)
            ended = None if runs else "spent"
        return Round(seeds, runs, ended, judged(self._plan), timestamp())

    def _next_runs(self, race: Race, alive: set[str], seeds: int) -> tuple[int, tuple[str, ...]]:
        """Return the number of seeds that each cell in `alive` has after the next round, and the
        ids of the runs that must start in this round."""
        counts = Counter(run.cell for run in self._planned())
        started = {run.id for run in self._planned()}
        while True:
            runs: list[str] = []
            lacks = {cell: seeds - counts[cell] for cell in alive}
            for run in race.runs:
                if lacks.get(run.cell, 0) > 0 and run.id not in started:
                    lacks[run.cell] -= 1
                    runs.append(run.id)
            if runs or seeds >= race.most:
                return seeds, tuple(runs)
            seeds = next_round(seeds, race.most)

    def _results(self, metric: Metric) -> _Results:
        recorded = {run.id: run for run in self._sweep().runs}
        values: dict[str, list[float]] = {}
        diverged: set[str] = set()
        for run in self._planned():
            if self._fate(run.id) != "succeeded" or run.id not in recorded:
                continue
            point = recorded[run.id].value(metric._asdict())
            if point is not None and math.isfinite(point.value):
                values.setdefault(run.cell, []).append(point.value)
            elif point is not None:
                diverged.add(run.cell)
        return _Results(
            {c: numbers for c, numbers in values.items() if c not in diverged}, diverged
        )

    def _record(self, decision: Round) -> None:
        """Record the next round, and add its runs to the plan. If an earlier launcher has recorded
        the round, use that record."""
        path = self._context.folder.race_round(len(self._plan.rounds) + 1)
        with suppress(AlreadyExists):
            self._context.store.create(path, encode(decision.document()))
        self._plan = self._context.folder.with_chosen(self._plan)
        self._run_table.grow(self._plan)


_LOG = Log(__name__)

_NAMES = ("pause", "parallel", "stop", "plan", "cancel")


class Requests:
    """The requests to a launcher, as of the last check. `stop`: a user wants the launcher to
    end. `replanned`: the sweep has a new plan. `parallel`: the requested number of parallel
    jobs. `cancel`: a user has cancelled the whole sweep."""

    def __init__(self, context: Context) -> None:
        self._folder = context.folder
        self._stamps: dict[str, int] = {}
        self.stop: Request | None = None
        self.cancel: Request | None = None
        self.pause: Pause | None = None
        self._paused = Changes(_LOG, "paused", "resumed")
        self.parallel: int | None = None
        self.replanned = False

    @property
    def held(self) -> str | None:
        """A message about the reason for the sweep's pause; None if the sweep is not paused."""
        return None if self.pause is None else self.pause.reason(self._folder.name)

    def check(self) -> None:
        """Read the requests again if any has changed since the last check. Raises `StoreError`."""
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
"""Seconds before a backend is asked again to stop a job that it could not stop yet."""


class Cancellations:
    """The requests to backends to stop jobs. `stopping` has the tokens of the jobs that were asked
    to stop. Without `spending`, budgets stop no jobs. Without `engine`, a change of the engine's
    address stops no jobs."""

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
        self._not_yet: dict[str, float] = {}  # when to ask the backend again, by token
        self.stopping: set[str] = set()

    def check(self, try_call: TryCall, *, away: bool) -> None:
        """Ask the backends to stop jobs, once for each job. If a backend cannot stop a job yet, ask
        again later. Unless the engine is `away`, also stop jobs that use its old address."""
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
        """Ask the backend called `place` to stop jobs. Raises `Unreachable`."""
        not_yet = set(self._places.ask(place, lambda backend: backend.cancel(jobs)) or ())
        self._not_yet |= dict.fromkeys(not_yet, self._clock() + NOT_YET_SECONDS)
        self.stopping |= set(jobs) - not_yet


class Backlog:
    """The runs that still have to be started. With `starting=False`, these are only the runs that
    an earlier launcher may have submitted."""

    def __init__(
        self,
        run_table: RunTable,
        stages: Stages,
        policy: FailurePolicy,
        requests: Requests,
        spending: Spending | None,
        *,
        starting: bool,
    ) -> None:
        self._run_table = run_table
        self._stages = stages
        self._policy = policy
        self._requests = requests
        self._spending = spending
        self._starting = starting

    @property
    def held(self) -> str | None:
        """The reason why no runs are started, or None. If no runs are left to start, a pause or
        a reached budget does not count as a reason."""
        spent = None if self._spending is None else self._spending.reached
        if self._policy.held is not None:
            return self._policy.held
        held = self._requests.held or spent
        return held if held is not None and self.wanting() else None

    def left(self, unsubmitted: Collection[str]) -> int:
        """Count the runs that this launcher still has to start or look up. A run is looked up if a
        backend may already have its job. `unsubmitted` are runs for which no backend has a job."""
        unknown = self._run_table.unacknowledged().keys()
        if not self._starting or (self.held is not None and self._requests.pause is None):
            return len(unknown - set(unsubmitted))
        return self.wanting()  # The user may resume the sweep at any time.

    def wanting(self) -> int:
        """Count the runs that still have to be started."""
        vain = self._stages.in_vain
        wanting = sum(view.wants and not vain(run) for run, view in self._run_table.views.items())
        unknown = self._run_table.unacknowledged().keys() - self._run_table.retired
        return wanting + self._stages.to_come + len(unknown)

    def again(self) -> Iterator[State]:
        """Yield the states of runs that have run before and will be started again."""
        if (self.held is None or self._requests.pause is not None) and self._starting:
            unknown = self._run_table.unacknowledged().keys() - self._run_table.retired
            for run, view in self._run_table.views.items():
                if view.state.attempt and (view.wants or run in unknown):
                    yield view.state.state


class Components:
    """The parts of the scheduler of one sweep. With `starting=False` no run is started, and there
    is no `spending`, `notifier` or `alarm_monitor`."""

    def __init__(self, context: Context, *, starting: bool, smoke: bool) -> None:
        clock = context.clock
        self.starting = starting
        self.display = StatusDisplay(context.backends.values(), clock)
        self.publisher = Publisher(context, starting=starting)
        self.run_table = RunTable(context.folder, context.plan)
        self.places = Places(context, self.run_table)
        service = _service(context, needed=starting)
        self.engine = engine_watch.watch(context, service)
        racing = context.plan.race is not None
        self.stages = (
            Racing(context, self.run_table)
            if racing
            else Stages(context, self.run_table, service.env_file)
        )
        self.submitter = Submitter(
            context, self.run_table, self.places, service, self.engine, self.stages
        )
        self.heartbeats = Heartbeats(context.folder, clock)
        self.outcomes = Outcomes(context)
        self.parallelism = Parallelism(context, service, needed=starting)
        self.requests = Requests(context)
        self.policy = FailurePolicy(self.run_table, self.outcomes, smoke=smoke and starting)
        self.withdrawals = Withdrawals(self.run_table, self.places, self.policy, starting=starting)
        self.attempts = attempts = AttemptUsage(context, self.run_table, self.heartbeats)
        self.usage = SweepUsageWatch(context, self.run_table, attempts)
        self.spending = _spending(context, service, attempts) if starting else None
        self.backlog = Backlog(
            self.run_table,
            self.stages,
            self.policy,
            self.requests,
            self.spending,
            starting=starting,
        )
        self.cancellations = Cancellations(
            context,
            self.run_table,
            self.places,
            self.requests,
            self.spending,
            self.engine if starting else None,
        )
        self.notifier = (
            notifier(context.folder, context.plan, service.env_file, clock) if starting else None
        )
        self.alarm_monitor = self._alarm_monitor(context, service) if starting else None
        self.lost_workers = LostWorkers(
            context,
            self.run_table,
            self.heartbeats,
            withdrawn=self.withdrawals.start_elsewhere,
            stalled=None if self.alarm_monitor is None else self.alarm_monitor.is_stalled,
            starting=starting,
        )

    def _alarm_monitor(self, context: Context, service: Service) -> AlarmMonitor:
        return AlarmMonitor(
            Watched(context.folder, context.plan, self.run_table, context.clock),
            self.heartbeats,
            failed=self.outcomes.failed,
            env_file=service.env_file,
            raised=None if self.notifier is None else self.notifier.raised,
            listed=context.listed,
        )


def _service(context: Context, *, needed: bool) -> Service:
    """Read which service the runs use. If this is not `needed`, a missing or unreadable record
    counts as empty."""
    try:
        return context.folder.read_service()
    except (NotFound, StoreError):
        if needed:
            raise
        return Service()


def _spending(context: Context, service: Service, attempts: AttemptUsage) -> Spending | None:
    """Return the monitor of the budgets of a sweep and its account, or None without budgets."""
    budget, account = context.plan.budget, account_budget(context, service)
    return None if budget is None and account is None else Spending(budget, attempts, account)
