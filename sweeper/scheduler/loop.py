"""The reconcile loop: decides which jobs should run, checks which jobs run, and starts the missing
ones. Each step moves a run at most one event along: intent -> (find) -> submit -> acknowledge."""

# A restart loses only the clocks of leases and waits, and the memory of runs that failed with the
# same error. An attempt with a recorded intent is looked up by its token before it is submitted
# again. An attempt counts toward `max_parallel` from its intent until an event ends it or the
# backend says that it has no such job.

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from sweeper.backends.base import JobStatus
from sweeper.common.full_machine import lacking
from sweeper.common.logs import Changes, Log
from sweeper.errors import (
    AnotherLauncher,
    EnvironmentFailure,
    NoRoom,
    StoreError,
    Unreachable,
)
from sweeper.scheduler.components import Components
from sweeper.scheduler.context import Context
from sweeper.scheduler.job_starter import JobStarter
from sweeper.scheduler.places import TryCall
from sweeper.scheduler.progress import Summary
from sweeper.sweep.folder import attempt_of
from sweeper.sweep.launcher import Observations
from sweeper.sweep.observation import Observation
from sweeper.sweep.states import OPEN, State

_LOG = Log(__name__)

REPLANNED = "the grid was launched again: continuing with its new plan"
"""The reason of a scheduler that ends so that its launcher continues with a new plan."""

POLL_SECONDS = 0.5
REMOTE_POLL_SECONDS = 2.0
"""The longest interval between steps on a remote store, which may charge for each listing."""


