"""The messages in the README are those that a user sees."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.engine.lifecycle import EngineInfo

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "README.md").read_text().partition("## Three mistakes")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```console\n(.*?)^```", SECTION.partition("\n### ")[0], re.M | re.S)


def test_there_are_three() -> None:
    assert len(BLOCKS) == 3


def test_what_is_only_warned_of_runs(engine: EngineInfo, tmp_path: Path) -> None:
    [grid] = re.findall(r"^\$ cat second.yaml\n(.*?)^\$ ", BLOCKS[1], re.M | re.S)
    (tmp_path / "second.yaml").write_text(grid)
    command = [sys.executable, "-m", "sweeper", "launch", "second.yaml", "max_steps=2", "--wait"]
    done = subprocess.run(
        [*command, "--backend", "local"],
        cwd=tmp_path,
        env={**os.environ, "SWEEPER_HOME": engine.home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "3/3 succeeded" in done.stderr, done.stderr


@pytest.mark.parametrize("block", BLOCKS, ids=["names", "axes", "override"])
def test_what_is_shown_is_what_is_seen(block: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "grids", tmp_path / "grids")
    program = Path(sys.executable).parent / "sweeper"
    environment = {**os.environ, "SWEEPER_HOME": str(tmp_path / "home")}
    for typed in re.split(r"^\$ ", block, flags=re.M)[1:]:
        line, _, shown = typed.partition("\n")
        word, *arguments = line.split()
        if word == "cat":
            (tmp_path / arguments[0]).write_text(shown)
            continue
        assert word == "sweeper"
        done = subprocess.run(
            [program, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == shown
        assert done.returncode == (0 if "warning" in shown else 2)
        assert not (tmp_path / "sweeps").exists()
        assert not (tmp_path / "home").exists()
