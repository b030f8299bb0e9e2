"""The tests pass in the background, with `nohup`, and with a home that is not writable."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
INTERRUPTED = "tests/e2e/test_launch.py::test_one_launcher_at_a_time"
IN_TMUX = "tests/contract/test_tmux.py::test_a_window_that_ended_is_started_again_in_its_place"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a temporary folder with a short path: that of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="swi-") as made:
        yield Path(made)


@pytest.mark.timeout(300)
def test_with_signals_ignored_another_umask_and_no_home(folder: Path) -> None:
    def as_in_the_background() -> None:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.umask(0o077)

    environment = os.environ | {"HOME": "/proc", "SWEEPER_ROOT": "/proc/no", "SWEEPER_HOME": "/no"}
    environment |= {"TMPDIR": str(folder), "TMUX_TMPDIR": str(folder)}
    for name in [name for name in environment if name.startswith("PYTEST_XDIST")]:
        del environment[name]  # the inner pytest is not a worker of the outer one
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", INTERRUPTED, IN_TMUX],
        cwd=ROOT,
        env=environment,
        preexec_fn=as_in_the_background,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout or "1 passed, 1 skipped" in done.stdout  # without tmux
    # No sockets of servers remain, and no folder that replaced the home.
    assert [path.name for path in folder.iterdir() if not path.name.startswith("pytest-")] == []
