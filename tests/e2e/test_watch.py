"""Keys and screens of `sweeper watch` in a real terminal."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import screen as support
from support import written
from support.typed import Typed

from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event, RunState, State, fold, retry_asked

pytestmark = pytest.mark.e2e
TIME = 120.0


@pytest.fixture
def open_terminal(
    tmp_path: Path, tmux_socket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Yield a function that opens a terminal in the test's folder, with `demo.yaml`."""
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPER_TMUX_SOCKET", tmux_socket)
    support.write_grid(tmp_path, seconds=1.5)
    opened: list[Any] = []

    def open_one(width: int = 80, height: int = 24, **environment: str) -> Any:
        opened.append(support.Terminal(tmp_path, width, height, environment))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.close()
    subprocess.run(["tmux", "-L", tmux_socket, "kill-server"], capture_output=True, check=False)
    for process in psutil.process_iter():  # workers outlive tmux, and some recipes here wait long
        with suppress(psutil.Error):
            if any(str(tmp_path) in word for word in process.cmdline()):
                process.kill()


class Sweep:
    """The records of the sweep."""

    def __init__(self, folder: Path, name: str = "demo") -> None:
        self.folder = SweepFolder(LocalStore(str(folder / "sweeps")), name)

    def events(self, run: str) -> set[tuple[int, Event]]:
        runs = self.folder.read_plan().runs
        (identity,) = [planned.id for planned in runs if planned.name == run]
        return self.folder.read_events()[identity]

    def __getitem__(self, run: str) -> RunState:
        return fold(self.events(run))


def sweeper(folder: Path, *arguments: str, code: int = 0) -> str:
    return Typed(folder).run(*arguments, code=code)


def test_filter_open_cancel_retry_and_jump(open_terminal: Any, tmp_path: Path) -> None:
    # The run that is finally cancelled trains for two minutes.
    assert "sweeper watch demo" in sweeper(tmp_path, "launch", "demo.yaml", "seconds=3")
    terminal, sweep = open_terminal(), Sweep(tmp_path)
    terminal.type("sweeper watch demo")
    screen = terminal.wait("running", "failed", "waiting", "by rate limit", seconds=TIME)
    assert "stalled" not in screen  # a wait for a quota is no stall
    terminal.press("/")
    terminal.tmux("send-keys", "-l", "lr=0.03 fails seed=1")
    terminal.press("Enter")
    terminal.wait("[lr=0.03 fails seed=1]", "/ filter", gone="waits")
    failed = "lr=0.03,kind=fails,seed=1"

    def is_alone() -> bool:
        return sum("seed=" in line for line in terminal.screen().splitlines()[3:-2]) == 1

    support.wait_until(is_alone, terminal.screen)
    terminal.press("Down", "Enter")
    terminal.wait("curves", "configuration", "rollouts", failed)
    terminal.press("3")
    terminal.wait("Traceback: no tokenizer there")
    terminal.press("Escape")
    terminal.wait("/ filter")
    terminal.press("r")
    terminal.wait(f"start again {failed}?")
    terminal.press("y")
    terminal.wait("1 to start again")
    assert retry_asked(sweep.events(failed)) or sweep[failed].opened == 2
    trains = "lr=0.01,kind=trains,seed=0"
    terminal.press("/")
    terminal.tmux("send-keys", "-l", "lr=0.01 trains seed=0")
    terminal.press("Enter")
    terminal.wait("[lr=0.01 trains seed=0]", "/ filter", gone="fails")
    terminal.press("Down", "Enter")
    terminal.wait("test/nll", "x ", "best, lr=")  # the best run's curve beside its own
    terminal.press("3")
    terminal.wait("[bold]loss[/bold]", " red")  # markup in a log is not interpreted
    terminal.press("Escape")
    terminal.wait("/ filter")
    terminal.press("c")
    terminal.wait(f"cancel {trains}?")
    terminal.press("x")
    terminal.wait("not done")
    terminal.press("c", "y")
    support.wait_until(lambda: sweep[trains].state is State.CANCELLED, terminal.screen, TIME)
    terminal.wait("1 cancelled")
    terminal.press("t")  # outside tmux: becomes a client that shows the pane
    terminal.wait("sweeper: cancelled", gone="/ filter")
    terminal.press("C-b", "d")
    terminal.wait("/ filter", "1 cancelled")
    terminal.press("q")
    terminal.wait("$", gone="/ filter")
    terminal.type("echo left $?")
    terminal.wait("left 0")


