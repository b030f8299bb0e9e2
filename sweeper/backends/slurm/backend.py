"""Runs jobs on a Slurm cluster with sbatch, squeue, scancel and scontrol. Jobs that are submitted
together with the same resources become arrays. The comment of a job in Slurm identifies the job
(`tables.py`)."""

import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus
from sweeper.backends.slurm.accounting import Accounting
from sweeper.backends.slurm.commands import Closed, Full, Job, Slurm, status_of
from sweeper.backends.slurm.options import Options
from sweeper.backends.slurm.sbatch import arguments_of, asked_of, script
from sweeper.backends.slurm.submission import alike, arguments
from sweeper.backends.slurm.tables import Tables
from sweeper.common.backoff import Backoff, Freshness
from sweeper.errors import EnvironmentFailure, Unreachable
from sweeper.sweep.folder import attempt_of

_ROOM_SECONDS = 30.0, 300.0
"""Backoff of sbatch after it had no room or did not answer: first and longest wait."""
_LATER = re.compile("nodes are busy|Required node not available|eservation")
"""Matches what Slurm says about a test submission if a real job would only have to wait."""
_OWN = ("--signal=", "--requeue", "--no-requeue")
"""Options of sbatch that are not about a job's resources."""
_OVER_MEMORY = re.compile("slurmstepd.*: error: .*memory limit")
"""Matches the output of a job that exceeded its memory on a cluster without control groups. Slurm
reports FAILED for such a job (OverMemoryKill)."""


def open_backend(
    sweep: str, folder: str, defaults: Mapping[str, object] = MappingProxyType({})
) -> "SlurmBackend":
    """Open the Slurm backend for one sweep. The options of a job override `defaults`. Raises
    `EnvironmentFailure` if Slurm is not installed or does not answer."""
    slurm = Slurm()
    slurm.configuration()
    return SlurmBackend(slurm, sweep, folder, defaults)


