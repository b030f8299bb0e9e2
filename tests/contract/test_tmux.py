"""What only tmux does: windows of sweeper's own, and servers that come and go."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.backends.tmux import TmuxServer
from sweeper.errors import Unreachable


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited 20 s in vain"
        time.sleep(0.02)


def test_a_window_that_ended_is_started_again_in_its_place(tmux_socket: str) -> None:
    server = TmuxServer()
    session = server.ensure_window("engine", "/f", "engine", ["sleep", "0.05"])
    _until(lambda: server.windows(session)[0].dead)
    assert server.ensure_window("engine", "/f", "engine", ["sleep", "600"]) == session
    (window,) = server.windows(session)
    assert not window.dead
    assert server.ensure_window("engine", "/f", "engine", ["sleep", "601"]) == session
    assert server.windows(session) == [window]  # it runs: left alone


def test_names_that_two_folders_share(tmux_socket: str) -> None:
    server = TmuxServer()
    first = server.ensure_window("s.1", "/one", "sweep", ["sleep", "600"])
    second = server.ensure_window("s.1", "/two", "sweep", ["sleep", "600"])
    assert first != second
    assert (server.session("/one"), server.session("/two")) == (first, second)


def test_a_path_that_the_locale_cannot_spell(
    tmux_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    server = TmuxServer()
    session = server.ensure_window("s", "/\u672c", "sweep", ["sleep", "600"])
    assert server.session("/\u672c") == session


def test_without_a_server_there_is_nothing(tmux_socket: str) -> None:
    assert TmuxServer().session("/f") is None


def test_a_server_that_does_not_answer_is_not_an_absent_one(
    tmux_socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    server = TmuxServer()
    server.ensure_window("s", "/f", "sweep", ["sleep", "600"])
    (socket,) = tmp_path.glob("tmux-*/*")
    away = socket.with_suffix(".away")
    socket.rename(away)
    socket.symlink_to(socket.name)  # which is no place that could be connected to
    with pytest.raises(Unreachable, match="tmux: "):
        server.session("/f")
    socket.unlink()
    away.rename(socket)
    subprocess.run(["tmux", "-L", tmux_socket, "kill-server"], check=True)
