"""Runs jobs at AWS Batch: see docs/aws-batch.md. A job is identified by its name. Jobs that are
submitted together can become one array job. A restart by Batch counts as a new attempt."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

from sweeper.backends.aws_batch.answers import JobQueue
from sweeper.backends.aws_batch.client import Aws, Refused, Throttled
from sweeper.backends.aws_batch.definition import definition
from sweeper.backends.aws_batch.job_request import Submissions
from sweeper.backends.aws_batch.jobs import Jobs
from sweeper.backends.aws_batch.names import Names
from sweeper.backends.aws_batch.options import Options, read_options
from sweeper.backends.base import Backend, JobSpec, JobStatus
from sweeper.common.backoff import Backoff
from sweeper.errors import EnvironmentFailure, Unreachable
from sweeper.sweep.folder import SweepFolder

_LOG_GROUP = "/aws/batch/job"
_REASON = "cancelled by sweeper"
_PASSING = ("CREATING", "UPDATING")
"""Statuses that a job queue has only for some seconds."""
_TERMINATE_AGAIN_SECONDS = 30.0, 300.0
"""Backoff after a job could not be terminated for lack of permission: first and longest wait."""
_OTHER_SWEEP_SECONDS = 5.0, 60.0
"""Backoff of a submission while a job of an earlier sweep in the same folder has not ended: first
and longest wait."""
_DOUBT_SECONDS = 15.0
"""Seconds during which a listing may lack a job whose submission got no reply: Batch does not
promise to list new jobs immediately. The same number of seconds applies after the start of this
launcher, since an earlier launcher may have been killed before it got a reply."""


class _Closed(EnvironmentFailure):
    """Error for a queue that does not accept jobs."""


class _Changing(_Closed, Unreachable):
    """Error for a queue that is changing and does not accept jobs yet."""


def open_backend(
    sweep: str, folder: str, options: Mapping[str, object] | None = None
) -> "AwsBatchBackend":
    """Open the backend for one sweep. Raises `EnvironmentFailure` if the queue does not exist or
    AWS does not answer, and `UsageError` for incomplete options."""
    batch_options = read_options(options or {})
    backend = AwsBatchBackend(
        Aws(batch_options.region, batch_options.profile), batch_options, sweep, folder
    )
    backend.check()
    return backend


class AwsBatchBackend(Backend):
    """A backend (see `sweeper.backends.base.Backend`). `clock` gives monotonic seconds."""

    name = "aws-batch"

    def __init__(
        self,
        aws: Aws,
        options: Options,
        sweep: str,
        folder: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.aws = aws
        self._options = options
        self.names = Names(SweepFolder.at_address(folder))
        self._submissions = Submissions(options, sweep, folder, self.names)
        self.jobs = Jobs(aws, self.names, options.queue)
        self._definition: str | None = None
        self._others = Backoff(*_OTHER_SWEEP_SECONDS, clock)
        self._clock = clock
        self._doubted_until = clock() + _DOUBT_SECONDS
        self._terminated: set[str] = set()
        self._refused: dict[str, Backoff] = {}  # by id of a job that could not be terminated
        self._queue_arn = ""  # unknown until `check`

    def location(self) -> dict[str, str]:
        # The ARN contains the region and the account, whichever profile or name was used.
        return {"queue": self._queue_arn or self._options.queue}

    def check(self) -> None:
        """Raise `EnvironmentFailure` if the queue does not exist. A queue that accepts no new jobs
        passes, since it may still have jobs of the sweep."""
        self._queue_arn = self._queue()["jobQueueArn"]

    def _queue(self) -> JobQueue:
        queue = self._options.queue
        queues = self.aws.call("batch", "describe_job_queues", jobQueues=[queue])["jobQueues"]
        if not queues:
            raise EnvironmentFailure(
                f"aws-batch: no job queue {queue} in {self.aws.region}: see "
                "launch.aws_batch.queue and launch.aws_batch.region"
            )
        return queues[0]

    def preflight(self, resources: Sequence[Mapping[str, object]]) -> None:
        """Check that the queue accepts jobs, or still has unfinished jobs of the sweep. Make a job
        definition if the options give an image. Raises `EnvironmentFailure`, and `UsageError` if
        the job definition named in the options does not exist or lacks a secret that runs need."""
        del resources
        try:
            self._prepare()
        except _Closed:
            if not self.jobs.refresh():
                raise

    def _prepare(self) -> str:
        queue = self._queue()
        state, status = queue.get("state"), queue.get("status")
        message = (
            f"aws-batch: the job queue {self._options.queue} is {state}, {status}: it accepts "
            "no jobs"
        )
        if state != "ENABLED" or status not in ("VALID", *_PASSING):
            raise _Closed(message)
        if status != "VALID":
            raise _Changing(f"{message} yet")
        self._definition = definition(self.aws, self._options)
        return self._definition

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        if not jobs:
            return
        by = self._definition or self._prepare()
        self._others.check()
        self.names.identity.ensure()
        others = self.jobs.others([job.token for job in jobs])
        free = [job for job in jobs if job.token not in others]
        for group in self._submissions.together(free):
            self._submit(group, by)
        if others:
            self._wait_for(next(iter(others.values())))
        self._others.succeeded()

    def _wait_for(self, job: str) -> NoReturn:
        reason = f"the job {job} of an earlier sweep in this folder is still running"
        how = f"`aws batch terminate-job --job-id {job} --reason gone`"
        waits = Unreachable(
            f"aws-batch: {reason}: the launcher waits for its end; to stop it, run {how}"
        )
        self._others.failed(waits)
        raise waits

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        if self.jobs.unknown(tokens):
            self.jobs.refresh()
        identities = self.jobs.ids(tokens)
        if not identities.keys() >= set(tokens) and self._clock() < self._doubted_until:
            raise Unreachable(
                "aws-batch: it is not known yet whether the last jobs were accepted; checking again"
            )
        return identities

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        self.jobs.refresh_for(tokens)
        return self.jobs.statuses(tokens)

    def cancel(self, tokens: Sequence[str]) -> None:
        # TerminateJob ends a job in any state. CancelJob would ignore a job that is about to start.
        if self.jobs.unknown(tokens):
            self.jobs.refresh()
        refused: Refused | None = None
        for job in self.jobs.to_terminate(tokens):
            if job in self._terminated:
                continue  # An earlier call, which AWS then throttled, has terminated this job.
            try:
                self._terminate(job)
            except Refused as error:
                if not error.for_good:
                    raise
                refused = refused or error  # Only this job is refused; others may be stopped.
        if refused is not None:
            raise refused

    def _terminate(self, job: str) -> None:
        """Terminate a job. Raises `Refused` if AWS does not permit this. Until the backoff ends,
        later calls send no request and raise the same error."""
        backoff = self._refused.setdefault(job, Backoff(*_TERMINATE_AGAIN_SECONDS, self._clock))
        backoff.check()
        try:
            self.aws.call("batch", "terminate_job", jobId=job, reason=_REASON)
        except Refused as error:
            if not error.for_good:
                raise
            # ClientException has two meanings: there is no such job, so nothing is left to stop; or
            # terminating the job is not permitted.
            if error.code != "ClientException" or self.jobs.goes_on(job):
                backoff.failed(error)
                raise
        self._terminated.add(job)
        del self._refused[job]

    def logs(self, token: str) -> Iterator[str]:
        """Yield the job's output that CloudWatch has now, including the output before restarts.
        Pages are fetched while iterating."""
        if self.jobs.unknown([token]):
            self.jobs.refresh()
        for job in self.jobs.described([token]):
            container = job.get("container", {})
            about = container.get("logConfiguration", {}).get("options", {})
            group = about.get("awslogs-group") or _LOG_GROUP
            ended = [attempt.get("container", {}) for attempt in job.get("attempts", ())]
            streams = [each.get("logStreamName") for each in [*ended, container]]
            for stream in dict.fromkeys(filter(None, streams)):
                yield from self._stream(group, stream)

    def _stream(self, group: str, stream: str) -> Iterator[str]:
        """Yield the lines of a log stream."""
        token: dict[str, str] = {}
        while True:
            answer = self.aws.call(
                "logs",
                "get_log_events",
                logGroupName=group,
                logStreamName=stream,
                startFromHead=True,
                **token,
            )
            for event in answer["events"]:
                yield event["message"]
            following = answer.get("nextForwardToken")
            if following is None or following == token.get("nextToken"):
                return
            token = {"nextToken": following}

    def _submit(self, jobs: Sequence[JobSpec], by: str) -> None:
        tokens = [job.token for job in jobs]
        if len(jobs) > 1:
            self.names.keep(tokens)
        request = self._submissions.request(jobs, by, self.aws.region)
        try:
            answer = self.aws.submit("batch", "submit_job", **request)
        except (Refused, Throttled):
            raise
        except Unreachable:
            self._doubted_until = self._clock() + _DOUBT_SECONDS
            raise
        self.jobs.add(str(answer["jobId"]), tokens, array=len(jobs) > 1)
