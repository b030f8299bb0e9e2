"""States of AWS Batch jobs, and in how few requests they are read (botocore's Stubber)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.stub import ANY

from sweeper.backends.aws_batch.client import Refused, Throttled
from sweeper.backends.aws_batch.jobs import A_CALL, MOST_CALLS, Jobs
from sweeper.backends.base import JobState, JobStatus

ENDED = JobState.ENDED


def test_restarts_stand_for_the_attempts_after(stubbed):
    """AWS's restarts of a job count as the attempts after the submitted one."""
    backend = stubbed.backend()
    first, second, third = (f"aaaaaaaaaaaa-a{n}" for n in (1, 2, 3))
    stubbed.learn(backend, ("1", first))
    stubbed.listed(backend, ("1", first))
    stubbed.described({"jobId": "1", "status": "RUNNING"})
    assert backend.find([second]) == {second: "1"}
    attempts = [{"container": {}}, {"container": {}}]
    stubbed.described({"jobId": "1", "status": "FAILED", "attempts": attempts})
    statuses = backend.poll([first, second, third])
    assert [status.state for status in statuses.values()] == [ENDED, ENDED, JobState.ABSENT]
    stubbed.listed(backend, ("1", first))
    assert backend.find([second]) == {}  # the job has ended: the next attempt is to be submitted


def test_of_two_copies_the_one_that_goes_on_counts(stubbed):
    backend = stubbed.backend()
    stubbed.listed(backend, ("2", stubbed.TOKEN), ("1", stubbed.TOKEN))
    stubbed.described({"jobId": "2", "status": "SUCCEEDED"}, {"jobId": "1", "status": "RUNNING"})
    assert backend.poll([stubbed.TOKEN])[stubbed.TOKEN].state is JobState.RUNNING
    stubbed.answer("terminate_job", {}, {"jobId": "1", "reason": "cancelled by sweeper"})
    backend.cancel([stubbed.TOKEN])


def test_an_array_that_waits_takes_one_call(stubbed):
    backend, tokens = stubbed.array(10_000)
    stubbed.parent("PENDING", RUNNABLE=9_990, SUBMITTED=10)
    assert {s.state for s in backend.poll(tokens).values()} == {JobState.PENDING}
    stubbed.parent("SUCCEEDED", SUCCEEDED=10_000)
    assert set(backend.poll(tokens).values()) == {JobStatus(ENDED, 0)}
    backend.poll(tokens)  # ended jobs are not described again
    assert stubbed.aws.calls == {"describe_jobs": 2}


def test_a_poll_makes_twenty_calls_and_another_goes_on(stubbed):
    turn = MOST_CALLS * A_CALL
    backend, tokens = stubbed.array(2 * turn)
    stubbed.parent("PENDING", RUNNABLE=2 * turn)
    backend.poll(tokens)
    running = [{"jobId": f"9:{index}", "status": "RUNNING"} for index in range(2 * turn)]
    running[-1] |= {"status": "FAILED", "container": {"exitCode": 3}}
    stubbed.parent("PENDING", RUNNING=2 * turn - 1, FAILED=1)
    for begin in range(0, turn, A_CALL):
        stubbed.described(*running[begin : begin + A_CALL])
    states = [status.state for status in backend.poll(tokens).values()]
    assert states == [JobState.RUNNING] * turn + [JobState.PENDING] * turn
    stubbed.parent("PENDING", RUNNING=2 * turn - 1, FAILED=1)
    for begin in range(turn, 2 * turn, A_CALL):
        stubbed.described(*running[begin : begin + A_CALL])
    statuses = list(backend.poll(tokens).values())
    assert statuses == [JobStatus(JobState.RUNNING)] * (2 * turn - 1) + [JobStatus(ENDED, 3)]
    stubbed.parent("PENDING", RUNNING=2 * turn - 1, FAILED=1)
    assert list(backend.poll(tokens).values()) == statuses  # nothing has changed: one call


def test_children_that_are_not_made_yet_are_waiting(stubbed):
    backend, tokens = stubbed.array(2)
    stubbed.parent("SUBMITTED")
    stubbed.described()
    assert {s.state for s in backend.poll(tokens).values()} == {JobState.PENDING}
    stubbed.described()  # a week later
    assert {s.state for s in backend.poll(tokens).values()} == {JobState.ABSENT}


