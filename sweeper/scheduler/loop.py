"""The reconcile loop: what should run, what does, and what to start next.

Each step reads the store, asks each backend once, and moves every run at most one step along

    intent -> (find) -> submit -> acknowledge -> the worker's own events

Nothing is kept in memory that a restart could miss, but the clocks of leases and of waits, which
then start again, and what this launch has seen of runs that all fail alike. So the launcher may be
killed anywhere and started again: an attempt whose intent is on record is looked for by its token
before it is submitted a second time.

At most `max_parallel` jobs are at work at once, and no more than the sweep has slots of its account
(`governor.py`): an attempt counts from its intent on, until an event ends it or the backend says
that it has no such job.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from sweeper.backends.base import JobStatus
from sweeper.errors import (
    AnotherLauncher,
    EnvironmentFailure,
    NoRoom,
    NotFound,
    StoreError,
    Unreachable,
)
from sweeper.limits import lacking
from sweeper.model.launcher import Observations, Service
from sweeper.model.observation import Kind, Observation
from sweeper.model.states import OPEN, Event
from sweeper.scheduler import engine_watch
from sweeper.scheduler.account_budget import account_budget
from sweeper.scheduler.alarm_monitor import AlarmMonitor
from sweeper.scheduler.attempt_usage import AttemptUsage
from sweeper.scheduler.backlog import Backlog
from sweeper.scheduler.cancellations import Cancellations
from sweeper.scheduler.context import Context
from sweeper.scheduler.failure_policy import FailurePolicy
from sweeper.scheduler.lost_workers import LostWorkers
from sweeper.scheduler.notifier import notifier
from sweeper.scheduler.outcomes import Outcomes
from sweeper.scheduler.parallelism import Parallelism
from sweeper.scheduler.places import Answered, Places
from sweeper.scheduler.progress import Summary
from sweeper.scheduler.requests import Requests
from sweeper.scheduler.run_table import RunTable
from sweeper.scheduler.spending import Spending
from sweeper.scheduler.stage_limits import StageRoom
from sweeper.scheduler.stages import Stages
from sweeper.scheduler.status_publisher import Publisher, StatusDisplay
from sweeper.scheduler.submitter import Submitter
from sweeper.scheduler.sweep_usage import SweepUsageWatch
from sweeper.scheduler.withdrawals import Withdrawals
from sweeper.storage.base import Store
from sweeper.storage.heartbeats import Heartbeats
from sweeper.storage.layout import attempt_of
from sweeper.storage.sweeps import service_of

__all__ = ["REPLANNED", "Scheduler"]

REPLANNED = "the grid was launched again: going on with its new plan"
"""Why a launcher ends that is to go on at once, with the plan that it was given."""

POLL_SECONDS = 0.5
REMOTE_POLL_SECONDS = 2.0
"""Each look lists a store that may charge for it."""


class Scheduler:
    """Drives one sweep to its end. The caller holds the sweep's lock.

    `notify` is called with the summary whenever it has changed. With `smoke` one run goes
    first, and the others only when it has succeeded. With `starting=False` nothing is started: the
    jobs that run are looked after, and stopped where that is asked for. `check` is called before
    anything is submitted; it raises when another launcher has the sweep by now. `ending` is called
    when all is over; it may take long, since the sweep is looked at once more after it.
    """

    def __init__(
        self,
        context: Context,
        *,
        notify: Callable[[Summary], None] = lambda _: None,
        smoke: bool = False,
        starting: bool = True,
        check: Callable[[], None] = lambda: None,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        store, plan, clock = context.store, context.plan, context.clock
        self._context = context
        self._check = check
        self._ending = ending
        self._notify = notify
        self._starting = starting
        self._display = StatusDisplay(context.backends.values(), clock)
        self._publisher = Publisher(context, starting=starting)
        self._run_table = RunTable(store, context.sweep, plan)
        self._places = Places(context, self._run_table)
        service = _service(store, context.sweep, needed=starting)
        self._engine = engine_watch.watch(context, service)
        self._stages = Stages(context, self._run_table, service.env_file)
        using = self._places, service, self._engine, self._stages
        self._submitter = Submitter(context, self._run_table, *using)
        self._heartbeats = Heartbeats(store, context.layout, clock)
        self._outcomes = Outcomes(store, context.sweep, clock, context.wall)
        self._parallelism = Parallelism(context, service, needed=starting)
        self._requests = Requests(context)
        self._policy = FailurePolicy(self._run_table, self._outcomes, smoke=smoke and starting)
        self._withdrawals = Withdrawals(
            self._run_table, self._places, self._policy, starting=starting
        )
        attempts = AttemptUsage(context, self._run_table, self._heartbeats)
        self._usage = SweepUsageWatch(context, self._run_table, attempts)
        self._spending = _spending(context, service, attempts) if starting else None
        asking = self._requests, self._spending
        self._backlog = Backlog(
            self._run_table, self._stages, self._policy, *asking, starting=starting
        )
        engine = self._engine if starting else None
        self._cancellations = Cancellations(context, self._run_table, self._places, *asking, engine)
        self._notifier = notifier(context, service.env_file) if starting else None
        self._alarm_monitor: AlarmMonitor | None = None
        if starting:
            seen = self._run_table, self._heartbeats, self._outcomes
            told = None if self._notifier is None else self._notifier.raised
            self._alarm_monitor = AlarmMonitor(
                context, *seen, env_file=service.env_file, raised=told
            )
        self._lost_workers = LostWorkers(
            context,
            self._run_table,
            self._heartbeats,
            withdrawn=self._withdrawals.start_elsewhere,
            stalled=None if self._alarm_monitor is None else self._alarm_monitor.is_stalled,
            starting=starting,
        )
        self._away = False
        self._crowded = False
        self._unaccounted = False
        # Attempts that were opened and are at work nowhere: the backend has been asked.
        self._nowhere: set[str] = set()
        self._observed: dict[str, Observation] = {}
        self._told: Summary | None = None

    def run(self) -> Summary:
        """Step until nothing runs and nothing is left to start, or somebody wants this launcher to
        end, or to go on with another plan (`Summary.ends`)."""
        is_ours = True
        try:
            with self._parallelism.kept():
                return self._run()
        except AnotherLauncher:
            is_ours = False
            raise
        finally:
            if is_ours and self._spending is not None:
                self._spending.end()

    def _run(self) -> Summary:
        while True:
            try:
                self._check()
                summary = self.step()
                if summary.finished and summary.ends is None:
                    told = (
                        summary.alarms
                        if self._alarm_monitor is None
                        else self._alarm_monitor.finish()
                    )
                    self._ending()
                    # That may have taken minutes, in which somebody asked for a retry.
                    summary = self.step()._replace(alarms=told)
            except (StoreError, OSError, RuntimeError) as error:
                said = lacking(error) or (str(error) if isinstance(error, StoreError) else None)
                if self._told is None or said is None:  # it never worked: say so at once
                    if said is None or isinstance(error, StoreError):
                        raise
                    raise EnvironmentFailure(said) from error
                summary = self._told._replace(unreachable=said)
                with suppress(StoreError):  # what was observed before holds no more
                    self._observed = {}
                    self._publish(said)
            except AnotherLauncher:
                raise  # what readers see is the other's to say
            except EnvironmentFailure as error:
                with suppress(StoreError):
                    self._publisher.publish(
                        Observations(self._observed, held=str(error), gave_up=True)
                    )
                raise
            self._tell(summary)
            self._display.show(summary, self._run_table.views, self._observed)
            if summary != self._told:
                with suppress(OSError, ValueError):  # a full disk, a terminal that has gone
                    self._notify(summary)
                self._told = summary
            if summary.ends is not None:
                return summary  # what runs keeps its slots
            if summary.finished:
                self._parallelism.leave()
                return summary
            wait = REMOTE_POLL_SECONDS if self._context.store.is_remote else POLL_SECONDS
            self._context.sleep(wait)

    def _tell(self, summary: Summary) -> None:
        """Tell people what they are to be told; of the end, when it is that."""
        if self._notifier is None:
            return
        self._notifier.look(None if self._spending is None else self._spending.reached)
        if summary.finished and summary.ends is None:
            views = self._run_table.views.items()
            states = {run: (view.state.state.value, view.state.attempt) for run, view in views}
            self._notifier.end(summary, states)

    def step(self) -> Summary:
        """One round of reconciliation."""
        self._run_table.read()
        if self._starting:
            self._requests.look()
        self._observed = {}
        unreachable = "; ".join(dict.fromkeys(self._reach())) or None
        self._publish(unreachable)
        lowered = self._parallelism.lowered
        states = [(run, view.state) for run, view in self._run_table.views.items()]
        shown = [
            s.state for run, s in states if run not in self._run_table.retired or s.state in OPEN
        ]
        held = self._backlog.held
        back = self._stages.held_back + (0 if held is None else self._backlog.wanting())
        told = () if self._alarm_monitor is None else self._alarm_monitor.look()
        return Summary(
            Counter(shown),
            self._backlog.left(self._nowhere),
            unreachable,
            held,
            None if lowered is None else lowered.limit,
            back,
            told,
            "service" if lowered is None else lowered.why,
            Counter(self._backlog.again()),
            self._stages.told,
            self._ends(),
        )

    def _ends(self) -> str | None:
        """Why this launcher is to end now."""
        if self._requests.stop is not None:
            return f"stopped by {self._requests.stop.by}: what runs goes on"
        return REPLANNED if self._requests.replanned else None

    def _publish(self, unreachable: str | None) -> None:
        lowered = self._parallelism.lowered
        limit, why = (None, None) if lowered is None else lowered
        paused = self._requests.pause is not None
        usage = self._usage.look(self._stages.plan)
        told = Observations(self._observed, unreachable, self._backlog.held, usage=usage)
        self._publisher.publish(told._replace(paused=paused, limit=limit, limit_by=why))

    def _reach(self) -> list[str]:
        """Do all that needs the backend. Returns why it did not answer, a line for each question.

        A question without an answer says nothing of any job and is asked again in the next round.
        Nothing is started at a place while its jobs at work are not known; but one job that cannot
        be stopped, looked for or submitted holds up no others, and no place another.
        """
        silent: list[str] = []

        def answered(ask: Callable[[], None]) -> bool:
            try:
                ask()
            except Unreachable as error:
                silent.append(str(error))
                # A place that is full is left alone, where there are others.
                self._crowded |= isinstance(error, NoRoom) and not self._places.several
                return False
            return True

        self._places.damaged.clear()
        settled = self._settle(answered)
        self._unaccounted = self._spending is not None and not answered(self._spending.look)
        told = not answered(self._look_for_engine)
        self._away = told or (self._engine is not None and self._engine.away)
        self._cancellations.look(answered, away=self._away)
        if settled:
            refused = self._policy.look()
            refused = "machine" if self._crowded else refused
            self._crowded = False
            if self._starting:
                self._stages.look(self._requests.cancel)
                silent += self._stages.trouble
            answered(lambda: self._take_slots(refused))
            # What may be at work counts as such: only the room beside it is given to others.
            self._acknowledge(answered)
            self._start(answered)
        return [*silent, *self._places.damaged.values()]

    def _take_slots(self, refused: str | None) -> None:
        """See how many jobs may be at work now. Raises `Unreachable`."""
        paused = sum(seen.kind is Kind.PAUSED for seen in self._observed.values())
        self._parallelism.ask(self._requests.parallel)
        busy, most = self._busy(), 1 if self._policy.smoke else self._parallelism.here
        room = min(max(0, most - busy), sum(self._places.room(self._nowhere).values()))
        startable = sum(1 for _ in itertools.islice(self._startable(), room)) if room else 0
        self._parallelism.look(busy, startable, paused=paused, refused=refused)

    def _startable(self) -> Iterator[str]:
        """Yield the runs that would be started now if there were room."""
        if self._backlog.held is not None or not self._starting or self._away or self._unaccounted:
            return
        room, runs = self._stage_room(), self._run_table.runs
        yield from (run for run in self._nowhere - self._run_table.retired if room.take(runs[run]))
        retries_first = self._policy.waiting_for_retries
        for run, view in self._run_table.views.items():
            doubted = retries_first and not view.state.opened
            if not view.wants or doubted or self._policy.first not in (None, run):
                continue
            waits = self._outcomes.waits(run) is not None or self._stages.waiting(run) is not None
            if not waits and room.take(runs[run]):
                yield run

    def _free(self) -> int:
        """How many more jobs may be submitted now."""
        if self._backlog.held is not None or not self._starting or self._away or self._unaccounted:
            return 0
        most = min(1, self._parallelism.jobs) if self._policy.smoke else self._parallelism.jobs
        return max(0, most - self._busy())

    def _busy(self) -> int:
        return sum(1 for _ in self._at_work())

    def _at_work(self) -> Iterator[str]:
        yield from self._run_table.open()
        yield from self._run_table.unacknowledged().keys() - self._nowhere

    def _stage_room(self) -> StageRoom:
        return StageRoom(self._stages.plan, (self._run_table.runs[run] for run in self._at_work()))

    def _acknowledge(self, answered: Answered) -> None:
        """Submit again what an earlier launcher meant to submit, unless its place has it."""
        self._nowhere = set()
        opened = self._places.of_each(self._run_table.unacknowledged())
        for place, jobs in opened.items():
            if jobs and not answered(partial(self._acknowledge_at, place, jobs)):
                unknown = self._run_table.unacknowledged()  # but for those found since
                runs = [run for run in jobs.values() if run in unknown]
                self._withdrawals.look(place, runs, self._nowhere)

    def _acknowledge_at(self, place: str, opened: Mapping[str, str]) -> None:
        """The same at one place, for these jobs (token -> run). Raises `Unreachable`."""
        found = self._places.ask(place, lambda backend: backend.find(list(opened)))
        for job in found:
            self._run_table.add(*attempt_of(job), Event.SUBMITTED)
        missing = [run for job, run in opened.items() if job not in found]
        self._nowhere |= set(missing)
        again: list[str] = []
        stage_room = self._stage_room()
        staying = self._withdrawals.look(place, missing, self._nowhere)
        room = self._places.room(self._nowhere)[place]
        for run in staying:
            attempt = self._run_table.views[run].state.opened
            if (attempt, Event.CANCEL) in self._run_table.events(run):
                self._run_table.end(
                    run, attempt, Event.CANCELLED, "cancelled", "before it was submitted"
                )
            elif run in self._run_table.retired or len(again) >= min(room, self._free()):
                continue
            elif stage_room.take(self._run_table.runs[run]):
                again.append(run)
        self._nowhere -= set(again)
        for run in again:
            # What lies beside the intent may be of another plan, damaged, or anybody's.
            attempt = self._run_table.views[run].state.opened
            self._submitter.describe(run, attempt, place, again=True)
        self._submit(place, again)

    def _look_for_engine(self) -> None:
        """See where the engine is, if the runs use one. Raises `Unreachable` where users should
        know that it is away."""
        if self._engine is not None:
            self._engine.look()

    def _settle(self, answered: Answered) -> bool:
        """Ask the places for the jobs at work, and find those whose worker is lost
        (`lost_workers.py`). Returns whether any place has answered."""
        if self._places.several:
            self._withdrawals.finish()
        opened = self._places.of_each(self._run_table.open())
        self._heartbeats.look(attempt_of(job) for there in opened.values() for job in there)
        statuses: dict[str, JobStatus] = {}
        reached = False
        for place, there in opened.items():
            if there:
                reached |= answered(partial(self._poll, place, list(there), statuses))
                continue
            answered(partial(self._places.look_where_nothing_is, place))
            reached = True
        if statuses:
            self._observed |= self._lost_workers.look(statuses, self._cancellations.told)
        return reached

    def _poll(self, place: str, tokens: list[str], statuses: dict[str, JobStatus]) -> None:
        """Add what a place says of its jobs. Raises `Unreachable`."""
        found = self._places.ask(place, lambda backend: backend.poll(tokens))
        statuses |= {job: found[job] for job in tokens}

    def _start(self, answered: Answered) -> None:
        """Open attempts for runs that want one, as far as there is room, and submit them."""
        room = min(self._free(), sum(self._places.room(self._nowhere).values()))
        retries_first, held = self._policy.waiting_for_retries, self._backlog.held
        stage_room = self._stage_room()
        chosen: list[str] = []
        for run, view in self._stages.in_order():
            if not view.wants:
                continue
            attempt = view.state.opened + 1
            end, wait = self._outcomes.waits(run), self._stages.waiting(run)
            if held is not None or not self._starting:
                if held is not None:
                    self._observed[run] = Observation(Kind.HELD)
            elif end is not None:
                self._observed[run] = Observation(Kind.LATER, None, end.told())
            elif (attempt, Event.CANCEL) in self._run_table.events(run):
                # A cancel that was taken back names this attempt: the next is the one to start.
                self._run_table.add(run, attempt, Event.INTENT)
                self._run_table.end(
                    run, attempt, Event.CANCELLED, "cancelled", "before it was submitted"
                )
            elif wait is not None:
                self._observed[run] = wait
            elif self._away:
                self._observed[run] = Observation(Kind.ENGINE)
            elif attempt == 1 and retries_first:
                self._observed[run] = Observation(Kind.DOUBTED)
            elif len(chosen) >= room or self._policy.first not in (None, run):
                continue
            elif stage_room.take(self._run_table.runs[run]):
                chosen.append(run)
        self._policy.started(chosen)
        self._open(chosen, answered)

    def _open(self, runs: Iterable[str], answered: Answered) -> None:
        """Open the next attempt of each of these runs at a place that has room, and submit them."""
        rooms = self._places.room(self._nowhere)
        opened: dict[str, list[str]] = {}
        for run in runs:
            place = self._places.choose(run, rooms)
            if place is not None:
                rooms[place] -= 1
                attempt = self._run_table.views[run].state.opened + 1
                there = self._submitter.open(run, attempt, place)
                if there is not None:
                    opened.setdefault(there, []).append(run)
        for place, jobs in opened.items():
            answered(partial(self._submit, place, jobs))

    def _submit(self, place: str, runs: Sequence[str]) -> None:
        """Hand the opened attempts of runs to a place, if the sweep is still ours."""
        if runs:
            self._check()
            self._submitter.submit(place, runs)


def _service(store: Store, sweep: str, *, needed: bool) -> Service:
    """Read which service the runs get. A launcher that starts none can do without it."""
    try:
        return service_of(store, sweep)
    except (NotFound, StoreError):
        if needed:
            raise
        return Service()


def _spending(context: Context, service: Service, attempts: AttemptUsage) -> Spending | None:
    """What is watched of the budgets of a sweep and of its account; None where there is neither."""
    budget, account = context.plan.budget, account_budget(context, service)
    return None if budget is None and account is None else Spending(budget, attempts, account)
