"""Alarms of real runs, with a killed launcher, `on_alarm` and a service with limits."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.real import until
from support.typed import Typed

from sweeper.alarms import alarms, names
from sweeper.engine import lifecycle
from sweeper.engine.lifecycle import Settings
from sweeper.engine.limits import Limits
from sweeper.store.documents import read_json
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder

pytestmark = pytest.mark.e2e

SECONDS = 120

TOY = """
import json, os, sys, time
kind, folder = sys.argv[1:]
values = {
    "diverge": [2.0 ** n for n in range(10)],
    "broken": [3.0, 2.0, float("nan")],
    "stall": [3.0, 2.5, 2.0],
    "fine": [3.0 - 0.1 * n for n in range(20)],
}[kind]
with open(os.path.join(folder, "metrics.jsonl"), "a") as file:
    for step, loss in enumerate(values):
        file.write(json.dumps({"step": step, "loss": loss}) + "\\n")
        file.flush()
        time.sleep(0.1)
if kind != "fine":
    time.sleep(600)
"""
NOTIFY = """
import json, os, sys
alarm = json.loads(os.environ["SWEEPER_ALARM"])
line = json.dumps([sys.argv[2:], alarm["rule"], os.environ["SWEEPER_RULE"], alarm["message"]])
descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(descriptor, line.encode() + b"\\n")
print("nobody listens")
sys.exit(3)
"""


class Scene(Typed):
    """A folder with a store, and the command line."""

    def __init__(self, folder: Path, home: str) -> None:
        self.store = open_store(str(folder / "sweeps"))
        super().__init__(folder, SWEEPER_HOME=home, SWEEPER_ROOT=self.store.root)

    def launching(self, grid: dict[str, Any]) -> "subprocess.Popen[str]":
        (self.folder / "grid.yaml").write_text(json.dumps(grid))
        null = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        return self.start("launch", "grid.yaml", "--wait", "--live", **null)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, str(tmp_path / "home"))


def toys(scene: Scene) -> dict[str, Any]:
    (scene.folder / "toy.py").write_text(TOY)
    (scene.folder / "notify.py").write_text(NOTIFY)
    ledger = str(scene.folder / "ledger")
    notify = [sys.executable, "notify.py", ledger, "{name}; touch {rule}", "{sweep}"]
    return {
        "name": "toys",
        "command": [sys.executable, "toy.py", "{kind}", "{log_path}"],
        "grid": {"kind": ["diverge", "broken", "stall", "fine"]},
        "alarms": {"stalled": {"after": "10s", "factor": 1, "first": "12s"}},
        "on_alarm": {"run": notify, "stop": "run", "rules": ["divergence", "nan", "stalled"]},
        "launch": {"backend": "local", "max_parallel": 4, "grace": "2s"},
    }


def test_each_alarm_is_reported_and_acted_on_once_despite_a_kill(scene: Scene) -> None:
    grid, folder = toys(scene), SweepFolder(scene.store, "toys")
    with scene.launching(grid) as first:

        def state() -> str:
            return Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[0]

        def acted() -> bool:
            paths = scene.store.names(folder.alarms)
            done = [path for path in paths if path.endswith(".action.json")]
            if not any(read_json(scene.store, path)["outcome"] for path in done):
                return False
            # A command starts at most once, after its record is written. Stop the launcher while
            # comparing the records with the commands that have begun.
            os.kill(first.pid, signal.SIGSTOP)
            until(lambda: state() in "TZ")
            paths = scene.store.names(folder.alarms)
            begun = (scene.folder / "ledger").read_text().splitlines()
            if sum(path.endswith(".action.json") for path in paths) == len(begun):
                return True
            os.kill(first.pid, signal.SIGCONT)
            return False

        try:
            until(acted)
        finally:  # the launcher may be stopped
            first.kill()
    with scene.launching(grid) as second:
        _, stderr = second.communicate(timeout=SECONDS)
    assert second.returncode == 3
    raised = {alarm.name: alarm for alarm in alarms(folder)}
    assert {name: alarm.rule for name, alarm in raised.items()} == {
        "kind=diverge": "divergence",
        "kind=broken": "nan",
        "kind=stall": "stalled",
    }
    assert raised["kind=broken"][5:7] == ("loss", 2)
    assert raised["kind=stall"].step == 2
    acts = [json.loads(line) for line in (scene.folder / "ledger").read_text().splitlines()]
    expected = [
        [[f"{name}; touch {a.rule}", "toys"], a.rule, a.rule, a.message]
        for name, a in raised.items()
    ]
    assert sorted(acts) == sorted(expected)
    assert "alarm: kind=stall: stalled: no step for " in stderr
    assert "ended with 3: nobody listens" in stderr
    states = scene.json("status", "toys", code=3)["runs"]
    assert {run["name"]: run["state"] for run in states} == {
        "kind=diverge": "cancelled",
        "kind=broken": "cancelled",
        "kind=stall": "cancelled",
        "kind=fine": "succeeded",
    }


@pytest.mark.parametrize("every", [1, 0])
def test_a_run_that_diverges_records_it_is_called_out_and_ends(
    every: int, engine: lifecycle.EngineInfo, tmp_path: Path
) -> None:
    """The steps are real: with this learning rate, weights and then losses become NaN."""
    scene = Scene(tmp_path, engine.home)
    grid = {
        "name": "hot",
        "recipe": "sft",
        "service": "local",
        "base": {"learning_rate": 1e20, "max_steps": 50, "test_size": 4, "eval_every": every},
        "metric": {"name": "test/nll", "goal": "minimize"},
        "launch": {"backend": "local"},
    }
    with scene.launching(grid) as launch:
        stderr = launch.communicate(timeout=SECONDS)[1]
    assert launch.returncode == 3, stderr
    (run,) = scene.runs_of("hot")
    assert run["state"] == "failed"
    assert "training has diverged: " in scene.run("logs", "hot")
    (path,) = scene.folder.glob("sweeps/hot/runs/*/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[-1]["step"] == 1  # the first step after an update
    assert rows[-1]["train_mean_nll"] != rows[-1]["train_mean_nll"]
    raised = scene.json("alarms", "hot")["alarms"]
    assert "nan" in {alarm["rule"] for alarm in raised}


def test_the_verb(scene: Scene) -> None:
    grid = toys(scene) | {"grid": {"kind": ["broken", "fine"]}}
    scene.run("alarms", "toys", code=5)
    with scene.launching(grid) as launcher:
        launcher.communicate(timeout=SECONDS)
    shown = scene.run("alarms", "toys")
    assert "loss is NaN at step 2 (on_alarm: stop run, run: ended with 3" in shown
    assert "nan: inspect the step before" in shown
    [alarm] = scene.json("alarms", "toys", "kind=broken")["alarms"]
    assert (alarm["rule"], alarm["key"], alarm["step"], alarm["value"]) == ("nan", "loss", 2, "NaN")
    assert alarm["current"]
    assert scene.run("alarms", "toys", "kind=fine") == "toys: no alarms\n"


def test_a_disk_and_a_memory_that_are_low(scene: Scene) -> None:
    """The disk is real and has 500 MB; no machine meets the memory limit."""
    disk = scene.folder / "sweeps"
    disk.mkdir()
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=500m none "$0" && "$@"', disk]
    if subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a disk of his own")
    grid = toys(scene) | {"grid": {"kind": ["stall"]}, "seeds": {"field": "seed", "values": 2}}
    grid |= {"alarms": {"memory": {"below": 1}}, "on_alarm": {"stop": "sweep"}}
    (scene.folder / "grid.yaml").write_text(json.dumps(grid))
    script = "python=$0; $python -m sweeper launch grid.yaml --wait --live >&2;"
    shown = subprocess.run(
        [*mount, "sh", "-c", f"{script} $python -m sweeper alarms toys --json", sys.executable],
        cwd=scene.folder,
        env=scene.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    listed = json.loads(shown.stdout)["alarms"]
    by_rule = {alarm["rule"]: alarm for alarm in listed}
    assert (len(listed), set(by_rule)) == (2, {"disk", "memory"}), shown.stderr
    assert 0 < by_rule["disk"]["value"] <= 500 * 2**20 < by_rule["disk"]["bound"] == 1e9
    assert 0 < by_rule["memory"]["value"] < by_rule["memory"]["bound"]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[str]:
    """Yield the home of an engine that accepts one request in 20 seconds."""
    pytest.importorskip("tinker")
    home = str(tmp_path / "home")
    settings = Settings(limits=Limits(rate_limit=0.05))
    null = subprocess.DEVNULL
    with subprocess.Popen(
        lifecycle.command(home, settings=settings), stdin=null, stderr=null
    ) as engine:
        try:
            lifecycle.wait(home, timeout=60)
            yield home
        finally:
            engine.terminate()


def test_a_run_that_the_service_holds_back_waits_and_is_not_stalled(
    tmp_path: Path, limited: str
) -> None:
    scene = Scene(tmp_path, limited)
    folder = SweepFolder(scene.store, "limited")
    # If the pause were not noticed, the run would count as stalled before the alarm `paused`.
    grid = {
        "name": "limited",
        "recipe": "sft",
        "service": "local",
        "base": {"max_steps": 5, "length": 2, "letters": 2, "test_size": 1},
        "alarms": {"stalled": {"first": "35s"}, "paused": {"after": "40s"}},
        "launch": {"backend": "local", "grace": "1s"},
    }
    with scene.launching(grid) as launcher:
        until(lambda: scene.store.exists(folder.alarms) and names(folder))

        def observed() -> str:
            [run] = scene.json("status", "limited", code=4)["runs"]
            assert run["state"] == "running"
            return run["observed"] or ""

        # Between two accepted requests, the run is briefly not paused.
        until(lambda: observed().startswith("paused: rate limit since "))
        [alarm] = alarms(folder)
        assert alarm.rule == "paused"
        assert "rate_limit since " in alarm.message
        scene.run("cancel", "limited")
        launcher.communicate(timeout=SECONDS)