def test_a_table_that_is_drawn_again_stays_on_its_screen(
    open_terminal: Any, tmp_path: Path
) -> None:
    sweeper(tmp_path, "launch", "demo.yaml")
    terminal = open_terminal(60, 16)
    terminal.type("sweeper status demo --follow")
    terminal.wait("demo: ", "alarm: ", seconds=TIME)
    history = "#{history_size}"
    before, screens = terminal.tmux("display-message", "-p", history), {terminal.screen()}

    def drawn_again() -> bool:
        screens.add(terminal.screen())
        return len(screens) > 4

    support.wait_until(drawn_again, terminal.screen, TIME)
    assert terminal.tmux("display-message", "-p", history) == before
    terminal.press("C-c")


def test_it_is_the_first_window_and_jumps_from_there(open_terminal: Any, tmp_path: Path) -> None:
    sweeper(tmp_path, "launch", "demo.yaml")
    terminal = open_terminal(100, 30)
    terminal.type("sweeper attach demo")
    terminal.wait("demo 16 runs", "/ filter", "launcher", seconds=TIME)
    terminal.press("/")
    terminal.tmux("send-keys", "-l", "0.01 waits seed=1")
    terminal.press("Enter")
    terminal.wait("[0.01 waits seed=1]", "/ filter", "1 waiting", seconds=TIME)
    sweep = Sweep(tmp_path)
    waits = "lr=0.01,kind=waits,seed=1"
    support.wait_until(lambda: sweep[waits].state is State.RUNNING, terminal.screen, TIME)
    terminal.press("Down", "t")
    terminal.wait("Sampling for 1 is paused", gone="/ filter")
    terminal.press("C-b", "0")
    terminal.wait("/ filter")


def test_launch_wait_shows_the_view_until_the_sweep_has_ended(
    open_terminal: Any, tmp_path: Path
) -> None:
    support.write_grid(tmp_path, "short", seconds=0.4, backend="local")
    terminal = open_terminal()
    terminal.type("sweeper launch short.yaml --wait 'kind=[trains,fails]'; echo code $?")
    terminal.wait("code 3", gone="/ filter", seconds=TIME)
    terminal.type("clear; sweeper retry short --wait; echo code $?")
    terminal.wait("short 8 runs", "/ filter")
    screen = terminal.wait("code 0", gone="/ filter", seconds=TIME)
    assert "8/8 succeeded" in screen
    terminal.type("stty -a | grep -c ' echo '")  # echo is on again
    terminal.wait("\n1\n")


def test_closing_the_view_leaves_the_launcher_and_ctrl_c_interrupts_it(
    open_terminal: Any, tmp_path: Path
) -> None:
    terminal, sweep = open_terminal(), Sweep(tmp_path)
    # The runs outlast both views.
    launch = "sweeper launch demo.yaml --wait kind=trains seconds=5 --backend local; echo code $?"
    terminal.type(launch)
    terminal.wait("q close", "4 running", seconds=TIME)
    terminal.press("q")
    terminal.wait(
        "the view is closed; the launcher runs here until you press Ctrl-C", gone="/ filter"
    )
    terminal.press("C-c")
    terminal.wait("interrupted: running jobs continue", "code 130")
    terminal.type(f"clear; {launch}")
    terminal.wait("/ filter", "4 running", seconds=TIME)
    terminal.press("C-c")
    terminal.wait("interrupted: running jobs continue", "code 130")
    assert sweep["lr=0.01,seed=0"].state is State.RUNNING
    sweeper(tmp_path, "cancel", "demo")


