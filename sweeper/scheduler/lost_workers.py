"""Finds lost workers, which will never record the outcome of their attempt. A worker is lost if it
has sent no heartbeat for longer than `launch.lease` and the backend does not know its job."""

import signal
from collections.abc import Callable, Collection, Mapping

from sweeper.backends.base import GONE, JobState, JobStatus
from sweeper.common.logs import Log
from sweeper.scheduler.context import Context
from sweeper.scheduler.failures import last_words
from sweeper.sweep.folder import attempt_of, token
from sweeper.sweep.heartbeats import Heartbeats
from sweeper.sweep.observation import Kind, Observation
from sweeper.sweep.run_table import RunTable
from sweeper.sweep.states import OPEN, Event, State
from sweeper.worker.outcome import MemoryKills

_LOG = Log(__name__)

SETTLE_SECONDS = 12.0
"""Seconds after the end of a job, without any heartbeat of its attempt, before the launcher records
that the worker died. The job may have been one of two copies, and the other copy may still
train."""
_SIGKILL = (-signal.SIGKILL, 128 + signal.SIGKILL)


class LostWorkers:
    """The part of a launcher that observes running attempts, and records the outcomes that dead or
    lost workers did not record.

    A launcher withdraws an attempt that a place did not accept. If the launcher was killed
    meanwhile, `withdrawn` is called with the run and the attempt's number. `stalled` returns
    whether an attempt makes no progress. With `starting=False` no worker is declared lost.
    """

    def __init__(
        self,
        context: Context,
        run_table: RunTable,
        heartbeats: Heartbeats,
        *,
        withdrawn: Callable[[str, int], None],
        stalled: Callable[[str, int], bool] | None,
        starting: bool,
    ) -> None:
        self._context = context
        self._lease_s = context.plan.launch.lease_s
        self._run_table = run_table
        self._heartbeats = heartbeats
        self._withdrawn = withdrawn
        self._stalled = stalled
        self._starting = starting
        self._kernel = _KernelKills()

    def check(
        self, statuses: Mapping[str, JobStatus], stopping: Collection[str]
    ) -> dict[str, Observation]:
        """Judge the running jobs by the statuses from their backends. `stopping` are jobs that were
        asked to stop. `statuses` and `stopping` name each job by its token. Return an observation
        for each run that is not over and not healthy, such as a queued, silent or paused run.
        Raises `StoreError`."""
        self._kernel.check(statuses)
        if any(status.state in GONE for status in statuses.values()):
            # A worker records its outcome before it exits. So only an outcome that is missing after
            # the backend's answer is really missing.
            self._run_table.read()
        observations: dict[str, Observation] = {}
        for job, status in statuses.items():
            run, attempt = attempt_of(job)
            stopped = job in stopping
            at_work = self._run_table.views[run].state.state in OPEN
            if at_work and not self._is_over(run, attempt, status, stopped):
                seen = self._observe(run, attempt, status, stopped)
                if seen is not None:
                    observations[run] = seen
        return observations

    def _is_over(self, run: str, attempt: int, status: JobStatus, stopped: bool) -> bool:
        """Record the outcome of an attempt if its worker certainly will not. `stopped`: its job was
        asked to stop. Return whether the attempt is over."""
        view, quiet = self._run_table.views[run], self._heartbeats.quiet(run, attempt)
        if view.cancel and status.state in GONE:
            # A worker checks for a cancellation before it claims its attempt, so no worker will
            # claim this one.
            if view.state.state is State.SUBMITTED or quiet > SETTLE_SECONDS:
                detail = "the worker ended before it could record the cancellation"
                self._run_table.end(run, attempt, Event.CANCELLED, "cancelled", detail)
            return True
        if status.state is JobState.ENDED and quiet > SETTLE_SECONDS:
            self._end(run, attempt, status, stopped)
            return True
        lost = status.state is JobState.ABSENT and quiet > self._lease_s and self._starting
        if lost:
            _LOG.warning(
                "%s is lost: the backend has no such job, and the worker sent no heartbeat "
                "for %.0f s",
                token(run, attempt),
                quiet,
            )
            self._run_table.add(run, attempt, Event.LOST)
        return lost

    def _observe(
        self, run: str, attempt: int, status: JobStatus, stopped: bool
    ) -> Observation | None:
        """Return the observation of an attempt that is not over, or None if it is healthy."""
        stopping = stopped or self._run_table.views[run].cancel
        if status.state is JobState.PENDING:  # The job waits, so it sends no heartbeats yet.
            kind = Kind.STOPPING if stopping else Kind.QUEUED
            return Observation(kind, status.reason or None, status.since)
        if self._heartbeats.quiet(run, attempt) > self._lease_s:
            return Observation(Kind.STALE, status.node and f"on {status.node}")
        if stopping or status.state is JobState.STOPPING:
            return Observation(Kind.STOPPING, status.reason or None, status.since)
        paused = self._heartbeats.paused(run, attempt)
        if paused is not None:
            return Observation(Kind.PAUSED, paused.reason, paused.since or None)
        stalled = self._stalled is not None and self._stalled(run, attempt)
        return Observation(Kind.STALLED) if stalled else None

    def _end(self, run: str, attempt: int, status: JobStatus, stopped: bool) -> None:
        """Record the outcome of an attempt whose worker ended without recording it."""
        state = self._run_table.views[run].state
        if state.event is Event.CLAIMED and self._run_table.finish_withdrawal(run, attempt):
            self._withdrawn(run, attempt)
            return
        if self._kernel.killed(token(run, attempt)):
            reason, detail = "oom", "the worker was killed by the kernel: out of memory"
        elif state.state is State.SUBMITTED:
            last_line = self._last_words(run, attempt) or "see its log"
            reason, detail = "start", f"the job ended before its worker started: {last_line}"
        else:
            reason, detail = "killed", "the worker ended without recording an outcome"
        event = Event.PREEMPTED if status.preempted else Event.FAILED
        reason = status.reason or reason
        if stopped and reason != "oom":
            # The launcher stopped the job before its worker could record the end. The run will
            # continue.
            event, reason = Event.PREEMPTED, "terminated"
            detail = "it was stopped before its worker could record the end"
        _LOG.warning("%s: %s (%s): %s", token(run, attempt), event.value, reason, detail)
        details = {"code": status.code, "host": status.node}
        self._run_table.end(run, attempt, event, reason, detail, details)

    def _last_words(self, run: str, attempt: int) -> str:
        """Return the last line printed by a job whose worker never started; empty if there is
        none."""
        backends, place = self._context.backends, next(iter(self._context.backends), None)
        if len(backends) > 1:
            place = self._context.folder.place_of(run, attempt)
        backend = backends.get(place or "")
        return "" if backend is None else last_words(backend, token(run, attempt))


class _KernelKills:
    """The jobs that the kernel probably killed because memory was full: they ended by SIGKILL while
    the kernel killed a process of the launcher's control group."""

    def __init__(self) -> None:
        self._counter = MemoryKills()
        self._counts = (0, 0)  # from the last two checks, since a job ends shortly after its kill
        self._ended: dict[str, bool] = {}

    def check(self, statuses: Mapping[str, JobStatus]) -> None:
        """Record each ended job that was killed by the kernel."""
        count = self._counter.count()
        ended = {job: s for job, s in statuses.items() if s.state is JobState.ENDED}
        for job, status in ended.items():
            killed = count > self._counts[0] and status.code in _SIGKILL
            self._ended[job] = self._ended.get(job, False) or killed
        self._ended = {job: killed for job, killed in self._ended.items() if job in ended}
        self._counts = (self._counts[1], count)

    def killed(self, job: str) -> bool:
        """Return whether the kernel killed this ended job."""
        return self._ended.get(job, False)
