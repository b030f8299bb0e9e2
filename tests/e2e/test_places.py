"""One sweep at several real places: launchers that are killed, a place that is away, that is full,
or that takes a job back. A ledger outside the program says what was really done."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from harness.ledger import judge, read_ledger
from harness.real import until

from sweeper.store.local import LocalStore

pytestmark = pytest.mark.e2e

TOY = Path(__file__).parents[1] / "chaos" / "harness" / "toy.py"
_until = partial(until, seconds=90)


class Sweep:
    """A grid of the chaos tests' toy in a folder of its own, and `sweeper` with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows, self.steps = folder, folder / "ledger", 0
        self.go = folder / "ledger.go"  # what is held goes on once it is there
        self.environment = {**os.environ, "SWEEPER_HOME": str(folder / "home")}
        self.environment["SWEEPER_ROOT"] = str(folder / "sweeps")

    def write(
        self, runs: int, steps: int, seconds: float, places: list[Any], mode: str = "plain"
    ) -> None:
        self.steps = steps
        command = [sys.executable, str(TOY), str(self.rows), str(steps), str(seconds)]
        grid = {
            "name": "toys",
            "command": [*command, mode, "{log_path}"],
            "service": "none",
            "base": {"a": 1},
            "seeds": runs,
            "launch": {"backends": places, "lease": "15s", "grace": "5s"},
        }
        (self.folder / "grid.yaml").write_text(yaml.safe_dump(grid))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(Path(sys.executable).parent / "sweeper"), *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def launch(self) -> subprocess.Popen[str]:
        return self.start("launch", "grid.yaml", "--wait")

    def run(self, *arguments: str) -> str:
        return self.end(self.start(*arguments))

    @staticmethod
    def end(process: subprocess.Popen[str]) -> str:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        return output

    def kill(self, launcher: subprocess.Popen[str]) -> None:
        launcher.kill()
        launcher.communicate()

    def done(self) -> list[tuple[str, int, int]]:
        return read_ledger(self.rows)

    def judge(self, **options: Any) -> None:
        """Nothing lost, doubled or wrong, by the ledger."""
        store = LocalStore(str(self.folder / "sweeps"))
        verdict = judge(store, "toys", self.done(), self.steps, **options)
        assert verdict.good, verdict

    def where(self) -> dict[str, str]:
        """The place of each run's latest attempt, as `ls` says."""
        runs = json.loads(self.run("ls", "toys", "--json"))["runs"]
        return {run["id"]: run["backend"] for run in runs if "backend" in run}

    def launcher_output(self) -> str:
        path = self.folder / "sweeps" / "toys" / "launcher" / "observations.json"
        return str(json.loads(path.read_text())["unreachable"]) if path.exists() else ""

    def in_the_way(self, name: str, text: str) -> Path:
        """Put a program in the way of Slurm's own, and return the file that it looks for."""
        real, place, switch = shutil.which(name), self.folder / "bin", self.folder / f"{name}.off"
        place.mkdir(exist_ok=True)
        (place / name).write_text(
            f'#!/bin/sh\n[ -e {switch} ] || exec {real} "$@"\nreal={real}\n{text}\n'
        )
        (place / name).chmod(0o755)
        self.environment["PATH"] = f"{place}:{os.environ['PATH']}"
        return switch


@pytest.fixture
def sweep(tmp_path: Path, tmux_socket: str) -> Sweep:
    del tmux_socket
    return Sweep(tmp_path)


def test_launchers_are_killed_again_and_again(sweep: Sweep) -> None:
    """At any moment of theirs, with jobs as processes and in tmux: each run is at one place."""
    sweep.write(10, 4, 2.0, [{"local": {"max_parallel": 2}}, {"tmux": {"max_parallel": 2}}])
    chance = random.Random(20)
    for _ in range(6):
        launcher = sweep.launch()
        before = min(len(sweep.done()), 10 * 4 - 4)  # no more come once all is done
        _until(lambda before=before: len(sweep.done()) > before + chance.randint(0, 3))
        sweep.kill(launcher)
    sweep.end(sweep.launch())
    sweep.judge(once=True)
    counts = Counter(sweep.where().values())
    assert set(counts) == {"local", "tmux"} and counts.total() == 10
    output = sweep.run("status", "toys")
    assert "backend" in output and "tmux" in output and "local" in output
    sweep.run("analyze", "toys")
    report = (sweep.folder / "sweeps" / "toys" / "report" / "report.md").read_text()
    assert f"{counts['local']} attempts on local" in report


def test_what_is_preempted_goes_on_at_the_next_place(sweep: Sweep) -> None:
    """And a launcher that was away meanwhile knows where it was."""
    # No run is over before one of them is taken, however late the last begins.
    places = [{"local": {"max_parallel": 2}}, "tmux"]
    sweep.write(3, 20, 2.0, places, mode="resume:holds-10")
    launcher = sweep.launch()
    _until(lambda: len({run for run, _, _ in sweep.done()}) == 3)
    sweep.kill(launcher)
    taken = next(run for run, place in sweep.where().items() if place == "local")
    (worker,) = _workers(f"{taken}-a1")
    worker.terminate()
    _until(lambda: _is_over(worker))
    sweep.go.touch()
    sweep.end(sweep.launch())
    sweep.judge(resumes=True)
    assert sweep.where()[taken] == "tmux"
    assert {a for run, a, _ in sweep.done() if run == taken} == {1, 2}


