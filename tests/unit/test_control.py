"""Cancel and retry: the requests, and how a launcher handles them."""

import json
import threading
from contextlib import ExitStack
from typing import Any

import pytest

import sweeper
from sweeper.errors import EnvironmentFailure, NotFound, UsageError
from sweeper.launcher import control
from sweeper.launcher.control import cancel_runs
from sweeper.results.selectors import pick
from sweeper.results.sweeps import Sweep
from sweeper.store.documents import encode
from sweeper.sweep import lease, lock
from sweeper.sweep.folder import token
from sweeper.sweep.requests import request_cancel, request_retry
from sweeper.sweep.states import Event, State, cancel_asked, fold, retry_asked, wants_attempt
from sweeper.testing import FakeBackend, FakeClock

Scene = Any


def _cancel(scene: Scene, run: str, retries: int = 0) -> Any:
    return request_cancel(scene.folder, run, scene.events(run), retries)


def _retry(scene: Scene, run: str) -> Any:
    return request_retry(scene.folder, run, scene.events(run))


def _pairs(text: str) -> set[tuple[int, Event]]:
    return {(int(word[0]), Event(word[1:])) for word in text.split()}


@pytest.mark.parametrize(
    ("events", "state", "wants"),
    [
        ("1cancel", State.CANCELLED, False),
        ("1cancel 1retry", State.PLANNED, True),
        ("1cancel 1retry 2cancel", State.CANCELLED, False),
        ("1intent 1cancel", State.PLANNED, False),  # only the backend knows about a job
        ("1intent 1claimed 1cancel", State.RUNNING, False),
        ("1claimed 1preempted 1cancel", State.CANCELLED, False),
        ("1claimed 1preempted 1cancel 1retry", State.PREEMPTED, True),
        ("1claimed 1lost 1cancel", State.CANCELLED, False),
        ("1claimed 1lost 1cancel 1returned", State.RUNNING, False),
        ("1claimed 1failed 1cancel", State.FAILED, False),
        ("1claimed 1failed 1retry", State.FAILED, True),
        ("1claimed 1failed 1retry 2cancel", State.FAILED, False),
        ("1claimed 1cancel 1cancelled", State.CANCELLED, False),
        ("1claimed 1cancel 1cancelled 1retry", State.CANCELLED, True),
        ("1claimed 1cancel 1succeeded 1retry", State.SUCCEEDED, False),
        ("1claimed 1failed 1retry 2claimed", State.RUNNING, False),
        ("1claimed 1failed 1retry 2claimed 2failed", State.FAILED, False),
    ],
)
def test_cancel_and_retry_requests_change_states(events, state, wants):
    assert fold(_pairs(events)).state is state and wants_attempt(_pairs(events), 0) is wants


def test_a_retry_does_not_use_up_retries():
    once = _pairs("1claimed 1failed 1retry 2claimed 2failed")
    assert wants_attempt(once, 1) and not wants_attempt(once | _pairs("3claimed 3failed"), 1)


def test_running_and_waiting_runs_can_be_cancelled(make_scene):
    scene = make_scene(3, max_parallel=1)
    first, second, third = scene.ids
    scene.step()
    scene.worker(first, 1, Event.CLAIMED)
    for run in (first, second):
        assert _cancel(scene, run).accepted and cancel_asked(scene.events(run))
    assert scene.states() == [State.RUNNING, State.CANCELLED, State.PLANNED]
    scene.step()
    scene.step()
    assert scene.backend.cancelled == [token(first, 1)]  # cancelled once
    assert scene.observed()["observed"][first] == "stopping"
    assert len(scene.backend.submitted) == 1  # the job still counts for max_parallel
    scene.worker(first, 1, Event.CANCELLED)
    scene.backend.end(token(first, 1))
    scene.step()
    assert scene.backend.submitted[1:] == [token(third, 1)]
    scene.finish(third)
    summary = scene.step()
    assert summary.finished and summary.counts == {State.CANCELLED: 2, State.SUCCEEDED: 1}


