"""The commands in a report, pasted into a shell elsewhere and in the project."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.results.registry import Registry

pytestmark = pytest.mark.e2e

RECIPE = """
import json, os
import chz

@chz.chz
class Config:
    log_path: str
    rate: float = 0.1
    warm: int = 0
    seed: int = 0

def main(config: Config) -> None:
    assert os.path.basename(os.getcwd()) == "work dir"
    with open(os.path.join(config.log_path, "metrics.jsonl"), "w") as file:
        print(json.dumps({"step": 1, "loss": 1 + config.seed + config.rate}), file=file)

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""
GRID = """
name: demo
extends: ../common/toy.yaml
grid: {warm: [1]}
metric: {goal: minimize}
launch: {backend: local, max_parallel: 4, python: tools/python, cwd: work dir, sync: 1s}
"""
COMMON = """
recipe: toy.py
grid: {rate: [0.1, 0.3]}
seeds: 2
metric: {name: loss}
"""
COMMAND = """
name: demo
command: [tools/train, "{rate}", "{warm}", "{seed}", "{log_path}"]
base: {warm: 1}
grid: {rate: [0.1, 0.3]}
seeds: 2
metric: {name: loss, goal: minimize}
launch: {backend: local, max_parallel: 4, sync: 1s}
"""
TRAIN = r"""#!/bin/sh
awk "BEGIN { printf \"{\\\"step\\\": 1, \\\"loss\\\": %f}\\n\", 1 + $3 + $1 }" \
  > "$4/metrics.jsonl"
"""


def project(folder: Path, grid: str) -> Path:
    """Make a project whose grid has paths relative to its folder."""
    for name in ("tools", "grids", "work dir", "common"):
        (folder / name).mkdir(parents=True)
    for name, text in (("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n'), ("train", TRAIN)):
        (folder / "tools" / name).write_text(text)
        (folder / "tools" / name).chmod(0o755)
    (folder / "work dir" / "toy.py").write_text(RECIPE)
    (folder / "grids" / "demo.yaml").write_text(grid)
    (folder / "common" / "toy.yaml").write_text(COMMON)
    return folder


def typed(command: str | list[str], folder: Path) -> str:
    argv = ["bash", "-c", command] if isinstance(command, str) else command
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def sweeper(folder: Path, *arguments: str) -> str:
    return typed([sys.executable, "-P", "-m", "sweeper", *arguments], folder)


def waiting(command: str) -> str:
    """Return the command with `--wait`."""
    assert command.count(" launch ") == 1
    return command.replace(" launch ", " launch --wait ")


def there_and_here(tmp_path: Path, grid: str, root: str) -> None:
    folder, elsewhere = project(tmp_path / "my project", grid), tmp_path / "else where"
    elsewhere.mkdir()
    sweeper(folder, "launch", "grids/demo.yaml", "--root", root, "--wait", "rate=[0.1, 0.3]")
    whole = root if "://" in root else str(folder / root)
    output = sweeper(elsewhere, "analyze", "demo", "--root", whole)
    next_ = re.search(r"^  next: (.*)$", output, re.MULTILINE)
    assert next_ is not None, output
    for place in (elsewhere, folder) if whole != root else (elsewhere,):
        typed(waiting(next_[1]), place)
        fresh = Registry(whole).sweep("demo-confirm").runs
        assert len(fresh) >= 6 and {run.state.value for run in fresh} == {"succeeded"}
        assert {run.config["warm"] for run in fresh} == {1}
    # The commands in the report make the same sweep and the same report.
    where = re.search(r"^report: (.*)html$", output, re.MULTILINE)
    if "://" not in root:
        text = Path(f"{where[1]}md").read_text()
        launch, analyze = text.split("## How to reproduce")[1].split("```")[1].splitlines()[1:]
        typed(waiting(launch), elsewhere)
        assert typed(analyze, elsewhere) == output


def test_commands_of_a_report_can_be_pasted_anywhere(tmp_path: Path):
    there_and_here(tmp_path, GRID, "some sweeps")


def test_a_next_grid_lies_in_a_remote_store_too_and_commands_have_one(tmp_path: Path, s3_root: str):
    there_and_here(tmp_path, COMMAND, s3_root)
