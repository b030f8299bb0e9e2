"""`sweeper export --format wandb`, offline: what wandb itself reads back from the files."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import written

pytestmark = pytest.mark.e2e


def test_runs_become_offline_runs_of_wandb(
    tmp_path: Path, wandb_records: Callable[[Path], list[dict[str, Any]]]
) -> None:
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
    assert "exported 1 run (2 rows) to W&B project p" in done.stdout
    [folder] = out.glob("wandb/offline-run-*")
    records = wandb_records(folder)
    [made] = [record["run"] for record in records if record["type"] == "run"]
    names = (made["run_id"], made["display_name"], made["run_group"], made["project"])
    assert names == (f"{run}-s", "lr=0.0001,seed=0", "s", "p")
    assert made["config"]["update"]["lr"] == 1e-4
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    history = {i["_step"]: {k: v for k, v in i.items() if not k.startswith("_")} for i in items}
    assert history[0] == {"a/b": 1.5, "text": "x"}
    assert list(history) == [0, 3] and math.isnan(float(history[3]["a/b"]))
