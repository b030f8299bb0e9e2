"""Jobs as windows of a tmux server of sweeper's own, one session for each sweep.

The server listens on a private socket (`tmux -L sweeper`, or the name in $SWEEPER_TMUX_SOCKET) and
reads a configuration of its own, so that nobody's `destroy-unattached` ends a sweep. A finished
window stays, with its last screen. What tmux says of an exit code is never used: it loses some.
"""

import hashlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import libtmux
from libtmux.exc import LibTmuxException, TmuxCommandNotFound

from sweeper.backends.base import JobSpec, JobState, JobStatus
from sweeper.command import self_command
from sweeper.errors import EnvironmentFailure, Unreachable

__all__ = ["TmuxBackend", "TmuxServer", "open_backend", "socket_name"]

_CONFIGURATION = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tmux.conf")

_INHERITED = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TERM"),
    *("TMPDIR", "TMUX_TMPDIR", "PYTHONPATH", "XDG_DATA_HOME"),
    *("SWEEPER_HOME", "SWEEPER_TMUX_SOCKET"),
}
_NOTHING_THERE = (
    "no server running",
    "can't find session",
    "(No such file or directory)",  # error connecting to a socket that is not there,
    "(Connection refused)",  # or that nobody listens on any more
)


def socket_name() -> str:
    """The socket that sweeper's tmux server listens on, for `tmux -L`."""
    return os.environ.get("SWEEPER_TMUX_SOCKET") or "sweeper"


def open_backend(sweep: str, folder: str) -> "TmuxBackend":
    """The tmux backend for one sweep. Raises `EnvironmentFailure` when there is no tmux."""
    server = TmuxServer()
    server.check()
    return TmuxBackend(server, sweep, folder)


class Window(NamedTuple):
    """A pane of a window of a session: tmux's id, our token (empty for windows that are no job's),
    whether its program has ended, and the pid it had."""

    id: str
    token: str
    dead: bool
    pid: int


class TmuxServer:
    """The few things that sweeper asks of tmux. Raises `Unreachable` when tmux does not answer,
    `EnvironmentFailure` when there is no tmux."""

    def __init__(self) -> None:
        self._socket = socket_name()
        self._server = libtmux.Server(socket_name=self._socket, config_file=_CONFIGURATION)

    def _run(self, *arguments: str) -> list[str]:
        try:
            result = self._server.cmd(*arguments)
        except TmuxCommandNotFound as error:
            raise EnvironmentFailure(
                "there is no tmux on this machine: install it (Debian: `apt-get install tmux`, "
                "macOS: `brew install tmux`) or use `--backend local`"
            ) from error
        except LibTmuxException as error:
            raise Unreachable(f"tmux: {error}") from error
        if result.returncode:
            raise _TmuxRefusal(" ".join(result.stderr) or f"exit code {result.returncode}")
        return result.stdout

    def check(self) -> None:
        """Raise `EnvironmentFailure` when there is no tmux."""
        self._run("-V")

    def session(self, folder: str) -> str | None:
        """The id of the session that belongs to the sweep at `folder`; None without one."""
        for line in self._listing("list-sessions", "-F", "#{session_id} #{@sweeper_folder}"):
            session, _, owner = line.partition(" ")
            if owner == _mark(folder):
                return session
        return None

    def ensure_window(self, name: str, folder: str, title: str, argv: Sequence[str]) -> str:
        """See that a window of sweeper's own runs in the session of `folder`, which is made when
        there is none; gives the session's id. A window whose program has ended is replaced."""
        session = self.session(folder)
        if session is None:
            return self._new_session(name, folder, title, argv)
        for window in self.windows(session):
            if window.token == title:
                if window.dead:
                    # Not closed and opened again: it may be the session's last window.
                    self._run("respawn-window", "-k", "-t", window.id, *argv)
                return session
        self.open_windows(session, [(title, title, argv)])
        return session

    def _new_session(self, name: str, folder: str, title: str, argv: Sequence[str]) -> str:
        # tmux turns these into underscores by itself; a name of another folder's gets a suffix.
        name = name.replace(".", "_").replace(":", "_")
        if name in self._listing("list-sessions", "-F", "#{session_name}"):
            name = f"{name}-{_mark(folder)[:4]}"
        command = ["tmux", "-L", self._socket, "-f", _CONFIGURATION, "new-session", "-d"]
        command += ["-s", name, "-n", _text(title), "-x", "200", "-y", "50"]
        command += ["-P", "-F", "#{session_id}", *argv]
        # The server keeps the environment of the client that starts it and shows it to anyone who
        # asks: it gets none of ours but what programs need to run at all. Runs get theirs by file.
        environment = {k: v for k, v in os.environ.items() if k in _INHERITED}
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        if result.returncode:
            raise _TmuxRefusal(result.stderr.strip())
        made = result.stdout.strip()
        # Marked before anything else: only a marked session is found again.
        self._run("set-option", "-t", made, "@sweeper_folder", _mark(folder))
        self._run("set-option", "-w", "-t", f"{made}:", "@sweeper_token", title)
        return made

    def windows(self, session: str) -> list[Window]:
        """Every pane of a session, with its window."""
        form = "#{window_id}	#{@sweeper_token}	#{window_name}	#{pane_dead}	#{pane_pid}"
        found: list[Window] = []
        for line in self._listing("list-panes", "-s", "-t", session, "-F", form):
            window, token, name, dead, pid = line.split("\t")
            # Between its creation and its renaming a window bears the token as its name.
            token = token or (name if name.partition("-a")[2].isdecimal() else "")
            found.append(Window(window, token, dead == "1", int(pid or 0)))
        return found

    def open_windows(self, session: str, windows: Sequence[tuple[str, str, Sequence[str]]]) -> None:
        """Open a window for each (token, title, argv), in one call to tmux however many."""
        lines: list[str] = []
        for token, title, argv in windows:
            target = _quote(f"{session}:={token}")
            lines.append(
                f"new-window -d -t {_quote(session + ':')} -n {_quote(token)} "
                + " ".join(map(_quote, argv))
            )
            lines.append(f"set-option -w -t {target} @sweeper_token {_quote(token)}")
            lines.append(f"rename-window -t {target} {_quote(_text(title))}")
        self.source("\n".join(lines) + "\n")

    def source(self, commands: str) -> None:
        """Run many tmux commands at once."""
        with tempfile.NamedTemporaryFile("w", suffix=".tmux", encoding="utf-8") as file:
            file.write(commands)
            file.flush()
            self._run("source-file", file.name)

    def capture(self, window: str) -> list[str]:
        """What a window shows, and its history, as plain lines."""
        return self._run("capture-pane", "-p", "-J", "-S", "-", "-t", window)

    def _listing(self, *arguments: str) -> list[str]:
        """Output of a listing; nothing when no server runs, since then there is nothing to list."""
        try:
            return self._run(*arguments)
        except _TmuxRefusal as error:
            message = str(error)
            if any(part in message for part in _NOTHING_THERE):
                return []
            raise


