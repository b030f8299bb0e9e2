"""Behaviour specific to tmux: windows, groups of panes, servers that start and end."""

import os
import re
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from harness.real import until  # pyright: ignore[reportMissingImports]

from sweeper.backends.base import JobSpec, JobState
from sweeper.backends.tmux.backend import MOST_ENDED, TmuxBackend, open_backend, panes_in
from sweeper.backends.tmux.server import TmuxServer
from sweeper.commands.doctor import examine
from sweeper.errors import EnvironmentFailure, Unreachable
from sweeper.sweep.launch_settings import MOST_PANES
from sweeper.sweep.process import began


def test_a_window_that_ended_is_started_again_in_its_place(tmux_socket: str) -> None:
    server = TmuxServer()
    session = server.ensure_window("engine", "/f", "engine", ["sleep", "0.05"])
    until(lambda: server.panes(session)[0].dead)
    assert server.ensure_window("engine", "/f", "engine", ["sleep", "600"]) == session
    (pane,) = server.panes(session)
    assert not pane.dead
    assert server.ensure_window("engine", "/f", "engine", ["sleep", "601"]) == session
    assert server.panes(session) == [pane]  # still running, so it is kept


def test_two_folders_of_one_name_have_two_sessions(tmux_socket: str) -> None:
    server = TmuxServer()
    first = server.ensure_window("s.1", "/one", "sweep", ["sleep", "600"])
    second = server.ensure_window("s.1", "/two", "sweep", ["sleep", "600"])
    assert first != second
    assert (server.session("/one"), server.session("/two")) == (first, second)


