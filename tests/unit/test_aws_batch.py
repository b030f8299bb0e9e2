"""Exact requests of the AWS Batch backend (botocore's Stubber)."""

from pathlib import Path
from typing import Any

import pytest
from botocore.stub import ANY

from sweeper.errors import EnvironmentFailure, Unreachable, UsageError

SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:tinker-AbCdEf"
ANY_DEFINITION = {"jobDefinitionName": ANY, "status": "ACTIVE"}


def test_a_job_is_submitted_as_this(stubbed):
    backend = stubbed.backend(
        vcpus=2.0, memory=4096, gpus=1, timeout_s=7200.0, tags={"team": "x"}, region="eu-central-1"
    )
    identity = backend.names.identity.ensure()
    stubbed.defined()
    stubbed.answer(
        "submit_job",
        {"jobName": "n", "jobId": "1"},
        {
            "jobName": f"{backend.names.prefix}{identity}-{stubbed.TOKEN}",
            "jobQueue": "q",
            "jobDefinition": "d:4",
            "containerOverrides": {
                "command": list(stubbed.job().argv),
                "environment": [
                    {"name": "AWS_DEFAULT_REGION", "value": "eu-central-1"},
                    {"name": "SWEEPER_INDEX", "value": "AWS_BATCH_JOB_ARRAY_INDEX"},
                ],
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
                "sweeper:token": stubbed.TOKEN,
                "sweeper:run": "lr=1e-4__1",
            },
            "timeout": {"attemptDurationSeconds": 7200},
        },
    )
    backend.submit([stubbed.job()])
    assert backend.find([stubbed.TOKEN]) == {stubbed.TOKEN: "1"}  # known from the reply


def test_many_are_one_request(stubbed):
    backend = stubbed.backend(array=3, retries_on_interruption=0)
    tokens = [f"{number:012x}-a1" for number in range(5)]
    stubbed.defined()
    stubbed.answer(
        "submit_job",
        {"jobName": "n", "jobId": "9"},
        {
            "jobName": ANY, "jobQueue": "q", "jobDefinition": "d:4", "containerOverrides": ANY,
            "retryStrategy": {"attempts": 1}, "propagateTags": True,
            "tags": {"sweeper:sweep": "toys", "sweeper:jobs": "5"}, "arrayProperties": {"size": 5},
        },
    )  # fmt: skip
    backend.submit([stubbed.job(token) for token in tokens])
    assert backend.find(tokens) == {token: f"9:{index}" for index, token in enumerate(tokens)}
    # Another launcher, which never got the reply, finds them by the name and the table.
    other = stubbed.backend(array=3)
    (table,) = Path(stubbed.folder, "arrays").iterdir()
    stubbed.listed(other, ("9", f"array-{table.stem}"))
    assert other.find(tokens) == backend.find(tokens)


def test_jobs_of_other_programs_stand_alone(stubbed):
    backend = stubbed.backend(array=2)
    stubbed.defined()
    for number in range(2):
        answer = {"jobName": "n", "jobId": str(number)}
        stubbed.answer("submit_job", answer, stubbed.SUBMISSION)
    backend.submit([stubbed.job(f"{n:012x}-a1", "train.sh", "s3://b/toys") for n in range(2)])


