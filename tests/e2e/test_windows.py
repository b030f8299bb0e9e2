"""A sweep in tmux, as its user sees and changes it."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from harness.real import until
from support.typed import SWEEPER, Typed

from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.process import began
from sweeper.sweep.states import State

pytestmark = pytest.mark.e2e

GRID = """
name: s
command: [sh, -c, "echo {{x}} {{y}} >> {folder}/ledger; sleep {{seconds}}; exit {{x}}"]
base: {{seconds: 0}}
grid: {{x: [0, 3], y: [1, 2, 3]}}
service: none
launch: {{backend: tmux, max_parallel: 6, retries: 0, window: "x={{x}}"}}
"""


class Shell(Typed):
    """`sweeper` and `tmux` in a folder."""

    def __init__(self, folder: Path, socket: str) -> None:
        super().__init__(folder)
        self.socket = socket
        (folder / "grid.yaml").write_text(GRID.format(folder=folder))

    def launch(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start("launch", "grid.yaml", *arguments, stderr=subprocess.STDOUT)

    def hold(self) -> Path:
        """Let the runs wait for a file, and return its path."""
        grid, go = self.folder / "grid.yaml", self.folder / "go"
        waits = f"until [ -e {go} ]; do sleep 0.1; done;"
        text = grid.read_text().replace("sleep {seconds};", waits)
        grid.write_text(text.replace("base: {seconds: 0}\n", ""))
        return go

    def tmux(self, *arguments: str) -> list[str]:
        command = ["tmux", "-L", self.socket, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def panes(self) -> dict[str, str]:
        """Return each run's window and border text. Other panes have only the window."""
        form = "#{@sweeper_title}\t#{window_name}#{T:pane-border-format}"
        listed = self.tmux("list-panes", "-s", "-t", "s", "-F", form)
        return dict(re.sub(r"#\[[a-z=]*\]", "", line).split("\t") for line in listed)

    def executed(self) -> list[str]:
        ledger = self.folder / "ledger"
        return sorted(ledger.read_text().splitlines()) if ledger.exists() else []

    def states(self) -> list[State]:
        store = LocalStore(str(self.folder / "sweeps"))
        return [state.state for state in SweepFolder(store, "s").read_states().values()]


@pytest.fixture
def shell(tmp_path: Path, tmux_socket: str) -> Iterator[Shell]:
    yield Shell(tmp_path, tmux_socket)
    (tmp_path / "go").touch()


def _ended_panes(window: str, listed: Iterable[str]) -> list[int]:
    """Return the pids of the dead panes of a window."""
    matches = (re.fullmatch(rf"{window} (\d+) 1", line) for line in listed)
    return [int(match[1]) for match in matches if match]


def test_an_unattended_view_ends_with_its_sweep(shell: Shell) -> None:
    """Its window stays with its last screen, but without a process."""
    launcher = shell.launch("x=0", "y=1", "--wait")
    output, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, output
    listed = ("list-panes", "-s", "-F", "#{window_name} #{pane_pid} #{pane_dead}")
    # Do not check the exit status: before 3.5 tmux may miss it and leave a zombie for a while.
    ended: list[int] = []
    until(lambda: ended.extend(_ended_panes("sweep", shell.tmux(*listed))) or ended)
    until(lambda: not began(ended[0]))  # tmux may report it before the process has ended
    assert "1 succeeded" in "\n".join(shell.tmux("capture-pane", "-p", "-t", "s:sweep"))


def test_a_launch_while_the_launcher_before_is_still_leaving(shell: Shell) -> None:
    """Its window still runs a program, which starts nothing more."""
    from sweeper.backends.tmux.server import TmuxServer

    folder = str(shell.folder / "sweeps" / "s")
    TmuxServer().ensure_window("s", folder, "launcher", ["sleep", "3"])
    launch = shell.launch("x=0", "y=1")
    output, _ = launch.communicate(timeout=120)
    assert launch.returncode == 0, output
    until((shell.folder / "ledger").exists)


