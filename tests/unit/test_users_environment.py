"""The tests' conftest.py under a user's AWS profile, proxy, sweeps and tmux."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
from support.own_tmux import own_tmux

TESTS = Path(__file__).parents[1]
CONFTEST = TESTS / "conftest.py"


def test_profile_and_proxy_of_the_user_are_ignored() -> None:
    given = {"AWS_PROFILE": "nosuch", "HTTP_PROXY": "http://127.0.0.1:9", "no_proxy": "intranet"}
    theirs = {"HOME": "/home/somebody", "SWEEPER_ROOT": "/theirs", "PYTEST_XDIST_WORKER": "gw0"}
    load = f"import json, os, runpy; runpy.run_path({str(CONFTEST)!r})"
    program = [sys.executable, "-c", f"{load}; print(json.dumps(dict(os.environ)))"]
    answer = subprocess.run(program, env=given | theirs, capture_output=True, check=True, text=True)
    variables = json.loads(answer.stdout)
    assert "AWS_PROFILE" not in variables
    assert variables["AWS_CONFIG_FILE"] == os.devnull
    assert variables["AWS_EC2_METADATA_DISABLED"] == "true"
    assert variables["NO_PROXY"] == "127.0.0.1,localhost"
    assert variables["no_proxy"] == "intranet,127.0.0.1,localhost"
    assert "SWEEPER_ROOT" not in variables
    assert variables["HOME"] == "/home/somebody"  # the one that all workers of pytest share


def test_programs_of_tests_use_their_own_tmux_folder() -> None:
    """They must not end a server of the user, or leave dead sockets."""
    programs = {
        path.relative_to(TESTS).as_posix(): text
        for path in TESTS.rglob("*.py")
        if "__main__" in (text := path.read_text()) and not path.name.startswith("test_")
    }
    ours = {name for name, text in programs.items() if re.search(r"\btmux\b", text)}
    assert {"bench/status.py", "chaos/live_runs.py", "support/screens.py"} <= ours
    assert {name for name in ours if not re.search(r"\bwith .*own_tmux()", programs[name])} == set()


def test_tmux_servers_of_programs_end_without_sockets(tmux_socket: str) -> None:
    shown = ["tmux", "-L", tmux_socket, "new-session", "-d", "-P", "-F", "#{pid}", "sleep", "600"]
    theirs = subprocess.run(shown, capture_output=True, text=True, check=True)
    before = dict(os.environ)
    with own_tmux() as folder:
        assert "SWEEPER_TMUX_SOCKET" not in os.environ
        ours = subprocess.run(shown, capture_output=True, text=True, check=True)
        (socket,) = folder.glob("tmux-*/*")
        server = psutil.Process(int(ours.stdout))
    server.wait(60)
    assert not socket.exists()
    assert not folder.exists()
    assert os.environ == before
    assert psutil.pid_exists(int(theirs.stdout))