def _is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _workers(token: str) -> list[psutil.Process]:
    """The workers of a job, without what they have started."""
    processes = [
        p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [""])[-1] == token
    ]
    return [process for process in processes if process.parent() not in processes]


@pytest.fixture
def cluster(sweep: Sweep, slurm: Any) -> Any:
    sweep.environment |= {key: os.environ[key] for key in ("SLURM_CONF", "XDG_CONFIG_HOME")}
    yield slurm
    slurm.run("scancel", "--me")


def test_tmux_and_slurm_while_launchers_are_killed_and_jobs_taken(
    sweep: Sweep, cluster: Any
) -> None:
    """One job is told to stop by an operator, one is requeued by Slurm itself."""
    places = [{"tmux": {"max_parallel": 2}}, {"slurm": {"max_parallel": 3, "time": "10m"}}]
    # No run makes room for a sixth before the launcher is killed.
    sweep.write(8, 16, 8.0, places, mode="resume:holds-4")
    launcher = sweep.launch()
    _until(lambda: len({run for run, _, _ in sweep.done()}) == 5)
    sweep.kill(launcher)
    first = Counter(sweep.where().values())
    assert first == {"tmux": 2, "slurm": 3}
    tasks = sorted(set(cluster.run("squeue", "-h", "-r", "-t", "running", "-o", "%i").split()))
    cluster.run("scancel", "-b", "-s", "TERM", tasks[0])
    cluster.run("scontrol", "requeue", tasks[1])
    sweep.go.touch()
    for _ in range(3):
        launcher = sweep.launch()
        before = min(len(sweep.done()), 8 * 16 - 7)
        _until(lambda before=before: len(sweep.done()) > before + 6)
        sweep.kill(launcher)
    sweep.end(sweep.launch())
    sweep.judge(resumes=True)
    assert set(sweep.where().values()) == {"tmux", "slurm"}
    assert len(sweep.done()) <= 8 * 16 + 4  # each went on where it was


def test_a_place_that_is_away_for_longer_than_a_lease(sweep: Sweep, cluster: Any) -> None:
    """What it has goes on, and the other place takes what is left."""
    away = sweep.in_the_way("squeue", 'echo "Unable to contact slurm controller" >&2; exit 1')
    places = [{"slurm": {"max_parallel": 2}}, {"tmux": {"max_parallel": 2}}]
    sweep.write(7, 30, 30.0, places)
    launcher = sweep.launch()
    _until(lambda: len({run for run, _, _ in sweep.done()}) == 4)
    at_slurm = [run for run, place in sweep.where().items() if place == "slurm"]
    away.touch()
    _until(lambda: "Unable to contact" in sweep.launcher_output())
    sweep.kill(launcher)
    launcher = sweep.launch()
    _until(lambda: len({run for run, _, _ in sweep.done()}) > 4)
    _until(lambda: all((run, 1, 29) in sweep.done() for run in at_slurm))
    away.unlink()
    sweep.end(launcher)
    sweep.judge(once=True)
    assert Counter(sweep.where().values())["tmux"] > 2


def test_what_a_place_refuses_goes_to_the_next(sweep: Sweep, cluster: Any) -> None:
    full = sweep.in_the_way(
        "sbatch",
        'case "$*" in *--test-only*) exec $real "$@";; esac\n'
        'echo "sbatch: error: AssocMaxSubmitJobLimit" >&2\n'
        'echo "sbatch: error: Batch job submission failed: Job violates the policy" >&2\nexit 1',
    )
    full.touch()
    sweep.write(4, 3, 0.3, [{"slurm": {"max_parallel": 2}}, {"tmux": {"max_parallel": 4}}])
    sweep.end(sweep.launch())
    sweep.judge()
    assert set(sweep.where().values()) == {"tmux"}
    shown = sweep.run("show", next(run for run, a, _ in sweep.done() if a > 1))
    assert "withdrawn" in shown and "slurm" in shown


def test_where_things_are_known_to_cancel_and_logs(sweep: Sweep, cluster: Any) -> None:
    """Without a launcher: who cancels asks both places, and one that is away holds up neither."""
    sweep.write(4, 60, 60.0, [{"slurm": {"max_parallel": 2}}, "tmux"], mode="say-hello")
    launcher = sweep.launch()
    _until(lambda: len({run for run, _, _ in sweep.done()}) == 4)
    sweep.kill(launcher)
    sweep.run("cancel", "toys")
    states = [run["state"] for run in json.loads(sweep.run("ls", "toys", "--json"))["runs"]]
    assert states == ["cancelled"] * 4
    assert sorted(sweep.where().values()) == ["slurm", "slurm", "tmux", "tmux"]
    _until(lambda: not cluster.run("squeue", "-h", "-o", "%i").split())
