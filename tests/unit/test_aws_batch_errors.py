"""Errors of AWS: which requests are sent again, end a launch, or may have succeeded."""

import pytest
from botocore import exceptions
from botocore.stub import ANY

from sweeper.backends.aws_batch.client import Aws, Refused, Throttled
from sweeper.errors import EnvironmentFailure, Unreachable

JOB = {"jobName": "n", "jobQueue": "q", "jobDefinition": "d"}
OF_AN_IMAGE = {"job_definition": None, "image": "i:1", "vcpus": 0.3, "memory": 4}
URL = "https://batch.eu-central-1.amazonaws.com/"
ANY_DEFINITION = {"jobDefinitionName": ANY, "status": "ACTIVE"}
ANSWERS = [
    # A disabled queue, a deleted definition, an invalid image or role.
    ("ClientException", 400, EnvironmentFailure),
    ("AccessDeniedException", 403, EnvironmentFailure),
    ("ValidationException", 400, EnvironmentFailure),
    ("RequestEntityTooLargeException", 413, EnvironmentFailure),
    ("ExpiredTokenException", 403, Refused),
    ("UnrecognizedClientException", 403, Refused),
    ("RequestTimeTooSkewed", 403, Refused),
    ("ServerException", 500, Unreachable),
    ("ServiceUnavailable", 503, Unreachable),
    ("RequestTimeout", 408, Unreachable),
]
LINES = [
    (exceptions.ReadTimeoutError(endpoint_url=URL), Unreachable),
    (exceptions.ConnectionClosedError(endpoint_url=URL), Unreachable),
    (exceptions.EndpointConnectionError(endpoint_url=URL), Unreachable),
    (exceptions.NoCredentialsError(), Refused),
    (exceptions.ParamValidationError(report="Invalid length"), EnvironmentFailure),
]


@pytest.mark.parametrize(("code", "status", "kind"), ANSWERS)
def test_what_an_answer_to_a_submission_means(stubbed, code, status, kind):
    """Errors other than `Unreachable` end a launch. Only after exactly that may a job exist."""
    stubbed.refuse("submit_job", code, "no\n such thing", status)
    with pytest.raises(EnvironmentFailure) as caught:
        stubbed.aws.submit("batch", "submit_job", **JOB)
    assert type(caught.value) is kind and "\n" not in str(caught.value)
    assert stubbed.aws.calls == {"submit_job": 1} and not stubbed.waits


@pytest.mark.parametrize(("code", "status", "kind"), ANSWERS)
def test_what_an_answer_to_a_registration_means(stubbed, code, status, kind):
    """botocore may send it again, since the name of a definition is a hash of its content."""
    stubbed.refused_modes = {"standard"}
    backend = stubbed.backend(**OF_AN_IMAGE)
    stubbed.queue()
    stubbed.answer("describe_job_definitions", {"jobDefinitions": []}, ANY_DEFINITION)
    stubbed.refuse("register_job_definition", code, "no\n such thing", status)
    with pytest.raises(EnvironmentFailure) as caught:
        backend.preflight([])
    assert type(caught.value) is kind
    assert stubbed.aws.calls["register_job_definition"] == 1


@pytest.mark.parametrize(("error", "kind"), LINES)
def test_what_no_answer_to_a_submission_means(stubbed, error, kind):
    stubbed.fail("SubmitJob", error)
    with pytest.raises(EnvironmentFailure) as caught:
        stubbed.aws.submit("batch", "submit_job", **JOB)
    assert type(caught.value) is kind
    assert stubbed.aws.calls == {"submit_job": 1}


