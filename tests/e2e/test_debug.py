"""`sweeper launch --debug RUN`: a run under pdb in its pane, with a terminal."""

import subprocess
import sys
from pathlib import Path

import pytest
from harness.real import until
from support.shell import Shell

from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import State

pytestmark = pytest.mark.e2e

TOY = """
import chz

@chz.chz
class Config:
    log_path: str
    x: int = 1

def main(config: Config) -> None:
    y = config.x * 7
    print("y is", y)
    if config.x == 2:
        raise ValueError("no such x")

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""
COMMAND = "import sys\nx = int(sys.argv[1])\nprint('x is', x * 11)\n"
GRID = "name: g\nservice: none\ngrid: {x: [1, 2]}\n"


class Debugged:
    """A folder with two grids, and functions that type into a run's pane."""

    def __init__(self, folder: Path, socket: str) -> None:
        self.shell = Shell(folder, "tmux")
        self.folder, self._socket = folder, socket
        (folder / "toy.py").write_text(TOY)
        (folder / "plain.py").write_text(COMMAND)
        (folder / "g.yaml").write_text(f"{GRID}recipe: toy.py\n")
        (folder / "c.yaml").write_text(
            f"{GRID}command: [{sys.executable}, -u, plain.py, '{{x}}']\n"
        )

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def says(self, text: str, pane: str) -> None:
        until(lambda: text in self.tmux("capture-pane", "-p", "-S", "-", "-t", pane))

    def type(self, line: str, pane: str) -> None:
        self.tmux("send-keys", "-t", pane, line, "Enter")

    def ends(self, sweep: str, state: State) -> None:
        folder = SweepFolder(open_store(str(self.folder / "sweeps")), sweep)
        until(lambda: [run.state for run in folder.read_states().values()] == [state])


@pytest.fixture
def debugged(tmp_path: Path, tmux_socket: str) -> Debugged:
    return Debugged(tmp_path, tmux_socket)


def test_a_recipe_stops_at_its_first_line_and_where_it_fails(debugged: Debugged) -> None:
    assert "sweeper attach g-debug" in debugged.shell.run("launch", "g.yaml", "--debug", "x=2")
    pane = "g-debug:=x=2"
    debugged.says("-> import chz", pane)
    debugged.type("q1 = 40", pane)  # q and digits reach pdb
    debugged.type("c", pane)
    debugged.says("y is 14", pane)
    debugged.says("ValueError: no such x", pane)
    debugged.type("p config.x + 1000", pane)
    debugged.says("1002", pane)
    debugged.type("q", pane)
    debugged.ends("g-debug", State.FAILED)
    logged = debugged.shell.run("logs", "g-debug")
    assert "y is 14" in logged and "1002" in logged
    # A debug run does not create the grid's sweep.
    assert not (debugged.folder / "sweeps" / "g").exists()
    # Debug again, to the end: another sweep.
    debugged.shell.run("launch", "g.yaml", "--debug", "x=1")
    debugged.says("-> import chz", "g-debug-2:=x=1")
    debugged.type("c", "g-debug-2:=x=1")
    debugged.ends("g-debug-2", State.SUCCEEDED)


def test_a_command_and_leaving_before_the_end(debugged: Debugged) -> None:
    debugged.shell.run("launch", "c.yaml", "--debug", "x=1")
    pane = "g-debug:=x=1"
    debugged.says("-> import sys", pane)
    debugged.type("b 3", pane)
    debugged.type("c", pane)
    debugged.type("p x + 1", pane)
    debugged.says("\n2\n", pane)
    debugged.shell.run("cancel", "g-debug")
    debugged.ends("g-debug", State.CANCELLED)
    debugged.shell.run("launch", "g.yaml", "--debug", "x=1")
    debugged.says("-> import chz", "g-debug-2:=x=1")
    debugged.type("q", "g-debug-2:=x=1")
    debugged.ends("g-debug-2", State.FAILED)


def test_mistakes_are_one_line(debugged: Debugged) -> None:
    shell = debugged.shell
    output = shell.run("launch", "g.yaml", "--debug", "x", code=2)
    assert "--debug 'x' matches 2 runs: name one of x=1, x=2" in output
    output = shell.run("launch", "g.yaml", "--debug", "y=1", code=5)
    assert "--debug 'y=1': g has no such run, only x=1, x=2" in output
    output = shell.run("launch", "g.yaml", "--debug", "x=1", "--wait", code=2)
    assert "--debug does not work with --wait, --smoke or --json" in output
    (debugged.folder / "s.yaml").write_text(f"{GRID}command: [sh, -c, 'exit {{x}}']\n")
    output = shell.run("launch", "s.yaml", "--debug", "x=1", code=2)
    assert "--debug needs a command that runs a Python program, not 'sh -c" in output