def test_programs_have_the_home_of_the_launcher(
    tmux_socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the home of the launcher that started the server: several homes may share a server."""
    homes = tmp_path / "told"
    say = ["sh", "-c", f'echo "$SWEEPER_HOME" >> {homes}; sleep "$0"']
    opened = [("one", "sweep", "600"), ("two", "sweep", "0"), ("two", "more", "600")]
    for number, (folder, title, seconds) in enumerate([*opened, ("two", "sweep", "600")], 1):
        monkeypatch.setenv("SWEEPER_HOME", f"/homes/{folder}")
        session = TmuxServer().ensure_window("s", f"/{folder}", title, [*say, seconds])
        until(lambda n=number: homes.exists() and len(homes.read_text().splitlines()) == n)
        if seconds == "0":
            until(lambda s=session: TmuxServer().panes(s)[0].dead)
    assert homes.read_text().split() == ["/homes/one", *["/homes/two"] * 3]


def test_windows_have_the_given_variables(tmux_socket: str, tmp_path: Path) -> None:
    """Also variables that the server lacks, such as SWEEPER_QUOTA."""
    server, file = TmuxServer(), tmp_path / "told"
    given = {"SWEEPER_QUOTA": "/some where"}
    for number, end in ((1, "0"), (2, "0"), (3, "600")):
        command = ["sh", "-c", f'echo "$SWEEPER_QUOTA" >> {file}; sleep "$0"', end]
        session = server.ensure_window("s", "/f", "launcher", command, given)
        until(lambda n=number: file.exists() and file.read_text() == "/some where\n" * n)
        if end == "0":
            until(lambda s=session: server.panes(s)[0].dead)


def test_a_path_outside_the_locale_is_accepted(
    tmux_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    server = TmuxServer()
    session = server.ensure_window("s", "/\u672c", "sweep", ["sleep", "600"])
    assert server.session("/\u672c") == session


def test_without_a_server_there_is_no_session(tmux_socket: str) -> None:
    assert TmuxServer().session("/f") is None


def test_a_malformed_socket_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPER_TMUX_SOCKET", "a/b")
    with pytest.raises(EnvironmentFailure, match="SWEEPER_TMUX_SOCKET is 'a/b': use a name"):
        TmuxServer()


def test_an_unreachable_server_is_not_absent(
    tmux_socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    server = TmuxServer()
    server.ensure_window("s", "/f", "sweep", ["sleep", "600"])
    (socket,) = tmp_path.glob("tmux-*/*")
    away = socket.with_suffix(".away")
    socket.rename(away)
    socket.symlink_to(socket.name)  # a loop, so connecting fails
    with pytest.raises(Unreachable, match="tmux: "):
        server.session("/f")
    socket.unlink()
    away.rename(socket)
    subprocess.run(["tmux", "-L", tmux_socket, "kill-server"], check=True)


class Tmux:
    """A sweep on its own tmux server, and tmux commands as a user types them."""

    def __init__(self, socket: str, folder: Path) -> None:
        self.socket = socket
        self.folder = str(folder)
        self.backend: TmuxBackend = open_backend("s", self.folder)

    def run(self, *arguments: str) -> list[str]:
        command = ["tmux", "-L", self.socket, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def windows(self) -> list[str]:
        return self.run("list-windows", "-t", "s", "-F", "#{window_name}")

    def job(self, token: str, title: str, *, group: str | None = None, run: str = "600") -> JobSpec:
        return JobSpec(token, title, ["sh", "-c", f"sleep {run}", token], self.folder, {}, group)

    def states(self, tokens: list[str]) -> Counter[JobState]:
        return Counter(status.state for status in self.backend.poll(tokens).values())


@pytest.fixture
def tmux(tmux_socket: str, tmp_path: Path) -> Tmux:
    return Tmux(tmux_socket, tmp_path)


def _tokens(count: int) -> list[str]:
    return [f"{number:012x}-a1" for number in range(count)]


def test_windows_are_named_for_their_runs(tmux: Tmux) -> None:
    tmux.backend.submit([tmux.job("aaaaaaaaaaaa-a1", "lr=1e-4,#{pid} #S"), tmux.job("b-a1", "x.y")])
    assert tmux.windows() == ["sweep", "lr=1e-4,#{pid} #S", "x.y"]


def test_groups_fill_windows_in_order(tmux: Tmux) -> None:
    tokens = _tokens(3 * MOST_PANES)
    first, rest = tokens[: MOST_PANES + 3], tokens[MOST_PANES + 3 :]
    tmux.backend.submit([tmux.job(t, f"seed={n}", group="a.b:c") for n, t in enumerate(first)])
    assert tmux.windows() == ["sweep", "a.b:c", "a.b:c-2"]
    tmux.backend.submit([tmux.job(t, "later", group="a.b:c") for t in rest])
    tmux.backend.submit([tmux.job("dddddddddddd-a1", "other", group="#S")])
    assert tmux.windows() == ["sweep", "a.b:c", "a.b:c-2", "a.b:c-3", "#S"]
    shown = tmux.run("list-panes", "-s", "-t", "s", "-F", "#{window_name} #{@sweeper_title}")
    assert Counter(line.rpartition(" ")[0] for line in shown)["a.b:c"] == MOST_PANES
    assert shown[1:4] == ["a.b:c seed=0", "a.b:c seed=1", "a.b:c seed=2"]
    assert tmux.states(tokens) == {JobState.RUNNING: len(tokens)}


def test_a_window_too_small_loses_no_job_and_no_title(tmux: Tmux) -> None:
    tokens = _tokens(8)
    tmux.backend.submit([tmux.job(tokens[0], "0", group="g")])
    tmux.run("split-window", "-t", "s:g", "sleep 600")  # not a pane of the backend
    for _ in range(3):
        tmux.run("resize-window", "-t", "s:g", "-x", "60", "-y", "6")
    tmux.backend.submit([tmux.job(token, str(n), group="g") for n, token in enumerate(tokens) if n])
    assert tmux.states(tokens) == {JobState.RUNNING: len(tokens)}
    form = "#{=-32:pane_start_command} #{@sweeper_title}"
    panes = tmux.run("list-panes", "-s", "-t", "s", "-F", form)
    for n, token in enumerate(tokens):
        (line,) = (line for line in panes if token in line)
        if line.rpartition(" ")[2]:  # a job that got its own window has no pane title
            assert line.rpartition(" ")[2] == str(n)


def test_small_windows_have_few_panes() -> None:
    assert panes_in(200, 50) == panes_in(80, 23) == MOST_PANES
    assert panes_in(40, 12) == 2
    assert panes_in(10, 3) == 1


def test_a_small_terminal_has_more_windows(tmux: Tmux) -> None:
    tokens = _tokens(7)
    tmux.backend.submit([tmux.job("eeeeeeeeeeee-a1", "alone")])
    for window in ("sweep", "alone"):
        tmux.run("resize-window", "-t", f"s:{window}", "-x", "40", "-y", "17")
    tmux.backend.submit([tmux.job(token, token[:12], group="g") for token in tokens])
    assert tmux.windows() == ["sweep", "alone", "g", "g-2", "g-3"]
    assert tmux.states(tokens) == {JobState.RUNNING: len(tokens)}


def test_borders_show_the_states_of_jobs(tmux: Tmux) -> None:
    tokens = _tokens(3)
    tmux.backend.show("nobody is there", {tokens[0]: "running"})  # no session: nothing to do
    tmux.backend.submit([tmux.job(token, f"y={n}", group="g") for n, token in enumerate(tokens)])
    words = ["running", "paused: 429 #{pid}", "failed"]
    status = "12:00:00  1/3 succeeded #[fg=red]"
    tmux.backend.show(status, dict(zip([*tokens, "f" * 12 + "-a1"], [*words, "gone"], strict=True)))
    (shown,) = tmux.run("display-message", "-p", "-t", "s", "#{@sweeper_status}")
    assert shown == status.replace("#", "##")  # a status line shows ## as #
    borders = tmux.run("list-panes", "-t", "s:g", "-F", "#{T:pane-border-format}")
    plain = [re.sub(r"#\[[^]]*\]", "", border).strip() for border in borders]
    assert plain == [". y=0 (running)", "- y=1 (paused: 429 ##{pid})", "! y=2 (failed)"]
    windows = tmux.run("list-windows", "-t", "s", "-F", "#{T:window-status-format}")
    assert windows[-1].strip() == "g [.-!]"


def test_only_panes_closed_by_the_user_are_absent(tmux: Tmux) -> None:
    tokens = _tokens(4)
    tmux.backend.submit([tmux.job(token, token[:12], group="g") for token in tokens[:3]])
    tmux.backend.submit([tmux.job(tokens[3], "alone")])
    tmux.run("kill-pane", "-t", tmux.backend.find(tokens)[tokens[1]])
    tmux.run("split-window", "-t", "s:g", "sleep 600")  # not a pane of the backend
    assert set(tmux.backend.find(tokens)) == {tokens[0], tokens[2], tokens[3]}
    tmux.run("rename-window", "-t", "s:g", "mine")
    tmux.backend.submit([tmux.job("eeeeeeeeeeee-a1", "next", group="g")])
    # The renamed window still belongs to the group.
    assert tmux.windows() == ["sweep", "mine", "alone"]
    tmux.run("kill-window", "-t", "s:mine")
    assert set(tmux.backend.find(tokens)) == {tokens[3]}
    tmux.backend.submit([tmux.job("ffffffffffff-a1", "again", group="g")])
    assert sorted(tmux.windows()) == ["alone", "g", "sweep"]


@pytest.mark.parametrize(
    ("say", "end", "word"),
    [
        (r"printf '\033]2;sweeper: failed (oom)\033\\'", "exit 7", "failed (oom)"),
        ("true", "kill -9 $$", "ended"),  # reports no state
    ],
)
def test_ended_jobs_keep_their_screen_and_state(
    tmux: Tmux, tmp_path: Path, say: str, end: str, word: str
) -> None:
    token = "abcabcabcabc-a1"
    job = tmux.job(token, "x#1", group="g")
    # tmux 3.3 drops unread output when a program ends, so this program waits.
    read = tmp_path / "read"
    program = f"{say}; echo the last words; until [ -e {read} ]; do sleep 0.05; done; {end}"
    tmux.backend.submit([job._replace(argv=["sh", "-c", program, token])])
    until(lambda: "the last words" in list(tmux.backend.logs(token)))
    read.touch()
    # Do not wait for "Pane is dead": tmux may learn the exit status only when another child exits.
    until(lambda: tmux.states([token]) == {JobState.ENDED: 1})
    assert "the last words" in list(tmux.backend.logs(token))
    pane = tmux.backend.find([token])[token]
    for form in ("pane-border-format", "window-status-format"):
        (shown,) = tmux.run("display-message", "-p", "-t", pane, f"#{{T:{form}}}")
        sign = "!" if word.startswith("failed") else "-"
        plain = re.sub(r"#\[[a-z=]*\]", "", shown).strip()
        assert plain == (f"{sign} x##1 ({word})" if "border" in form else f"g [{sign}]")


def test_of_many_ended_jobs_the_newest_stay(tmux: Tmux) -> None:
    """Unsuccessful jobs are removed last; a job without a recorded end stays."""
    gone = 4
    tokens = _tokens(MOST_ENDED + gone + 1)
    tmux.backend.submit([tmux.job(token, f"x={n}", run="0") for n, token in enumerate(tokens)])
    until(lambda: tmux.states(tokens) == {JobState.ENDED: len(tokens)})
    words = dict.fromkeys(tokens[2:], "succeeded") | {tokens[0]: "failed"}
    tmux.backend.show("some succeeded", words)
    tmux.backend.show("some succeeded", {})
    assert set(tmux.backend.find(tokens)) == {*tokens[:2], *tokens[2 + gone :]}


def test_launching_inside_another_tmux_works(tmux: Tmux, monkeypatch: pytest.MonkeyPatch) -> None:
    tmux.backend.submit([tmux.job("aaaaaaaaaaaa-a1", "outer")])
    (path,) = tmux.run("display-message", "-p", "#{socket_path}")
    (pid,) = tmux.run("display-message", "-p", "#{pid}")
    monkeypatch.setenv("TMUX", f"{path},{pid},0")
    monkeypatch.setenv("TMUX_PANE", "%0")
    inner = f"{tmux.socket}-inner"
    monkeypatch.setenv("SWEEPER_TMUX_SOCKET", inner)
    try:
        backend = open_backend("s", tmux.folder)
        backend.submit([tmux.job("bbbbbbbbbbbb-a1", "inner")])
        assert backend.find(["aaaaaaaaaaaa-a1", "bbbbbbbbbbbb-a1"]).keys() == {"bbbbbbbbbbbb-a1"}
    finally:
        subprocess.run(["tmux", "-L", inner, "kill-server"], check=False)
    assert tmux.windows() == ["sweep", "outer"]


def test_a_killed_server_has_no_jobs(tmux: Tmux) -> None:
    token = "aaaaaaaaaaaa-a1"
    tmux.backend.submit([tmux.job(token, "x")])
    (pid,) = tmux.run("display-message", "-p", "#{pid}")
    os.kill(int(pid), signal.SIGKILL)  # leaves its socket behind
    until(lambda: not began(int(pid)))

    def absent() -> bool:
        with suppress(Unreachable):  # tmux: server exited unexpectedly
            return tmux.states([token]) == {JobState.ABSENT: 1}
        return False

    until(absent)
    tmux.backend.submit([tmux.job(token, "x")])
    assert tmux.states([token]) == {JobState.RUNNING: 1}


def test_a_deleted_socket_is_made_again(tmux: Tmux) -> None:
    token = "aaaaaaaaaaaa-a1"
    tmux.backend.submit([tmux.job(token, "x")])
    (path,) = tmux.run("display-message", "-p", "#{socket_path}")
    os.unlink(path)
    assert tmux.states([token]) == {JobState.RUNNING: 1}
    assert tmux.windows() == ["sweep", "x"]


def test_an_argument_may_end_in_a_semicolon(tmux: Tmux) -> None:
    server = TmuxServer()
    session = server.ensure_window("s", "/f", "odd", ["sh", "-c", "sleep 600", "x;"])
    assert [pane.command for pane in server.panes(session)] == ['sh -c "sleep 600" "x;"']


@pytest.mark.parametrize("way", ["name", "folder", "open to all"])
def test_an_impossible_socket_is_refused_at_the_start(
    tmux_socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Otherwise a launcher would wait for it forever."""
    hint = "a socket's path has at most 107 bytes; set TMUX_TMPDIR"
    if way == "name":
        monkeypatch.setenv("SWEEPER_TMUX_SOCKET", "x" * 120)
    elif way == "folder":
        folder = tmp_path / ("y" * 120)
        folder.mkdir()
        monkeypatch.setenv("TMUX_TMPDIR", str(folder))
    else:
        shared = tmp_path / f"tmux-{os.getuid()}"
        shared.mkdir()
        shared.chmod(0o777)
        monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
        hint = "has unsafe permissions: set TMUX_TMPDIR to a folder that you own"
    with pytest.raises(EnvironmentFailure, match=hint) as refused:
        open_backend("s", "/f")
    assert not isinstance(refused.value, Unreachable)
    (check,) = (check for check in examine(str(tmp_path), "tmux") if check.name == "tmux")
    assert (check.good, check.found) == (False, str(refused.value))


def test_a_stopped_server_is_given_up(tmux_socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = TmuxServer()
    session = server.ensure_window("s", "/f", "sweep", ["sleep", "600"])
    ask = ["tmux", "-L", tmux_socket, "display-message", "-p", "#{pid}"]
    pid = int(subprocess.run(ask, capture_output=True, check=True, text=True).stdout)
    monkeypatch.setattr("sweeper.backends.tmux.server._ANSWER_SECONDS", 0.5)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unreachable, match="its server has not answered"):
            server.panes(session)
    finally:
        os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    monkeypatch.setenv("SWEEPER_TMUX_SOCKET", tmux_socket)
    assert len(server.panes(session)) == 1