def test_a_killed_view_does_no_harm(open_terminal: Any, tmp_path: Path) -> None:
    support.write_grid(tmp_path, "short", seconds=0.8, backend="local")
    terminal = open_terminal()
    terminal.type("sweeper launch short.yaml --wait kind=trains; echo code $?")
    terminal.wait("/ filter", "4 running", seconds=TIME)
    (view,) = [
        process
        for process in psutil.process_iter(["cmdline", "cwd"])
        if "--guest" in (process.info["cmdline"] or []) and process.info["cwd"] == str(tmp_path)
    ]
    view.kill()
    terminal.wait("the view ended", "code 0", gone="/ filter", seconds=TIME)
    terminal.type("stty -a | grep -c ' echo '")
    terminal.wait("\n1\n")


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {}])
def test_lines_where_there_is_no_screen(
    open_terminal: Any, tmp_path: Path, environment: dict[str, str]
) -> None:
    support.write_grid(tmp_path, "short", seconds=0.02, backend="local")
    if not environment:
        assert "\x1b" not in sweeper(tmp_path, "launch", "short.yaml", "--wait", "kind=trains")
        output = sweeper(tmp_path, "watch", "short")
        assert "4 succeeded" in output and "\x1b" not in output
        sweeper(tmp_path, "watch", "nothing", code=5)
        return
    terminal = open_terminal(**environment)
    terminal.type("sweeper launch short.yaml --wait kind=trains; echo code $?")
    terminal.wait("4/4 succeeded", "code 0", seconds=TIME)
    terminal.type("clear; sweeper watch; echo code $?")
    terminal.wait("short: 4 succeeded", "code 0")


def test_without_colour(open_terminal: Any, tmp_path: Path) -> None:
    support.write_grid(tmp_path, "short", seconds=0.02, backend="local")
    sweeper(tmp_path, "launch", "short.yaml", "--wait", "kind=trains")
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        terminal = open_terminal(**environment)
        terminal.type("sweeper watch short")
        terminal.wait("4 succeeded", "/ filter")
        shown = terminal.screen(escapes=True)
        assert ("\x1b[32m" in shown or "\x1b[1;32m" in shown or "[32" in shown) == coloured
        assert not any(f"\x1b[38;{kind}" in shown for kind in "25")
        terminal.press("q")


@pytest.mark.parametrize(
    ("state", "key", "leaves"),
    [("succeeded", None, True), ("succeeded", "down", False), ("running", None, False)],
)
def test_a_view_of_its_own_leaves_when_the_sweep_has_ended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    key: str | None,
    leaves: bool,
) -> None:
    """The view of the first window ends soon, unless a key was pressed there."""
    from sweeper.store.opening import open_store
    from sweeper.tui import app as views
    from sweeper.tui.poller import Poller

    monkeypatch.setattr(views, "UNTOUCHED_SECONDS", 3600.0)  # until the key is pressed
    monkeypatch.setattr(views, "_ENDED_SECONDS", 0.05)
    sweep = written.Written(tmp_path, "s")
    sweep.run({"x": 1}, state=state)
    sweep.save()
    poller = Poller(SweepFolder(open_store(str(tmp_path)), "s"))
    app = views.WatchApp(poller, poller.check(), leaves=True, every=0.05)

    async def looked_at() -> None:
        async with app.run_test() as pilot:
            if key is not None:
                await pilot.press(key)
            monkeypatch.setattr(views, "UNTOUCHED_SECONDS", 1.5)
            for _ in range(600 if leaves else 20):
                await pilot.pause(0.1)
                if not app.is_running:
                    break
            assert app.is_running is not leaves

    asyncio.run(looked_at())
    assert app.return_value == (0 if leaves else None)
