"""`sweeper watch` in a real terminal, by its keys and its screen."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import screen as support
from support import written

from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event, RunState, State, fold, retry_asked

pytestmark = pytest.mark.e2e
TIME = 120.0


@pytest.fixture
def open_terminal(
    tmp_path: Path, tmux_socket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """A function from a size to a terminal in the test's folder, where `demo.yaml` lies."""
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
    for process in psutil.process_iter():  # workers outlive it, and some recipes here wait long
        with suppress(psutil.Error):
            if any(str(tmp_path) in word for word in process.cmdline()):
                process.kill()


class Sweep:
    """What is on record of the sweep."""

    def __init__(self, folder: Path, name: str = "demo") -> None:
        self.folder = SweepFolder(LocalStore(str(folder / "sweeps")), name)

    def events(self, run: str) -> set[tuple[int, Event]]:
        runs = self.folder.read_plan().runs
        (identity,) = [planned.id for planned in runs if planned.name == run]
        return self.folder.read_events()[identity]

    def __getitem__(self, run: str) -> RunState:
        return fold(self.events(run))


def sweeper(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "sweeper", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIME,
        check=False,
    )


def test_filter_open_cancel_retry_and_jump(open_terminal: Any, tmp_path: Path) -> None:
    # The run that is cancelled in the end trains for two minutes.
    done = sweeper(tmp_path, "launch", "demo.yaml", "seconds=3")
    assert done.returncode == 0 and "sweeper watch demo" in done.stdout, done.stderr
    terminal, sweep = open_terminal(), Sweep(tmp_path)
    terminal.type("sweeper watch demo")
    screen = terminal.wait("running", "failed", "waiting", "by rate limit", seconds=TIME)
    assert "stalled" not in screen  # a quota is a wait
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
    terminal.wait("test/nll", "x ", "best, lr=")  # beside its own curve the best run's
    terminal.press("3")
    terminal.wait("[bold]loss[/bold]", " red")  # a log is data
    terminal.press("Escape")
    terminal.wait("/ filter")
    terminal.press("c")
    terminal.wait(f"cancel {trains}?")
    terminal.press("x")
    terminal.wait("not done")
    terminal.press("c", "y")
    support.wait_until(lambda: sweep[trains].state is State.CANCELLED, terminal.screen, TIME)
    terminal.wait("1 cancelled")
    terminal.press("t")  # in no tmux: becomes a client that shows the pane
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
    done = sweeper(tmp_path, "launch", "demo.yaml")
    assert done.returncode == 0, done.stderr
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


LIMITED = """
name: limited
recipe: sft
service: local
base: {max_steps: 500, length: 2, letters: 2, test_size: 1}
grid: {learning_rate: [1e-3, 3e-3]}
launch: {backend: tmux, max_parallel: 2, lease: 15s}
"""


@pytest.fixture
def limited_engine(open_terminal: Any, tmp_path: Path) -> Iterator[None]:
    """An engine that takes a request in 20 seconds, at the home of the terminals."""
    assert sweeper(tmp_path, "engine", "start", "--rate-limit", "0.05").returncode == 0
    yield
    assert sweeper(tmp_path, "engine", "stop", "--force").returncode == 0


@pytest.mark.usefixtures("limited_engine")
def test_runs_that_the_engine_holds_back_wait(open_terminal: Any, tmp_path: Path) -> None:
    """By its own answers of 429."""
    terminal = open_terminal()
    (tmp_path / "limited.yaml").write_text(LIMITED)
    assert sweeper(tmp_path, "launch", "limited.yaml").returncode == 0
    terminal.type("sweeper watch limited")
    screen = terminal.wait("2 waiting", "paused: 2 by rate limit", "1 at once, not 2", seconds=TIME)
    assert not any(word in screen for word in ("stalled", "silent", "failed")), screen
    terminal.press("/")
    terminal.type("waiting 3e-3")
    terminal.wait("lr=3e-3  waiting: rate limit since ", gone="lr=1e-3")
    assert sweeper(tmp_path, "cancel", "limited").returncode == 0
    terminal.press("Escape")
    terminal.wait("2 cancelled", gone="waiting")


def test_it_is_the_first_window_and_jumps_from_there(open_terminal: Any, tmp_path: Path) -> None:
    assert sweeper(tmp_path, "launch", "demo.yaml").returncode == 0
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
    terminal.type("stty -a | grep -c ' echo '")  # the terminal is as it was
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
    assert sweeper(tmp_path, "cancel", "demo").returncode == 0