class Terminal:
    """A terminal in a window of another tmux, with keys to press."""

    def __init__(self, shell: Shell, width: int, height: int, *command: str) -> None:
        self.socket = f"{shell.socket}-outer"
        self.tmux = ["tmux", "-L", self.socket, "-f", "/dev/null"]
        environment = {k: v for k, v in shell.environment.items() if k != "TMUX"}
        size = ["-x", str(width), "-y", str(height)]
        subprocess.run(
            [*self.tmux, "new-session", "-d", *size, *command],
            cwd=shell.folder,
            env=environment,
            check=True,
        )

    def run(self, *arguments: str) -> str:
        command = [*self.tmux, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def screen(self) -> str:
        return self.run("capture-pane", "-p")

    def close(self) -> None:
        subprocess.run([*self.tmux, "kill-server"], capture_output=True, check=False)


def test_a_terminal_shows_states_counts_and_last_screens(shell: Shell) -> None:
    go = shell.hold()
    launcher = shell.launch("--wait")
    until(lambda: len(shell.executed()) == 6)
    begin, sent = shell.folder / "begin", shell.folder / "sent"
    attach = f"until [ -e {begin} ]; do sleep 0.1; done; exec {SWEEPER} attach s"
    terminal = Terminal(shell, 80, 24, "sh", "-c", attach)  # inside another tmux
    try:
        # The first message is visible for only 4 s, so all output to the terminal is recorded.
        sent.touch()
        terminal.run("pipe-pane", f"cat >>{sent}")
        begin.touch()
        until(lambda: "press the prefix twice" in sent.read_text(errors="replace"))
        shell.tmux("select-window", "-t", "s:=x=3")
        until(lambda: ". x=3,y=2 (running)" in terminal.screen())
        until(lambda: "6 running" in terminal.screen().splitlines()[-1])
        go.touch()
        output, _ = launcher.communicate(timeout=120)
        assert launcher.returncode == 3, output
        until(lambda: "3/6 succeeded, 3 failed" in terminal.screen().splitlines()[-1])
        # Workers print their last line and end after they have recorded their outcome.
        until(lambda: terminal.screen().count("! x=3,y=") == 3)
        until(lambda: terminal.screen().count("(failed (error))") == 3)
        until(lambda: terminal.screen().count("sweeper: failed (error) after") == 3)
        assert "Pane is dead" not in terminal.screen()
        listed = ("list-windows", "-t", "s", "-F", "#{T:window-status-format}")
        signs = ["x=0 [+++]", "x=3 [!!!]"]
        until(lambda: [line.strip() for line in shell.tmux(*listed)][-2:] == signs)
        terminal.run("resize-window", "-x", "30", "-y", "9")  # no pane is lost
        until(lambda: terminal.screen().count("3,y=") == 3)
        terminal.run("resize-window", "-x", "120", "-y", "40")
        until(lambda: terminal.screen().count("sweeper: failed (error) after") == 3)
    finally:
        terminal.close()


def test_digits_go_to_windows_and_q_detaches_from_any_pane(shell: Shell) -> None:
    go = shell.hold()
    grid = (shell.folder / "grid.yaml").read_text().replace('window: "x={x}"', "window_panes: 4")
    (shell.folder / "grid.yaml").write_text(grid)
    launcher = shell.launch("--wait")
    until(lambda: len(shell.executed()) == 6)
    form = "#{window_index} #{window_name} #{window_panes}"
    windows = shell.tmux("list-windows", "-t", "s", "-F", form)
    assert windows == ["0 sweep 1", "1 s 4", "2 s-2 2"]
    terminal = Terminal(shell, 120, 40, SWEEPER, "attach", "s")

    def current() -> str:
        windows = shell.tmux("list-windows", "-t", "s", "-F", "#{window_active} #{window_index}")
        return next(line[2:] for line in windows if line.startswith("1 "))

    def press(key: str, window: str) -> None:
        terminal.run("send-keys", key)
        until(lambda: current() == window)

    try:
        until(lambda: len(shell.tmux("list-clients")) == 1)
        shell.tmux("select-window", "-t", "s:1")
        press("2", "2")
        press("1", "1")
        press("0", "0")
        until(lambda: "6 running" in terminal.screen())
        press("2", "2")
        shell.tmux("new-window", "-t", "s:", "cat")  # a program that reads keys
        terminal.run("send-keys", "1q")
        until(lambda: "1q" in terminal.screen())
        assert current() == "3"
        shell.tmux("select-window", "-t", "s:1")
        terminal.run("send-keys", "q")
        until(lambda: not shell.tmux("list-clients"))
    finally:
        terminal.close()
    terminal = Terminal(shell, 120, 40, SWEEPER, "attach", "s")
    try:  # the view itself
        shell.tmux("select-window", "-t", "s:0")
        until(lambda: "6 running" in terminal.screen())
        terminal.run("send-keys", "q")
        until(lambda: not shell.tmux("list-clients"))
        assert shell.tmux("list-panes", "-t", "s:0", "-F", "#{pane_dead}") == ["0"]
    finally:
        terminal.close()
    go.touch()
    launcher.communicate(timeout=120)


def test_panes_keep_their_room_in_a_smaller_terminal(shell: Shell) -> None:
    grid = "name: s\ncommand: [sleep, '60']\ngrid: {a_long_name_that_all_have: [1, 2, 3, 4]}\n"
    grid += "seeds: {field: n, values: 2}\nlaunch: {backend: tmux, max_parallel: 8, window: all}\n"
    (shell.folder / "grid.yaml").write_text(grid)
    shell.run("launch", "grid.yaml")
    form = "#{pane_width} #{T:pane-border-format}"

    def panes() -> list[str]:
        return shell.tmux("list-panes", "-t", "s:=all", "-F", form)

    until(lambda: "all" in shell.tmux("list-windows", "-t", "s", "-F", "#{window_name}"))
    terminal = Terminal(shell, 80, 24, SWEEPER, "attach", "s")
    try:
        shell.tmux("select-window", "-t", "s:=all")
        until(lambda: sorted(int(pane.split()[0]) for pane in panes()) == [26] * 7 + [53])
        assert all(f"=4,seed={seed} " in pane for seed, pane in enumerate(panes()[-2:]))
    finally:
        terminal.close()
        shell.start("cancel", "s").communicate(timeout=120)


def test_attach_from_a_window_of_the_same_server(shell: Shell) -> None:
    launcher = shell.launch("x=0", "seconds=1", "--wait")
    assert launcher.wait(120) == 0
    launcher.communicate()
    environment = {k: v for k, v in shell.environment.items() if k != "TMUX"}
    command = ["tmux", "-L", shell.socket, "new-session", "-d", "-s", "mine", "sh"]
    subprocess.run(command, cwd=shell.folder, env=environment, check=True)
    attach = ["env", "-u", "TMUX", "tmux", "-L", shell.socket, "attach", "-t", "mine"]
    terminal = Terminal(shell, 100, 30, *attach)
    # The server's environment has only variables that all programs need.
    typed = f"SWEEPER_HOME={shell.environment['SWEEPER_HOME']} {SWEEPER} attach s"
    try:
        clients = ["list-clients", "-F", "#{client_session}"]
        until(lambda: shell.tmux(*clients) == ["mine"])
        shell.tmux("send-keys", "-t", "mine", f"cd {shell.folder}; TMUX=$TMUX {typed}", "Enter")
        until(lambda: shell.tmux(*clients) == ["s"])
        assert len(shell.tmux("list-clients")) == 1  # not nested
    finally:
        terminal.close()
