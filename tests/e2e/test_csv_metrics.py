"""A command that writes its metrics as CSV, as common loggers do, from launch to export."""

import sys
from pathlib import Path

import pytest
from support.typed import Typed

pytestmark = pytest.mark.e2e

LIGHTNING = """
import csv, sys
log, rate = sys.argv[1], float(sys.argv[2])
with open(f"{log}/metrics.csv", "w", newline="") as file:
    writer = csv.DictWriter(file, ["epoch", "step", "train_loss", "val_loss"])
    writer.writeheader()
    for step in range(0, 60, 10):
        loss = float("nan") if rate > 1 and step > 30 else 1 / (1 + rate * step)
        writer.writerow({"epoch": step // 30, "step": step, "train_loss": loss})
        writer.writerow({"epoch": step // 30, "step": step, "val_loss": loss * 2})
        file.flush()
if rate > 1:
    import time
    time.sleep(120)
"""
RLLIB = """
import sys
log, rate = sys.argv[1], float(sys.argv[2])
with open(f"{log}/progress.csv", "w") as file:
    file.write("training_iteration,timesteps_total,val_loss\\n1,4000,0.5\\n")
    file.write("training_iteration,timesteps_total,val_loss,train_loss\\n")
    file.write(f"2,8000,{rate},0.25\\n3,12000,{rate / 2},0.125\\n")
"""
GRID = """
name: {name}
command: [{python}, program.py, "{{log_path}}", "{{rate}}"]
base: {{rate: 0.1}}
grid: {{rate: {rates}}}
metric: {{name: val_loss, goal: minimize, at: last}}
launch: {{backend: local, max_parallel: 2}}
on_alarm: {{stop: run, rules: [nan]}}
"""


class Shell(Typed):
    """A user's folder with one program and one grid."""

    def __init__(self, folder: Path, program: str, name: str, rates: str) -> None:
        super().__init__(folder)
        (folder / "program.py").write_text(program)
        grid = GRID.format(name=name, python=sys.executable, rates=rates)
        (folder / "grid.yaml").write_text(grid)


def test_a_grid_whose_runs_write_metrics_csv(tmp_path: Path) -> None:
    """NaN in the CSV file raises the alarm that stops its run, which would last two minutes."""
    shell = Shell(tmp_path, LIGHTNING, "light", "[0.1, 0.5, 3]")
    shell.run("launch", "grid.yaml", "--wait", code=3)
    runs = {run["config"]["rate"]: run for run in shell.json("ls", "light")["runs"]}
    assert runs[0.1]["value"] == pytest.approx(2 / 6) and runs[0.5]["state"] == "succeeded"
    assert runs[3]["state"] == "cancelled"
    [alarm] = shell.json("alarms", "light")["alarms"]
    assert (alarm["rule"], alarm["step"]) == ("nan", 40)
    assert "rate=0.5" in shell.run("best", "light")
    out = tmp_path / "out.csv"
    shell.run("export", "light", "--format", "csv", "--out", str(out))
    assert "val_loss" in out.read_text().splitlines()[0]
    query = "select max(step), min(val_loss) from metrics where epoch = 1"
    [row] = shell.json("sql", query)["rows"]
    assert row == [50, pytest.approx(2 / 91)]
    shell.run("analyze", "light")
    assert "val_loss" in (tmp_path / "sweeps" / "light" / "report" / "report.md").read_text()


def test_a_remote_store_has_the_csv_file_of_its_runs(tmp_path: Path, s3_root: str) -> None:
    shell = Shell(tmp_path, RLLIB, "ppo", "[0.5, 0.25]")
    shell.run("launch", "grid.yaml", "--wait", "--root", s3_root)
    runs = shell.json("ls", "ppo", "--root", s3_root)["runs"]
    assert sorted(run["value"] for run in runs) == [0.125, 0.25]
    query = "select step, train_loss from metrics where train_loss is not null order by all"
    rows = shell.json("sql", query, "--root", s3_root)["rows"]
    assert rows == [[2, 0.25], [2, 0.25], [3, 0.125], [3, 0.125]]