class SlurmBackend(Backend):
    """A backend (see `sweeper.backends.base.Backend`). A job's own options, `JobSpec.resources`,
    override `defaults`."""

    name = "slurm"

    def __init__(
        self,
        slurm: Slurm,
        sweep: str,
        folder: str,
        defaults: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slurm = slurm
        self._sweep = sweep
        self._tables = Tables(folder)
        self._defaults = defaults or {}
        self._queue: list[Job] | None = None
        self._clock, self._freshness = clock, Freshness(clock)
        self._accounting = Accounting(slurm, self._tables.folder_hash)
        self._backoff = Backoff(*_ROOM_SECONDS, clock)
        self._rooms: dict[str, Backoff] = {}  # by the jobs' resources
        self._doubted: set[str] = set()  # tokens that may have a job, since sbatch did not answer

    def location(self) -> dict[str, str]:
        return {"cluster": self._slurm.configuration().get("ClusterName", "")}

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        """Submit jobs. Jobs with the same resources become arrays. Skip a job if Slurm has
        restarted the job of an earlier attempt, or if an earlier submission got no answer but was
        accepted. If Slurm has no room for some jobs, submit the others and raise `Unreachable`."""
        self._backoff.check()
        existing = self._existing([job.token for job in jobs])
        groups = alike(job for job in jobs if job.token not in existing)
        self._queue = None
        refused: Closed | None = None
        for key, group in groups.items():
            room = self._rooms.setdefault(key, Backoff(*_ROOM_SECONDS, self._clock))
            try:
                room.check()
                self._submit_alike(group, room)
            except Closed as error:
                refused = error
        if refused is not None:
            raise refused

    def preflight(self, resources: Sequence[Mapping[str, object]]) -> None:
        """Check that Slurm would accept jobs with these resources, now or later. Raises
        `EnvironmentFailure` with Slurm's message if Slurm would refuse such jobs or does not
        answer."""
        for needs in resources:
            try:
                self.trial(needs)
            except Full:
                pass  # There will be room for the jobs later.
            except Closed:
                partition = {**self._defaults, **needs}.get("partition")
                if not self._slurm.nodes_away(str(partition) if partition else None):
                    raise
            except EnvironmentFailure as error:
                if not _LATER.search(str(error)):
                    raise

    def trial(self, resources: Mapping[str, object]) -> None:
        """Let Slurm check a job with these resources without submitting it. Raises
        `EnvironmentFailure` if Slurm objects. The message names the options of sbatch that were
        checked."""
        sbatch_options = arguments_of(asked_of(self._defaults, resources))
        try:
            self._slurm.submit(["--test-only", *sbatch_options], script((), ""))
        except EnvironmentFailure as error:
            if isinstance(error, Unreachable) and not isinstance(error, Closed):
                raise
            options = " ".join(option for option in sbatch_options if not option.startswith(_OWN))
            message = f"{error}: a job asks for {options or 'nothing'} (launch.slurm)"
            raise type(error)(message) from error

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        return {token: job.id for token, job in self._jobs(tokens).items()}

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        jobs = self._jobs(tokens)
        absent = JobStatus(JobState.ABSENT)
        return {t: self._status(jobs[t]) if t in jobs else absent for t in tokens}

    def cancel(self, tokens: Sequence[str]) -> list[str]:
        self._queue = None
        jobs = self._pick(self._look(), set(tokens)) if tokens else {}
        self._queue = None
        self._slurm.cancel(list({job.id: job for job in jobs.values()}.values()))
        return [token for token, job in jobs.items() if job.halted]

    def logs(self, token: str) -> Iterator[str]:
        job = self._jobs([token]).get(token)
        return self._tables.printed(job) if job is not None else iter(())

    def _submit_alike(self, group: Sequence[JobSpec], room: Backoff) -> None:
        """Submit jobs with the same resources, in as few arrays as possible."""
        options = asked_of(self._defaults, group[0].resources)
        size = self._slurm.largest_array() if len(group) > 1 else 1
        size = min(size, options.array or size)
        for start in range(0, len(group), size):
            self._hand_in(group[start : start + size], options, room)

    def _hand_in(self, jobs: Sequence[JobSpec], options: Options, room: Backoff) -> None:
        """Submit the jobs. If Slurm has no room for all of them, submit each half separately. An
        array with a throttle is not split, since each half would get the full throttle."""
        tokens = {job.token for job in jobs}
        try:
            self._submit(jobs, options)
        except Closed as error:
            if len(jobs) == 1 or options.throttle or not isinstance(error, Full):
                room.failed(error)
                raise
            middle = len(jobs) // 2
            self._hand_in(jobs[:middle], options, room)
            self._hand_in(jobs[middle:], options, room)
        except Unreachable as error:
            self._doubted |= tokens
            self._backoff.failed(error)
            raise
        else:
            self._doubted -= tokens
            self._backoff.succeeded()
            room.succeeded()
            self._accounting.note_present(tokens)

    def _submit(self, jobs: Sequence[JobSpec], options: Options) -> None:
        name = self._tables.write(jobs, requeue=options.requeue)
        sbatch_arguments = arguments(self._sweep, self._tables, name, jobs, options)
        text = script(options.setup, self._tables.path(name))
        try:
            self._slurm.submit(sbatch_arguments, text)
        except EnvironmentFailure as error:
            # After any other error sbatch may have accepted the job, which then needs its table.
            if isinstance(error, Closed) or not isinstance(error, Unreachable):
                self._tables.discard(name)
            raise

    def _status(self, job: Job) -> JobStatus:
        """Return a job's status, with a reason from the job's output if Slurm gives no reason."""
        status = status_of(job)
        if status.state is not JobState.ENDED or status.reason is not None:
            return status
        lines = [line for line in self._tables.printed(job) if line.strip()]
        if status.code == -signal.SIGKILL and any(_OVER_MEMORY.match(line) for line in lines):
            return status._replace(reason="oom")
        if any(line.startswith(f"{self._tables.token(job)} on ") for line in lines):
            return status
        # Cut off the path of the script, which contains the job's number, so that runs with the
        # same error have the same reason.
        message = lines[-1].rpartition("/slurm_script: ")[2][:200] if lines else "nothing printed"
        return status._replace(
            reason=f"start: its batch script ended before the worker started: {message}"
        )

    def _existing(self, tokens: Sequence[str]) -> set[str]:
        """Return the tokens that already have a job: a live job that Slurm restarted, or a job
        whose submission got no answer."""
        doubted = self._doubted & set(tokens)
        again = {token for token in tokens if attempt_of(token)[1] > 1}
        if not doubted and not again:
            return set()
        self._queue = None  # An answer of squeue from before the submission would not list the job.
        jobs = self._look()
        live = [job for job in jobs if status_of(job).state is not JobState.ENDED]
        existing = self._pick(live, again).keys() | self._pick(jobs, doubted).keys()
        self._doubted -= existing
        return existing

    def _jobs(self, tokens: Sequence[str]) -> dict[str, Job]:
        """Return {token: job} from Slurm's queue, or else from the accounting database."""
        if not tokens:
            return {}
        wanted = set(tokens)
        jobs = self._pick(self._look(), wanted)
        self._accounting.note_present(jobs.keys())
        missing = wanted - jobs.keys()
        return self._pick(self._accounting.over(missing), missing) | jobs if missing else jobs

    def _pick(self, jobs: Iterable[Job], wanted: set[str]) -> dict[str, Job]:
        """Return {token: job} for the `wanted` tokens that have jobs. Of several jobs, prefer a
        running, then a stopping, then a waiting job."""
        picked: dict[str, Job] = {}
        for job in jobs:
            for token in _served(self._tables.token(job), job.restarts):
                if token in wanted and (token not in picked or _rank(job) > _rank(picked[token])):
                    picked[token] = job
        return picked

    def _look(self) -> list[Job]:
        """Return the sweep's jobs in the queue. A recent answer of squeue is used again."""
        if self._queue is None or self._freshness.is_over():
            with self._freshness.renewed():
                self._queue = self._slurm.queue(self._tables.folder_hash)
        return self._queue


def _served(token: str | None, restarts: int) -> list[str]:
    """Return the tokens of a job's attempts: `token` for the first, and one more for each restart.
    Return [] if `token` is None."""
    if token is None:
        return []
    run, first = attempt_of(token)
    return [f"{run}-a{first + more}" for more in range(restarts + 1)]


def _rank(job: Job) -> tuple[int, int]:
    order = (JobState.ENDED, JobState.PENDING, JobState.STOPPING, JobState.RUNNING)
    return order.index(status_of(job).state), job.restarts