def test_a_worker_that_died_while_it_was_stopped_is_cancelled(make_scene):
    scene = make_scene(2)
    first, _ = scene.ids
    scene.step()
    scene.worker(first, 1, Event.CLAIMED)
    scene.step()
    for run in scene.ids:
        _cancel(scene, run)
        scene.backend.end(token(run, 1), 137)
    scene.step()
    assert scene.states() == [State.RUNNING, State.CANCELLED]  # the second was never claimed
    scene.step(20)
    assert scene.states() == [State.CANCELLED] * 2 and scene.scheduler.step().finished


@pytest.mark.parametrize("running", [True, False])
def test_jobs_known_only_to_the_backend_can_be_cancelled(make_scene, running):
    scene = make_scene(1)
    run = scene.ids[0]
    if running:
        scene.backend.lose_reply = True
    else:
        scene.backend.reachable = False
    scene.step()
    _cancel(scene, run)
    scene.backend.reachable = True
    scene.relaunch(starting=False)
    if running:
        assert scene.states() == [State.SUBMITTED]
        scene.step()
        assert scene.backend.cancelled == [token(run, 1)]
    else:
        assert scene.states() == [State.CANCELLED]
        assert scene.backend.submitted == []
        assert scene.scheduler.step().finished


def test_a_launcher_that_only_stops_starts_nothing(make_scene):
    scene = make_scene(3, retries=3)
    scene.step()
    scene.finish(scene.ids[0], event=Event.FAILED)
    scene.scheduler = scene.new_scheduler(starting=False)
    scene.step(600)
    assert not scene.step(600).finished
    assert len(scene.backend.submitted) == 2
    scene.finish(scene.ids[1])
    assert scene.step().finished


def test_cancel_and_retry_again_and_again(make_scene):
    """The last request counts, however many came before."""
    scene = make_scene(1)
    run = scene.ids[0]
    for _ in range(4):
        assert _cancel(scene, run).accepted and _cancel(scene, run).accepted
        assert scene.states() == [State.CANCELLED]
        assert scene.step().finished
        assert _retry(scene, run).accepted and _retry(scene, run).accepted
        assert retry_asked(scene.events(run))
    for _ in range(10):
        scene.step()
    (job,) = scene.backend.submitted
    attempt = int(job.rpartition("-a")[2])
    assert (attempt, Event.CANCEL) not in scene.events(run)  # or its worker would stop
    scene.finish(run, attempt)
    assert scene.step().finished
    assert scene.states() == [State.SUCCEEDED]


def test_cancelling_a_run_that_was_retried_while_it_ran(make_scene):
    scene = make_scene(1)
    run = scene.running()
    scene.worker(run, 1, Event.RETRY)
    _cancel(scene, run)
    assert cancel_asked(scene.events(run))
    scene.step()
    assert scene.backend.cancelled == [token(run, 1)]
    scene.worker(run, 1, Event.PREEMPTED)  # the worker knows only of the signal
    scene.backend.end(token(run, 1))
    assert scene.step().finished
    assert scene.states() == [State.CANCELLED]


def test_a_retry_starts_at_once_and_only_what_has_ended(make_scene):
    scene = make_scene(3, retries=1)
    first, second, third = scene.ids
    scene.step()
    scene.finish(first, event=Event.FAILED, reason="error")
    scene.finish(second)
    scene.step()
    assert scene.observed()["observed"][first].startswith("next attempt at")
    assert _retry(scene, first).accepted and not _retry(scene, second).accepted
    assert _retry(scene, third).why == "still running"
    _cancel(scene, third)
    assert _retry(scene, third).why.startswith("being cancelled")
    scene.step()
    assert scene.backend.submitted[-1] == token(first, 2)


def test_runs_that_have_ended_are_not_cancelled(make_scene):
    scene = make_scene(2)
    first, second = scene.ids
    scene.step()
    scene.finish(first)
    scene.finish(second, event=Event.FAILED)
    assert _cancel(scene, first).why == "succeeded already"
    assert _cancel(scene, second).why == "failed already"
    assert _cancel(scene, second, retries=1).accepted and not wants_attempt(scene.events(second), 1)
    assert scene.states() == [State.SUCCEEDED, State.FAILED]


