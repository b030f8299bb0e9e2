"""Values that look like code: they reach the recipe byte for byte, and nothing executes them."""

import json
import sys
from pathlib import Path

import pytest
from harness.real import Sweep, Sweeps

from sweeper.errors import GridError
from sweeper.planner.plan import plan
from sweeper.store.documents import read_json

HOSTILE = [
    "$(touch pwn)",
    "`touch pwn`",
    "; touch pwn",
    "&& touch pwn",
    "| touch pwn #",
    "a\nb",
    "a\\\n  b\r\n",
    "\n; touch pwn\n",
    "--flag",
    "-c",
    "=",
    "key=value",
    "'\"`\\",
    "%s %d {0}",
    "#{pid} #(touch pwn) #S",
    "~/x *",
    "\x01\x1b[31m\x7f",
    "ä 本 🙂 \u202e",
    " ",
    "null",
    "1e-4",
    "!!python/object/apply:os.system ['touch pwn']",
    "@file",
    "../../etc/passwd",
]
ECHO = """
import json, os, sys
import chz

@chz.chz
class Config:
    log_path: str
    value: str

def main(config: Config):
    with open(os.path.join(config.log_path, "got.json"), "w") as file:
        json.dump(config.value, file)

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""
TELL = "import json, sys; json.dump(sys.argv[2], open(sys.argv[1] + '/got.json', 'w'))"
COMMAND = [sys.executable, "-I", "-S", "-c", TELL.replace("{", "{{"), "{log_path}", "{value}"]


def _echoing(make_sweep: Sweeps, kind: str, values: list[str], **options: object) -> Sweep:
    """Make a sweep with a run for each value; its recipe records the value that it gets."""
    sweep = make_sweep(command=COMMAND, launch={"max_parallel": 6}, **options)
    grid = sweep.spec["grid"]
    grid["base"] = {}
    grid["grid"] = {"value": values}
    if kind == "recipe":
        del grid["command"]
        (sweep.folder / "echo.py").write_text(ECHO)
        grid["recipe"] = str(sweep.folder / "echo.py")
    return sweep


def _got(sweep: Sweep) -> list[str]:
    """Return the values that the recipes got, in the order of the plan."""
    runs = [run["id"] for run in read_json(sweep.store, sweep.sweep_folder.plan)["runs"]]
    paths = [
        Path(sweep.store.root, sweep.sweep_folder.log_path(run, 1), "got.json") for run in runs
    ]
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.parametrize("backend", ["local", "tmux"])
@pytest.mark.parametrize("kind", ["recipe", "command"])
def test_hostile_values(make_sweep: Sweeps, tmux_socket: str, kind: str, backend: str) -> None:
    sweep = _echoing(make_sweep, kind, HOSTILE, backend=backend)
    assert sweep.finish(fork=False) == 0, sweep.log.read_text()
    assert _got(sweep) == HOSTILE
    assert not list(sweep.folder.rglob("pwn"))
    assert not Path("pwn").exists()


@pytest.mark.parametrize("kind", ["recipe", "command"])
def test_nul_is_refused(make_sweep: Sweeps, kind: str) -> None:
    """No argument and no path can contain it: reported when planning, before
    anything is started."""
    sweep = _echoing(make_sweep, kind, ["a\0b"])
    with pytest.raises(GridError):
        plan(sweep.spec["grid"])
    assert sweep.start().wait() == 2
    assert not sweep.ledger.exists()
