"""One sweep on several real backends, with a ledger of what was executed."""

import os
import random
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.real import until
from support.toy_sweep import ToySweep

pytestmark = pytest.mark.e2e

_until = partial(until, seconds=90)


class Sweep(ToySweep):
    """A toy sweep on several backends."""

    def write(
        self, runs: int, steps: int, seconds: float, places: list[Any], mode: str = "plain"
    ) -> None:
        super().write(runs, steps, seconds, mode, backends=places, lease="15s", grace="5s")


@pytest.fixture
def sweep(tmp_path: Path, tmux_socket: str) -> Sweep:
    del tmux_socket
    return Sweep(tmp_path)


def test_launchers_are_killed_again_and_again(sweep: Sweep) -> None:
    """At random moments, with jobs as processes and in tmux. Each run is on one backend."""
    sweep.write(10, 4, 2.0, [{"local": {"max_parallel": 2}}, {"tmux": {"max_parallel": 2}}])
    chance = random.Random(20)
    for _ in range(6):
        launcher = sweep.launch()
        before = min(len(sweep.done()), 10 * 4 - 4)  # it stops growing once all steps are done
        _until(lambda before=before: len(sweep.done()) > before + chance.randint(0, 3))
        sweep.kill(launcher)
    sweep.end(sweep.launch())
    sweep.judge(once=True)
    counts = Counter(sweep.places_of("toys").values())
    assert set(counts) == {"local", "tmux"} and counts.total() == 10
    output = sweep.run("status", "toys")
    assert "backend" in output and "tmux" in output and "local" in output
    sweep.run("analyze", "toys")
    report = (sweep.folder / "sweeps" / "toys" / "report" / "report.md").read_text()
    assert f"{counts['local']} attempts on local" in report


def test_what_is_preempted_continues_at_the_next_place(sweep: Sweep) -> None:
    """A launcher that was not running then knows which backend had the run."""
    # No run ends before one is preempted, even if the last run starts late.
    places = [{"local": {"max_parallel": 2}}, "tmux"]
    sweep.write(3, 20, 2.0, places, mode="resume:holds-10")
    launcher = sweep.launch()
    _until(lambda: len({run for run, _, _ in sweep.done()}) == 3)
    sweep.kill(launcher)
    taken = next(run for run, place in sweep.places_of("toys").items() if place == "local")
    (worker,) = _workers(f"{taken}-a1")
    worker.terminate()
    _until(lambda: _is_over(worker))
    sweep.go_on()
    sweep.end(sweep.launch())
    sweep.judge(resumes=True)
    assert sweep.places_of("toys")[taken] == "tmux"
    assert {a for run, a, _ in sweep.done() if run == taken} == {1, 2}


def _is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _workers(token: str) -> list[psutil.Process]:
    """Return the workers of a job, without their children."""
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
    """An operator stops one job, and Slurm requeues another."""
    places = [{"tmux": {"max_parallel": 2}}, {"slurm": {"max_parallel": 3, "time": "10m"}}]
    # No run ends before the launcher is killed, so that no sixth run starts.
    sweep.write(8, 16, 8.0, places, mode="resume:holds-4")
    launcher = sweep.launch()
    _until(lambda: len({run for run, _, _ in sweep.done()}) == 5)
    sweep.kill(launcher)
    first = Counter(sweep.places_of("toys").values())
    assert first == {"tmux": 2, "slurm": 3}
    tasks = sorted(set(cluster.run("squeue", "-h", "-r", "-t", "running", "-o", "%i").split()))
    cluster.run("scancel", "-b", "-s", "TERM", tasks[0])
    cluster.run("scontrol", "requeue", tasks[1])
    sweep.go_on()
    for _ in range(3):
        launcher = sweep.launch()
        before = min(len(sweep.done()), 8 * 16 - 7)
        _until(lambda before=before: len(sweep.done()) > before + 6)
        sweep.kill(launcher)
    sweep.end(sweep.launch())
    sweep.judge(resumes=True)
    assert set(sweep.places_of("toys").values()) == {"tmux", "slurm"}
    assert len(sweep.done()) <= 8 * 16 + 4  # each resumed from its checkpoint


def test_a_place_that_is_away_for_longer_than_a_lease(sweep: Sweep, cluster: Any) -> None:
    """Its jobs continue, and the other backend takes the rest."""
    away = sweep.wrap("squeue", 'echo "Unable to contact slurm controller" >&2; exit 1')
    places = [{"slurm": {"max_parallel": 2}}, {"tmux": {"max_parallel": 2}}]
    sweep.write(7, 6, 1.0, places, mode="holds-2")
    launcher = sweep.launch()
    _until(lambda: len({run for run, _, _ in sweep.done()}) == 4)
    at_slurm = [run for run, place in sweep.places_of("toys").items() if place == "slurm"]
    away.touch()
    _until(lambda: "Unable to contact" in sweep.unreachable())
    sweep.kill(launcher)
    launcher = sweep.launch()
    time.sleep(16)  # longer than the lease
    sweep.go_on()
    _until(lambda: len({run for run, _, _ in sweep.done()}) > 4)
    _until(lambda: all((run, 1, 5) in sweep.done() for run in at_slurm))
    away.unlink()
    sweep.end(launcher)
    sweep.judge(once=True)
    assert Counter(sweep.places_of("toys").values())["tmux"] > 2


def test_where_things_are_known_to_cancel_and_logs(sweep: Sweep, cluster: Any) -> None:
    """Without a launcher, `cancel` reaches the jobs on both backends."""
    sweep.write(4, 60, 60.0, [{"slurm": {"max_parallel": 2}}, "tmux"], mode="say-hello")
    launcher = sweep.launch()
    _until(lambda: len({run for run, _, _ in sweep.done()}) == 4)
    sweep.kill(launcher)
    sweep.run("cancel", "toys")
    states = [run["state"] for run in sweep.runs_of("toys")]
    assert states == ["cancelled"] * 4
    assert sorted(sweep.places_of("toys").values()) == ["slurm", "slurm", "tmux", "tmux"]
    _until(lambda: not cluster.run("squeue", "-h", "-o", "%i").split())
