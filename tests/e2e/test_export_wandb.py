"""`sweeper export --format wandb`, offline: what wandb itself reads back from the files."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


def records(folder: Path) -> list[dict[str, Any]]:
    """All that W&B has recorded in a directory of its own, by its own program."""
    wandb = Path(sys.executable).with_name("wandb")
    done = subprocess.run(
        [wandb, "leet", "inspect", "--json", folder],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"TERM": "dumb"},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_runs_become_offline_runs_of_wandb(tmp_path: Path, written: ModuleType) -> None:
    sweep = written.Written(tmp_path / "root", "s")
    rows = [{"step": 0, "a/b": 1.5, "text": "x"}, {"step": 3, "a/b": math.nan, "none": None}]
    run = sweep.run({"lr": 1e-4}, 0, rows)
    sweep.save()
    out = tmp_path / "out"
    command = [sys.executable, "-m", "sweeper", "export", "s", "--root", str(tmp_path / "root")]
    command += ["--format", "wandb", "--project", "p", "--out", str(out)]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SWEEPER_HOME": str(tmp_path / "h")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 runs, 2 rows: W&B project p" in done.stdout
    [folder] = out.glob("wandb/offline-run-*")
    found = records(folder)
    [made] = [record["run"] for record in found if record["type"] == "run"]
    names = (made["run_id"], made["display_name"], made["run_group"], made["project"])
    assert names == (f"{run}-s", "lr=0.0001,seed=0", "s", "p")
    assert made["config"]["update"]["lr"] == 1e-4
    items = [record["history"]["item"] for record in found if record["type"] == "history"]
    told = {i["_step"]: {k: v for k, v in i.items() if not k.startswith("_")} for i in items}
    assert told[0] == {"a/b": 1.5, "text": "x"}
    assert list(told) == [0, 3] and math.isnan(float(told[3]["a/b"]))