def test_an_array_is_terminated_at_once_or_child_by_child(stubbed):
    backend, tokens = stubbed.array(4)
    for index in (0, 2):
        stubbed.answer("terminate_job", {}, {"jobId": f"9:{index}", "reason": ANY})
    backend.cancel([tokens[0], tokens[2]])
    stubbed.answer("terminate_job", {}, {"jobId": "9", "reason": ANY})
    backend.cancel(tokens)


def test_what_is_forgotten_is_nothing_to_stop(stubbed):
    """It does not prevent stopping others; after throttling, cancelling continues there."""
    backend = stubbed.backend()
    tokens = [f"{number:012x}-a1" for number in range(4)]
    stubbed.learn(backend, *((str(number), token) for number, token in enumerate(tokens)))
    requests = [{"jobId": str(number), "reason": ANY} for number in range(4)]
    stubbed.refuse("terminate_job", "ClientException", "there is no such job")
    stubbed.described()
    stubbed.answer("terminate_job", {}, requests[1])
    stubbed.refuse("terminate_job", "TooManyRequestsException", status=429)
    with pytest.raises(Throttled):
        backend.cancel(tokens)
    stubbed.refuse("terminate_job", "ClientException", "it is over")
    stubbed.described({"jobId": "2", "status": "FAILED"})
    stubbed.answer("terminate_job", {}, requests[3])
    backend.cancel(tokens)


@pytest.mark.parametrize(("code", "status"), [("ClientException", 400), ("AccessDenied", 403)])
def test_what_may_not_be_stopped_is_told_and_tried_again_later(stubbed, code, status):
    """It does not prevent stopping others. AWS may report it as a ClientException."""
    backend = stubbed.backend()
    tokens = [f"{number:012x}-a1" for number in range(3)]
    requests = [{"jobId": str(number), "reason": ANY} for number in range(3)]
    stubbed.learn(backend, *((str(number), token) for number, token in enumerate(tokens)))

    def refuse(number: int) -> None:
        stubbed.refuse("terminate_job", code, f"you may not stop {number}", status)
        if code == "ClientException":
            stubbed.described({"jobId": str(number), "status": "RUNNING"})

    refuse(0)
    stubbed.answer("terminate_job", {}, requests[1])
    refuse(2)
    for seconds in (0, 29, 1):
        stubbed.now += seconds
        if seconds == 1:
            refuse(0)
            stubbed.answer("terminate_job", {}, requests[2])
        with pytest.raises(Refused, match="you may not stop 0"):  # also without a request
            backend.cancel(tokens)
    stubbed.now += 59
    with pytest.raises(Refused, match="you may not stop 0"):
        backend.cancel(tokens)
    stubbed.now += 1
    stubbed.answer("terminate_job", {}, requests[0])
    backend.cancel(tokens)
    backend.cancel(tokens)
    assert stubbed.aws.calls["terminate_job"] == 6


def test_credentials_that_have_expired_stop_nothing_else_either(stubbed):
    backend = stubbed.backend()
    stubbed.learn(backend, *((str(number), f"{number:012x}-a1") for number in range(2)))
    stubbed.refuse("terminate_job", "ExpiredTokenException", status=403)
    with pytest.raises(Refused, match="credentials have expired"):
        backend.cancel(["000000000000-a1", "000000000001-a1"])
    assert stubbed.aws.calls["terminate_job"] == 1


def test_a_child_that_is_not_made_yet_may_not_be_stopped_either(stubbed):
    """A child without a description has the state of its array."""
    backend, tokens = stubbed.array(2)
    for status in ("PENDING", "FAILED"):
        stubbed.refuse("terminate_job", "ClientException")
        stubbed.described()
        stubbed.parent(status)
        if status == "PENDING":
            with pytest.raises(Refused):
                backend.cancel(tokens[:1])
            stubbed.now += 30
        else:
            backend.cancel(tokens[:1])