class Scheduler:
    """Drives one sweep to its end. The caller holds the sweep's lock.

    `notify` gets each changed summary. With `smoke` one run is started first, and the others after
    it has succeeded. With `starting=False` no runs are started: running jobs are followed, and
    stopped on request. `check` is called before each submission, and raises if another launcher has
    taken over. `ending` is called when all runs are over. The scheduler then does one more step,
    because a user may have requested a retry while `ending` ran.
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
        self._context = context
        self._check = check
        self._ending = ending
        self._notify = notify
        self._parts = Components(context, starting=starting, smoke=smoke)
        self._job_starter = JobStarter(self._parts, check)
        self._machine_full = False
        self._observed: dict[str, Observation] = {}
        self._last_summary: Summary | None = None
        self._changes = {
            "unreachable": Changes(_LOG, "no answer, asking again", "everything answers again"),
            "held": Changes(_LOG, "no runs are started", "runs are started again"),
            "waits": Changes(_LOG, "stages wait", "no stage waits"),
            "limit": Changes(_LOG, "fewer jobs at once", ("the requested number of jobs at once")),
        }

    @property
    def outcomes(self) -> Mapping[str, bytes]:
        """The outcomes that were read from a remote store, by path."""
        return self._parts.attempts.outcomes

    def run(self) -> Summary:
        """Step until nothing runs and nothing is left to start. Return earlier if a user asks this
        launcher to end or to continue with another plan; the summary's `ends` is then the
        reason."""
        is_ours = True
        try:
            with self._parts.parallelism.holding():
                return self._run()
        except AnotherLauncher as error:
            _LOG.warning("this launcher ends: %s", error)
            is_ours = False
            raise
        finally:
            if is_ours and self._parts.spending is not None:
                self._parts.spending.end()

    def _run(self) -> Summary:
        parts = self._parts
        while True:
            summary = self._step_or_unreachable()
            self._notify_people(summary)
            parts.display.show(summary, parts.run_table.views, self._observed)
            self._log_changes(summary)
            if summary != self._last_summary:
                with suppress(OSError, ValueError):  # such as a full disk, or a closed terminal
                    self._notify(summary)
                self._last_summary = summary
            if summary.ends is not None:
                return summary  # Running jobs keep their slots.
            if summary.finished:
                parts.parallelism.leave()
                return summary
            self._wait()

    def _wait(self) -> None:
        """Sleep until the next step, longer on a remote store. Wake early if a job of this machine
        ends."""
        interval_s = REMOTE_POLL_SECONDS if self._context.store.is_remote else POLL_SECONDS
        while interval_s > 0:
            wait = min(interval_s, POLL_SECONDS)
            self._context.sleep(wait)
            interval_s -= wait
            if interval_s > 0 and self._parts.places.has_ended():
                return

    def _log_changes(self, summary: Summary) -> None:
        """Log the reasons why this launcher waits, whenever they change."""
        limit = None if summary.limit is None else f"{summary.limit} ({summary.limit_by})"
        values = {
            "unreachable": summary.unreachable,
            "held": summary.held,
            "waits": "; ".join(summary.waits) or None,
            "limit": limit,
        }
        for name, value in values.items():
            self._changes[name].see(value)
        if summary.counts != (self._last_summary and self._last_summary.counts):
            counts = summary.counts.items()
            _LOG.info("runs: %s", ", ".join(f"{n} {state.value}" for state, n in counts if n))

    def _step_or_unreachable(self) -> Summary:
        """Do a step. If the store or the machine fails, return the last summary with the failure as
        `unreachable`. Raise the failure if no step has succeeded yet."""
        try:
            self._check()
            summary = self.step()
            if summary.finished and summary.ends is None:
                monitor = self._parts.alarm_monitor
                alarms = summary.alarms if monitor is None else monitor.finish()
                self._ending()
                # The step may have taken minutes, in which a user may have requested a retry.
                summary = self.step()._replace(alarms=alarms)
        except (StoreError, OSError, RuntimeError) as error:
            message = lacking(error) or (str(error) if isinstance(error, StoreError) else None)
            # Raise errors of other kinds. If no step has succeeded yet, raise any error, so that
            # the user sees it at once.
            if self._last_summary is None or message is None:
                if message is None or isinstance(error, StoreError):
                    raise
                raise EnvironmentFailure(message) from error
            summary = self._last_summary._replace(unreachable=message)
            with suppress(StoreError):  # Earlier observations may be outdated.
                self._observed = {}
                self._publish(message)
        except AnotherLauncher:
            raise  # Readers see what the other launcher publishes.
        except EnvironmentFailure as error:
            with suppress(StoreError):
                self._parts.publisher.publish(
                    Observations(self._observed, held=str(error), gave_up=True)
                )
            raise
        return summary

    def _notify_people(self, summary: Summary) -> None:
        """Send the notifications that are due, and a last one when the sweep has ended."""
        notifier, spending = self._parts.notifier, self._parts.spending
        if notifier is None:
            return
        notifier.check(None if spending is None else spending.reached)
        if summary.finished and summary.ends is None:
            views = self._parts.run_table.views.items()
            states = {run: (view.state.state.value, view.state.attempt) for run, view in views}
            ends = summary.counts.items()
            counts = ", ".join(f"{n} {state.value}" for state, n in ends if n)
            notifier.end(counts, summary.held, states)

    def step(self) -> Summary:
        """Do one step of the loop, and return the sweep's state after it."""
        parts = self._parts
        parts.run_table.read()
        if parts.starting:
            parts.requests.check()
        self._observed = {}
        unreachable = "; ".join(dict.fromkeys(self._reconcile())) or None
        self._publish(unreachable)
        lowered = parts.parallelism.lowered
        counts = self._counts()
        held = parts.backlog.held
        held_back = parts.stages.held_back + (0 if held is None else parts.backlog.wanting())
        alarms = () if parts.alarm_monitor is None else parts.alarm_monitor.check()
        return Summary(
            counts=counts,
            to_start=parts.backlog.left(self._job_starter.unsubmitted),
            unreachable=unreachable,
            held=held,
            limit=None if lowered is None else lowered.limit,
            held_back=held_back,
            alarms=alarms,
            limit_by="service" if lowered is None else lowered.why,
            again=Counter(parts.backlog.again()),
            waits=parts.stages.messages,
            ends=self._ends(),
            to_come=parts.stages.to_come,
        )

    def _counts(self) -> Counter[State]:
        """Count the runs by state. Retired runs (no longer in the grid) count only while they are
        running."""
        table = self._parts.run_table
        states = ((run, view.state.state) for run, view in table.views.items())
        return Counter(state for run, state in states if run not in table.retired or state in OPEN)

    def _ends(self) -> str | None:
        """Return the reason why this scheduler must end now, or None."""
        requests = self._parts.requests
        if requests.stop is not None:
            return f"stopped by {requests.stop.by}: running jobs continue"
        return REPLANNED if requests.replanned else None

    def _publish(self, unreachable: str | None) -> None:
        parts = self._parts
        lowered = parts.parallelism.lowered
        usage = parts.usage.check(parts.stages.plan)
        parts.publisher.publish(
            Observations(
                self._observed,
                unreachable,
                parts.backlog.held,
                usage=usage,
                paused=parts.requests.pause is not None,
                limit=None if lowered is None else lowered.limit,
                limit_by=None if lowered is None else lowered.why,
            )
        )

    def _reconcile(self) -> list[str]:
        """Follow, stop and start the sweep's jobs. Return a line for each query without an answer,
        and for each record that cannot be read.

        A query without an answer is repeated in the next step. No run is started at a place while
        the state of its running jobs is unknown. A job that cannot be stopped, found or submitted
        delays no other job and no other place.
        """
        parts = self._parts
        missing: list[str] = []

        def try_call(ask: Callable[[], None]) -> bool:
            try:
                ask()
            except Unreachable as error:
                _LOG.debug("no answer: %s", error)
                missing.append(str(error))
                # A full machine lowers the number of jobs at once. If the sweep has other places,
                # they get the jobs instead.
                self._machine_full |= isinstance(error, NoRoom) and not parts.places.several
                return False
            return True

        parts.places.damaged.clear()
        reached = self._poll_jobs(try_call)
        spending_unknown = parts.spending is not None and not try_call(parts.spending.check)
        engine = parts.engine
        engine_away = engine is not None and (not try_call(engine.check) or engine.away)
        parts.cancellations.check(try_call, away=engine_away)
        if reached:
            refused = parts.policy.check()
            refused = "machine" if self._machine_full else refused
            self._machine_full = False
            if parts.starting:
                parts.stages.check(parts.requests.cancel)
                missing += parts.stages.trouble
            self._job_starter.check(
                try_call,
                self._observed,
                refused=refused,
                engine_away=engine_away,
                spending_unknown=spending_unknown,
            )
        return [*missing, *parts.places.damaged.values()]

    def _poll_jobs(self, try_call: TryCall) -> bool:
        """Poll the places (backends) for the running jobs, and find lost workers. Return False if
        each place has running jobs and none of the places answered."""
        parts = self._parts
        if parts.places.several:
            parts.withdrawals.finish()
        opened = parts.places.of_each(parts.run_table.open())
        parts.heartbeats.check(attempt_of(job) for jobs in opened.values() for job in jobs)
        statuses: dict[str, JobStatus] = {}
        reached = False
        for place, jobs in opened.items():
            if jobs:
                reached |= try_call(partial(self._poll_place, place, list(jobs), statuses))
                continue
            try_call(partial(parts.places.look_where_nothing_is, place))
            reached = True
        if statuses:
            self._observed |= parts.lost_workers.check(statuses, parts.cancellations.stopping)
        return reached

    def _poll_place(self, place: str, tokens: list[str], statuses: dict[str, JobStatus]) -> None:
        answers = self._parts.places.ask(place, lambda backend: backend.poll(tokens))
        statuses |= {job: answers[job] for job in tokens}