class _TmuxRefusal(Unreachable):
    """tmux answered with an error."""

    def __init__(self, message: str) -> None:
        super().__init__(f"tmux: {message}")


class TmuxBackend:
    """See `sweeper.backends.base.Backend`. A job's token is the option `@sweeper_token` of its
    window."""

    name = "tmux"

    def __init__(self, server: TmuxServer, sweep: str, folder: str) -> None:
        self._server = server
        self._sweep = sweep
        self._folder = folder

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        if not jobs:
            return
        root = os.path.dirname(self._folder)
        watch = self_command("status", self._sweep, "--root", root, "--follow")
        session = self._server.ensure_window(self._sweep, self._folder, "sweep", watch)
        self._server.open_windows(session, [(job.token, job.title, job.argv) for job in jobs])

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        return {token: window.id for token, window in self._windows(tokens).items()}

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        windows = self._windows(tokens)
        return {token: _status(windows.get(token)) for token in tokens}

    def cancel(self, tokens: Sequence[str]) -> None:
        for window in self._windows(tokens).values():
            if not window.dead and window.pid:
                try:
                    os.kill(window.pid, signal.SIGTERM)
                except ProcessLookupError:
                    continue  # it ended by itself

    def logs(self, token: str) -> Iterator[str]:
        window = self._windows([token]).get(token)
        return iter(self._server.capture(window.id) if window else ())

    def _windows(self, tokens: Sequence[str]) -> dict[str, Window]:
        session = self._server.session(self._folder)
        if session is None:
            return {}
        wanted = set(tokens)
        found: dict[str, Window] = {}
        for window in self._server.windows(session):
            if window.token in wanted:
                # Listed by index: the job's own pane comes before any that a user split off.
                found.setdefault(window.token, window)
        return found


def _status(window: Window | None) -> JobStatus:
    if window is None:
        return JobStatus(JobState.ABSENT)
    return JobStatus(JobState.ENDED if window.dead else JobState.RUNNING)


def _mark(folder: str) -> str:
    """How a session is known to be a folder's: not by its path, of which tmux shows no more than
    its locale has characters for."""
    return hashlib.sha256(folder.encode()).hexdigest()


def _text(title: str) -> str:
    """A title that tmux shows as it is: `#` would start a format."""
    return title.replace("#", "##")


def _quote(argument: str) -> str:
    """An argument for tmux's command parser. Nothing within single quotes is special but a
    newline: it continues a line after a backslash, and swallows the blanks that follow it."""
    lines = ["'" + line.replace("'", "'\\''") + "'" for line in argument.split("\n")]
    return '"\\n"'.join(lines)