def test_cancelling_before_anything_ran_needs_no_backend(make_scene):
    scene = make_scene(3)
    done = cancel_runs(scene.folder, scene.ids)
    assert [request.why for request in done] == ["cancelled"] * 3
    assert scene.states() == [State.CANCELLED] * 3
    assert [request.why for request in cancel_runs(scene.folder, scene.ids)] == ["cancelled"] * 3


def test_cancelling_some_leaves_the_environment_to_the_others(make_scene, tmp_path):
    """A launcher that will start them may be starting up."""
    scene = make_scene(2, max_parallel=1)
    first, second = scene.ids
    environment = tmp_path / "environment.json"
    environment.write_text(json.dumps({"SWEEPER_FOLDER": f"{scene.store.root}/s"}))
    scene.store.replace(scene.folder.service, encode({"schema": 1, "env_file": str(environment)}))
    scene.step()
    scene.backend.end(token(first, 1))
    with scene.offered():
        done = cancel_runs(scene.folder, [first], sleep=scene.clock.sleep)
    assert [r.why for r in done] == ["cancelled"]
    assert environment.exists()
    cancel_runs(scene.folder, [second])
    assert not environment.exists()


def test_a_launcher_elsewhere_shows_that_it_is_at_work_by_its_beat(make_scene):
    """A dead launcher holds the sweep until its lease has expired."""
    scene, beats = make_scene(1), [True]
    sweep, clock = Sweep(scene.at(None, remote=True)), scene.clock

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if beats[0] and int(clock.now) % 5 == 0:
            scene.store.replace("s/launcher/1.beat", b"%d" % clock.now)

    scene.store.replace("s/launcher/1", b'{"host": "another"}')
    for at_work in (True, False):
        beats[:] = [at_work]
        began = clock.now
        assert control.take_up(sweep, clock=clock, sleep=sleep) is at_work
        assert (clock.now - began < lease.LEASE_SECONDS / 2) is at_work
    assert control.take_up(sweep, clock=clock, sleep=sleep) is False


def test_a_launcher_that_starts_nothing_takes_no_retry_up(scene):
    """It waits for a running `cancel`; if the launcher is held, an error gives the reason."""
    clock, notices, launcher = FakeClock(), list[str](), ExitStack()
    sweep = Sweep(scene.folder)

    def sleep(_: float) -> None:
        clock.sleep(1)
        if clock.now == 60.0:
            launcher.close()

    launcher.enter_context(lock.holding_sweep(scene.folder))
    scene.new_scheduler(starting=False).step()
    assert not control.take_up(sweep, notices.append, clock=clock, sleep=sleep)
    assert clock.now == 60.0 and len(notices) == 1 and "cancel" in notices[0]
    with lock.holding_sweep(scene.folder):
        scene.new_scheduler().step()
        assert control.take_up(sweep, clock=clock, sleep=sleep) and clock.now < 70.0
        scene.store.replace(scene.folder.observations, encode(scene.observed() | {"held": "alike"}))
        with pytest.raises(EnvironmentFailure, match="starts no runs \\(alike\\)"):
            control.take_up(sweep, clock=clock, sleep=sleep)
    assert clock.now < 90.0


