"""The parts of a scheduler: each is made once, and gets the parts that it uses."""

from collections.abc import Collection, Iterator

from sweeper.alarms.actions import Watched
from sweeper.alarms.monitor import AlarmMonitor
from sweeper.alarms.notifier import notifier
from sweeper.errors import NotFound, StoreError
from sweeper.scheduler import engine_watch
from sweeper.scheduler.budgets import AttemptUsage, Spending, SweepUsageWatch, account_budget
from sweeper.scheduler.context import Context
from sweeper.scheduler.failures import FailurePolicy, Outcomes
from sweeper.scheduler.lost_workers import LostWorkers
from sweeper.scheduler.parallelism import Parallelism
from sweeper.scheduler.places import Places, Withdrawals
from sweeper.scheduler.progress import Publisher, StatusDisplay
from sweeper.scheduler.race import Racing
from sweeper.scheduler.requests import Cancellations, Requests
from sweeper.scheduler.stages import Stages
from sweeper.scheduler.submitter import Submitter
from sweeper.sweep.heartbeats import Heartbeats
from sweeper.sweep.launcher import Service
from sweeper.sweep.run_table import RunTable
from sweeper.sweep.states import State


class Backlog:
    """The runs that are neither over nor running. With `starting=False`, only those that an
    earlier launcher may have submitted."""

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
        """Return the reason why no runs are started; None if nothing holds them or none are
        left."""
        spent = None if self._spending is None else self._spending.reached
        if self._policy.held is not None:
            return self._policy.held
        held = self._requests.held or spent
        return held if held is not None and self.wanting() else None

    def left(self, unsubmitted: Collection[str]) -> int:
        """Count the runs that are still to be started, or may have been. `unsubmitted` are runs
        with an opened attempt that is at no backend."""
        unknown = self._run_table.unacknowledged().keys()
        if not self._starting or (self.held is not None and self._requests.pause is None):
            return len(unknown - set(unsubmitted))
        return self.wanting()  # the user may resume it at any time

    def wanting(self) -> int:
        """Count the runs that are neither over nor running."""
        vain = self._stages.in_vain
        wanting = sum(view.wants and not vain(run) for run, view in self._run_table.views.items())
        unknown = self._run_table.unacknowledged().keys() - self._run_table.retired
        return wanting + self._stages.to_come + len(unknown)

    def again(self) -> Iterator[State]:
        """Yield the states of runs that have run and will be started again."""
        if (self.held is None or self._requests.pause is not None) and self._starting:
            unknown = self._run_table.unacknowledged().keys() - self._run_table.retired
            for run, view in self._run_table.views.items():
                if view.state.attempt and (view.wants or run in unknown):
                    yield view.state.state


class Components:
    """The parts of the scheduler of one sweep. With `starting=False` no run is started, and there
    is no `spending`, no `notifier` and no `alarm_monitor`."""

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
        attempts = AttemptUsage(context, self.run_table, self.heartbeats)
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
        self.alarm_monitor: AlarmMonitor | None = None
        if starting:
            self.alarm_monitor = AlarmMonitor(
                Watched(context.folder, context.plan, self.run_table, clock),
                self.heartbeats,
                last_words=self.outcomes.last_words,
                env_file=service.env_file,
                raised=None if self.notifier is None else self.notifier.raised,
            )
        self.lost_workers = LostWorkers(
            context,
            self.run_table,
            self.heartbeats,
            withdrawn=self.withdrawals.start_elsewhere,
            stalled=None if self.alarm_monitor is None else self.alarm_monitor.is_stalled,
            starting=starting,
        )


def _service(context: Context, *, needed: bool) -> Service:
    """Read which service the runs use. A launcher that starts no runs does not need it."""
    try:
        return context.folder.read_service()
    except (NotFound, StoreError):
        if needed:
            raise
        return Service()


def _spending(context: Context, service: Service, attempts: AttemptUsage) -> Spending | None:
    """Return the monitor of a sweep's budget and its account's; None if there is neither."""
    budget, account = context.plan.budget, account_budget(context, service)
    return None if budget is None and account is None else Spending(budget, attempts, account)
