"""Tracks the jobs of a sweep at AWS Batch with few calls, each for at most 100 jobs. A poll queries
every job that has no status yet, but other unfinished jobs only up to a limit."""

# Jobs beyond that limit keep the status of their last query. At worst, a job that has ended still
# counts as unfinished. While the numbers of an array's children in each state are unchanged, only
# the array itself is described.

import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from sweeper.backends.aws_batch.answers import Job
from sweeper.backends.aws_batch.client import Aws
from sweeper.backends.aws_batch.definition import INTERRUPTIONS
from sweeper.backends.aws_batch.names import Names
from sweeper.backends.base import JobState, JobStatus
from sweeper.backends.container_jobs import reason_of
from sweeper.store.documents import timestamp
from sweeper.sweep.folder import attempt_of

A_CALL = 100
MOST_CALLS = 20
_LIST_SECONDS = 10.0
"""Seconds between two listings while some polled token is in no listing."""
_RESTART_SECONDS = 120.0
"""Seconds between two listings if each token that is in no listing may be a restart of a live
job. Batch does not list restarts."""
_WAITING = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING")
_OVER = ("SUCCEEDED", "FAILED")
_RANK = {
    state: rank
    for rank, state in enumerate(
        (JobState.RUNNING, JobState.STOPPING, JobState.PENDING, JobState.ENDED)
    )
}
_PENDING = JobStatus(JobState.PENDING)
_RUNNING = JobStatus(JobState.RUNNING)


def status_of(job: Job) -> JobStatus:
    """Return the status of a job as Batch describes it."""
    word = job["status"]
    container = job.get("container", {})
    node = container.get("containerInstanceArn", "").rpartition("/")[2] or None
    if word in _WAITING:
        # Batch's reason, if it has one: "MISCONFIGURATION:COMPUTE_ENVIRONMENT..."
        why = reason_of(job.get("statusReason"))
        return _PENDING._replace(reason=why, since=_utc(job.get("createdAt")))
    if word == "RUNNING":
        terminated = job.get("isTerminated") or job.get("isCancelled")
        return JobStatus(JobState.STOPPING if terminated else JobState.RUNNING, node=node)
    code = container.get("exitCode")
    if word == "SUCCEEDED":
        return JobStatus(JobState.ENDED, 0 if code is None else code)
    reason, inside = job.get("statusReason", ""), container.get("reason", "")
    # "Essential container in task exited" says no more than the exit code.
    terminated = reason_of(inside or ("" if reason.startswith("Essential container") else reason))
    preempted = any(fnmatchcase(reason, text) for text in INTERRUPTIONS)
    if preempted:
        terminated = reason.rstrip(".")
    elif inside.startswith("OutOfMemoryError"):
        terminated = "oom"
    elif "duration exceeded timeout" in reason:
        terminated = "timeout"
    return JobStatus(JobState.ENDED, code, terminated, preempted, node)


