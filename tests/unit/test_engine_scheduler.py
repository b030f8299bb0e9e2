"""Turns and promises: order, fairness, requests sent again, nothing kept for ever."""

import gc
import threading
import time
import weakref
from concurrent.futures import Future

import pytest

from sweeper.engine.errors import RequestError
from sweeper.engine.scheduler import Lane, Promises, Reply, Scheduler


@pytest.fixture
def scheduler():
    made = Scheduler()
    yield made
    made.stop(5)


@pytest.fixture
def held(scheduler):
    """Block the worker of a scheduler until the yielded event is set."""
    gate, waiting = threading.Event(), Lane(ordered=False)
    future = Future()
    scheduler.submit(waiting, future, lambda: (gate.wait(10), Reply({}))[1])
    yield gate
    gate.set()


def submit(scheduler, lane, work, sequence=None):
    future = Future()
    scheduler.submit(lane, future, work, sequence)
    return future


def recorder(into, item):
    def work():
        into.append(item)
        return Reply({"item": item})

    return work


def test_a_training_clients_requests_run_in_the_order_of_their_numbers(scheduler):
    lane, done = Lane(ordered=True), []
    futures = [submit(scheduler, lane, recorder(done, n), n) for n in (3, 2, 5, 1, 4)]
    for future in futures:
        future.result(5)
    assert done == [1, 2, 3, 4, 5]


def test_a_request_waits_for_one_that_has_not_come(scheduler):
    lane, done = Lane(ordered=True), []
    late = submit(scheduler, lane, recorder(done, 2), 2)
    submit(scheduler, Lane(ordered=True), recorder([], 0), 1).result(5)
    assert not late.done()
    submit(scheduler, lane, recorder(done, 1), 1)
    late.result(5)
    assert done == [1, 2]


def test_a_request_that_never_comes_is_not_waited_for_for_ever(scheduler):
    lane, done = Lane(ordered=True), []
    late = [submit(scheduler, lane, recorder(done, n), n) for n in (4, 2)]
    scheduler.pass_over(lane, 3600)
    assert not any(future.done() for future in late)
    scheduler.pass_over(lane, 0)
    assert all("request 1 of" in future.result(5).body["error"] for future in late)
    submit(scheduler, lane, recorder(done, 5), 5).result(5)
    assert done == [5]
    again = submit(scheduler, lane, recorder(done, 1), 1).result(5)
    assert "already delivered" in again.body["error"]


def test_a_failed_request_does_not_hold_up_the_next(scheduler):
    def fail():
        raise RequestError("no")

    def break_down():
        raise ZeroDivisionError("oh")

    lane = Lane(ordered=True)
    first, second = submit(scheduler, lane, fail, 1), submit(scheduler, lane, break_down, 2)
    third = submit(scheduler, lane, recorder([], 3), 3)
    assert first.result(5).body == {"error": "no", "category": "user"}
    assert second.result(5).body == {"error": "ZeroDivisionError: oh", "category": "server"}
    assert third.result(5).body == {"item": 3}


def test_a_number_is_never_run_twice(scheduler):
    lane, done = Lane(ordered=True), []
    submit(scheduler, lane, recorder(done, "a"), 1).result(5)
    again = submit(scheduler, lane, recorder(done, "b"), 1).result(5)
    assert "already delivered" in again.body["error"]
    assert done == ["a"]


def test_lanes_take_turns(scheduler, held):
    busy, quiet, done = Lane(ordered=True), Lane(ordered=True), []
    futures = [submit(scheduler, busy, recorder(done, f"busy{n}"), n) for n in range(1, 5)]
    futures.append(submit(scheduler, quiet, recorder(done, "quiet"), 1))
    held.set()
    for future in futures:
        future.result(5)
    assert done.index("quiet") <= 1


def test_of_a_samplers_requests_the_newest_goes_first_and_each_eighth_time_the_oldest(
    scheduler, held
):
    lane, done = Lane(ordered=False), []
    futures = [submit(scheduler, lane, recorder(done, n), None) for n in range(20)]
    held.set()
    for future in futures:
        future.result(5)
    assert done == [*range(19, 12, -1), 0, *range(12, 5, -1), 1, *range(5, 1, -1)]


def test_a_cancelled_request_is_not_run(scheduler, held):
    done = []
    future = submit(scheduler, Lane(ordered=False), recorder(done, 1))
    last = submit(scheduler, Lane(ordered=False), recorder([], 2))
    assert future.cancel()
    held.set()
    last.result(5)
    assert done == []


def test_closing_a_lane_answers_what_waits(scheduler, held):
    lane = Lane(ordered=True)
    futures = [submit(scheduler, lane, recorder([], n), n) for n in (1, 2, 7)]
    scheduler.close(lane)
    late = submit(scheduler, lane, recorder([], 3), 3)
    for future in futures:
        assert future.result(5).body["error"] == "the session has ended"
    assert late.result(5).body["category"] == "user"


def test_a_request_sent_again_finds_its_promise():
    promises = Promises()
    first = promises.create("a")
    assert promises.create("a") is None
    first.set_result(Reply({}))
    promises.fetched("a")
    assert promises.create("a") is None and promises.get("a") is first and promises.get("b") is None


def test_promises_are_freed():
    promises = Promises(most=10, linger=60, forget=3600)
    for n in range(100):
        promises.create(str(n)).set_result(Reply({}))
        promises.fetched(str(n))
    assert len(promises) == 10
    for n in range(5):
        promises.create(f"never fetched {n}").set_result(Reply({}))
    waiting = promises.create("not done")
    now = time.monotonic()
    promises.sweep(now + 61)
    assert len(promises) == 6
    promises.sweep(now + 3601)
    assert len(promises) == 1 and promises.get("not done") is waiting


def test_a_worker_keeps_nothing_of_a_request_that_is_done(scheduler):
    class Big:
        pass

    big = Big()
    gone = weakref.ref(big)

    def work(what=big):
        assert what is not None
        return Reply({})

    submit(scheduler, Lane(ordered=True), work, 1).result(5)
    del big, work
    submit(scheduler, Lane(ordered=True), recorder([], 1), 1).result(5)
    gc.collect()
    assert gone() is None
