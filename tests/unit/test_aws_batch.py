"""The AWS Batch backend against botocore's Stubber: the exact requests, held against AWS's own
model of them, and what is made of the answers. What really runs is in tests/contract and tests/e2e.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import EndpointConnectionError, ParamValidationError
from botocore.stub import ANY, Stubber

from sweeper.backends import aws_batch_jobs as jobs_module
from sweeper.backends.aws_batch import AwsBatchBackend
from sweeper.backends.aws_batch_client import Aws, Throttled
from sweeper.backends.aws_batch_options import Options
from sweeper.backends.base import JobSpec, JobState, JobStatus
from sweeper.errors import EnvironmentFailure, Unreachable, UsageError

TOKEN = "aaaaaaaaaaaa-a1"
ENDED = JobState.ENDED
SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:tinker-AbCdEf"


class Scene:
    """A backend whose requests are answered by the test, one by one."""

    def __init__(self, folder: Path, session: Any) -> None:
        self.folder = str(folder / "toys")
        self.waits: list[float] = []
        self.aws = Aws("eu-central-1", sleep=self.waits.append)
        self.stubs: dict[str, Stubber] = {}
        for service in ("batch", "logs"):
            client = session.create_client(
                service,
                region_name="eu-central-1",
                aws_access_key_id="key",
                aws_secret_access_key="secret",
            )
            self.aws._clients[service, True] = self.aws._clients[service, False] = client
            self.stubs[service] = Stubber(client)
            self.stubs[service].activate()
        self.batch, self.logs = self.stubs["batch"], self.stubs["logs"]

    def backend(self, **options: Any) -> AwsBatchBackend:
        given = {"queue": "q", "job_definition": "d"} | options
        return AwsBatchBackend(self.aws, Options(**given), "toys", self.folder)

    def answer(self, operation: str, said: dict[str, Any], asked: dict[str, Any]) -> None:
        self.batch.add_response(operation, said, asked)

    def defined(self, name: str = "d") -> None:
        found = {"jobDefinitionName": name, "jobDefinitionArn": "arn", "revision": 4, "type": "c"}
        self.answer(
            "describe_job_definitions",
            {"jobDefinitions": [found]},
            {"jobDefinitionName": name, "status": "ACTIVE"},
        )

    def listed(self, backend: AwsBatchBackend, *jobs: tuple[str, str], more: int = 0) -> None:
        prefix = backend._names.prefix
        found = [{"jobId": job, "jobName": prefix + rest} for job, rest in jobs]
        asked: dict[str, Any] = {
            "jobQueue": "q",
            "filters": [{"name": "JOB_NAME", "values": [f"{prefix}*"]}],
            "maxResults": 100,
        }
        self.answer("list_jobs", {"jobSummaryList": found}, asked)

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


@pytest.fixture(scope="module")
def session() -> Any:
    return botocore.session.Session()


@pytest.fixture
def scene(tmp_path: Path, session: Any) -> Iterator[Scene]:
    scene = Scene(tmp_path, session)
    yield scene
    scene.done()


def _job(token: str = TOKEN, *argv: str) -> JobSpec:
    command = argv or ("python", "-P", "-m", "sweeper.worker.main", "s3://b/toys")
    return JobSpec(token, "lr=1e-4,#1", [*command, token], "/", {})


def test_a_job_is_submitted_as_this(scene: Scene) -> None:
    backend = scene.backend(
        vcpus=2.0, memory=4096, gpus=1, timeout_s=7200.0, tags={"team": "x"}, region="eu-central-1"
    )
    scene.defined()
    scene.answer(
        "submit_job",
        {"jobName": "n", "jobId": "1"},
        {
            "jobName": f"{backend._names.prefix}{TOKEN}",
            "jobQueue": "q",
            "jobDefinition": "d:4",
            "containerOverrides": {
                "command": list(_job().argv),
                "environment": [{"name": "AWS_DEFAULT_REGION", "value": "eu-central-1"}],
                "resourceRequirements": [
                    {"type": "VCPU", "value": "2"},
                    {"type": "MEMORY", "value": "4096"},
                    {"type": "GPU", "value": "1"},
                ],
            },
            "retryStrategy": {
                "attempts": 4,
                "evaluateOnExit": [
                    {"onStatusReason": "Host EC2*", "action": "RETRY"},
                    {"onStatusReason": "Your Spot Task was interrupted*", "action": "RETRY"},
                    {"onReason": "*", "action": "EXIT"},
                ],
            },
            "propagateTags": True,
            "tags": {
                "team": "x",
                "sweeper:sweep": "toys",
                "sweeper:token": TOKEN,
                "sweeper:run": "lr=1e-4__1",
            },
            "timeout": {"attemptDurationSeconds": 7200},
        },
    )
    backend.submit([_job()])
    assert backend.find([TOKEN]) == {TOKEN: "1"}  # without asking: its reply came


def test_many_are_one_request(scene: Scene) -> None:
    backend = scene.backend(array=3, retries_on_interruption=0)
    tokens = [f"{number:012x}-a1" for number in range(5)]
    scene.defined()
    scene.answer(
        "submit_job",
        {"jobName": "n", "jobId": "9"},
        {
            "jobName": ANY,
            "jobQueue": "q",
            "jobDefinition": "d:4",
            "containerOverrides": ANY,
            "retryStrategy": {"attempts": 1},
            "propagateTags": True,
            "tags": {"sweeper:sweep": "toys", "sweeper:jobs": "5"},
            "arrayProperties": {"size": 5},
        },
    )
    backend.submit([_job(token) for token in tokens])
    assert backend.find(tokens) == {token: f"9:{index}" for index, token in enumerate(tokens)}
    # Another launcher, which never got the reply, has the same from the name and the table.
    other = scene.backend(array=3)
    (table,) = Path(scene.folder, "arrays").iterdir()
    scene.listed(other, ("9", f"array-{table.stem}"))
    assert other.find(tokens) == backend.find(tokens)


def test_jobs_of_other_programs_stand_alone(scene: Scene) -> None:
    backend = scene.backend(array=2)
    scene.defined()
    for number in range(2):
        keys = ("jobName", "jobQueue", "jobDefinition", "containerOverrides", "retryStrategy")
        asked: dict[str, Any] = dict.fromkeys((*keys, "propagateTags", "tags"), ANY)
        scene.answer("submit_job", {"jobName": "n", "jobId": str(number)}, asked)
    backend.submit([_job(f"{n:012x}-a1", "train.sh", "s3://b/toys") for n in range(2)])


def test_a_definition_is_made_of_an_image_once(scene: Scene) -> None:
    options = {
        "job_definition": None,
        "image": "i:1",
        "role": "arn:role",
        "execution_role": "arn:e",
    }
    backend = scene.backend(**options, secrets={"TINKER_API_KEY": SECRET})
    scene.answer("describe_job_definitions", {"jobDefinitions": []}, ANY_DEFINITION)
    scene.answer(
        "register_job_definition",
        {"jobDefinitionName": "sweeper-x", "jobDefinitionArn": "arn", "revision": 1},
        {
            "jobDefinitionName": ANY,
            "type": "container",
            "containerProperties": {
                "image": "i:1",
                "resourceRequirements": [
                    {"type": "VCPU", "value": "1"},
                    {"type": "MEMORY", "value": "2048"},
                ],
                "jobRoleArn": "arn:role",
                "executionRoleArn": "arn:e",
                "secrets": [{"name": "TINKER_API_KEY", "valueFrom": SECRET}],
            },
            "propagateTags": True,
            "tags": {"sweeper": "job definition"},
        },
    )
    keys = ("jobName", "jobQueue", "containerOverrides", "retryStrategy", "propagateTags", "tags")
    for number in range(2):
        asked = dict.fromkeys(keys, ANY) | {"jobDefinition": "sweeper-x:1"}
        scene.answer("submit_job", {"jobName": "n", "jobId": str(number)}, asked)
        backend.submit([_job(f"{number:012x}-a1")])


ANY_DEFINITION = {"jobDefinitionName": ANY, "status": "ACTIVE"}


def test_a_named_definition_has_the_secrets_that_runs_need(scene: Scene) -> None:
    scene.defined()
    with pytest.raises(UsageError, match="d has no secret TINKER_API_KEY"):
        scene.backend(secrets={"TINKER_API_KEY": SECRET}).preflight([])
    scene.answer("describe_job_definitions", {"jobDefinitions": []}, ANY_DEFINITION)
    with pytest.raises(UsageError, match="no active job definition d"):
        scene.backend().preflight([])


def test_what_is_throttled_is_sent_again_and_what_may_have_been_done_is_not(scene: Scene) -> None:
    backend = scene.backend()
    scene.defined()
    for _ in range(3):
        scene.refuse("submit_job", "TooManyRequestsException", status=429)
    scene.refuse("submit_job", "ServerException", status=500)
    with pytest.raises(Unreachable, match="ServerException at submit_job"):
        backend.submit([_job()])
    assert len(scene.waits) == 3
    # It had been accepted: who looks for it finds it.
    scene.listed(backend, ("5", TOKEN))
    assert backend.find([TOKEN]) == {TOKEN: "5"}


def test_what_will_never_be_taken_is_told_and_not_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.refuse("submit_job", "ClientException", "no such definition")
    with pytest.raises(EnvironmentFailure, match="submit_job: no such definition") as caught:
        scene.aws.submit("batch", "submit_job", jobName="n", jobQueue="q", jobDefinition="d")
    assert not isinstance(caught.value, Unreachable)
    scene.refuse("submit_job", "ExpiredTokenException")
    with pytest.raises(Unreachable):
        scene.aws.submit("batch", "submit_job", jobName="n", jobQueue="q", jobDefinition="d")

    def wrong(**_: object) -> None:
        raise ParamValidationError(report="Invalid length")

    monkeypatch.setattr(scene.aws._clients["batch", False], "submit_job", wrong)
    with pytest.raises(EnvironmentFailure, match="Invalid length") as caught:
        scene.aws.submit("batch", "submit_job", jobName="n" * 200)
    assert not isinstance(caught.value, Unreachable)


def test_it_does_not_wait_for_ever(scene: Scene) -> None:
    for _ in range(8):
        scene.refuse("submit_job", "TooManyRequestsException", status=429)
    with pytest.raises(Throttled):
        scene.aws.submit("batch", "submit_job", jobName="n", jobQueue="q", jobDefinition="d")
    assert len(scene.waits) == 7
    assert max(scene.waits) <= 20


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("ExpiredTokenException", "credentials have expired"),
        ("UnrecognizedClientException", "credentials have expired or are not valid"),
        ("AccessDeniedException", "not allowed: m .*aws-batch.md"),
        ("TooManyRequestsException", "too many requests"),
        ("ServerException", "AWS Batch: list_jobs: m"),
    ],
)
def test_a_refusal_is_one_line_and_no_absence(scene: Scene, code: str, said: str) -> None:
    scene.refuse("list_jobs", code, "m\n  m")
    with pytest.raises(Unreachable, match=said.replace(": m", ": m m")) as caught:
        scene.backend().poll([TOKEN])
    assert "\n" not in str(caught.value)


def test_a_dead_line_is_no_absence(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(**_: object) -> None:
        raise EndpointConnectionError(endpoint_url="https://batch.eu-central-1.amazonaws.com/")

    monkeypatch.setattr(scene.aws._clients["batch", True], "list_jobs", dead)
    with pytest.raises(Unreachable, match="does not answer: Could not connect"):
        scene.backend().find([TOKEN])


@pytest.mark.parametrize(
    ("queues", "said"),
    [([], "no job queue q in eu-central-1"), ([("DISABLED", "VALID")], "is DISABLED, VALID")],
)
def test_the_queue_is_looked_at(scene: Scene, queues: list[tuple[str, str]], said: str) -> None:
    about = {
        "jobQueueName": "q",
        "jobQueueArn": "arn",
        "priority": 1,
        "computeEnvironmentOrder": [],
    }
    found = [about | {"state": state, "status": status} for state, status in queues]
    scene.answer("describe_job_queues", {"jobQueues": found}, {"jobQueues": ["q"]})
    with pytest.raises(EnvironmentFailure, match=said):
        scene.backend().check()


def test_restarts_stand_for_the_attempts_after(scene: Scene) -> None:
    """A token that nobody has submitted is that of the run's last job, while that goes on, or if it
    came so far."""
    backend = scene.backend()
    first, second, third = (f"aaaaaaaaaaaa-a{n}" for n in (1, 2, 3))
    backend._jobs.add("1", [first], array=False)
    scene.listed(backend, ("1", first))
    scene.described({"jobId": "1", "status": "RUNNING"})
    assert backend.find([second]) == {second: "1"}
    attempts = [{"container": {}}, {"container": {}}]
    scene.described({"jobId": "1", "status": "FAILED", "attempts": attempts})
    statuses = backend.poll([first, second, third])
    assert [status.state for status in statuses.values()] == [ENDED, ENDED, JobState.ABSENT]
    scene.listed(backend, ("1", first))
    assert backend.find([second]) == {}  # it has ended: the next one is to be submitted


def test_of_two_copies_the_one_that_goes_on_counts(scene: Scene) -> None:
    backend = scene.backend()
    scene.listed(backend, ("2", TOKEN), ("1", TOKEN))
    scene.described({"jobId": "2", "status": "SUCCEEDED"}, {"jobId": "1", "status": "RUNNING"})
    assert backend.poll([TOKEN])[TOKEN].state is JobState.RUNNING
    scene.answer("terminate_job", {}, {"jobId": "1", "reason": "cancelled by sweeper"})
    backend.cancel([TOKEN])


def _array(scene: Scene, size: int) -> tuple[AwsBatchBackend, list[str]]:
    backend = scene.backend()
    tokens = [f"{number:012x}-a1" for number in range(size)]
    backend._jobs.add("9", tokens, array=True)
    return backend, tokens


def _parent(status: str, **counts: int) -> dict[str, Any]:
    return {"jobId": "9", "status": status, "arrayProperties": {"statusSummary": counts}}


def test_an_array_that_waits_takes_one_call(scene: Scene) -> None:
    backend, tokens = _array(scene, 10_000)
    scene.described(_parent("PENDING", RUNNABLE=9_990, SUBMITTED=10))
    assert {s.state for s in backend.poll(tokens).values()} == {JobState.PENDING}
    scene.described(_parent("SUCCEEDED", SUCCEEDED=10_000))
    assert set(backend.poll(tokens).values()) == {JobStatus(ENDED, 0)}
    backend.poll(tokens)  # what has ended is not asked about again
    assert scene.aws.calls == {"describe_jobs": 2}


def test_a_poll_makes_twenty_calls_and_another_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "MOST_CALLS", 2)
    monkeypatch.setattr(jobs_module, "A_CALL", 2)
    backend, tokens = _array(scene, 8)
    scene.described(_parent("PENDING", RUNNABLE=8))
    backend.poll(tokens)
    running = [{"jobId": f"9:{index}", "status": "RUNNING"} for index in range(8)]
    scene.described(_parent("PENDING", RUNNING=7, FAILED=1))
    scene.described(*running[:2])
    scene.described(*running[2:4])
    states = [status.state for status in backend.poll(tokens).values()]
    assert states == [JobState.RUNNING] * 4 + [JobState.PENDING] * 4
    failed = {"jobId": "9:7", "status": "FAILED", "container": {"exitCode": 3}}
    scene.described(_parent("PENDING", RUNNING=7, FAILED=1))
    scene.described(*running[4:6])
    scene.described(running[6], failed)
    statuses = list(backend.poll(tokens).values())
    assert statuses == [JobStatus(JobState.RUNNING)] * 7 + [JobStatus(ENDED, 3)]
    scene.described(_parent("PENDING", RUNNING=7, FAILED=1))
    assert list(backend.poll(tokens).values()) == statuses  # nothing has changed: one call


def test_children_that_are_not_made_yet_are_waiting(scene: Scene) -> None:
    backend, tokens = _array(scene, 2)
    scene.described(_parent("SUBMITTED"))
    scene.described()
    assert {s.state for s in backend.poll(tokens).values()} == {JobState.PENDING}
    scene.described()  # a week later
    assert {s.state for s in backend.poll(tokens).values()} == {JobState.ABSENT}


def test_an_array_is_terminated_at_once_or_child_by_child(scene: Scene) -> None:
    backend, tokens = _array(scene, 4)
    for index in (0, 2):
        scene.answer("terminate_job", {}, {"jobId": f"9:{index}", "reason": ANY})
    backend.cancel([tokens[0], tokens[2]])
    scene.answer("terminate_job", {}, {"jobId": "9", "reason": ANY})
    backend.cancel(tokens)


def test_logs_come_page_by_page(scene: Scene) -> None:
    backend = scene.backend()
    backend._jobs.add("1", [TOKEN], array=False)
    attempts = [{"container": {"logStreamName": "one"}}]
    container = {
        "logStreamName": "two",
        "logConfiguration": {"logDriver": "awslogs", "options": {"awslogs-group": "g"}},
    }
    job = {"jobId": "1", "status": "RUNNING", "attempts": attempts, "container": container}
    scene.described(job)
    pages = [("one", None, ["a"], "f/1"), ("one", "f/1", ["b"], "f/2"), ("one", "f/2", [], "f/2")]
    pages += [("two", None, ["c"], "f/9"), ("two", "f/9", [], "f/9")]
    for stream, token, lines, following in pages:
        asked: dict[str, Any] = {"logGroupName": "g", "logStreamName": stream}
        asked |= {"startFromHead": True} | ({"nextToken": token} if token else {})
        events = [{"timestamp": 1, "message": line} for line in lines]
        said = {"events": events, "nextForwardToken": following, "nextBackwardToken": "b"}
        scene.logs.add_response("get_log_events", said, asked)
    assert list(backend.logs(TOKEN)) == ["a", "b", "c"]
