"""The parts of a scheduler: each is made once, and gets the parts that it uses."""

from sweeper.alarms.actions import Watched
from sweeper.alarms.monitor import AlarmMonitor
from sweeper.alarms.notifier import notifier
from sweeper.errors import NotFound, StoreError
from sweeper.scheduler import engine_watch
from sweeper.scheduler.backlog import Backlog
from sweeper.scheduler.budgets import AttemptUsage, Spending, SweepUsageWatch, account_budget
from sweeper.scheduler.context import Context
from sweeper.scheduler.failures import FailurePolicy, Outcomes
from sweeper.scheduler.lost_workers import LostWorkers
from sweeper.scheduler.parallelism import Parallelism
from sweeper.scheduler.places import Places, Withdrawals
from sweeper.scheduler.progress import Publisher, StatusDisplay
from sweeper.scheduler.requests import Cancellations, Requests
from sweeper.scheduler.stages import Stages
from sweeper.scheduler.submitter import Submitter
from sweeper.sweep.heartbeats import Heartbeats
from sweeper.sweep.launcher import Service
from sweeper.sweep.run_table import RunTable


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
        self.stages = Stages(context, self.run_table, service.env_file)
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
