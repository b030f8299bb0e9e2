"""The grids in grids/language run unchanged and record every step."""

import subprocess
import sys
from pathlib import Path

import pytest

import sweeper

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
GRIDS = sorted((ROOT / "grids" / "language").glob("*.yaml"))


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_a_grid_runs_as_it_stands(path, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    command = [
        sys.executable,
        "-m",
        "sweeper",
        "launch",
        str(path),
        "--root",
        str(tmp_path),
        "--wait",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    planned = sweeper.plan(path)
    registry = sweeper.Registry(str(tmp_path))
    runs = registry.runs(sweep=path.stem, state="succeeded")
    assert set(runs.reset_index()["run"]) == {run.id for run in planned.runs}
    heights = registry.metrics(runs, keys=["height"])
    last = heights.groupby("run")["step"].max()
    assert {run.id: run.config.get("steps", 20) - 1 for run in planned.runs} == dict(last)
