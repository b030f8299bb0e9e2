"""`track:` in a grid: Trackio and TensorBoard, read by their own readers (`make trackers`)."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import shell as shells

from sweeper.engine import lifecycle

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-trackers" / "bin" / "python"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not PYTHON.with_name("trackio").exists(),
        reason="there is no Trackio in .venv-trackers: `make trackers` installs it",
    ),
]

READ = """
import json, os, sys
import trackio
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

project, run, folder = sys.argv[1:]
[one] = [one for one in trackio.Api().runs(project) if one.name == run]
from trackio.sqlite_storage import SQLiteStorage

rows = SQLiteStorage.get_logs(project, run)
events = EventAccumulator(folder, size_guidance={"scalars": 0}).Reload()
tags = events.Tags()["scalars"]
scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}
print(json.dumps({"config": one.config, "trackio": rows, "tensorboard": scalars}))
"""


def read_back(database: Path, project: str, run: str, log_path: Path) -> dict[str, Any]:
    """Return a run's data from both readers."""
    done = subprocess.run(
        [PYTHON, "-c", READ, project, run, log_path / "tensorboard" / run],
        env={**os.environ, "TRACKIO_DIR": str(database), "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def curves(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return rows of a metrics file or of Trackio by key."""
    keys = {key for row in rows for key, value in row.items() if isinstance(value, int | float)}
    return {key: [(row["step"], row[key]) for row in rows if key in row] for key in keys - {"step"}}


def check(read: dict[str, Any], metrics: list[dict[str, Any]], last: int) -> None:
    """Assert that both readers show the curves of the metrics file."""
    wanted = curves(metrics)
    assert [step for step, _ in wanted["test/nll"]][-1] == last
    assert curves(read["trackio"]).keys() >= wanted.keys()
    shown = {key: [tuple(point) for point in line] for key, line in read["tensorboard"].items()}
    for key, points in wanted.items():
        steps = [step for step, _ in points]
        assert [step for step, _ in curves(read["trackio"])[key]] == steps
        line = shown[re.sub(r"[^-/\w.]", "_", key)]  # TensorBoard's form of the name
        assert [step for step, _ in line] == steps
        if not key.startswith("time/"):
            assert curves(read["trackio"])[key] == points
            assert [value for _, value in line] == pytest.approx([v for _, v in points])


def test_the_curves_of_the_quickstart_are_in_both(
    recipes: Any, tmp_path: Path, engine: lifecycle.EngineInfo
) -> None:
    shell = shells.Shell(tmp_path, "local")
    database = tmp_path / "trackio"
    shell.environment |= {
        "SWEEPER_HOME": engine.home,
        "SWEEPER_QUOTA": str(tmp_path / "quota"),
        "TRACKIO_DIR": str(database),
    }
    grid = tmp_path / "tracked.yaml"
    grid.write_text(
        f"extends: {ROOT / 'grids' / 'quickstart.yaml'}\ntrack: [tensorboard, trackio]\n"
        f"base: {{max_steps: 20}}\nseeds: 1\nlaunch: {{backend: local, python: {PYTHON}}}\n"
    )
    shell.run("launch", str(grid), "learning_rate=[2e-3,8e-3]", "lora_rank=4", "--wait")
    runs = json.loads(shell.run("ls", "tracked", "--json"))["runs"]
    assert len(runs) == 2
    for run in runs:
        log_path = tmp_path / "sweeps" / "tracked" / "runs" / f"{run['id']}.1"
        read = read_back(database, "tracked", run["name"], log_path)
        check(read, recipes.read(log_path / "metrics.jsonl"), last=20)
        assert read["config"]["learning_rate"] == run["config"]["learning_rate"]


def test_a_run_that_was_killed_continues_its_curves(recipes: Any, tmp_path: Path) -> None:
    env = {"SWEEPER_TRACK": "trackio,tensorboard", "SWEEPER_TRACK_PROJECT": "p"}
    env |= {"SWEEPER_TRACK_NAME": "run", "TRACKIO_DIR": str(tmp_path / "db")}
    log_path = tmp_path / "log"
    command = [PYTHON, "-m", "sweeper.recipes.sft", f"log_path={log_path}", "max_steps=30"]
    command += [f"base_url={recipes.url}", "test_size=4", "batch_size=4", "save_every=4"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=recipes.environment(env), stdout=pipe, stderr=pipe, text=True
    ) as first:
        assert any(line.startswith("step 9/") for line in first.stdout or ())
        first.kill()
    done = subprocess.run(
        command, env=recipes.environment(env), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    read = read_back(tmp_path / "db", "p", "run", log_path)
    check(read, recipes.read(log_path / "metrics.jsonl"), last=30)
