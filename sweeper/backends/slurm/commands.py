"""Runs Slurm's commands and interprets their answers and refusals.

This module parses text with chosen fields instead of the output of `--json`, whose schema changes
between releases.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.backends.base import JobState, JobStatus
from sweeper.errors import EnvironmentFailure, Unreachable
from sweeper.store.documents import timestamp

SECONDS = 60.0
"""Seconds after which a command counts as not answered."""
_OVER = ("Invalid job id", "already complet", "exit code 229")
"""Errors of scancel for jobs that have ended meanwhile. Sometimes scancel prints nothing and exits
with the low byte of ESLURM_ALREADY_DONE (2021)."""

# The reason is the last field, because it may contain any character.
_FIELDS = (
    "ArrayJobID,ArrayTaskID,JobID,State,exit_code,RestartCnt,Comment,NodeList,SubmitTime,Reason"
)
_FORMAT = ",".join(f"{field}:|" for field in _FIELDS.split(","))
_ACCOUNTED = "JobID,State,ExitCode,Comment"
_COMMENT = re.compile(r"sweeper:([0-9a-f]{16}):([0-9a-f]{12}):([0-9a-f]+-a[0-9]+|array)")
_PASSED_ON = ("SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION")
"""Environment variables with the user's defaults, which Slurm's commands get. Other variables of
Slurm would change what a command does or the format of its output."""
_REACHING = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
"""Environment variables that select the cluster or contain the login. All other variables of Slurm
are dropped: if the launcher runs in a Slurm job, they describe that job, and the submitted jobs
would inherit them."""
_DROPPED = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SACCT_", "SINFO_")

_LIMIT = re.compile(r"\b(?:Assoc|QOS)\w+")
"""Matches the name of a limit, such as `QOSMaxSubmitJobPerUserLimit`. A refusal is temporary if the
limit is on the number of submitted jobs, and permanent for any other limit."""
_FULL = re.compile("submit limit|queue full|create job record|unable to accept")
_PASSING = re.compile(
    r"unable to contact|connect failure|connection|timed? ?out|temporar|socket|slurmdbd|try again"
    r"|maximum|resource busy|communication|not respond|zero bytes"
    r"|munge|authenticat|in standby|draining|inactive or drain|failed to fetch config"
    r"|configuration source|configuration file"
    # A controller that was just started says this about any job until its nodes have registered.
    r"|configuration is not available",
    re.IGNORECASE,
)
"""Matches refusals that may be temporary."""
_CLOSED = re.compile("inactive or drain|configuration is not available")
"""Matches temporary refusals with which slurmctld has certainly not accepted the job."""

_WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_HALTED = {"STOPPED", "SUSPENDED"}
_LEAVING = {"COMPLETING", "STAGE_OUT"}
_REASONS = {
    "OUT_OF_MEMORY": "oom",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "PREEMPTED": "preempted",
    "REVOKED": "node_fail",
    "CANCELLED": "cancelled",
}
_ENDED = {"COMPLETED", "FAILED", *_REASONS}


class Closed(Unreachable):
    """Error for a submission that Slurm rejected as a whole and may accept later."""


class Full(Closed):
    """Error for a submission that exceeds Slurm's limit on the number of jobs."""


class Job(NamedTuple):
    """A job as Slurm reports it. `id` is for `scancel`. `task` is the job's index in an array (0
    for a single job). `code` is the exit code, or the negative number of a signal. `restarts` is
    how often Slurm restarted the job. `reason` says why the job waits. `table` is the name of the
    submission's table (see `tables.py`). `token` is the token of a single job, and None for a task
    of an array. `queued` is when the job was submitted (UTC)."""

    id: str
    task: int
    state: str
    code: int | None
    restarts: int
    reason: str
    table: str
    token: str | None
    nodes: str | None = None
    queued: str | None = None

    @property
    def halted(self) -> bool:
        """Whether the job is suspended. Signals reach a suspended job only after it is resumed."""
        return self.state in _HALTED


def status_of(job: Job) -> JobStatus:
    """Return a job's status. A job in an unknown state counts as running."""
    if job.state in _WAITING:
        return JobStatus(JobState.PENDING, None, _why(job.reason), since=job.queued)
    if job.state not in _ENDED:
        state = JobState.STOPPING if job.state in _LEAVING else JobState.RUNNING
        return JobStatus(state, node=job.nodes)
    reason = _REASONS.get(job.state)
    taken = reason in ("node_fail", "preempted")
    return JobStatus(JobState.ENDED, job.code, reason, taken, job.nodes)


def _why(reason: str) -> str | None:
    """Return why a job waits, such as `JobArrayTaskLimit`; None if Slurm gives no reason."""
    return None if reason in ("", "None", "(null)") else reason[:80]


def _utc(text: str) -> str | None:
    """Convert seconds since 1970 to a UTC timestamp; None if `text` is not a whole number."""
    if not text.isdecimal():
        return None
    return timestamp(int(text))


