"""`sweeper logs --stacks`: what a run that hangs is doing."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import written

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

RECIPE = """
import threading, time, chz

@chz.chz
class Config:
    lr: float = 1.0
    log_path: str = "x"

def waits_for_a_lock():
    threading.Event().wait(600)

def main(config: Config) -> None:
    threading.Thread(target=waits_for_a_lock, daemon=True).start()
    open(config.log_path + "/begun", "w").close()
    sleeps_for_ever()

def sleeps_for_ever():
    time.sleep(600)

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""

Start = Callable[..., None]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Launch a grid, wait until its runs have begun, and cancel them at the end."""

    def launch(begun: str, **grid: Any) -> None:
        path = tmp_path / "grid.yaml"
        path.write_text(json.dumps({"name": "stuck", "service": "none", **grid}))
        sweeper(tmp_path, "launch", str(path), "--backend", "local")
        deadline = time.monotonic() + 60
        while not list((tmp_path / "sweeps").rglob(begun)):
            assert time.monotonic() < deadline
            time.sleep(0.2)

    yield launch
    sweeper(tmp_path, "cancel", "stuck")
    sweeper(tmp_path, "status", "stuck", "--follow")


def sweeper(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweeper", *arguments, "--root", str(folder / "sweeps")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=folder,
    )


@pytest.mark.parametrize("warm", [False, True])
def test_the_stacks_of_a_recipes_threads(tmp_path: Path, start: Start, warm: bool) -> None:
    (tmp_path / "stuck.py").write_text(RECIPE)
    start("begun", recipe="stuck.py", grid={"lr": [1]}, launch={"warm": warm})
    for _ in range(2):  # it goes on, so the same can be asked again
        done = sweeper(tmp_path, "logs", "stuck/lr=1", "--stacks")
        assert done.returncode == 0, done.stderr
        assert "in sleeps_for_ever" in done.stdout
        assert "in waits_for_a_lock" in done.stdout
    both = json.loads(sweeper(tmp_path, "logs", "stuck", "--stacks", "--json").stdout)
    assert set(both["stacks"]) == {"stuck/base"}
    assert "sleeps_for_ever" in both["stacks"]["stuck/base"]["text"]


def test_of_another_program_its_processes_are_shown_and_it_goes_on(
    tmp_path: Path, start: Start
) -> None:
    program = "touch {log_path}/begun; sleep 600; echo over"
    start("begun", command=["sh", "-c", program, "{lr}"], grid={"lr": [1]})
    for _ in range(2):
        done = sweeper(tmp_path, "logs", "stuck/lr=1", "--stacks")
        assert done.returncode == 0, done.stderr
        assert "sleep: S (sleeping)" in done.stdout


def test_what_does_not_run_has_no_stacks(tmp_path: Path) -> None:
    sweep = written.Written(tmp_path / "sweeps", "s", {"lr": [1]})
    sweep.run({"lr": 1}, 0)
    sweep.save()
    done = sweeper(tmp_path, "logs", "s", "--stacks")
    assert done.returncode == 5
    assert "none of these runs is running" in done.stderr
    assert sweeper(tmp_path, "logs", "s", "--stacks", "--follow").returncode == 2
