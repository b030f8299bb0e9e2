"""A race for seeds on this machine, with programs that end immediately."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.typed import Typed

from sweeper.results.registry import Registry

pytestmark = pytest.mark.e2e

# Cells 1 and 2 are close, 3 and 4 are far behind.
PROGRAM = """
import json, os, sys
x, seed, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
value = {1: 1.0, 2: 1.01, 3: 7.0, 4: 9.0}[x] + (0.1, -0.1, 0.05, -0.05, 0.02, 0.0)[(seed + x) % 6]
with open(os.path.join(folder, "metrics.jsonl"), "w") as file:
    file.write(json.dumps({"step": 1, "loss": value}) + "\\n")
"""


def _write(folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAM)
    grid = {
        "name": "raced",
        "command": [sys.executable, "program.py", "{x}", "{seed}", "{log_path}"],
        "grid": {"x": [1, 2, 3, 4]},
        "seeds": {"race": "3..6"},
        "metric": {"name": "loss", "goal": "minimize"},
        "launch": {"backend": "local", "max_parallel": 8},
    }
    (folder / "grid.yaml").write_text(json.dumps(grid))


def _seeds(folder: Path) -> dict[str, int]:
    runs = Registry(str(folder / "sweeps")).sweep("raced").runs
    assert {run.state.value for run in runs} == {"succeeded"} and {r.attempts for r in runs} == {1}
    return dict(Counter(run.cell for run in runs))


def test_clear_losers_get_three_seeds_and_the_others_more(tmp_path: Path) -> None:
    _write(tmp_path)
    planned = Typed(tmp_path).run("plan", "grid.yaml")
    assert "4 cells x 3 seeds, 12 runs: 12 to start" in planned
    assert "up to 6: at most 12 more runs" in planned
    Typed(tmp_path).run("launch", "grid.yaml", "--wait", "--plain")
    assert _seeds(tmp_path) == {"x=1": 6, "x=2": 6, "x=3": 3, "x=4": 3}
    message = "6 of 24 runs were not needed: the cells that may be the best have all their seeds"
    assert f"raced: {message}" in Typed(tmp_path).run("status", "raced")
    Typed(tmp_path).run("analyze", "raced")
    report = (tmp_path / "sweeps/raced/report/report.md").read_text()
    assert "6 of 24 runs were not needed" in report
    again = Typed(tmp_path).run("launch", "grid.yaml", "--wait", "--plain")
    assert "18 runs" in again and sum(_seeds(tmp_path).values()) == 18
