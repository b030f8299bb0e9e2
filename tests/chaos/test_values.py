"""Values that look like code, and secrets: a grid's values reach its recipe byte for byte and are
not executed by anything; a secret appears only where it should."""

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from harness.real import NAME, Sweep, Sweeps, until

from sweeper.errors import GridError
from sweeper.planner.plan import plan
from sweeper.store.documents import read_json
from sweeper.sweep.states import Event

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
    """Make a sweep with a run for each value, whose recipe writes down what it got."""
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


@pytest.mark.parametrize("backend", ["local", "tmux"])
def test_a_megabyte(make_sweep: Sweeps, tmux_socket: str, backend: str) -> None:
    """It reaches a recipe by its file; a command's argument exceeds the system's limit, which is
    reported."""
    large = ["x" * (1 << 20)]
    sweep = _echoing(make_sweep, "recipe", large, backend=backend)
    assert sweep.finish(fork=False) == 0, sweep.log.read_text()
    assert _got(sweep) == large
    other = _echoing(make_sweep, "command", large, backend=backend)
    assert other.finish(fork=False) == 3
    (run,) = other.states()
    body = read_json(other.store, other.sweep_folder.event(run, 1, Event.FAILED))
    assert body["reason"] == "start"
    assert "Argument list too long" in body["detail"]


@pytest.mark.parametrize("kind", ["recipe", "command"])
def test_nul_is_refused(make_sweep: Sweeps, kind: str) -> None:
    """No argument and no path can contain it: reported when planning, before
    anything is started."""
    sweep = _echoing(make_sweep, kind, ["a\0b"])
    with pytest.raises(GridError):
        plan(sweep.spec["grid"])
    assert sweep.start().wait() == 2
    assert not sweep.ledger.exists()


CANARY = "canary-7f3a9e51c0"
SPILL = """
import os, sys, time
key = os.environ["MY_KEY"]
assert key == "-".join(["canary", "7f3a9e51c0"])
print("the key is", key, "and again:" + key + key[:8], flush=True)
for letter in key:
    sys.stdout.write(letter); sys.stdout.flush(); time.sleep(0.02)
print(flush=True)
open(os.environ["SWEEPER_RUN_DIR"] + "/ready", "w").close()
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
sys.exit("failed with " + key)
"""


@pytest.mark.parametrize("backend", ["local", "tmux"])
def test_a_secret_is_nowhere_to_be_found(
    make_sweep: Sweeps,
    tmux_socket: str,
    backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Searched for while the sweep is at work and when it has ended: every file below root and
    home, every process's arguments, tmux's environment and windows, the log, although the recipe
    prints it. The only place is the private file of the environment, which is removed at the end.
    """
    script = SPILL.replace("{", "{{").replace("}", "}}")
    over = tmp_path / "over"  # until then the recipes are at work
    command = [sys.executable, "-I", "-S", "-c", script, str(over), "--token", "none"]
    sweep = make_sweep(runs=2, backend=backend, command=command)
    sweep.spec["grid"]["secrets"] = ["MY_KEY"]
    sweep.environment["MY_KEY"] = CANARY
    monkeypatch.delenv("MY_KEY", raising=False)
    launching = sweep.start(fork=False)
    until(lambda: len(list(sweep.root.glob(f"{NAME}/runs/*/ready"))) == 2)
    private_files = list((sweep.folder / "home" / "environments").iterdir())
    assert [path.stat().st_mode & 0o077 for path in private_files] == [0]
    assert CANARY in private_files[0].read_text()
    _search(sweep, tmux_socket, backend, allowed=private_files)
    over.touch()
    assert launching.wait() == 3
    sweep.rest()
    _search(sweep, tmux_socket, backend, allowed=[])
    logs = list(sweep.root.glob(f"{NAME}/attempts/*/stdout.log"))
    assert len(logs) == 2
    assert all(b"the key is ***" in log.read_bytes() for log in logs)


def _search(sweep: Sweep, socket: str, backend: str, allowed: list[Path]) -> None:
    files = [path for path in sweep.folder.rglob("*") if path.is_file() and path not in allowed]
    assert len(files) > 10
    leaks: list[Path] = []
    for path in files:
        with suppress(FileNotFoundError):  # it has been renamed by now, say
            leaks += [path] * (CANARY.encode() in path.read_bytes())
    assert not leaks
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            assert CANARY not in " ".join(process.cmdline())
    if backend != "tmux" or shutil.which("tmux") is None:
        return
    output = ""
    for command in (
        ["show-environment", "-g"],
        ["show-environment", "-t", NAME],
        ["list-panes", "-a", "-F", "#{pane_start_command} #{pane_title} #{window_name}"],
    ):
        output += _tmux(socket, *command)
    panes = _tmux(socket, "list-panes", "-a", "-F", "#{pane_id}").split()
    assert len(panes) >= 3

    def shown() -> str:
        captured = (_tmux(socket, "capture-pane", "-p", "-J", "-S", "-", "-t", p) for p in panes)
        return "".join(captured)

    # Output of a recipe is shown by its worker, and then by tmux, while the recipe continues.
    until(lambda: "the key is" in shown())
    assert CANARY not in output + shown()


def _tmux(socket: str, *arguments: str) -> str:
    command = ["tmux", "-L", socket, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
