"""A launcher and its workers while the engine of their runs goes away and comes back."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.answering import answering

from sweeper.engine import lifecycle
from sweeper.engine.lifecycle import EngineInfo
from sweeper.scheduler import engine_watch
from sweeper.store.documents import encode, read_json
from sweeper.sweep import environment_file
from sweeper.sweep import job as job_model
from sweeper.sweep.states import Event, State
from sweeper.worker.outcome import Judged, blame

FIRST, SECOND = "http://127.0.0.1:1111", "http://127.0.0.1:2222"


def _job(engine: job_model.Engine | None) -> job_model.Job:
    recipe = {"kind": "command", "command": ["true"], "cwd": "/"}
    about = {"run": "a", "name": "a", "attempt": 1, "config": {}, "cwd": "/", "recipe": recipe}
    return job_model.read(about, "job.json")._replace(engine=engine)


class Engine:
    """A fake engine, and a scene of runs that use it."""

    def __init__(self, scene: Any, home: Path) -> None:
        self.scene, self.home = scene, home
        self.info: EngineInfo | None = EngineInfo(FIRST, 1, "t1", "0", str(home))
        self.env_file = environment_file.write("/s", {"TINKER_BASE_URL": FIRST, "MINE": "1"})
        plan = read_json(scene.store, scene.folder.plan) | {"service": "local"}
        scene.store.replace(scene.folder.plan, encode(plan))
        service = {"schema": 1, "env_file": self.env_file, "engine": FIRST, "home": str(home)}
        scene.store.replace(scene.folder.service, encode(service))
        scene.scheduler = scene.new_scheduler()

    def find(self, home: str | None = None, timeout: float = 5.0) -> EngineInfo | None:
        assert home == str(self.home)
        return self.info

    def back(self, url: str, started: str = "t2") -> None:
        self.info = EngineInfo(url, 2, started, "0", str(self.home))

    def environment(self) -> dict[str, str]:
        return json.loads(Path(self.env_file).read_text())

    def job(self, run: str, attempt: int) -> Any:
        return read_json(self.scene.store, self.scene.folder.job(run, attempt))["engine"]


@pytest.fixture
def make_engine(make_scene: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))

    def make(runs: int, **launch: Any) -> tuple[Any, Engine]:
        scene = make_scene(runs, **launch)
        engine = Engine(scene, tmp_path / "home")
        monkeypatch.setattr(lifecycle, "find", engine.find)
        return scene, engine

    return make


def test_nothing_is_started_while_no_engine_answers(make_engine):
    """Runs that start later get its new address without another launch."""
    scene, engine = make_engine(2)
    engine.info = None
    scene.step()
    assert scene.observed()["unreachable"] is None  # the engine may be too busy for a moment
    assert not scene.step(60).finished
    observed = scene.observed()
    advice = f"no engine answers at {FIRST}: start it with `sweeper "
    assert observed["unreachable"].startswith(advice)
    assert set(observed["observed"].values()) == {"waits for the engine"}
    assert scene.backend.submitted == []
    engine.back(SECOND)
    scene.step()
    assert len(scene.backend.submitted) == 2
    assert scene.observed()["unreachable"] is None
    assert {"TINKER_BASE_URL": SECOND, "MINE": "1"}.items() <= engine.environment().items()
    assert engine.job(scene.ids[0], 1) == {"url": SECOND, "started": "t2"}
    assert read_json(scene.store, scene.folder.service)["engine"] == SECOND


@pytest.mark.parametrize("record", [None, b'{"env_file": 7}'])
def test_a_launcher_waits_until_it_can_record_the_engine_address(make_engine, record):
    """The record of the launch is missing or damaged: the launcher says so, and starts nothing."""
    scene, engine = make_engine(1)
    recorded = scene.store.read(scene.folder.service)
    if record is None:
        scene.store.remove([scene.folder.service])
    else:
        scene.store.replace(scene.folder.service, record)
    engine.back(SECOND)
    assert not scene.step().finished
    assert "service.json" in scene.observed()["unreachable"]
    assert scene.backend.submitted == []
    scene.store.replace(scene.folder.service, recorded)
    scene.step()
    assert len(scene.backend.submitted) == 1
    assert read_json(scene.store, scene.folder.service)["engine"] == SECOND


def test_runs_lost_with_the_engine_cost_no_retry(make_engine):
    """The sweep is not held either, though all fail alike; a new launcher does the same."""
    scene, engine = make_engine(4, max_parallel=4)
    scene.step()
    engine.info = None
    for run in scene.ids:
        scene.finish(run, 1, Event.FAILED, reason="service")
    scene.step()
    assert scene.observed()["held"] is None
    scene.scheduler = scene.new_scheduler()
    scene.step(1000)
    assert len(scene.backend.submitted) == 4
    engine.back(FIRST)
    scene.step(1000)
    assert len(scene.backend.submitted) == 8
    for run in scene.ids:
        scene.finish(run, 2)
    assert scene.step().finished
    assert scene.states() == [State.SUCCEEDED] * 4


@pytest.mark.parametrize(("url", "ended"), [(FIRST, False), (SECOND, True)])
def test_runs_waiting_at_a_stale_engine_address_are_ended(make_engine, url, ended):
    """Their SDK would retry for ever. At the same address it gets an error, and the run fails."""
    scene, engine = make_engine(1)
    run = scene.ids[0]
    scene.step()
    engine.info = None
    scene.step(1000)
    assert scene.backend.cancelled == []  # the engine may come back
    engine.back(url)
    scene.scheduler = scene.new_scheduler()
    for _ in range(3):
        scene.step(engine_watch.ORPHAN_SECONDS / 2)
        scene.beat(run)
    scene.step()
    assert scene.backend.cancelled == [f"{run}-a1"] * ended
    if ended:
        scene.finish(run, 1, Event.PREEMPTED, reason="terminated")
        scene.step()
        assert engine.job(run, 2) == {"url": SECOND, "started": "t2"}


def test_an_environment_that_cannot_be_changed_is_waited_for(make_engine):
    """Runs would get the old address."""
    scene, engine = make_engine(1)
    Path(engine.env_file).write_text("{")
    engine.back(SECOND)
    scene.step()
    assert "cannot change the runs' environment" in scene.observed()["unreachable"]
    assert scene.backend.submitted == []
    Path(engine.env_file).write_text("{}")
    scene.step()
    assert scene.backend.submitted and engine.environment()["TINKER_BASE_URL"] == SECOND


@pytest.mark.parametrize(
    ("now", "reason", "message"),
    [
        ("t1", "error", "error"),  # the engine is there: the recipe's fault
        ("t2", "error", "service"),
        (None, "incomplete", "service"),
        (None, "timeout", "service"),
        (None, "oom", "oom"),  # an engine is never the cause
    ],
)
def test_a_worker_blames_the_service_only_if_the_engine_is_gone(now, reason, message):
    with answering(lambda _: (200, {"service": lifecycle.SERVICE, "started": now})) as served:
        url = served if now else "http://127.0.0.1:9"  # no server is there
        outcome = Judged(event=Event.FAILED, code=1, signal=None, reason=reason, detail=None)
        job = _job(job_model.Engine(url, "t1"))
        blamed = blame(job, outcome)
        assert (blamed["reason"], blamed["code"]) == (message, 1)
        assert (url in str(blamed["detail"])) == (message == "service")
        assert blame(_job(None), outcome) == outcome
        done = Judged(event=Event.SUCCEEDED, code=0, signal=None, reason=None, detail=None)
        assert blame(job, done) == done