def test_a_definition_is_made_of_an_image_once(stubbed):
    """It is made before anything is recorded, since AWS may refuse it."""
    options = {
        "job_definition": None, "image": "i:1", "role": "arn:role", "execution_role": "arn:e",
    }  # fmt: skip
    backend = stubbed.backend(**options, secrets={"TINKER_API_KEY": SECRET})
    stubbed.queue()
    stubbed.answer("describe_job_definitions", {"jobDefinitions": []}, ANY_DEFINITION)
    stubbed.answer(
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
    backend.preflight([])
    for number in range(2):
        request = stubbed.SUBMISSION | {"jobDefinition": "sweeper-x:1"}
        stubbed.answer("submit_job", {"jobName": "n", "jobId": str(number)}, request)
        backend.submit([stubbed.job(f"{number:012x}-a1")])


def test_a_named_definition_has_the_secrets_that_runs_need(stubbed):
    stubbed.defined()
    with pytest.raises(UsageError, match="d has no secret TINKER_API_KEY"):
        stubbed.backend(secrets={"TINKER_API_KEY": SECRET}).preflight([])
    stubbed.queue()
    stubbed.answer("describe_job_definitions", {"jobDefinitions": []}, ANY_DEFINITION)
    with pytest.raises(UsageError, match="no active job definition d"):
        stubbed.backend().preflight([])


def test_there_is_to_be_a_queue(stubbed):
    stubbed.answer("describe_job_queues", {"jobQueues": []}, {"jobQueues": ["q"]})
    with pytest.raises(EnvironmentFailure, match="no job queue q in eu-central-1"):
        stubbed.backend().check()


@pytest.mark.parametrize("state", [("DISABLED", "UPDATING"), ("ENABLED", "INVALID")])
def test_a_queue_that_is_closed_takes_no_jobs_and_may_have_some(stubbed, state):
    """Such as a queue that is drained: its jobs are still found."""
    backend, token, message = stubbed.backend(), stubbed.TOKEN, f"q is {', '.join(state)}"
    stubbed.queue(*state)
    backend.check()
    for jobs, status in ([], ""), ([("1", token)], "SUCCEEDED"):
        stubbed.queue(*state)
        stubbed.listed(backend, *jobs, status=status)
        with pytest.raises(EnvironmentFailure, match=message):
            backend.preflight([])
    stubbed.queue(*state)
    stubbed.listed(backend, ("1", token))
    backend.preflight([])
    assert backend.find([token]) == {token: "1"}
    stubbed.queue(*state)
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        backend.submit([stubbed.job()])
    assert not isinstance(caught.value, Unreachable)


@pytest.mark.parametrize("status", ["CREATING", "UPDATING"])
def test_a_queue_that_is_being_changed_is_waited_for(stubbed, status):
    """A running launcher waits; a new launch gets an error, and a relaunch finds its jobs."""
    backend, message = stubbed.backend(), f"q is ENABLED, {status}: it accepts no jobs yet"
    stubbed.queue("ENABLED", status)
    stubbed.listed(backend)
    with pytest.raises(Unreachable, match=message):
        backend.preflight([])
    stubbed.queue("ENABLED", status)
    stubbed.listed(backend, ("1", stubbed.TOKEN))
    backend.preflight([])
    stubbed.queue("ENABLED", status)
    with pytest.raises(Unreachable, match=message):
        backend.submit([stubbed.job()])
    stubbed.defined()
    stubbed.answer("submit_job", {"jobName": "n", "jobId": "2"}, stubbed.SUBMISSION)
    backend.submit([stubbed.job()])


def test_logs_come_page_by_page(stubbed):
    backend = stubbed.backend()
    stubbed.learn(backend, ("1", stubbed.TOKEN))
    attempts = [{"container": {"logStreamName": "one"}}]
    container = {
        "logStreamName": "two",
        "logConfiguration": {"logDriver": "awslogs", "options": {"awslogs-group": "g"}},
    }
    job = {"jobId": "1", "status": "RUNNING", "attempts": attempts, "container": container}
    stubbed.described(job)
    pages = [("one", None, ["a"], "f/1"), ("one", "f/1", ["b"], "f/2"), ("one", "f/2", [], "f/2")]
    pages += [("two", None, ["c"], "f/9"), ("two", "f/9", [], "f/9")]
    for stream, token, lines, following in pages:
        request: dict[str, Any] = {"logGroupName": "g", "logStreamName": stream}
        request |= {"startFromHead": True} | ({"nextToken": token} if token else {})
        events = [{"timestamp": 1, "message": line} for line in lines]
        answer = {"events": events, "nextForwardToken": following, "nextBackwardToken": "b"}
        stubbed.logs.add_response("get_log_events", answer, request)
    assert list(backend.logs(stubbed.TOKEN)) == ["a", "b", "c"]
