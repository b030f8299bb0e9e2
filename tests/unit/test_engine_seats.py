"""A service with limits: which sessions wait or are refused, and that their turn comes."""

import threading
import time
from concurrent.futures import Future

import pytest

from sweeper.engine.checkpoints import Vault
from sweeper.engine.errors import Busy
from sweeper.engine.limits import Limits
from sweeper.engine.meter import Meter
from sweeper.engine.scheduler import Admission, Lane, Promises, Reply, Scheduler
from sweeper.engine.service import Service
from sweeper.testing import FakeClock

DONE = 10


@pytest.fixture
def limited(models, tmp_path):
    """Make services with limits."""
    made = []

    def limited(clock=time.monotonic, **limits):
        vault = Vault(str(tmp_path / "checkpoints"))
        spill = str(tmp_path / "spill")
        made.append(Service(models, vault, spill, limits=Limits(**limits), clock=clock))
        return made[-1]

    yield limited
    for service in made:
        service.scheduler.stop(DONE)


def opened(service, number=0):
    """Open a session that requests a training client; return its id and the promise."""
    session = service.create_session({"tags": [f"n{number}"]})["session_id"]
    body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny/qwen3"}
    return session, service.create_model(body)["request_id"]


def test_sessions_beyond_the_limit_wait_for_their_turn(limited):
    service = limited(max_sessions=2)
    requests = [opened(service, n) for n in range(5)]
    futures = [service.promises.get(name) for _, name in requests]
    for future in futures[:2]:
        assert future.result(DONE).body["type"] == "create_model"
    assert not any(future.done() for future in futures[2:])
    paused = [service.promises.paused(name) for _, name in requests]
    assert paused[:2] == [None, None] and {why.state for why in paused[2:]} == {"paused_rate_limit"}
    # a session with a seat may have a second training client
    more = {"session_id": requests[0][0], "model_seq_id": 1, "base_model": "tiny/qwen3"}
    again = service.create_model(more)["request_id"]
    assert "model_id" in service.promises.get(again).result(DONE).body
    service.finish_session(requests[1][0])
    assert "model_id" in futures[2].result(DONE).body
    assert service.promises.paused(requests[2][1]) is None
    # a session that ends while it waits gets an error and no seat
    service.finish_session(requests[3][0])
    assert futures[3].result(DONE).body["error"] == "the session has ended"
    service.finish_session(requests[0][0])
    assert "model_id" in futures[4].result(DONE).body
    assert service.meter.report()["total"]["paused"] == 3


def test_a_session_that_was_killed_keeps_nobody_waiting_long(limited):
    clock = FakeClock()
    service = limited(clock, max_sessions=1)
    (killed, first), (_, second) = opened(service), opened(service)
    service.promises.get(first).result(DONE)
    service.registry.session(killed).last_heard -= 60
    clock.sleep(60)
    service.sweep()
    assert "model_id" in service.promises.get(second).result(DONE).body


def test_samples_beyond_the_limit_are_refused_or_wait(limited):
    service = limited(max_concurrent_samples=1)
    session = service.create_session({})["session_id"]
    request = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny/qwen3"}
    sampler = service.create_sampling_session(request).result(DONE).body["sampling_session_id"]
    body = {
        "sampling_session_id": sampler,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 4},
    }
    free = threading.Event()
    service.scheduler.submit(Lane(ordered=False), Future(), lambda: free.wait(DONE))
    first = service.sample({**body, "seq_id": 5})["request_id"]
    with pytest.raises(Busy, match="too many samples"):
        service.sample({**body, "seq_id": 0}, may_refuse=True)
    names = [service.sample({**body, "seq_id": n})["request_id"] for n in (1, 2, 3)]
    assert {service.promises.paused(name).state for name in names} == {"paused_capacity"}
    service.cancel({"request_id": names[1]})
    free.set()
    for name in (first, names[0], names[2]):
        assert isinstance(service.promises.get(name).result(DONE).body, bytes)
    assert service.promises.get(names[1]).cancelled()
    assert [service.promises.paused(name) for name in names] == [None] * 3
    last = service.sample({**body, "seq_id": 4})["request_id"]
    assert isinstance(service.promises.get(last).result(DONE).body, bytes)


def test_an_ended_session_gives_its_seat_back():
    promises, scheduler, seated = Promises(), Scheduler(1), Reply({})
    admission = Admission(promises, scheduler, Meter(), Limits(max_sessions=1))
    try:
        for session in ("gone", "next"):
            admission.training_client(session, session, Lane(ordered=False), lambda: seated)
        assert promises.paused("next")
        admission.keep({"next"})
        future = promises.get("next")
        assert future.result(DONE) is seated
    finally:
        scheduler.stop(DONE)


def test_a_session_that_gave_up_leaves_no_trace(limited):
    service = limited(max_sessions=1)
    seated, _ = opened(service)
    for n in range(3):
        session, name = opened(service, n)
        service.finish_session(session)
        assert "error" in service.promises.get(name).result(DONE).body
        assert service.promises.paused(name) is None
    service.finish_session(seated)
    _, name = opened(service, 3)  # no other session is waiting
    assert "model_id" in service.promises.get(name).result(DONE).body
