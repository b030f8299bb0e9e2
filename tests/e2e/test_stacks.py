"""`sweeper logs --stacks`: what a run that hangs is doing."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.real import until
from support import written
from support.typed import Typed

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
    """Yield a function that launches a grid and waits for its runs. Cancel them at the end."""

    def launch(begun: str, **grid: Any) -> None:
        path = tmp_path / "grid.yaml"
        path.write_text(json.dumps({"name": "stuck", "service": "none", **grid}))
        Typed(tmp_path).run("launch", str(path), "--backend", "local")
        until(lambda: list((tmp_path / "sweeps").rglob(begun)))

    yield launch
    Typed(tmp_path).run("cancel", "stuck")
    Typed(tmp_path).run("status", "stuck", "--follow", code=3)


@pytest.mark.parametrize("warm", [False, True])
def test_the_stacks_of_a_recipes_threads(tmp_path: Path, start: Start, warm: bool) -> None:
    (tmp_path / "stuck.py").write_text(RECIPE)
    start("begun", recipe="stuck.py", grid={"lr": [1]}, launch={"warm": warm})
    for _ in range(2):  # the run continues, so its stacks can be shown again
        output = Typed(tmp_path).run("logs", "stuck/lr=1", "--stacks")
        assert "in sleeps_for_ever" in output and "in waits_for_a_lock" in output
    both = Typed(tmp_path).json("logs", "stuck", "--stacks")
    assert set(both["stacks"]) == {"stuck/base"}
    assert "sleeps_for_ever" in both["stacks"]["stuck/base"]["text"]


def test_processes_of_other_programs_are_shown_and_continue(tmp_path: Path, start: Start) -> None:
    program = "touch {log_path}/begun; sleep 600; echo over"
    start("begun", command=["sh", "-c", program, "{lr}"], grid={"lr": [1]})
    for _ in range(2):
        output = Typed(tmp_path).run("logs", "stuck/lr=1", "--stacks")
        assert "sleep: S (sleeping)" in output


def test_what_does_not_run_has_no_stacks(tmp_path: Path) -> None:
    sweep = written.Written(tmp_path / "sweeps", "s", {"lr": [1]})
    sweep.run({"lr": 1}, 0)
    sweep.save()
    output = Typed(tmp_path).run("logs", "s", "--stacks", code=5)
    assert "none of these runs is running" in output
    Typed(tmp_path).run("logs", "s", "--stacks", "--follow", code=2)