def test_an_array_that_was_not_described_for_once_is_looked_at_again(stubbed):
    """Even if its counts of children are unchanged."""
    backend, tokens = stubbed.array(2)
    children = [
        {"jobId": "9:0", "status": "RUNNING"},
        {"jobId": "9:1", "status": "RUNNABLE"},
    ]
    states = [JobState.RUNNING, JobState.PENDING]
    for there in (True, False, True):
        if there:
            stubbed.parent("PENDING", RUNNING=1, RUNNABLE=1)
            stubbed.described(*children)
        else:
            stubbed.described()
        polled = [status.state for status in backend.poll(tokens).values()]
        assert polled == (states if there else [JobState.ABSENT] * 2)


def test_an_array_that_has_failed_is_over_in_all_its_children(stubbed):
    """The last known state of a child may be outdated although the counts are the same."""
    backend, tokens = stubbed.array(2)
    failed = {"jobId": "9:1", "status": "FAILED", "container": {"exitCode": 3}}
    counts = {"SUCCEEDED": 1, "FAILED": 1}
    stubbed.parent("PENDING", **counts)
    stubbed.described({"jobId": "9:0", "status": "RUNNING"}, failed)  # outdated
    assert [s.state for s in backend.poll(tokens).values()] == [JobState.RUNNING, ENDED]
    stubbed.parent("FAILED", **counts)
    stubbed.described({"jobId": "9:0", "status": "SUCCEEDED"})
    assert list(backend.poll(tokens).values()) == [JobStatus(ENDED, 0), JobStatus(ENDED, 3)]


def test_an_array_that_succeeded_had_children_that_were_started_again(stubbed):
    """The counts of the parent do not tell the attempts, so the children are described once."""
    backend, tokens = stubbed.array(3)
    again = [token.replace("-a1", "-a2") for token in tokens]
    stubbed.listed(backend)
    stubbed.parent("SUCCEEDED", SUCCEEDED=3)
    attempts = [{"container": {}}, {"container": {}}]
    stubbed.described({"jobId": "9:1", "status": "SUCCEEDED", "attempts": attempts})
    states = [status.state for status in backend.poll([*tokens, *again]).values()]
    assert states == [ENDED] * 3 + [JobState.ABSENT, ENDED, JobState.ABSENT]
    assert [status.state for status in backend.poll(again).values()] == states[3:]


def test_a_child_that_nobody_asked_about_is_not_absent(stubbed):
    """Only the array shows whether a child is gone or not yet created."""
    turn = MOST_CALLS * A_CALL
    backend, tokens = stubbed.array(turn + 2)
    stubbed.learn(backend, ("1", stubbed.TOKEN))
    stubbed.parent("PENDING", RUNNABLE=turn + 2)
    backend.poll(tokens)
    stubbed.parent("PENDING", RUNNABLE=2, RUNNING=turn)
    running = [{"jobId": f"9:{index}", "status": "RUNNING"} for index in range(turn)]
    for begin in range(0, turn, A_CALL):
        stubbed.described(*running[begin : begin + A_CALL])
    backend.poll(tokens)  # the other two wait for their turn
    stubbed.described({"jobId": "1", "status": "RUNNING"})
    backend.poll([stubbed.TOKEN])
    stubbed.parent("PENDING", RUNNABLE=2, RUNNING=turn)
    stubbed.described()
    states = [status.state for status in backend.poll(tokens).values()]
    assert states == [JobState.RUNNING] * turn + [JobState.PENDING] * 2


def test_ten_thousand_single_jobs_take_a_hundred_requests_and_then_twenty():
    sizes: list[int] = []

    def call(_service: str, _operation: str, *, jobs: list[str]) -> dict[str, Any]:
        sizes.append(len(jobs))
        return {"jobs": [{"jobId": job, "status": "RUNNING"} for job in jobs]}

    reader = Jobs(cast("Any", SimpleNamespace(call=call)), cast("Any", None), "q")
    tokens = [f"{number:012x}-a1" for number in range(10_000)]
    for number, token in enumerate(tokens):
        reader.add(str(number), [token], array=False)
    for requests in (100, 20):
        sizes.clear()
        assert {s.state for s in reader.statuses(tokens).values()} == {JobState.RUNNING}
        assert sizes == [100] * requests
