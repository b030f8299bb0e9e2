"""A real launcher of a pipeline, killed (SIGKILL) twenty times in the middle: it has the same runs
and values as without kills. The runs' own records elsewhere show that none was started twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sweeper.results.registry import Registry

_RUN = """
import json, os, sys, time
folder, run, before, value = sys.argv[1:]
with open(os.environ["LEDGER"], "a") as file:
    file.write(run + "\\n")
time.sleep(0.4)
parent = 0.0
if before:
    with open(before) as file:
        parent = json.load(file)["weight"]
weight = parent / 2 + float(value)
with open(f"{folder}/weight.json", "w") as file:
    json.dump({"weight": weight}, file)
with open(f"{folder}/metrics.jsonl", "w") as file:
    file.write(json.dumps({"step": 1, "loss": (weight - 1.7) ** 2}) + "\\n")
with open(f"{folder}/checkpoints.jsonl", "w") as file:
    file.write(json.dumps({"name": "final", "state_path": f"{folder}/weight.json"}) + "\\n")
"""
_METRIC = {"name": "loss", "goal": "minimize"}
_SWEEPER = (sys.executable, "-m", "sweeper")


def _grid(folder: Path) -> Path:
    program = [sys.executable, "run.py", "{log_path}", "{run}", "{before}", "{value}"]
    goes_on = {"before": "${from.checkpoint.state}"}
    stages: dict[str, Any] = {
        "sft": {"base": {"before": ""}, "grid": {"value": [1, 2, 3, 4]}, "metric": _METRIC},
        "dpo": {
            "from": {"stage": "sft", "take": "best"},
            "base": goes_on,
            "grid": {"value": [0.5, 1, 2]},
            "metric": _METRIC,
        },
        "rl": {
            "from": {"stage": "dpo", "take": {"top": 2}},
            "base": goes_on,
            "grid": {"value": [0.25, 0.5]},
        },
        "eval": {
            "from": [{"stage": "rl", "take": "each"}, {"stage": "dpo", "take": "each"}],
            "base": {**goes_on, "value": 0},
        },
    }
    for stage in stages.values():
        stage["command"] = program
    folder.mkdir()
    (folder / "run.py").write_text(_RUN)
    env = {"LEDGER": str(folder / "ledger")}
    launch = {"backend": "local", "max_parallel": 2, "cwd": str(folder), "env": env}
    path = folder / "p.yaml"
    path.write_text(json.dumps({"name": "p", "launch": launch, "stages": stages}))
    return path


def _launch(grid: Path, events: int | None = None) -> bool:
    """Launch, and kill the launcher when this many more events are recorded. Returns whether it
    was killed."""
    state = grid.parent / "sweeps" / "p" / "state"
    before = len(list(state.glob("*/*")))
    argv = [*_SWEEPER, "launch", str(grid), "--root", str(grid.parent / "sweeps"), "--wait"]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while process.poll() is None:
        if events is not None and len(list(state.glob("*/*"))) >= before + events:
            os.kill(process.pid, signal.SIGKILL)
            return process.wait() == -signal.SIGKILL
        time.sleep(0.01)
    assert process.returncode == 0
    return False


def _results(grid: Path) -> dict[str, Any]:
    runs = Registry(str(grid.parent / "sweeps")).sweep("p").runs
    parents = {run.id: run.name for run in runs}
    return {
        run.name: (
            run.id,
            run.state.value,
            run.attempts,
            [parents[parent] for parent in run.parents],
            json.loads(run.store.read(f"{run.folder}/weight.json"))["weight"],
        )
        for run in runs
    }


@pytest.mark.timeout(900)
def test_a_pipeline_whose_launcher_is_killed_twenty_times(tmp_path: Path) -> None:
    """If the pipeline ends before all kills are done, another one gets the rest of them."""
    whole = _grid(tmp_path / "whole")
    assert not _launch(whole)
    wanted = _results(whole)
    assert len(wanted) == 4 + 3 + 4 + 7
    assert {(state, attempts) for _, state, attempts, *_ in wanted.values()} == {("succeeded", 1)}

    chance, kills, killed = random.Random(5), 0, whole
    while kills < 20:
        killed = _grid(killed.parent.with_name(f"{killed.parent.name}-killed"))
        while kills < 20 and _launch(killed, chance.randrange(1, 4)):
            kills += 1
        assert not _launch(killed)
        assert _results(killed) == wanted
        ledger = (killed.parent / "ledger").read_text().split()
        assert sorted(ledger) == sorted(row[0] for row in wanted.values())
