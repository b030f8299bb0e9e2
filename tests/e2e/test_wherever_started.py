"""The tests pass wherever they are started: by a script in the background, with `nohup`, with a
home that cannot be written to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
INTERRUPTED = "tests/e2e/test_launch.py::test_one_launcher_at_a_time"


@pytest.mark.timeout(300)
def test_with_signals_ignored_another_umask_and_no_home() -> None:
    def as_in_the_background() -> None:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.umask(0o077)

    environment = os.environ | {"HOME": "/proc", "SWEEPER_ROOT": "/proc/no", "SWEEPER_HOME": "/no"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", INTERRUPTED],
        cwd=ROOT,
        env=environment,
        preexec_fn=as_in_the_background,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