def test_a_view_that_is_killed_costs_nothing(open_terminal: Any, tmp_path: Path) -> None:
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
        done = sweeper(tmp_path, "launch", "short.yaml", "--wait", "kind=trains")
        assert done.returncode == 0 and "\x1b" not in done.stdout + done.stderr
        done = sweeper(tmp_path, "watch", "short")
        assert done.returncode == 0 and "4 succeeded" in done.stdout
        assert "\x1b" not in done.stdout
        assert sweeper(tmp_path, "watch", "nothing").returncode == 5
        return
    terminal = open_terminal(**environment)
    terminal.type("sweeper launch short.yaml --wait kind=trains; echo code $?")
    terminal.wait("4/4 succeeded", "code 0", seconds=TIME)
    terminal.type("clear; sweeper watch; echo code $?")
    terminal.wait("short: 4 succeeded", "code 0")


def test_without_colour(open_terminal: Any, tmp_path: Path) -> None:
    support.write_grid(tmp_path, "short", seconds=0.02, backend="local")
    assert sweeper(tmp_path, "launch", "short.yaml", "--wait", "kind=trains").returncode == 0
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
    """The one in a sweep's first window: soon, unless somebody has pressed a key there."""
    from sweeper.store.opening import open_store
    from sweeper.tui import app as views
    from sweeper.tui.poller import Poller

    monkeypatch.setattr(views, "UNTOUCHED_SECONDS", 3600.0)  # until the key is pressed
    monkeypatch.setattr(views, "_ENDED_SECONDS", 0.05)
    sweep = written.Written(tmp_path, "s")
    sweep.run({"x": 1}, state=state)
    sweep.save()
    poller = Poller(SweepFolder(open_store(str(tmp_path)), "s"))
    app = views.WatchApp(poller, poller.look(), leaves=True, every=0.05)

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


def test_from_another_machine_by_the_store_alone(s3_root: str, tmp_path: Path) -> None:
    """What a view on S3 shows of a run, from its claim to its end, through two launches."""
    from sweeper.store.documents import encode
    from sweeper.store.opening import open_store
    from sweeper.sweep.folder import SweepFolder
    from sweeper.tui.poller import Poller

    store, now = open_store(s3_root), [100.0]
    folder = SweepFolder(store, "far")
    ids = ["0" * 12, "1" * 12]
    runs = [
        {"id": run, "name": f"x={n}", "cell": f"x={n}", "seed": None, "config": {"max_steps": 4}}
        for n, run in enumerate(ids)
    ]
    launch = {"backend": "local", "max_parallel": 2, "retries": 0, "lease_s": 60.0}
    metric = {"name": "loss", "goal": "minimize", "at": "last"}
    plan = {"schema": 1, "name": "far", "recipe": {}, "launch": launch, "axes": {}}
    store.create(folder.plan, encode(plan | {"metric": metric, "runs": runs}))
    poller = Poller(folder, clock=lambda: now[0])
    assert [run.state for run in poller.look().runs] == ["planned"] * 2

    def rows(*steps: int) -> bytes:
        return b"".join(b'{"step": %d, "loss": %d}\n' % (step, 9 - step) for step in steps)

    path = f"{folder.log_path(ids[0], 1)}/metrics.jsonl"
    store.create(folder.event(ids[0], 1, Event.CLAIMED), encode({"schema": 1}))
    paused = {"reason": "capacity", "since": "2026-11-21T12:01:03Z"}
    store.replace(folder.heartbeat(ids[0], 1), encode({"schema": 1, "paused": paused}))
    store.create(f"{path}.parts/0", rows(0, 1))
    run = poller.look().runs[0]
    assert (run.shown_state, run.waits) == ("waiting", "capacity since 12:01")
    assert (run.step, run.curve, run.fraction) == (1.0, (9.0, 8.0), 0.5)
    store.create(f"{path}.parts/{len(rows(0, 1))}", rows(2))
    store.replace(folder.heartbeat(ids[0], 1), encode({"schema": 1, "counter": 2}))
    run = poller.look().runs[0]
    assert (run.shown_state, run.curve) == ("running", (9.0, 8.0, 7.0))
    store.create(path, rows(0, 1, 2, 3))
    store.create(folder.event(ids[0], 1, Event.SUCCEEDED), encode({"schema": 1, "wall_s": 3.0}))
    run = poller.look().runs[0]
    assert (run.state, run.curve, run.rank) == ("succeeded", (9.0, 8.0, 7.0, 6.0), 1)
    view = poller.look()
    assert poller.look() is view
    # Another launcher with another plan: told by what it publishes.
    store.replace(folder.plan, encode(plan | {"metric": metric, "runs": runs[:1]}))
    store.replace(folder.observations, encode({"schema": 1, "observed": {}, "pid": 7}))
    assert len(poller.look().runs) == 1
