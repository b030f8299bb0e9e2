"""A race for seeds, launched on this machine with programs that end at once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from sweeper.results.registry import Registry
from sweeper.results.sweeps import Sweep

pytestmark = pytest.mark.e2e

# Cells 1 and 2 are close, 3 and 4 are far behind.
PROGRAM = """
import json, os, sys, time
x, seed, folder, hold = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
while seed == 4 and os.path.exists(hold):
    time.sleep(0.05)
value = {1: 1.0, 2: 1.01, 3: 7.0, 4: 9.0}[x] + (0.1, -0.1, 0.05, -0.05, 0.02, 0.0)[(seed + x) % 6]
with open(os.path.join(folder, "metrics.jsonl"), "w") as file:
    file.write(json.dumps({"step": 1, "loss": value}) + "\\n")
"""


def _write(folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAM)
    hold = str(folder / "hold")
    grid = {
        "name": "raced",
        "command": [sys.executable, "program.py", "{x}", "{seed}", "{log_path}", hold],
        "grid": {"x": [1, 2, 3, 4]},
        "seeds": {"race": "3..6"},
        "metric": {"name": "loss", "goal": "minimize"},
        "launch": {"backend": "local", "max_parallel": 8},
    }
    (folder / "grid.yaml").write_text(json.dumps(grid))


def _sweeper(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "sweeper", *words]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _sweep(folder: Path) -> Sweep:
    return Registry(str(folder / "sweeps")).sweep("raced")


def _seeds(folder: Path) -> dict[str, int]:
    runs = _sweep(folder).runs
    assert {run.state.value for run in runs} == {"succeeded"} and {r.attempts for r in runs} == {1}
    return dict(Counter(run.cell for run in runs))


def test_clear_losers_get_three_seeds_and_the_others_go_on(tmp_path: Path) -> None:
    _write(tmp_path)
    planned = _sweeper(tmp_path, "plan", "grid.yaml")
    assert "4 cells x 3 seeds, 12 runs: 12 to start" in planned
    assert "up to 6: at most 12 more runs" in planned
    _sweeper(tmp_path, "launch", "grid.yaml", "--wait", "--plain")
    assert _seeds(tmp_path) == {"x=1": 6, "x=2": 6, "x=3": 3, "x=4": 3}
    message = "6 of 24 runs were not needed: the cells that may be the best have all their seeds"
    assert f"raced: {message}" in _sweeper(tmp_path, "status", "raced")
    _sweeper(tmp_path, "analyze", "raced")
    report = (tmp_path / "sweeps/raced/report/report.md").read_text()
    assert "6 of 24 runs were not needed" in report
    again = _sweeper(tmp_path, "launch", "grid.yaml", "--wait", "--plain")
    assert "18 runs" in again and sum(_seeds(tmp_path).values()) == 18


def test_a_killed_launcher_is_continued_by_the_next(tmp_path: Path) -> None:
    """It is killed while the seeds of the second round are at work."""
    _write(tmp_path)
    hold = tmp_path / "hold"
    hold.touch()
    command = [sys.executable, "-m", "sweeper", "launch", "grid.yaml", "--wait", "--plain"]
    launcher = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        second = tmp_path / "sweeps/raced/race/2.json"
        deadline = time.monotonic() + 60
        while not second.exists():
            assert time.monotonic() < deadline and launcher.poll() is None
            time.sleep(0.05)
    finally:
        os.kill(launcher.pid, signal.SIGKILL)
        launcher.wait()
        hold.unlink()
    before = second.read_bytes()
    _sweeper(tmp_path, "launch", "grid.yaml", "--wait", "--plain")
    assert second.read_bytes() == before
    assert _seeds(tmp_path) == {"x=1": 6, "x=2": 6, "x=3": 3, "x=4": 3}