def _utc(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return timestamp(milliseconds / 1000)


class Jobs:
    """A record of the jobs of one sweep, with Batch's ids. A child of an array job has the id `<id
    of the array>:<index>`. `clock` returns monotonic seconds."""

    def __init__(
        self, aws: Aws, names: Names, queue: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._aws, self._names, self._queue, self._clock = aws, names, queue, clock
        self.listed_at = -_RESTART_SECONDS
        self._ids: dict[str, list[str]] = {}  # by token, newest first
        self._newest: dict[str, list[int]] = {}  # by run: the attempts that have a job
        self._others: dict[str, str] = {}  # by token: ids of jobs of earlier sweeps
        self._sizes: dict[str, int] = {}  # number of children, by array
        self._seen: dict[str, JobStatus] = {}
        self._restarts: dict[str, int] = {}
        # For each array: the number of its children in each state when it was last described.
        self._counts: dict[str, dict[str, int]] = {}
        self._due: dict[str, None] = {}  # ids to describe, in order

    def add(self, job: str, tokens: Sequence[str], *, array: bool) -> None:
        """Record the job with the id `job`. Child number i of an array job has the token
        `tokens[i]`. A single job has only one token."""
        if array:
            self._sizes[job] = len(tokens)
        for index, token in enumerate(tokens):
            identity = f"{job}:{index}" if array else job
            ids = self._ids.setdefault(token, [])
            if identity not in ids:
                ids.append(identity)
                run, attempt = attempt_of(token)
                if attempt not in self._newest.setdefault(run, []):
                    self._newest[run].append(attempt)

    def unknown(self, tokens: Iterable[str]) -> bool:
        """Return whether a token has no recorded job."""
        return any(token not in self._ids for token in tokens)

    def refresh(self) -> int:
        """List the sweep's jobs at Batch, and record them. Return the number of unfinished jobs; an
        array job counts as one."""
        listed = self._aws.pages(
            "batch",
            "list_jobs",
            "jobSummaryList",
            jobQueue=self._queue,
            filters=[{"name": "JOB_NAME", "values": [f"{self._names.prefix}*"]}],
            maxResults=A_CALL,
        )
        going = 0
        self._others = {}
        for summary in listed:
            at_work = summary.get("status") not in _OVER
            name = summary["jobName"]
            if (another := self._names.anothers(name)) is not None:
                self._others |= {another: summary["jobId"]} if at_work else {}
                continue
            going += at_work
            array = "size" in summary.get("arrayProperties", {})
            array |= self._names.is_array(name)
            try:
                self.add(summary["jobId"], self._names.tokens(name), array=array)
            except ValueError:  # a name that only resembles those of our jobs
                continue
        self.listed_at = self._clock()
        return going

    def others(self, tokens: Iterable[str]) -> dict[str, str]:
        """Return a dict from token to the id of an unfinished job of an earlier sweep in the same
        folder. Tokens without such a job are left out. An unfinished array job of an earlier sweep
        stands for every token, since the array's own tokens are unknown."""
        if self.listed_at < 0:
            self.refresh()
        array = self._others.get("")
        others = {token: self._others.get(token, array) for token in tokens}
        return {token: job for token, job in others.items() if job is not None}

    def refresh_for(self, tokens: Sequence[str]) -> None:
        """List the jobs again if a token has no recorded job and the last listing is at least
        `_LIST_SECONDS` old. Batch does not list restarts, so the limit is `_RESTART_SECONDS` if
        every token without a job may belong to a live job that Batch has restarted."""
        missing = [token for token in tokens if token not in self._ids]
        restarts = all(map(self._restarted, missing))
        wait = _RESTART_SECONDS if restarts else _LIST_SECONDS
        if missing and self._clock() - self.listed_at >= wait:
            self.refresh()

    def _restarted(self, token: str) -> bool:
        return any(not _ended(self._seen.get(job)) for job in self._older(token))

    def ids(self, tokens: Sequence[str]) -> dict[str, str]:
        """Return a dict from token to the id of its job. A token without a recorded job gets the id
        of a live job of an earlier attempt, since Batch may have restarted this job for the token's
        attempt. Tokens for which no job is found are left out."""
        older = {token: self._older(token) for token in tokens if token not in self._ids}
        self._look([job for jobs in older.values() for job in jobs])
        ids = {token: self._ids[token][0] for token in tokens if token in self._ids}
        for token, jobs in older.items():
            live = [job for job in jobs if not _ended(self._seen.get(job))]
            ids |= {token: live[0]} if live else {}
        return ids

    def statuses(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each token's job: ABSENT if the token has no job."""
        older = {token: self._older(token) for token in tokens}
        wanted = {token: [*self._ids.get(token, ()), *older[token]] for token in tokens}
        self._look([job for jobs in wanted.values() for job in jobs])
        self._count_restarts([job for jobs in older.values() for job in jobs])
        return {token: self._merged(token, jobs) for token, jobs in wanted.items()}

    def to_terminate(self, tokens: Sequence[str]) -> list[str]:
        """Return the ids of the jobs of `tokens` that are not known to have ended. If all
        unfinished children of an array job are among these jobs, and at least two, return the
        array's id instead of the children's ids."""
        jobs = [job for t in tokens for job in (*self._ids.get(t, ()), *self._older(t))]
        chosen = dict.fromkeys(job for job in jobs if not _ended(self._seen.get(job)))
        for array, size in self._sizes.items():
            children = [f"{array}:{index}" for index in range(size)]
            going = [job for job in children if not _ended(self._seen.get(job))]
            if len(going) > 1 and all(job in chosen for job in going):
                for job in going:
                    del chosen[job]
                chosen[array] = None
        return list(chosen)

    def goes_on(self, job: str) -> bool:
        """Query Batch, and return whether the job exists and has not ended. If `job` is a child
        that Batch has not created yet, query its array."""
        for identity in dict.fromkeys((job, _array_of(job))):
            for described in self._describe([identity]):
                return described["status"] not in _OVER
        return False

    def described(self, tokens: Sequence[str]) -> list[Job]:
        """Return Batch's descriptions of the jobs of these tokens, oldest first. For a token
        without a job, describe the jobs of an earlier attempt of the run (see `_older`)."""
        jobs = [job for t in tokens for job in self._ids.get(t) or self._older(t)]
        return self._describe(list(dict.fromkeys(reversed(jobs))))

    def _older(self, token: str) -> list[str]:
        """Return the ids of the jobs of the latest earlier attempt that has jobs. Batch may have
        restarted one of these jobs for the token's attempt."""
        run, attempt = attempt_of(token)
        before = [number for number in self._newest.get(run, ()) if number < attempt]
        return self._ids[f"{run}-a{max(before)}"] if before else []

    def _merged(self, token: str, jobs: Sequence[str]) -> JobStatus:
        """Return the status of a token that may have several jobs. A job that has not ended
        takes precedence over ended ones."""
        submitted_ids = set(self._ids.get(token, ()))
        statuses: list[JobStatus] = []
        for job in jobs:
            status = self._seen.get(job)
            if status is None or status.state is JobState.ABSENT:
                continue
            # An ended job of an earlier attempt counts only if its restarts reached this attempt.
            if job not in submitted_ids and status.state is JobState.ENDED:
                _, attempt = attempt_of(token)
                numbers = self._newest[attempt_of(token)[0]]
                submitted = max(number for number in numbers if number < attempt)
                if self._restarts.get(job, 0) < attempt - submitted:
                    continue
            statuses.append(status)
        return min(
            statuses, key=lambda status: _RANK[status.state], default=JobStatus(JobState.ABSENT)
        )

    def _look(self, jobs: Sequence[str]) -> None:
        """Query those of `jobs` that have not ended. The number of queried jobs that already have a
        status is limited."""
        pending = [job for job in dict.fromkeys(jobs) if not _ended(self._seen.get(job))]
        children: dict[str, list[str]] = {}
        for job in pending:
            array, colon, _ = job.partition(":")
            if colon:
                children.setdefault(array, []).append(job)
            else:
                self._due.setdefault(job)
        parents = {parent["jobId"]: parent for parent in self._describe(list(children))}
        for array, members in children.items():
            parent = parents.get(array)
            if parent is None:  # Batch has forgotten the array and its children.
                self._seen |= dict.fromkeys(members, JobStatus(JobState.ABSENT))
                self._counts.pop(array, None)
            else:
                self._look_at_array(array, members, parent)
        first = [job for job in pending if job not in self._seen and job in self._due]
        # A child is described only if its parent was. Otherwise a missing answer would not mean
        # that the child is gone.
        alone_or_asked = (job for job in self._due if ":" not in job or _array_of(job) in parents)
        later = [job for job in alone_or_asked if job in self._seen]
        turn = [*first, *later[: max(0, MOST_CALLS * A_CALL - len(first))]]
        answers = {job["jobId"]: job for job in self._describe(turn)}
        for job in turn:
            self._due.pop(job, None)
            self._note(job, answers.get(job), parents.get(_array_of(job)))

    def _look_at_array(self, array: str, members: list[str], parent: Job) -> None:
        summary = parent.get("arrayProperties", {}).get("statusSummary", {})
        counts = {word: count for word, count in summary.items() if count}
        waiting = sum(counts.get(word, 0) for word in _WAITING)
        size = self._sizes[array]
        same: JobStatus | None = None
        if parent["status"] == "SUCCEEDED":
            same = JobStatus(JobState.ENDED, 0)
        elif parent["status"] != "FAILED" and waiting == size:
            same = _PENDING
        elif counts.get("RUNNING") == size:
            same = _RUNNING
        if same is not None:
            self._seen |= dict.fromkeys(members, same)
            for job in members:
                self._due.pop(job, None)
        else:
            changed = counts != self._counts.get(array) or parent["status"] == "FAILED"
            everyone = (f"{array}:{index}" for index in range(size))
            watched = [job for job in everyone if job in self._seen] if changed else []
            for job in [*members, *watched]:
                # Include children that were queried earlier, since the next comparison is with
                # these counts.
                if job not in self._seen or (changed and not _ended(self._seen[job])):
                    self._due.setdefault(job)
        self._counts[array] = counts

    def _note(self, job: str, answer: Job | None, parent: Job | None) -> None:
        if answer is not None:
            self._seen[job] = status_of(answer)
            self._restarts[job] = _restarts(answer)
        elif parent is None:
            self._seen[job] = JobStatus(JobState.ABSENT)
        else:
            # A child is created some time after its array, or never if the array ends before.
            self._seen[job] = status_of(parent)

    def _count_restarts(self, jobs: Iterable[str]) -> None:
        """For the `jobs` that have ended, query how often Batch restarted them."""
        ended = (job for job in dict.fromkeys(jobs) if _ended(self._seen.get(job)))
        uncounted = [job for job in ended if job not in self._restarts]
        restarts = {job["jobId"]: _restarts(job) for job in self._describe(uncounted)}
        self._restarts |= dict.fromkeys(uncounted, 0) | restarts

    def _describe(self, jobs: Sequence[str]) -> list[Job]:
        described: list[Job] = []
        for start in range(0, len(jobs), A_CALL):
            batch = list(jobs[start : start + A_CALL])
            described += self._aws.call("batch", "describe_jobs", jobs=batch)["jobs"]
        return described


def _ended(status: JobStatus | None) -> bool:
    return status is not None and status.state is JobState.ENDED


def _array_of(job: str) -> str:
    return job.partition(":")[0]


def _restarts(job: Job) -> int:
    return max(0, len(job.get("attempts", ())) - 1)
