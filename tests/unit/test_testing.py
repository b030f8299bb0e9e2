"""The published stand-ins: each fault does what it says, at the call it was chosen for."""

from pathlib import Path

import pytest

from sweeper.backends.base import JobSpec, JobState
from sweeper.errors import AlreadyExists, StoreError, Unreachable
from sweeper.store.local import LocalStore
from sweeper.testing import FakeBackend, Fault, Faults, FaultyBackend, FaultyStore, Killed

JOB = JobSpec("0" * 12 + "-a1", "x=1", ["true"], "/", {})


def _store(root: Path, fault: Fault, number: int = 1) -> tuple[FaultyStore, LocalStore, Faults]:
    plain, faults = LocalStore(str(root)), Faults({number: fault})
    return FaultyStore(plain, faults), plain, faults


@pytest.mark.parametrize(
    ("fault", "raised", "written"),
    [
        (Fault.FAIL, StoreError, False),
        (Fault.LOSE_REPLY, StoreError, True),
        (Fault.TWICE, AlreadyExists, True),
        (Fault.KILL, Killed, False),
        (Fault.KILL_AFTER, Killed, True),
        (Fault.POWER, Killed, True),
    ],
)
def test_each_fault_of_a_create_does_what_it_says(
    tmp_path: Path, fault: Fault, raised: type[BaseException], written: bool
) -> None:
    store, plain, faults = _store(tmp_path, fault)
    with pytest.raises(raised):
        store.create("a", b"1")
    assert plain.exists("a") is written
    assert faults.calls == ["store.create a"]
    assert faults.struck == [(1, fault, "store.create a")]
    store.create("b", b"2")  # the next call is not affected
    assert plain.read("b") == b"2"


def test_a_lost_reply_also_hides_an_error(tmp_path: Path) -> None:
    store, _, _ = _store(tmp_path, Fault.LOSE_REPLY)
    with pytest.raises(StoreError, match="reply was lost"):
        store.read("nothing")
    store, _, _ = _store(tmp_path, Fault.KILL_AFTER)
    with pytest.raises(Killed):
        store.read("nothing")


def test_a_power_cut_loses_writes_that_were_not_durable(tmp_path: Path) -> None:
    store, plain, _ = _store(tmp_path, Fault.POWER, number=6)
    store.replace("kept", b"old")
    store.replace("kept", b"new", durable=False)
    store.append("log", b"line")
    store.replace("beat", b"1", durable=False)
    store.replace("beat", b"2")
    with pytest.raises(Killed):
        store.create("event", b"e")
    assert plain.read("kept") == b"old"
    assert not plain.exists("log")
    assert plain.read("beat") == b"2"
    assert plain.read("event") == b"e"


def test_a_function_may_choose_the_faulty_call(tmp_path: Path) -> None:
    faults = Faults(lambda _, what: Fault.FAIL if what.endswith("submitted.json") else None)
    store = FaultyStore(LocalStore(str(tmp_path)), faults)
    store.create("s/1.intent.json", b"")
    with pytest.raises(StoreError, match="injected"):
        store.create("s/1.submitted.json", b"")


def test_each_fault_of_a_backend_does_what_it_says() -> None:
    plain = FakeBackend()
    faults = Faults({1: Fault.TWICE, 2: Fault.LOSE_REPLY, 3: Fault.FAIL, 5: Fault.KILL})
    backend = FaultyBackend(plain, faults)
    backend.submit([JOB])
    with pytest.raises(Unreachable):
        backend.submit([JOB])
    with pytest.raises(Unreachable):
        backend.submit([JOB])
    assert plain.submitted == [JOB.token] * 3
    assert backend.poll([JOB.token])[JOB.token].state is JobState.RUNNING
    with pytest.raises(Killed):
        backend.cancel([JOB.token])
    assert plain.cancelled == []
