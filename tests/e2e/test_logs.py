"""`sweeper logs` over many runs, and `status --follow`."""

import json
import os
import pty
import re
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from harness.real import until
from support.typed import SWEEPER, Typed

pytestmark = pytest.mark.e2e

GRID = """
name: many
command: [sh, -c, "{program}"]
base: {{seconds: 1}}
grid: {{x: [{xs}]}}
service: none
launch: {{backend: {backend}, max_parallel: {parallel}, retries: 0}}
"""
SPEAKING = (
    "echo begin {x}; printf '\\\\033[31mred\\\\033[0m\\\\033]0;title\\\\007\\\\n';"
    " sleep {seconds}; echo one {x}; sleep {seconds}; printf 'end {x}'"
)
RUNS = 12


class Sweeper(Typed):
    """`sweeper` in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("NO_COLOR",), TERM="xterm-256color")
        self.started: list[subprocess.Popen[str]] = []
        self.hold = folder / "hold"
        """While this file exists, programs that contain `waiting` wait."""
        self.waiting = f"while test -e {self.hold}; do sleep 0.1; done"

    def grid(self, program: str, backend: str, runs: int = RUNS) -> None:
        xs = ", ".join(map(str, range(1, runs + 1)))
        text = GRID.format(program=program, backend=backend, parallel=runs, xs=xs)
        (self.folder / "grid.yaml").write_text(text)

    def start(self, *arguments: str, into: IO[str] | None = None, **options: Any) -> Any:
        null = {"stdin": subprocess.DEVNULL, "stdout": into or subprocess.PIPE}
        given = null | {"stderr": subprocess.STDOUT}
        process = super().start(*arguments, **(given | options))
        self.started.append(process)
        return process

    def on_terminal(self, *arguments: str, hear: Callable[[bytes], object] = lambda _: None) -> str:
        """Run a verb on a terminal and return its output. `hear` gets all output so far."""
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(self.folder)
            os.execve(SWEEPER, [SWEEPER, *arguments], self.environment)
        output = b""
        while True:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:  # Linux raises it when the other end is closed
                break
            if not data:
                break
            output += data
            hear(output)
        os.close(terminal)
        os.waitpid(process, 0)
        return output.decode().replace("\r\n", "\n")


@pytest.fixture
def sweeper(tmp_path: Path, tmux_socket: str) -> Iterator[Sweeper]:
    made = Sweeper(tmp_path)
    yield made
    made.hold.unlink(missing_ok=True)
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _until_lines(process: subprocess.Popen[str], text: str) -> list[str]:
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"ended without {text!r}: {lines}")


def test_following_many_runs(sweeper: Sweeper) -> None:
    sweeper.grid(SPEAKING, "local")
    sweeper.run("launch", "grid.yaml", "seconds=1")
    filtered = sweeper.start("logs", "many", "--follow", "--grep", "^end [0-9]+$", "--json")
    printed = sweeper.folder / "printed"
    with printed.open("w") as file:
        following = sweeper.start("logs", "-f", "many", into=file)
    until(lambda: "begin" in printed.read_text())
    # It starts no process to read.
    assert psutil.Process(following.pid).children(recursive=True) == []
    assert following.wait(120) == 0
    output = printed.read_text()
    lines: dict[str, list[str]] = defaultdict(list)
    for line in output.splitlines():
        name, _, text = line.partition(" |")
        lines[name.strip()].append(text.strip())
    for x in range(1, RUNS + 1):
        assert lines[f"x={x}"] == [f"begin {x}", "red", f"one {x}", f"end {x}"]
    assert set(lines) == {f"x={x}" for x in range(1, RUNS + 1)}
    assert "\x1b" not in output
    output, _ = filtered.communicate(timeout=120)
    assert filtered.returncode == 0, output
    objects = [json.loads(line) for line in output.splitlines()]
    assert Counter(entry["line"] for entry in objects) == Counter(
        f"end {x}" for x in range(1, RUNS + 1)
    )
    assert {(entry["schema"], entry["sweep"], entry["attempt"]) for entry in objects} == {
        (1, "many", 1)
    }
    # Afterwards, the runs are printed one after the other.
    whole = sweeper.run("logs", "many").splitlines()
    assert len(whole) == 4 * RUNS
    assert [line.split() for line in whole[:4]] == [
        ["x=1", "|", *words] for words in (["begin", "1"], ["red"], ["one", "1"], ["end", "1"])
    ]
    last = sweeper.run("logs", "many/x=7", "many/x=8", "-n", "1", "--grep", "one")
    assert last.splitlines() == ["x=7 | one 7", "x=8 | one 8"]
    assert sweeper.run("logs", "many/x=9", "--lines", "2") == "one 9\nend 9\n"


def test_new_attempts_and_new_runs_are_followed(sweeper: Sweeper) -> None:
    program = "echo attempt {attempt} of {x}; " + sweeper.waiting
    program += "; [ {attempt} = 2 ] || [ {x} = 2 ] || exit 1"
    sweeper.grid(program, "local", 1)
    sweeper.hold.touch()  # without a launcher, an ended run is followed for only 3 s
    launcher = sweeper.start("launch", "grid.yaml", "launch.retries=1", "--wait")
    _until_lines(launcher, "1 running")
    printed = sweeper.folder / "printed"
    with printed.open("w") as file:
        following = sweeper.start("logs", "-f", "many", into=file)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    until(lambda: "attempt 1 of 1" in printed.read_text())
    sweeper.run("launch", "grid.yaml", "x=[1,2]", "launch.retries=1")
    sweeper.hold.unlink()
    code, output = following.wait(120), printed.read_text()
    assert code == 0, output
    lines = sorted(line.rpartition("|")[2].strip() for line in output.splitlines())
    assert lines == ["attempt 1 of 1", "attempt 1 of 2", "attempt 2 of 1"]


def test_a_run_that_never_began_has_its_backends_output(sweeper: Sweeper) -> None:
    sweeper.grid("echo never", "tmux", 2)
    program = sweeper.folder / "broken"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    text = (sweeper.folder / "grid.yaml").read_text().replace("[sh,", f"[{program},")
    (sweeper.folder / "grid.yaml").write_text(text)
    sweeper.run("launch", "grid.yaml", "--wait", code=3)
    for follow in ((), ("-f",)):
        output = sweeper.run("logs", "many", *follow)
        assert output.count(f"cannot start the recipe: {program}") == 2, output
        assert "Pane is dead" not in output


def test_mistakes(sweeper: Sweeper) -> None:
    sweeper.grid("true", "local", 1)
    sweeper.run("launch", "grid.yaml", "--wait")
    assert "no run 'x=9'" in sweeper.run("logs", "x=9", code=5)
    assert "--grep '('" in sweeper.run("logs", "many", "--grep", "(", code=2)
    assert "no state 'gone'" in sweeper.run("logs", "many", "--state", "gone", code=2)
    assert "has printed nothing (succeeded)" in sweeper.run("logs", "many")
    for follow in ((), ("-f",)):
        output = sweeper.run("logs", "many", "--state", "failed", "--where", "x = 1", *follow)
        assert output == "sweeper: no run is failed and matches --where 'x = 1'\n"
    output = sweeper.run("logs", "many", "-f", "--grep", "never")
    assert output == "sweeper: no line matches 'never'\n"
    assert "--follow needs a sweep" in sweeper.run("status", "--follow", code=2)


def test_status_is_followed_line_by_line(sweeper: Sweeper) -> None:
    begun, paths = sweeper.folder / "begun", [sweeper.folder / name for name in ("lines", "json")]
    sweeper.grid(f"echo >> {begun}; {sweeper.waiting}; " + "test {x} != 2", "local", 4)
    sweeper.hold.touch()  # two runs are running at the first poll
    sweeper.run("launch", "grid.yaml", "launch.max_parallel=2")
    until(lambda: begun.exists() and len(begun.read_text()) == 2)
    with paths[0].open("w") as file:
        lines = sweeper.start("status", "many", "--follow", into=file)
    with paths[1].open("w") as file:
        stream = sweeper.start("status", "many", "--follow", "--json", into=file)
    until(lambda: all("\n" in path.read_text() for path in paths))
    sweeper.hold.unlink()
    code, output = lines.wait(120), paths[0].read_text()
    assert code == 3, output
    shown = [line.split("  ", 1)[1] for line in output.splitlines()]
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in output.splitlines())
    assert shown[0].startswith("many: 2 planned, 2 ")
    assert shown[-1] == "many: 1 failed, 3 succeeded"
    assert {"x=1  succeeded", "x=2  failed (error)", "x=3  succeeded"} <= set(shown)
    assert max(Counter(shown).values()) == 1  # no line is printed twice
    code, output = stream.wait(120), paths[1].read_text()
    assert code == 3, output
    objects = [json.loads(line) for line in output.splitlines()]
    assert [len(document["runs"]) for document in objects[:1]] == [4]
    assert [document["at_work"] for document in objects] == [True] * (len(objects) - 1) + [False]
    assert objects[-1]["states"] == {"failed": 1, "succeeded": 3}
    states: dict[str, str] = {}
    for document in objects:
        states |= {run["name"]: run["state"] for run in document["runs"]}
    assert states == {f"x={x}": "failed" if x == 2 else "succeeded" for x in range(1, 5)}


def test_status_is_drawn_on_a_terminal(sweeper: Sweeper) -> None:
    sweeper.grid(sweeper.waiting, "local", 3)
    sweeper.hold.touch()
    sweeper.run("launch", "grid.yaml")

    def hear(data: bytes) -> None:
        if data.count(b"\x1b[H") > 2:
            sweeper.hold.unlink(missing_ok=True)

    screens = sweeper.on_terminal("status", "many", "--follow", hear=hear).split("\x1b[H")
    assert len(screens) > 2
    assert "many: 3 succeeded" in screens[-1]
    assert all(screen.count("many: ") == 1 for screen in screens[1:])
    sweeper.environment["TERM"] = "dumb"  # a terminal without cursor control
    lines = sweeper.on_terminal("status", "many", "--follow")
    assert "many: 3 succeeded" in lines and "\x1b" not in lines
