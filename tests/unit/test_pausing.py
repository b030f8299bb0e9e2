"""Requests to a running launcher, and launchers that are killed meanwhile."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sweeper.backends import capabilities_of, registered
from sweeper.errors import AnotherLauncher, EnvironmentFailure, NotFound, UsageError
from sweeper.launcher import background, pausing
from sweeper.scheduler.loop import REPLANNED
from sweeper.store.documents import read_json
from sweeper.sweep import lock, sweep_requests
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.launcher import held_of
from sweeper.sweep.plan import read
from sweeper.sweep.states import Event, State
from sweeper.sweep.trust import sealed
from sweeper.testing import FAKE, FakeBackend, Fault, Faults, FaultyStore, Killed

Scene = Any


def test_a_pause_starts_and_stops_no_jobs(make_scene: Any) -> None:
    scene = make_scene(4)
    scene.step()
    assert pausing.pause("s", root=scene.store.root) == ("s", False, False, True)
    assert not pausing.pause("s", root=scene.store.root).changed
    scene.finish(scene.ids[0])
    summary = scene.step()
    assert len(scene.backend.submitted) == 2
    assert not scene.backend.cancelled
    assert "paused by " in (summary.held or "")
    published = scene.folder.read_observations()
    assert published.paused and "`sweeper resume s` continues it" in (published.held or "")
    scene.finish(scene.ids[1])
    summary = scene.step()
    assert not summary.finished  # it waits for `sweeper resume`
    assert summary.to_start == 2
    scene.scheduler = scene.new_scheduler()  # killed, and launched again
    scene.step()
    assert len(scene.backend.submitted) == 2
    sweep_requests.ask_pause(scene.folder, on=False)
    assert scene.step().held is None
    assert len(scene.backend.submitted) == 4
    assert not scene.folder.read_observations().paused


def test_a_pause_with_runs_stops_them_until_resume(make_scene: Any) -> None:
    scene = make_scene(3)
    scene.step()
    for run in scene.ids[:2]:
        scene.worker(run, 1, Event.CLAIMED)
    sweep_requests.ask_pause(scene.folder, on=True, runs=True)
    scene.step()
    assert sorted(scene.backend.cancelled) == [token(run, 1) for run in scene.ids[:2]]
    for run in scene.ids[:2]:
        scene.worker(run, 1, Event.PREEMPTED, reason="terminated")
        scene.backend.end(token(run, 1), 75)
    scene.step(60)
    assert scene.states() == [State.PREEMPTED, State.PREEMPTED, State.PLANNED]
    assert len(scene.backend.submitted) == 2
    sweep_requests.ask_pause(scene.folder, on=False)
    scene.step()
    assert scene.backend.submitted[2:] == [token(run, 2) for run in scene.ids[:2]]


def test_a_pause_is_shown_with_and_without_a_launcher(scene: Scene) -> None:
    sweep_requests.ask_pause(scene.folder, on=True)
    assert "paused by" in (held_of(scene.folder.read_observations()) or "")
    scene.step()
    sweep_requests.ask_pause(scene.folder, on=False)
    assert held_of(scene.folder.read_observations()) is None


def test_a_finished_sweep_ends_while_paused(make_scene: Any) -> None:
    scene = make_scene(1)
    scene.step()
    sweep_requests.ask_pause(scene.folder, on=True)
    scene.finish(scene.ids[0])
    assert scene.step().finished


def test_the_number_of_parallel_jobs_can_be_changed(make_scene: Any) -> None:
    scene = make_scene(6)
    scene.step()
    assert len(scene.backend.submitted) == 2
    assert pausing.parallel("s", 4, root=scene.store.root).changed
    summary = scene.step()
    assert (summary.limit, summary.limit_by) == (4, "asked")
    assert len(scene.backend.submitted) == 4
    pausing.parallel("s", 1, root=scene.store.root)
    scene.finish(scene.ids[0])
    scene.step()
    assert len(scene.backend.submitted) == 4  # no running job is stopped
    assert not scene.backend.cancelled
    assert scene.relaunch().limit == 1
    sweep_requests.forget(scene.folder, "parallel")
    assert scene.step().limit is None


@pytest.mark.parametrize("jobs", [0, -1, 10**9])
def test_an_impossible_number_of_jobs_is_refused(scene: Scene, jobs: int) -> None:
    with pytest.raises(UsageError, match=f"cannot run {jobs} jobs at once: use a number from 1 "):
        pausing.parallel("s", jobs, root=scene.store.root)


@pytest.mark.parametrize("verb", [pausing.pause, pausing.resume, pausing.stop])
def test_a_missing_sweep_is_refused(verb: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no sweep 'nope'"):
        verb("nope", root=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_stopped_launcher_leaves_its_jobs_running(make_scene: Any) -> None:
    scene = make_scene(3)
    scene.step()
    sweep_requests.ask_stop(scene.folder)
    summary = scene.scheduler.run()
    assert "stopped by " in (summary.ends or "")
    assert not summary.finished
    assert not scene.backend.cancelled
    sweep_requests.forget(scene.folder, "stop")
    scene.scheduler = scene.new_scheduler()
    scene.finish(scene.ids[0])
    scene.step()
    assert len(scene.backend.submitted) == 3


def test_stop_waits_until_the_launcher_has_ended(scene: Scene) -> None:
    assert not pausing.stop("s", root=scene.store.root).changed
    launcher, clock, lines = ExitStack(), scene.clock, list[str]()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now > 10.0:
            launcher.close()

    launcher.enter_context(lock.holding_sweep(scene.folder))
    assert pausing.stop(
        "s", root=scene.store.root, tell=lines.append, clock=clock, sleep=sleep
    ).changed
    assert lines == ["waiting for the launcher to end"]
    assert sweep_requests.asked_stop(scene.folder) is None
    with (
        lock.holding_sweep(scene.folder),
        pytest.raises(EnvironmentFailure, match="the launcher of 's' has not ended"),
    ):
        pausing.stop("s", root=scene.store.root, clock=clock, sleep=clock.sleep)
    assert sweep_requests.asked_stop(scene.folder) is not None


def test_resume_starts_a_launcher_if_none_runs(
    scene: Scene, resumed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.seal(monkeypatch)
    sweep_requests.ask_pause(scene.folder, on=True)
    assert pausing.resume("s", root=scene.store.root).started
    assert resumed == ["s"]
    assert sweep_requests.asked_pause(scene.folder) is None
    with lock.holding_sweep(scene.folder):
        assert pausing.resume("s", root=scene.store.root) == ("s", True, False, False)
    assert resumed == ["s"]


def test_a_failed_resume_leaves_the_pause(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> FakeBackend:
        raise EnvironmentFailure("fake: the secret X is not set")

    scene.seal(monkeypatch)
    sweep_requests.ask_pause(scene.folder, on=True)
    with (
        registered(FAKE._replace(open=refuse)),
        pytest.raises(EnvironmentFailure, match="the secret X is not set"),
    ):
        pausing.resume("s", root=scene.store.root)
    assert sweep_requests.asked_pause(scene.folder) is not None


@pytest.mark.parametrize("name", ["pause", "parallel", "stop"])
@pytest.mark.parametrize("text", [b"", b"\0\0", b"[]", b'{"max_parallel": "x", "on": 3}'])
def test_a_damaged_request_is_ignored(scene: Scene, name: str, text: bytes) -> None:
    scene.store.replace(scene.folder.request(name), text)
    summary = scene.step()
    assert len(scene.backend.submitted) == 2
    assert summary.held is None
    assert summary.limit is None


def _wider(scene: Scene, **more: Any) -> dict[str, object]:
    """Return the plan with one more run, as a launch of a larger grid makes it."""
    document: Any = read_json(scene.store, scene.folder.plan)
    run = {"id": "f" * 12, "name": "x=9", "cell": "x=9", "seed": None, "config": {"x": 9}}
    came = {"provenance": {"time": "later", "command": ["launch"]}}
    return document | came | {"runs": [*document["runs"], run]} | more


def test_another_plan_is_taken_up_despite_kills(make_scene: Any, home: Path) -> None:
    """The launcher is killed at each of its calls in turn."""
    scene = make_scene(1)
    scene.step()
    before = scene.store.read(scene.folder.plan)
    number = 0
    for number in itertools.count(1):
        scene.store.replace(scene.folder.plan, before)
        sweep_requests.propose_plan(scene.folder, sealed(_wider(scene)))
        assert scene.scheduler.step().ends == REPLANNED
        faults = Faults({number: Fault.KILL_AFTER})
        try:
            background.take_up(SweepFolder(FaultyStore(scene.store, faults), "s"))
        except Killed:
            background.take_up(scene.folder)
        plan = scene.folder.read_plan()
        assert [run.name for run in plan.runs] == ["x=0", "x=9"]
        assert len(plan.launches) == 1
        if not faults.struck:
            break
    assert number > 5
    assert scene.relaunch().ends is None
    assert scene.backend.submitted == [token(scene.ids[0], 1), token("f" * 12, 1)]


def test_a_plan_of_another_user_is_not_taken_up(scene: Scene, home: Path) -> None:
    sweep_requests.propose_plan(scene.folder, _wider(scene, seal="0" * 64))
    background.take_up(scene.folder)
    assert len(scene.folder.read_plan().runs) == 3
    assert scene.step().ends is None


def _offer(scene: Scene, document: dict[str, Any]) -> bool:
    launch = background.Offer(None, capabilities_of("fake", {}), [{"backend": "fake"}])
    return background.offer(scene.folder, read(document, "plan"), launch, lambda _: None)


def test_a_launch_of_the_same_grid_joins_the_launcher_at_work(scene: Scene, home: Path) -> None:
    """A launcher that was asked to end, or a `cancel`, is not joined."""
    same = read_json(scene.store, scene.folder.plan)
    assert _offer(scene, same)
    assert sweep_requests.asked_plan(scene.folder) is None
    sweep_requests.ask_stop(scene.folder)
    assert not _offer(scene, same)
    sweep_requests.forget(scene.folder, "stop")
    scene.new_scheduler(starting=False).step()
    with pytest.raises(AnotherLauncher, match="another launcher is running on 's'"):
        _offer(scene, same)


@pytest.mark.parametrize("change", [{"service": "local"}, {"launch": {"backend": "local"}}])
def test_changes_that_need_a_new_launcher_are_refused(
    scene: Scene, home: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(AnotherLauncher, match=r"or end it with `sweeper stop s --root .*`. A runn"):
        _offer(scene, _wider(scene, **change))
    assert sweep_requests.asked_plan(scene.folder) is None
