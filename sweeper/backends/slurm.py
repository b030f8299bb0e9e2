"""Jobs of a Slurm cluster, by sbatch, squeue, scancel and scontrol.

Jobs that are submitted together and ask for the same become one array. A job is known by its
comment, which names the sweep and the table of what it runs (`slurm_tables`); by its token where it
is alone. One that Slurm starts again keeps its id and serves the next attempt: a job that was
submitted for attempt 2 and was started again once is the job of attempt 3 as well. The nodes share
this machine's file system, sweeper's Python included.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sweeper.backends.base import JobSpec, JobState, JobStatus
from sweeper.backends.slurm_commands import Job, Slurm, status_of
from sweeper.backends.slurm_options import configured, options, requeues, script
from sweeper.backends.slurm_tables import Tables
from sweeper.errors import EnvironmentFailure, Unreachable

__all__ = ["SlurmBackend", "open_backend"]

_FRESH_SECONDS = 1.0
_SHARE = 20.0
"""An answer of squeue's is used again for a second, and for twenty times as long as it took."""
_AGAIN_SECONDS = 60.0
"""How long the accounting database's word stands: it is asked for what is over."""
_DAYS = 30
_HOPELESS = re.compile(
    "nvalid|not permitted|configuration is not available|unrecogni|ambiguous|[Uu]nable to parse"
    "|there is no "
)
"""Refusals of a trial that are for good: a partition that is down may be up tomorrow."""


def open_backend(
    sweep: str, folder: str, asked: Mapping[str, Any] = MappingProxyType({})
) -> "SlurmBackend":
    """The Slurm backend for one sweep; what it asks for comes with each job. Raises
    `EnvironmentFailure` where there is no Slurm, or where the user's configuration file cannot be
    used."""
    del asked
    slurm = Slurm()
    slurm.configuration()
    return SlurmBackend(slurm, sweep, folder, configured())