def _code(text: str) -> int | None:
    """Parse an exit code such as `3:0` or, before Slurm 23, a wait status. Return the negative
    number of the signal that ended a job, and None if `text` cannot be parsed."""
    first, _, second = text.partition(":")
    if not first.isdecimal() or (second and not second.isdecimal()):
        return None
    if second:
        return -int(second) if int(second) else int(first)
    status = int(first)
    return -(status & 127) if status & 127 else status >> 8


def queue_of(text: str, folder_hash: str) -> list[Job]:
    """Parse the output of squeue. Return the jobs whose comment has `folder_hash`. Raises
    `Unreachable` if the line of such a job cannot be parsed, since the job would otherwise seem to
    be missing."""
    jobs: list[Job] = []
    for line in text.splitlines():
        if folder_hash not in line:
            continue
        fields = line.split("|", 9)
        match = _COMMENT.fullmatch(fields[6]) if len(fields) > 9 else None
        if match is None and (len(fields) < 10 or fields[6].startswith(f"sweeper:{folder_hash}")):
            raise Unreachable(f"slurm: cannot parse this line of squeue: {line[:200]}")
        if match and match[1] == folder_hash:
            array, index, alone, state, code, restarts = fields[:6]
            name = f"{array}_{index}" if match[3] == "array" else alone
            if name.endswith("_N/A") and state in _ENDED:
                continue  # These tasks had not started when the array was cancelled.
            again = int(restarts) if restarts.isdecimal() else 0
            job = _job(name, match, state, code, again, fields[9].removesuffix("|"))
            jobs.append(job._replace(nodes=fields[7].strip() or None, queued=_utc(fields[8])))
    return jobs


def accounted_of(text: str, folder_hash: str) -> list[Job]:
    """Parse the output of sacct, which has a line for each start of a job, oldest first. Return the
    jobs whose comment has `folder_hash`."""
    jobs: dict[str, Job] = {}
    for line in text.splitlines():
        fields = line.split("|", 3)
        match = _COMMENT.match(fields[3]) if len(fields) > 3 else None
        if match and match[1] == folder_hash:
            name, state, code = fields[:3]
            if "[" in name:
                continue  # Tasks that have not started are in the output of squeue.
            again = jobs[name].restarts + 1 if name in jobs else 0
            state = state.split(" ")[0]  # as in: CANCELLED by 1000
            jobs[name] = _job(name, match, state, code, again)
    return list(jobs.values())


def _job(
    name: str, match: re.Match[str], state: str, code: str, restarts: int, reason: str = ""
) -> Job:
    alone = None if match[3] == "array" else match[3]
    index = "0" if alone else name.partition("_")[2]
    if not index.isdecimal():
        raise Unreachable(f"slurm: cannot parse this array task: {name[:200]}")
    return Job(name, int(index), state, _code(code), restarts, reason, match[2], alone)


