"""Records the tasks of each submission in a file that the nodes share. The comment of a job
names its table and the sweep, so that the job can be found even if the answer to its submission
was lost."""

# <sweep>/slurm/<table>.json       written before the submission: tokens, argvs, folders
# <sweep>/slurm/<table>.out        the job's output; `.<index>.out` for a task of an array

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Sequence, Set

from sweeper.backends.base import JobSpec, JobState
from sweeper.backends.slurm.commands import Job, status_of
from sweeper.common.atomic import atomic_write
from sweeper.errors import EnvironmentFailure, Unreachable
from sweeper.store.local import open_regular, refuse_links
from sweeper.sweep.folder import attempt_of

_UNREADABLE = (OSError, ValueError, KeyError, TypeError)


class Tables:
    """The tables of the sweep at `folder`. A table is a file that lists the jobs of a submission.
    If the folder is remote (S3), the tables are in SWEEPER_HOME, which all nodes must share."""

    def __init__(self, folder: str) -> None:
        self.folder_hash = hashlib.sha256(folder.encode()).hexdigest()[:16]
        self.place = os.path.join(folder, "slurm")
        if "://" in folder:
            from sweeper.paths import home

            self.place = os.path.join(home(), "slurm", self.folder_hash)
        self._tokens_by_table: dict[str, list[str]] = {}

    def write(self, jobs: Sequence[JobSpec], *, requeue: bool) -> str:
        """Write the table of one submission, and return the table's name. `requeue` is recorded in
        the table. Raises `Unreachable` if the disk is full, and `EnvironmentFailure` for other
        errors."""
        name = os.urandom(6).hex()
        tasks = [{"token": job.token, "argv": list(job.argv), "cwd": job.cwd} for job in jobs]
        document = {"schema": 1, "requeue": requeue, "tasks": tasks}
        path = self.path(name)
        refuse_links(os.path.dirname(self.place), self.place)
        try:
            os.makedirs(self.place, exist_ok=True)
            atomic_write(path, json.dumps(document).encode(), durable=True)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            failure = Unreachable if full else EnvironmentFailure
            raise failure(f"cannot write {path}: {error.strerror}") from error
        self._tokens_by_table[name] = [job.token for job in jobs]
        return name

    def discard(self, name: str) -> None:
        """Remove a table whose submission was refused."""
        with contextlib.suppress(OSError):  # A file that remains does no harm.
            os.unlink(self.path(name))

    def path(self, name: str) -> str:
        return os.path.join(self.place, f"{name}.json")

    def comment(self, name: str, jobs: Sequence[JobSpec]) -> str:
        """Return the comment that identifies the job or the array in Slurm."""
        return f"sweeper:{self.folder_hash}:{name}:{jobs[0].token if len(jobs) == 1 else 'array'}"

    def output(self, name: str, jobs: Sequence[JobSpec]) -> str:
        """Return the path of the job's output, in the syntax of sbatch."""
        index = ".%a" if len(jobs) > 1 else ""
        return f"{os.path.join(self.place, name).replace('%', '%%')}{index}.out"

    def spent(self, over: Set[str], well: Set[str]) -> Iterator[list[str]]:
        """For each table whose runs are all in `over` (ids of ended runs), yield the paths of the
        table and of the output files of the runs in `well` (ids of succeeded runs)."""
        files = set(os.listdir(self.place)) if os.path.isdir(self.place) else set[str]()
        for name in sorted(name for name in files if name.endswith(".json")):
            table = name.removesuffix(".json")
            try:
                runs = [attempt_of(token)[0] for token in self._tokens(table)]
            except _UNREADABLE:
                continue  # The table cannot be read, so its runs are unknown.
            if over >= set(runs):
                outs = [f"{table}.{index}.out" for index in range(len(runs))]
                pairs = zip([f"{table}.out"] if len(runs) == 1 else outs, runs, strict=True)
                printed = [out for out, run in pairs if run in well and out in files]
                yield [os.path.join(self.place, each) for each in (name, *printed)]

    def token(self, job: Job) -> str | None:
        """Return the token that a job was submitted for. Return None if the table does not list the
        job, or if the table is gone and the job waits or has ended. Otherwise raise `Unreachable`
        if the table cannot be read."""
        if job.token is not None:
            return job.token
        try:
            tokens = self._tokens(job.table)
        except _UNREADABLE as error:
            gone = isinstance(error, FileNotFoundError)
            if gone and status_of(job).state in (JobState.PENDING, JobState.ENDED):
                return None
            raise Unreachable(
                f"slurm: cannot read {self.path(job.table)} ({type(error).__name__}), so it is "
                f"unknown which run the job {job.id} executes. If the job is not needed, cancel "
                f"its array with `scancel {job.id.partition('_')[0]}`"
            ) from error
        return tokens[job.task] if job.task < len(tokens) else None

    def _tokens(self, table: str) -> Sequence[str]:
        if table not in self._tokens_by_table:
            with open(self.path(table), encoding="utf-8", opener=open_regular) as file:
                tasks = json.load(file)["tasks"]
            self._tokens_by_table[table] = [str(task["token"]) for task in tasks]
        return self._tokens_by_table[table]

    def printed(self, job: Job) -> Iterator[str]:
        """Yield the lines that a job printed; nothing if this machine cannot read the job's output
        file."""
        index = f".{job.task}" if job.token is None else ""
        path = os.path.join(self.place, f"{job.table}{index}.out")
        try:
            with open(path, encoding="utf-8", errors="replace", opener=open_regular) as file:
                yield from (line.rstrip("\n") for line in file)
        except OSError:
            return
