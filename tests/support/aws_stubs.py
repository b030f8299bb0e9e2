"""AWS stubbed by botocore's Stubber: a test answers each request, which is checked against AWS's
own model."""

from pathlib import Path
from typing import Any, ClassVar

from botocore.stub import ANY, Stubber

from sweeper.backends.aws_batch.backend import AwsBatchBackend
from sweeper.backends.aws_batch.client import Aws
from sweeper.backends.aws_batch.options import Options
from sweeper.backends.base import JobSpec

KEYS = ("jobName", "jobQueue", "jobDefinition", "containerOverrides", "retryStrategy")


class Stubbed:
    """A backend whose requests the test answers one by one. `waits` has its waits in seconds, `now`
    is its clock, and `SUBMISSION` matches the request for any job."""

    TOKEN = "aaaaaaaaaaaa-a1"
    SUBMISSION: ClassVar[dict[str, Any]] = dict.fromkeys((*KEYS, "propagateTags", "tags"), ANY)

    def __init__(self, folder: Path, session: Any) -> None:
        self.folder = str(folder / "toys")
        self.waits: list[float] = []
        self.now = 0.0
        self.refused_modes: set[str] = set()
        self.aws = Aws("eu-central-1", sleep=self.waits.append, session=self)
        self.stubs: dict[str, Stubber] = {}
        for service in ("batch", "logs"):
            client = session.create_client(
                service,
                region_name="eu-central-1",
                aws_access_key_id="key",
                aws_secret_access_key="secret",
            )
            self.stubs[service] = Stubber(client)
            self.stubs[service].activate()
        self.batch, self.logs = self.stubs["batch"], self.stubs["logs"]

    def create_client(self, service_name: str, *, region_name: str | None, config: Any) -> Any:
        """Return the stubbed client, which never retries; fail if the mode is refused."""
        assert config.retries["mode"] not in self.refused_modes
        return self.stubs[service_name].client

    def opened(self, **options: Any) -> AwsBatchBackend:
        """Return a backend whose launcher has just started."""
        given: dict[str, Any] = {"queue": "q", "job_definition": "d"} | options
        return AwsBatchBackend(self.aws, Options(**given), "toys", self.folder, lambda: self.now)

    def backend(self, **options: Any) -> AwsBatchBackend:
        """Return a backend that has been running for a while."""
        made = self.opened(**options)
        made.jobs.listed_at = self.now
        self.now += 60.0
        return made

    def answer(self, operation: str, response: dict[str, Any], expected: dict[str, Any]) -> None:
        self.batch.add_response(operation, response, expected)

    def queue(self, state: str = "ENABLED", status: str = "VALID") -> None:
        about = {"jobQueueName": "q", "jobQueueArn": "arn", "priority": 1}
        queue = about | {"state": state, "status": status, "computeEnvironmentOrder": []}
        self.answer("describe_job_queues", {"jobQueues": [queue]}, {"jobQueues": ["q"]})

    def defined(self, name: str = "d") -> None:
        """Answer that the queue accepts jobs and that the definition exists."""
        self.queue()
        definition = {
            "jobDefinitionName": name,
            "jobDefinitionArn": "arn",
            "revision": 4,
            "type": "c",
        }
        self.answer(
            "describe_job_definitions",
            {"jobDefinitions": [definition]},
            {"jobDefinitionName": name, "status": "ACTIVE"},
        )

    def listed(
        self, backend: AwsBatchBackend, *jobs: tuple[str, str], status: str = "RUNNING"
    ) -> None:
        prefix = backend.names.prefix
        summaries = [
            {"jobId": job, "jobName": prefix + rest, "status": status} for job, rest in jobs
        ]
        expected: dict[str, Any] = {
            "jobQueue": "q",
            "filters": [{"name": "JOB_NAME", "values": [f"{prefix}*"]}],
            "maxResults": 100,
        }
        self.answer("list_jobs", {"jobSummaryList": summaries}, expected)

    def learn(self, backend: AwsBatchBackend, *jobs: tuple[str, str]) -> None:
        """Make the backend find these jobs in a listing."""
        self.listed(backend, *jobs)
        backend.find([token for _, token in jobs])

    def fail(self, operation: str, error: Exception) -> None:
        """Make the calls of an operation raise this error."""

        def fail(**_: object) -> None:
            raise error

        self.batch.client.meta.events.register_first(
            f"provide-client-params.batch.{operation}", fail
        )

    def described(self, *jobs: dict[str, Any]) -> None:
        whole = {"jobName": "j", "jobQueue": "q", "jobDefinition": "d", "startedAt": 0}
        self.answer(
            "describe_jobs",
            {"jobs": [whole | job for job in jobs]},
            {"jobs": ANY},
        )

    def refuse(self, operation: str, code: str, message: str = "m", status: int = 400) -> None:
        self.batch.add_client_error(operation, code, message, http_status_code=status)

    def done(self) -> None:
        for stub in self.stubs.values():
            stub.assert_no_pending_responses()

    def array(self, size: int) -> tuple[AwsBatchBackend, list[str]]:
        """Return a backend that has submitted an array with the id 9, and its tokens."""
        backend = self.backend()
        tokens = [f"{number:012x}-a1" for number in range(size)]
        backend.jobs.add("9", tokens, array=True)
        return backend, tokens

    def job(self, token: str = TOKEN, *argv: str) -> JobSpec:
        """Return a job with a worker's command, or with `argv`."""
        command = argv or ("python", "-P", "-m", "sweeper.worker.main", "s3://b/toys")
        return JobSpec(token, "lr=1e-4,#1", [*command, token], "/", {})

    def parent(self, status: str, **counts: int) -> None:
        """Answer with the array's status and the number of its children in each status."""
        array = {"jobId": "9", "arrayProperties": {"statusSummary": counts}}
        self.described(array | {"status": status})