class SlurmBackend:
    """See `sweeper.backends.base.Backend`. `defaults` stand where a job's resources say nothing."""

    name = "slurm"

    def __init__(
        self, slurm: Slurm, sweep: str, folder: str, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self._slurm = slurm
        self._sweep = sweep
        self._tables = Tables(folder)
        self._defaults = defaults or {}
        self._queue: list[Job] | None = None
        self._asked = self._took = 0.0
        self._over: list[Job] = []
        self._over_asked = 0.0
        self._over_tokens: set[str] = set()

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        """As arrays, of jobs that ask for the same. What a job that Slurm has started again stands
        in the queue for already is not submitted."""
        again = [job for job in jobs if _number(job.token) > 1]
        served = self._waiting_for([job.token for job in again]) if again else set[str]()
        groups: dict[str, list[JobSpec]] = {}
        for job in jobs:
            if job.token not in served:
                groups.setdefault(repr(sorted(job.resources.items())), []).append(job)
        self._queue = None
        for group in groups.values():
            asked: dict[str, Any] = {**self._defaults, **group[0].resources}
            size = self._slurm.largest_array() if len(group) > 1 else 1
            size = min(size, asked.get("array") or size)
            for start in range(0, len(group), size):
                self._submit(group[start : start + size], asked)

    def preflight(self, asked: Iterable[Mapping[str, object]]) -> None:
        """See that Slurm would take jobs with these resources. Raises `EnvironmentFailure` with
        its word where it never will."""
        for one in asked:
            given: dict[str, Any] = {**self._defaults, **one}
            try:
                self._slurm.submit(["--test-only", *options(given)], script((), ""))
            except EnvironmentFailure as error:
                if isinstance(error, Unreachable) or _HOPELESS.search(str(error)):
                    raise

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        return {token: job.id for token, job in self._jobs(tokens).items()}

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        found = self._jobs(tokens)
        absent = JobStatus(JobState.ABSENT)
        return {t: status_of(found[t]) if t in found else absent for t in tokens}

    def cancel(self, tokens: Sequence[str]) -> None:
        self._queue = None
        found = self._jobs(tokens).values()
        self._queue = None
        self._slurm.cancel(list({job.id: job for job in found}.values()))

    def logs(self, token: str) -> Iterator[str]:
        job = self._jobs([token]).get(token)
        return self._tables.printed(job) if job is not None else iter(())

    def _submit(self, jobs: Sequence[JobSpec], asked: Mapping[str, Any]) -> None:
        name = self._tables.write(jobs, requeue=requeues(asked))
        given = [
            f"--job-name={jobs[0].token if len(jobs) == 1 else f'{self._sweep}.{name}'}",
            f"--comment={self._tables.comment(name, jobs)}",
            f"--chdir={jobs[0].cwd}",
            f"--output={self._tables.output(name, jobs)}",
            *("--open-mode=append", "--export=NONE"),
            *options(asked),
        ]
        if len(jobs) > 1:
            throttle = asked.get("throttle")
            given.append(f"--array=0-{len(jobs) - 1}" + (f"%{throttle}" if throttle else ""))
        text = script(asked.get("setup", ()), self._tables.path(name))
        try:
            self._slurm.submit(given, text)
        except Unreachable:
            raise  # it may have been accepted: the table stays
        except EnvironmentFailure:
            self._tables.discard(name)
            raise

    def _waiting_for(self, tokens: Sequence[str]) -> set[str]:
        """Those of `tokens` for which a job is in the queue, or at work, that was started again."""
        self._queue = None
        wanted = set(tokens)
        live = (JobState.PENDING, JobState.RUNNING)
        return {
            token
            for job in self._look()
            if status_of(job).state in live
            for token in _served(self._tables.token(job), job.restarts)
            if token in wanted
        }

    def _jobs(self, tokens: Sequence[str]) -> dict[str, Job]:
        """Token -> its job, as slurmctld has it, or as the accounting database remembers."""
        if not tokens:
            return {}
        wanted = set(tokens)
        found = self._pick(self._look(), wanted)
        missing = wanted - found.keys()
        return self._pick(self._over_of(missing), missing) | found if missing else found

    def _pick(self, jobs: Iterable[Job], wanted: set[str]) -> dict[str, Job]:
        """Of the jobs that serve a token the one that is furthest: at work, waiting, over."""
        found: dict[str, Job] = {}
        for job in jobs:
            for token in _served(self._tables.token(job), job.restarts):
                if token in wanted and (token not in found or _rank(job) > _rank(found[token])):
                    found[token] = job
        return found

    def _look(self) -> list[Job]:
        """The sweep's jobs in the queue, by an answer of squeue's that is young enough."""
        now = time.monotonic()
        if self._queue is None or now - self._asked > max(_FRESH_SECONDS, _SHARE * self._took):
            self._queue = self._slurm.queue(self._tables.mark)
            self._asked = time.monotonic()
            self._took = self._asked - now
        return self._queue

    def _over_of(self, tokens: set[str]) -> list[Job]:
        """What the accounting database has of the sweep; asked when one of `tokens` is newly
        missed from the queue, and else now and then."""
        now = time.monotonic()
        if tokens - self._over_tokens or now - self._over_asked > _AGAIN_SECONDS:
            self._over = self._slurm.accounted(self._tables.mark, _DAYS)
            self._over_asked, self._over_tokens = now, tokens
        return self._over


def _number(token: str) -> int:
    return int(token.rpartition("-a")[2])


def _served(token: str | None, restarts: int) -> list[str]:
    """The tokens of the attempts that a job has been, or is, there for."""
    if token is None:
        return []
    run, _, first = token.rpartition("-a")
    return [f"{run}-a{int(first) + more}" for more in range(restarts + 1)]


def _rank(job: Job) -> tuple[int, int]:
    order = (JobState.ENDED, JobState.PENDING, JobState.RUNNING)
    return order.index(status_of(job).state), job.restarts
