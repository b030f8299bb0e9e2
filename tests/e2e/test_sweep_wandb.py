"""`wandb:` in a grid, W&B offline, read back by W&B's own program."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.typed import Typed

from sweeper.results.registry import Registry
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.tracking import run_id

pytestmark = pytest.mark.e2e

Records = Callable[[Path], list[dict[str, Any]]]

BARE = "wandb.init()"
"""A program that leaves all settings of W&B to the environment."""
LIKE_COOKBOOK = (
    "wandb.init(project=config.wandb_project, name=config.wandb_name, dir=config.log_path,"
    " config={'lr': config.lr, 'log_path': config.log_path}) if config.wandb_project else 0"
)
_TOY = """
import os
import chz, wandb

@chz.chz
class Config:
    log_path: str
    lr: float = 0.1
    style: str = "bare"
    seed: int = 0
    wandb_project: str | None = None
    wandb_name: str | None = None

def main(config: Config) -> None:
    run = {bare} if config.style == "bare" else {cookbook}
    attempt = int(os.environ["SWEEPER_ATTEMPT"])
    for step in range(3 * attempt - 3, 3 * attempt):
        run.log({{"loss": 1 / (1 + step)}}, step=step, commit=True)
    run.finish()
    if attempt == 1:
        raise RuntimeError("the first attempt always fails")

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""
TOY = _TOY.format(bare=BARE, cookbook=LIKE_COOKBOOK)
GRID = """
name: tracked
recipe: toy.py
base: {lr: 0.3}
grid: {style: [bare, cookbook]}
seeds: 1
secrets: [WANDB_API_KEY]
launch: {backend: local, max_parallel: 2}
wandb: {project: demo, entity: us, tags: [tiny, two words], mode: offline}
"""
KEY = "k" * 40


def _typed(folder: Path) -> Typed:
    return Typed(folder, ("WANDB_",), WANDB_API_KEY=KEY)


def _run_record(records: list[dict[str, Any]]) -> dict[str, Any]:
    (run,) = (record["run"] for record in records if record["type"] == "run")
    return run


def _steps(records: list[dict[str, Any]]) -> dict[int, float]:
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    return {row["_step"]: row["loss"] for row in rows}


def test_both_attempts_of_a_run_are_one_run_there(tmp_path: Path, wandb_records: Records) -> None:
    """For a program that knows nothing of sweeper, and for one that passes names to W&B."""
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "grid.yaml").write_text(GRID)
    typed = _typed(tmp_path)
    typed.run("launch", "grid.yaml", "--wait", code=3)
    typed.run("retry", "tracked", "--wait")
    plan = SweepFolder(LocalStore(str(tmp_path / "sweeps")), "tracked").read_plan()
    runs = Registry(str(tmp_path / "sweeps")).handles("tracked")
    assert len(runs) == 2
    for run in runs:
        for attempt in (1, 2):
            folder = tmp_path / "sweeps" / "tracked" / "runs" / f"{run.id}.{attempt}"
            (folder_kept,) = (folder / "wandb").glob("offline-run-*")
            records = wandb_records(folder_kept)
            record = _run_record(records)
            assert (record["entity"], record["project"], record["run_group"]) == (
                "us",
                "demo",
                "tracked",
            )
            assert (record["run_id"], record["resume"]) == (run_id(plan, run.id), True)
            assert (record["display_name"], record["tags"]) == (run.name, ["tiny", "two words"])
            config = record["config"]["update"]
            assert config["lr"] == run.config["lr"]
            ours = {"sweep": "tracked", "run": run.id, "cell": run.cell, "seed": 0}
            assert config["sweeper"] == ours
            assert sorted(_steps(records)) == [3 * attempt - 3, 3 * attempt - 2, 3 * attempt - 1]
    # Offline runs have no address yet, and the key is recorded nowhere.
    shown = typed.json("show", f"tracked/{runs[0].name}")
    assert shown["wandb"] is None
    text = b"".join(p.read_bytes() for p in (tmp_path / "sweeps").rglob("*") if p.is_file())
    assert KEY.encode() not in text
    assert not [p for p in (tmp_path / "sweeps").rglob("*") if p.is_symlink() and p.is_dir()]


def test_a_launch_without_the_key_is_refused_or_warned_of(
    tmp_path: Path,
) -> None:
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "grid.yaml").write_text(GRID)
    typed = Typed(tmp_path, ("WANDB_",), HOME=str(tmp_path))
    refused = typed.run("launch", "grid.yaml", "--wait", code=6)
    assert "the secret WANDB_API_KEY is not set" in refused
    grid = "command: [sh, -c, 'exit 0']\nlaunch: {backend: local}\nwandb: {project: p, entity: us}"
    (tmp_path / "grid.yaml").write_text(grid)
    assert "no W&B key for api.wandb.ai" in typed.run("launch", "grid.yaml", "--wait")
    (run,) = Registry(str(tmp_path / "sweeps")).handles("grid")
    shown = _typed(tmp_path).run("show", f"grid/{run.name}")
    plan = SweepFolder(LocalStore(str(tmp_path / "sweeps")), "grid").read_plan()
    assert f"https://wandb.ai/us/p/runs/{run_id(plan, run.id)}" in shown
