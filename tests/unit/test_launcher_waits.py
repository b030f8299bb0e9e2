"""When the launcher waits: backoff, the quota, the breaker, the first run of a smoke test."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import NoRoom, NotFound, StoreError
from sweeper.scheduler import progress
from sweeper.scheduler.failures import SERVICE_TRIES, CircuitBreaker, Failure, backoff, normalised
from sweeper.store.documents import encode
from sweeper.sweep.folder import token
from sweeper.sweep.states import OPEN, Event, State, fold

Scene = Any


def _stamp(scene: Scene, seconds_ago: float) -> str:
    import time

    moment = scene.time_of_day() - seconds_ago
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def test_backoff_doubles_is_spread_and_ends():
    waits = [backoff(Event.FAILED, "error", n, "run", 1) for n in range(1, 60)]
    assert waits[1] == pytest.approx(2 * waits[0]) and waits[-1] == 300
    assert 2.5 <= waits[0] < 7.5
    assert backoff(Event.FAILED, "error", 1, "run", 1) != backoff(Event.FAILED, "error", 1, "x", 1)
    assert backoff(Event.FAILED, "quota", 1, "run", 1) > waits[0]
    assert backoff(Event.PREEMPTED, "terminated", 1, "run", 1) == 0
    assert backoff(Event.LOST, None, 2, "run", 2) > 0
    assert backoff(Event.CANCELLED, "cancelled", 3, "run", 1) == 0


def test_a_retry_waits_for_its_time_and_says_so(make_scene):
    scene = make_scene(1, retries=1)
    run = scene.ids[0]
    scene.step()
    scene.finish(run, event=Event.FAILED, reason="error")
    wait = backoff(Event.FAILED, "error", 1, run, 1)
    scene.step()
    assert scene.observed()["observed"][run].startswith("next attempt at ")
    scene.step(wait - 1)
    assert len(scene.backend.submitted) == 1
    scene.step(1.5)
    assert scene.backend.submitted[1:] == [token(run, 2)]


@pytest.mark.parametrize(("ago", "at_once"), [(0.0, False), (500.0, True), (-7200.0, False)])
def test_a_wait_goes_on_over_a_restart_as_far_as_clocks_allow(make_scene, ago, at_once):
    scene = make_scene(1, retries=1)
    run = scene.ids[0]
    scene.step()
    scene.finish(run, event=Event.FAILED, reason="error", ended=_stamp(scene, ago))
    scene.relaunch()
    assert (len(scene.backend.submitted) == 2) is at_once


def test_quota_is_a_wait_and_no_failure(make_scene):
    scene = make_scene(1)  # no retries
    run = scene.ids[0]
    scene.step()
    for attempt in range(1, 4):
        scene.finish(run, attempt, Event.FAILED, reason="quota")
        assert not scene.step().finished
        assert (attempt, Event.RETRY) in scene.events(run)
        scene.scheduler = scene.new_scheduler()
        scene.step(1)
        assert len(scene.backend.submitted) == attempt  # a restart does not shorten the wait
        scene.step(1000)
        assert len(scene.backend.submitted) == attempt + 1
    scene.finish(run, 4)
    assert scene.step().finished
    assert scene.states() == [State.SUCCEEDED]


@pytest.mark.parametrize(
    ("event", "reason", "attempts"),
    [
        (Event.FAILED, "quota", SERVICE_TRIES + 1),  # the quota never comes back
        (Event.FAILED, "service", SERVICE_TRIES + 1),  # the run may kill its engine
        (Event.PREEMPTED, "terminated", 21),
    ],
)
def test_a_run_that_ends_for_ever_without_a_failure_of_its_own_ends(
    make_scene, event, reason, attempts
):
    scene = make_scene(1)
    for attempt in range(1, 100):
        scene.step()
        if scene.step(1000).finished:
            break
        scene.finish(scene.ids[0], attempt, event, reason=reason)
    assert len(scene.backend.submitted) == attempts
    assert scene.states() == [State(event.value)]


def test_a_cancelled_run_is_not_excused_by_the_quota(make_scene):
    scene = make_scene(1)
    run = scene.ids[0]
    scene.step()
    scene.worker(run, 1, Event.CANCEL)
    scene.finish(run, 1, Event.FAILED, reason="quota")
    assert scene.step().finished
    assert (1, Event.RETRY) not in scene.events(run)


def test_paused_runs_lower_the_limit_and_are_shown(make_scene):
    scene = make_scene(6, max_parallel=4)
    scene.step()
    paused = {"reason": "rate_limit", "since": "2026-01-01T12:00:00Z"}
    for run in scene.ids[:4]:
        scene.worker(run, 1, Event.CLAIMED)
        scene.beat(run, paused=paused)
    assert scene.step().limit == 2
    observed = scene.observed()
    assert observed["observed"][scene.ids[0]] == "paused: rate limit since 12:00:00Z"
    assert observed["limit"] == 2
    for run in scene.ids[:3]:
        scene.worker(run, 1, Event.SUCCEEDED)
    scene.step()
    assert len(scene.backend.submitted) == 5  # one still runs: room for one more, not for three
    assert scene.relaunch().limit == 1  # paused runs say so to the next launcher as well


@pytest.mark.parametrize("body", [{"paused": 3}, {"paused": {}}, {"schema": 99}, {}])
def test_heartbeats_of_any_shape_are_heartbeats(make_scene, body):
    scene = make_scene(1)
    scene.step()
    scene.worker(scene.ids[0], 1, Event.CLAIMED)
    scene.beat(scene.ids[0], **body)
    assert scene.step().unreachable is None
    scene.store.replace(scene.folder.heartbeat(scene.ids[0], 1), b"\0\0")
    assert scene.step().unreachable is None


def _fail(scene: Scene, run: str, line: str, attempt: int = 1, code: int = 1) -> None:
    scene.log(run, f"some output\n{line}\n\n", attempt)
    scene.finish(run, attempt, Event.FAILED, reason="error", code=code)


def test_a_sweep_whose_first_runs_all_fail_alike_is_held(make_scene):
    scene = make_scene(8, max_parallel=4)
    scene.step()
    for number, run in enumerate(scene.ids[:3]):
        _fail(scene, run, f"FileNotFoundError: /data/{run}/x.json at line {number}")
    summary = scene.step()
    assert "failed with the same error (error: FileNotFoundError: /data/" in summary.held
    assert not summary.finished  # one still runs
    assert len(scene.backend.submitted) == 4
    assert scene.observed()["observed"][scene.ids[7]] == "held back"
    scene.finish(scene.ids[3])
    summary = scene.step()
    assert summary.finished
    assert summary.counts == {State.FAILED: 3, State.SUCCEEDED: 1, State.PLANNED: 4}
    assert scene.relaunch().held is None
    assert len(scene.backend.submitted) == 8  # a relaunch continues


def test_a_sweep_that_is_removed_is_not_begun_again(make_scene):
    scene = make_scene(3)
    scene.step()
    submitted = list(scene.backend.submitted)
    folder = Path(scene.store.root, "s")
    shutil.rmtree(folder / "state")
    with pytest.raises(StoreError, match="recorded events of"):
        scene.step()
    shutil.rmtree(folder)
    with pytest.raises(NotFound, match="was removed while its launcher was running"):
        scene.scheduler.run()
    assert scene.backend.submitted == submitted
    assert not folder.exists()


def test_nothing_is_held_where_nothing_is_left(make_scene):
    scene = make_scene(1)
    scene.step()
    scene.finish(scene.ids[0], event=Event.FAILED, reason="error", code=3)
    summary = scene.step()
    assert summary.finished and summary.held is None


def test_a_retry_lifts_the_hold(make_scene):
    scene = _failed_alike(make_scene, 6, max_parallel=4)
    assert scene.step().held is not None
    scene.worker(scene.ids[0], 1, Event.RETRY)
    assert scene.step().held is None
    assert scene.backend.submitted[4:] == [token(scene.ids[0], 2), *_first(scene.ids[4:])]


def _first(ids: list[str]) -> list[str]:
    return [token(run, 1) for run in ids]


@pytest.mark.parametrize(
    "ends",
    [
        ["no such key 3", "out of memory", "no such key 5"],
        ["no such key 3", "no such key 4", None],
        [None, "no such key 4", "no such key 5"],
    ],
)
def test_runs_that_end_otherwise_hold_nothing(make_scene, ends):
    scene = make_scene(8, max_parallel=3)
    scene.step()
    for run, line in zip(scene.ids, ends, strict=False):
        if line is None:
            scene.finish(run)
        else:
            _fail(scene, run, line)
    assert scene.step().held is None
    for run in scene.ids[3:6]:
        _fail(scene, run, "no such key 1")
    assert scene.step().held is None  # only the first runs count


def test_retries_come_before_the_hold(make_scene):
    scene = make_scene(3, max_parallel=3, retries=1)
    for attempt in (1, 2):
        scene.step()
        summary = scene.step(600)
        assert summary.held is None
        for run in scene.ids:
            _fail(scene, run, "no", attempt)
    assert scene.step().finished


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_retries_do_not_weaken_the_hold(make_scene, retries):
    """While the first runs, which all failed alike, are retried, no others are started."""
    scene = make_scene(40, max_parallel=4, retries=retries)
    while not (summary := scene.step(1)).finished:
        for run, state in scene.folder.read_states().items():
            if state.state in OPEN:
                _fail(scene, run, "KeyError: 'reward' in step 17", state.attempt)
    assert summary.held is not None
    assert 3 <= summary.counts[State.FAILED] <= 8
    assert summary.counts[State.PLANNED] >= 32


def test_a_retry_that_succeeds_ends_the_doubt(make_scene):
    scene = _failed_alike(make_scene, 8, max_parallel=3, retries=1)
    scene.step()
    assert len(scene.backend.submitted) == 3
    assert scene.observed()["observed"][scene.ids[5]].startswith("waits: the first runs failed")
    scene.step(600)
    scene.finish(scene.ids[0], 2)
    scene.step()
    assert token(scene.ids[3], 1) in scene.backend.submitted


def test_doubted_runs_that_are_cancelled_are_not_waited_for(make_scene):
    scene = make_scene(8, max_parallel=3, retries=1)
    scene.step()
    for run in scene.ids[:3]:
        _fail(scene, run, "no")
    scene.step()
    for run in scene.ids[:3]:
        scene.worker(run, 2, Event.CANCEL)
    summary = scene.step(600)
    assert summary.finished and summary.held is not None


def test_each_run_is_counted_once(make_scene):
    scene = make_scene(8, max_parallel=8, retries=1)
    scene.step()
    for run in scene.ids[:6]:
        _fail(scene, run, "no")
    scene.finish(scene.ids[6])
    summary = scene.step()
    assert progress.line(summary).endswith("  1/8 succeeded, 1 submitted, 6 to start again")
    assert summary.to_start == 6


def test_a_machine_without_room_slows_the_launcher_and_is_told(make_scene):
    """A run whose worker could start no recipe is retried once the others have ended."""
    scene = make_scene(6, max_parallel=4)
    scene.step()
    run = scene.ids[0]
    scene.finish(run, event=Event.PREEMPTED, reason="limit")
    summary = scene.step()
    assert summary.limit == 1
    assert progress.line(summary).endswith("at most 1 at once: this machine cannot run more")
    assert scene.observed()["limit_by"] == "machine"
    scene.step(10)
    assert len(scene.backend.submitted) == 4
    for other in scene.ids[1:4]:
        scene.finish(other)
    scene.step()
    assert scene.backend.submitted[4:] == [token(run, 2)]


def test_a_full_backend_is_waited_for(make_scene):
    """It starts some jobs and has no room for the others, which keep their attempt."""
    scene = make_scene(6, max_parallel=4)
    submit = scene.backend.submit

    def full(jobs: Any) -> None:
        submit(jobs[:2])
        raise NoRoom("this machine has no more processes")

    scene.backend.submit = full
    assert scene.step().unreachable == "this machine has no more processes"
    scene.backend.submit = submit
    summary = scene.step()
    assert (summary.limit, summary.limit_by) == (2, "machine")
    assert len(scene.backend.submitted) == 2
    for run in scene.ids[:2]:
        scene.finish(run)
    scene.step()
    assert scene.backend.submitted[2:] == _first(scene.ids[2:4])


def test_errors_are_compared_without_paths_and_numbers():
    error = "ValueError: /home/a/runs/0f3a9c12.1/x.json: step 17 (0x7f3a) took 1.5e-3 s"
    two = "ValueError: /tmp/b/runs/77ab9c12.2/x.json: step 3 (0x55aa) took 12 s"
    assert normalised(error) == normalised(two) and normalised(error) != normalised("KeyError: 17")
    breaker = CircuitBreaker()
    assert breaker.tripped(3) is None
    breaker.run_ended("a", Failure("error", 1, error))
    assert breaker.tripped(3) is None
    breaker.run_ended("b", Failure("error", 1, two))
    assert breaker.tripped(2) is not None  # all runs, if there are fewer
    breaker.run_ended("c", Failure("oom", None, two))
    assert breaker.tripped(3) is None


def _failed_alike(make_scene: Any, runs: int, **launch: Any) -> Scene:
    """Let the first three runs fail with the same error."""
    scene = make_scene(runs, **launch)
    scene.step()
    for run in scene.ids[:3]:
        _fail(scene, run, "no")
    return scene


def test_smoke_starts_one_and_then_the_others(make_scene):
    scene = make_scene(4, max_parallel=3)
    scene.scheduler = scene.new_scheduler(smoke=True)
    for _ in range(3):
        scene.step()
    assert scene.backend.submitted == _first(scene.ids[:1])
    scene.finish(scene.ids[0])
    scene.step()
    assert scene.backend.submitted == _first(scene.ids)


def test_smoke_that_fails_starts_nothing_more(make_scene):
    scene = make_scene(4, max_parallel=3, retries=1)
    scene.scheduler = scene.new_scheduler(smoke=True)
    for attempt in (1, 2):
        scene.step()
        scene.step(600)
        assert len(scene.backend.submitted) == attempt
        _fail(scene, scene.ids[0], "KeyError: 'x'", attempt)
    summary = scene.step()
    assert summary.finished
    assert summary.held == ("the first run, x=0, failed (KeyError: 'x'): no more runs are started")


def test_a_smoke_run_that_is_cancelled_while_it_waits_ends_the_launch(make_scene):
    scene = make_scene(3, retries=2)
    scene.scheduler = scene.new_scheduler(smoke=True)
    run = scene.ids[0]
    scene.step()
    scene.finish(run, event=Event.FAILED, reason="error")
    assert not scene.step().finished
    scene.worker(run, 1, Event.CANCEL)
    summary = scene.step()
    assert summary.finished and summary.held is not None and "the first run" in summary.held


def test_a_retry_after_a_failed_smoke_run_may_be_of_any_run(make_scene):
    scene = make_scene(4)
    scene.step()
    for run in scene.ids[:2]:
        scene.finish(run, event=Event.FAILED)
    scene.relaunch(smoke=True)
    _fail(scene, scene.ids[2], "no")
    assert scene.step().held is not None
    scene.worker(scene.ids[0], 1, Event.RETRY)
    scene.step()
    assert scene.backend.submitted[3:] == [token(scene.ids[0], 2)]


@pytest.mark.parametrize("seed", range(3))
def test_never_more_than_max_parallel(make_scene, seed):
    """Random histories: jobs end, die or are lost, replies are lost, launchers are killed."""
    rng = random.Random(seed)
    most = rng.randint(1, 3)
    scene = make_scene(7, max_parallel=most, retries=2)
    for _ in range(60):
        scene.backend.lose_reply = rng.random() < 0.1
        scene.backend.reachable = rng.random() > 0.05
        if rng.random() < 0.2:
            scene.scheduler = scene.new_scheduler()
        scene.step(rng.choice((0.5, 20.0, 400.0)))
        at_work = _at_work(scene)
        assert len(at_work) <= most, at_work
        for job in at_work:
            _live(scene, rng, job)
        _ask(scene, rng)
    scene.backend.reachable = True
    for _ in range(400):
        scene.backend.lose_reply = False
        if scene.step(700).finished:
            break
        for job in _at_work(scene):
            run, _, attempt = job.rpartition("-a")
            _end(scene, run, int(attempt), Event.SUCCEEDED)
    assert scene.scheduler.step().finished
    assert len(scene.backend.submitted) == len(set(scene.backend.submitted))


def _at_work(scene: Scene) -> list[str]:
    """Return the jobs that the backend has accepted and that have not ended."""
    return [job for job, status in scene.backend.jobs.items() if status.state.value == "running"]


def _live(scene: Scene, rng: random.Random, job: str) -> None:
    run, _, number = job.rpartition("-a")
    attempt = int(number)
    happened = {event for n, event in scene.events(run) if n == attempt}
    if Event.CANCEL in happened and Event.RETRY not in happened:
        _end(scene, run, attempt, Event.CANCELLED)
    elif rng.random() < 0.4:
        outcomes = [Event.SUCCEEDED, Event.FAILED, Event.FAILED, Event.PREEMPTED]
        reason = rng.choice(["error", "quota", "killed"])
        _end(scene, run, attempt, rng.choice(outcomes), reason=reason)
    elif Event.SUBMITTED not in happened:
        return
    elif rng.random() < 0.1:
        scene.backend.end(job, 1)  # without an event
    elif rng.random() < 0.1:
        scene.backend.lose(job)
    else:
        if Event.CLAIMED not in happened:
            scene.worker(run, attempt, Event.CLAIMED)
        scene.beat(run, attempt, paused={"reason": "quota"} if rng.random() < 0.2 else None)


def _end(scene: Scene, run: str, attempt: int, event: Event, **body: Any) -> None:
    for each in (Event.CLAIMED, event):
        if (attempt, each) not in scene.events(run):
            scene.worker(run, attempt, each, **body)
    scene.backend.end(token(run, attempt))


def _ask(scene: Scene, rng: random.Random) -> None:
    from sweeper.sweep.requests import request_cancel, request_retry

    if rng.random() < 0.15:
        run = rng.choice(scene.ids)
        if rng.random() < 0.5:
            request_cancel(scene.folder, run, scene.events(run), 2)
        else:
            request_retry(scene.folder, run, scene.events(run))


def test_a_lower_limit_submits_no_more_of_what_was_opened(make_scene):
    """The launcher is killed before the submission and restarted with a lower limit."""
    scene = make_scene(4, max_parallel=4)
    scene.backend.reachable = False
    scene.step()
    plan = scene.folder.read_plan()
    plan = plan._replace(launch=plan.launch._replace(max_parallel=1))
    scene.store.replace(scene.folder.plan, encode(plan.document()))
    scene.backend.reachable = True
    scene.scheduler = scene.new_scheduler()
    for run in scene.ids:
        scene.step()
        assert _at_work(scene) == [token(run, 1)]
        scene.finish(run)
    assert scene.step().finished


def test_a_step_lists_the_events_once(make_scene):
    scene, calls = make_scene(50, max_parallel=20), list[str]()
    scene.relaunch(calls.append)
    calls.clear()
    scene.step()
    listed = [call.split()[1] for call in calls if call.split()[0] in ("store.list", "store.names")]
    assert listed == ["s/state", "s/launcher"]
    scene.finish(scene.ids[0])
    scene.step()
    states = [fold(events).state for events in scene.folder.read_events().values()]
    assert sum(state in OPEN for state in states) == 20