class Slurm:
    """Slurm's commands. The methods raise `Unreachable` if Slurm does not answer, and
    `EnvironmentFailure` if Slurm refuses permanently or is not installed."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._configuration: Mapping[str, str] | None = None

    def call(self, *argv: str, text: str | None = None) -> str:
        """Run a command and return its output. `text` is its standard input."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in (*_PASSED_ON, *_REACHING) or not name.startswith(_DROPPED)
        }
        try:
            done = subprocess.run(
                argv,
                input=text or "",
                env=environment | {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._seconds,
                check=False,
            )
        except FileNotFoundError as error:
            raise EnvironmentFailure(
                f"there is no {argv[0]} on this machine: launch on a machine with Slurm's commands "
                "(a login node), or use another backend"
            ) from error
        except subprocess.TimeoutExpired as error:
            message = _message(str(error.stderr or b"", errors="replace"))
            raise Unreachable(
                f"slurm: {argv[0]} did not answer within {self._seconds:g} s"
                + (message and f": {message}")
            ) from error
        except OSError as error:
            raise Unreachable(f"slurm: {argv[0]}: {error.strerror}") from error
        if done.returncode:
            raise _failure(argv[0], done)
        return done.stdout

    def configuration(self) -> Mapping[str, str]:
        """Return the settings that `scontrol show config` prints. The command runs only once."""
        if self._configuration is None:
            file = os.environ.get("SLURM_CONF")
            if file and not os.path.exists(file):  # Slurm would look for the file for a minute.
                raise EnvironmentFailure(f"SLURM_CONF names {file}, which does not exist")
            lines = self.call("scontrol", "show", "config").splitlines()
            pairs = (line.partition("=") for line in lines)
            self._configuration = {key.strip(): value.strip() for key, _, value in pairs}
        return self._configuration

    def largest_array(self) -> int:
        """Return the largest number of tasks in an array, limited by MaxArraySize and
        `max_array_tasks`. Return 1 if Slurm allows no arrays."""
        size = self.configuration().get("MaxArraySize", "")
        scheduler = self.configuration().get("SchedulerParameters", "")
        fewer = re.search(r"\bmax_array_tasks=(\d+)", scheduler)
        sizes = [int(text) for text in (size, fewer[1] if fewer else "") if text.isdecimal()]
        return max(1, min(sizes, default=1))

    def submit(self, options: Sequence[str], script: str) -> str:
        """Submit a batch script and return the job's id."""
        answer = self.call("sbatch", "--parsable", *options, text=script).strip()
        return answer.splitlines()[-1].partition(";")[0] if answer else ""

    def nodes_away(self, partition: str | None) -> bool:
        """Return whether a node of the partition is down or drained. Without `partition`, use
        $SBATCH_PARTITION or the default partition. Return False if Slurm does not report nodes."""
        partition = partition or os.environ.get("SBATCH_PARTITION")
        chosen = ("-p", partition) if partition else ()
        try:
            output = self.call("sinfo", "-h", "-t", "down,drain", "-o", "%P %D", *chosen)
        except EnvironmentFailure:
            return False
        rows = [line.split() for line in output.splitlines() if line.strip()]
        # A star marks the default partition.
        counts = [row[-1] for row in rows if partition or row[0].endswith("*")]
        return any(count.isdecimal() and int(count) for count in counts)

    def queue(self, folder_hash: str) -> list[Job]:
        """Return all jobs of the sweep that slurmctld knows, including recently ended ones."""
        options = ("-a", "--me", "-h", "-r", "-t", "all", "-O", _FORMAT)
        return queue_of(self.call("squeue", *options), folder_hash)

    def accounted(self, folder_hash: str, days: int) -> list[Job]:
        """Return the sweep's jobs of the last `days` days from the accounting database."""
        options = ("-X", "-n", "-P", "-D", "-S", f"now-{days}days", "-o", _ACCOUNTED)
        return accounted_of(self.call("sacct", *options), folder_hash)

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancel waiting jobs, and send SIGTERM to the batch scripts of running jobs. Skip
        suspended jobs, since scancel would wait for them."""
        awake = [job for job in jobs if not job.halted]
        waiting, working = ("--state=PENDING",), ("-b", "-s", "TERM")
        for state, options in ((JobState.PENDING, waiting), (JobState.RUNNING, working)):
            ids = _compact([job.id for job in awake if status_of(job).state is state])
            for start in range(0, len(ids), 100):
                self._cancel(options, ids[start : start + 100])

    def _cancel(self, options: Sequence[str], ids: Sequence[str]) -> None:
        try:
            self.call("scancel", *options, *ids)
        except Unreachable as error:
            # Jobs that have ended by themselves need no cancellation.
            if not any(words in str(error) for words in _OVER):
                raise


def _failure(name: str, done: "subprocess.CompletedProcess[str]") -> EnvironmentFailure:
    """Return the exception for a failed command. Only a failure of sbatch can be permanent."""
    message = _message(done.stderr).removeprefix(f"{name}: ") or f"exit code {done.returncode}"
    reason = f"slurm: {name}: {message}"
    # A command that was killed or printed nothing has not refused anything.
    if name != "sbatch" or done.returncode < 0 or not done.stderr.strip():
        return Unreachable(reason)
    limit = _LIMIT.search(message)
    if "Submit" in limit[0] if limit else _FULL.search(message):
        return Full(reason)
    if limit is not None or not _PASSING.search(message):
        return EnvironmentFailure(reason)
    return Closed(reason) if _CLOSED.search(message) else Unreachable(reason)


def _message(errors: str) -> str:
    """Return the last error message of a command, with the name of the exceeded limit if known."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    # Skip the advice to run `sbatch --help`.
    lines = [line for line in lines if not line.startswith('Try "')] or lines
    messages = [line.partition("rror:")[2].strip() for line in lines if "rror:" in line] or lines
    limit = _LIMIT.search(errors)
    named = f" ({limit[0]})" if limit and limit[0] not in messages[-1] else ""
    return messages[-1][:300] + named if messages else ""


def _compact(ids: Sequence[str]) -> list[str]:
    """Combine the ids of an array's tasks: `7_0 7_1 7_5` becomes `7_[0-1,5]`."""
    arrays: dict[str, list[int]] = {}
    ranges: list[str] = []
    for name in ids:
        array, _, index = name.partition("_")
        if index:
            arrays.setdefault(array, []).append(int(index))
        else:
            ranges.append(name)
    for array, indices in arrays.items():
        ranges += [f"{array}_[{part}]" for part in _ranges(sorted(indices))]
    return ranges


def _ranges(indices: Sequence[int]) -> list[str]:
    """Return strings of ranges of consecutive numbers, such as `0-1,5`. A string has at most 200
    ranges."""
    runs: list[list[int]] = []
    for number in indices:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{first}-{last}" if last > first else str(first) for first, last in runs]
    return [",".join(texts[start : start + 200]) for start in range(0, len(texts), 200)]