def test_no_client_sends_a_submission_again_by_itself(receiver, monkeypatch):
    """botocore would, even after a time-out, when the request may have succeeded."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", receiver.url)
    receiver.faults.extend([500] * 20)
    aws = Aws("eu-central-1")
    with pytest.raises(Unreachable):
        aws.submit("batch", "submit_job", **JOB)
    assert receiver.asked == 1
    with pytest.raises(Unreachable):
        aws.call("batch", "describe_job_queues")
    assert receiver.asked > 2


def test_what_is_throttled_is_sent_again_later_and_later(stubbed):
    for _ in range(3):
        stubbed.refuse("submit_job", "TooManyRequestsException", status=429)
    stubbed.answer("submit_job", {"jobName": "n", "jobId": "1"}, JOB)
    assert stubbed.aws.submit("batch", "submit_job", **JOB)["jobId"] == "1"
    assert len(stubbed.waits) == 3 and stubbed.waits == sorted(stubbed.waits)


def test_it_does_not_wait_for_ever(stubbed):
    backend = stubbed.backend()
    stubbed.defined()
    for _ in range(8):
        stubbed.refuse("submit_job", "TooManyRequestsException", status=429)
    with pytest.raises(Throttled):
        backend.submit([stubbed.job()])
    assert len(stubbed.waits) == 7 and max(stubbed.waits) <= 20
    stubbed.listed(backend)
    assert backend.find([stubbed.TOKEN]) == {}  # a throttled job was certainly not submitted


def test_what_may_have_been_accepted_is_looked_for_until_a_listing_must_have_it(stubbed):
    backend, token = stubbed.backend(), stubbed.TOKEN
    stubbed.defined()
    stubbed.refuse("submit_job", "ServerException", status=500)
    with pytest.raises(Unreachable, match="ServerException at submit_job"):
        backend.submit([stubbed.job()])
    stubbed.listed(backend)
    with pytest.raises(Unreachable, match="not known yet whether the last jobs were accepted"):
        backend.find([token])
    stubbed.listed(backend, ("5", token))
    assert backend.find([token]) == {token: "5"}
    # A job that was not accepted: after 15 seconds, a listing without it is conclusive.
    other = "bbbbbbbbbbbb-a1"
    stubbed.refuse("submit_job", "ServerException", status=500)
    with pytest.raises(Unreachable):
        backend.submit([stubbed.job(other)])
    stubbed.now += 15
    stubbed.listed(backend, ("5", token))
    assert backend.find([other]) == {}


def test_so_is_what_an_earlier_launcher_may_have_submitted(stubbed):
    """The earlier launcher may have been killed before the reply or a listing arrived."""
    backend, token, lost = stubbed.opened(), stubbed.TOKEN, "bbbbbbbbbbbb-a1"
    stubbed.learn(backend, ("5", token))
    assert backend.find([token]) == {token: "5"}  # a listed job is found at once
    for seconds in (0, 14.9):
        stubbed.now = seconds
        stubbed.listed(backend, ("5", token))
        with pytest.raises(Unreachable, match="not known yet whether the last jobs were accepted"):
            backend.find([token, lost])
    stubbed.now = 15
    stubbed.listed(backend, ("5", token))
    assert backend.find([token, lost]) == {token: "5"}


def test_a_definition_that_aws_will_not_have_ends_the_launch(stubbed):
    for act in ("preflight", "submit"):
        stubbed.queue()
        stubbed.answer("describe_job_definitions", {"jobDefinitions": []}, ANY_DEFINITION)
        stubbed.refuse("register_job_definition", "ClientException", "0.3 vCPUs is not supported")
        with pytest.raises(EnvironmentFailure, match=r"0\.3 vCPUs is not supported") as caught:
            getattr(stubbed.backend(**OF_AN_IMAGE), act)([stubbed.job()])
        assert not isinstance(caught.value, Unreachable)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ExpiredTokenException", "credentials have expired"),
        ("UnrecognizedClientException", "credentials have expired or are not valid"),
        ("AccessDeniedException", "not allowed: m .*aws-batch.md"),
        ("TooManyRequestsException", "too many requests"),
        ("ServerException", "AWS Batch: list_jobs: m"),
    ],
)
def test_a_refusal_is_one_line_and_no_absence(stubbed, code, message):
    stubbed.refuse("list_jobs", code, "m\n  m")
    with pytest.raises(Unreachable, match=message.replace(": m", ": m m")) as caught:
        stubbed.backend().poll([stubbed.TOKEN])
    assert "\n" not in str(caught.value)


def test_a_dead_line_is_no_absence(stubbed):
    stubbed.fail("ListJobs", exceptions.EndpointConnectionError(endpoint_url=URL))
    with pytest.raises(Unreachable, match="does not answer: Could not connect"):
        stubbed.backend().find([stubbed.TOKEN])