class Choosy(FakeBackend):
    """A backend that refuses jobs before they are submitted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[object] = []

    def preflight(self, resources: Any) -> None:
        self.asked.append(resources)
        raise EnvironmentFailure("fake: there is no such definition")


def test_a_retry_refused_by_the_backend_is_not_recorded(make_scene, monkeypatch):
    scene = make_scene(2)
    first, second = scene.ids
    scene.finish(first, event=Event.FAILED)
    scene.finish(second)
    scene.seal(monkeypatch)
    scene.backend = Choosy()
    sweep = Sweep(scene.folder)
    with scene.offered():
        with pytest.raises(EnvironmentFailure, match="no such definition"):
            control.retry_runs(sweep, scene.ids)
        assert not retry_asked(scene.events(first))
        control.retry_runs(sweep, [second])  # there is nothing to retry
    assert scene.backend.asked == [[{}]]


def test_a_retry_continues_an_opened_attempt(make_scene, monkeypatch):
    """As after a refused submission."""
    scene = make_scene(2)
    first, second = scene.ids
    for run in scene.ids:
        for attempt, event in ((1, Event.CLAIMED), (1, Event.FAILED), (2, Event.INTENT)):
            scene.worker(run, attempt, event)
    scene.worker(second, 2, Event.CANCEL)
    scene.seal(monkeypatch)
    before = scene.events(first)
    (opened, cancelled), ready = control.request_retries(Sweep(scene.folder), scene.ids)
    assert opened.accepted and opened.waits and not cancelled.accepted
    assert scene.events(first) == before
    assert ready.places == [{"backend": "fake"}]


def test_a_retry_that_a_launcher_takes_up_starts_none(make_scene):
    scene = make_scene(1)
    scene.finish(scene.ids[0], event=Event.FAILED)
    sweep = Sweep(scene.folder)
    with lock.holding_sweep(scene.folder):
        requests = control.request_retries(sweep, scene.ids)
        assert requests.again and requests.ready is None
        assert control.take_up(sweep, clock=scene.clock, sleep=scene.clock.sleep)
    assert retry_asked(scene.events(scene.ids[0]))


def test_python_has_the_verbs_by_names_and_conditions(make_scene, resumed, monkeypatch):
    scene = make_scene(4)
    root, (failed, done, *_) = scene.store.root, scene.ids
    scene.finish(failed, event=Event.FAILED)
    scene.finish(done)
    scene.seal(monkeypatch)
    requests = sweeper.cancel("s", root=root, where="x >= 2")
    assert {each.run: each.why for each in requests} == dict.fromkeys(scene.ids[2:], "cancelled")
    assert [each.run for each in sweeper.retry("s", root=root)] == [failed]  # and no other
    assert resumed == ["s"] and retry_asked(scene.events(failed))
    with pytest.raises(UsageError, match="x=1 of s has succeeded"):
        sweeper.retry("s", ["x=1"], root=root)
    with pytest.raises(NotFound, match="no sweep"):
        sweeper.cancel("t", root=root)


def test_wait_returns_how_the_sweep_ended(make_scene):
    """All runs ended, the time is up, or no run is active though some are left."""
    scene = make_scene(3)
    ends = [Event.SUCCEEDED, Event.FAILED, Event.SUCCEEDED]
    scene.worker(scene.ids[0], 1, Event.CLAIMED)
    assert not sweeper.wait("s", root=scene.store.root, timeout=0).finished

    def work() -> None:
        number = 3 - len(ends)
        if number:
            scene.worker(scene.ids[number], 1, Event.CLAIMED)
        scene.worker(scene.ids[number], 1, ends.pop(0))

    later = threading.Timer(0.2, work)
    later.start()
    outcome = sweeper.wait("s", root=scene.store.root)
    later.join()
    assert (outcome.at_work, outcome.finished, outcome.exit_code, len(ends)) == (False, False, 4, 2)
    with lock.holding_sweep(scene.folder):
        while ends:
            work()
        held = sweeper.status("s", root=scene.store.root)
    assert (held.at_work, held.launcher, held.finished) == (True, True, True)
    outcome = sweeper.wait("s", root=scene.store.root)
    assert (outcome.at_work, outcome.finished, outcome.exit_code) == (False, True, 3)
    assert outcome.counts == {State.SUCCEEDED: 2, State.FAILED: 1}


def test_selectors_choose_runs(make_scene):
    scene = make_scene(12)
    scene.step()
    runs = Sweep(scene.folder).runs

    def names(*given: Any) -> list[str]:
        return [run.name for run in pick(runs, *given)]

    assert names(["x=1"]) == ["x=1"]  # an exact name, not a prefix of x=10 and x=11
    assert names(["x=1?", "x=0"]) == ["x=0", "x=10", "x=11"] and len(names(["x="])) == 12
    assert names([scene.ids[3]]) == ["x=3"] and names([], ["submitted"]) == ["x=0", "x=1"]
    assert names([], None, "x >= 10") == ["x=10", "x=11"]
    assert names(["x=1*"], ["planned"], "x < 11") == ["x=10"]
    with pytest.raises(NotFound, match="no run 'y'"):
        names(["y"])
    with pytest.raises(UsageError, match="no state 'done'"):
        names([], ["done"])
