"""Controls sweeper's own tmux server, which has a private socket (`tmux -L sweeper`, or
$SWEEPER_TMUX_SOCKET) and its own configuration. It also works from inside another tmux."""

import hashlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

import libtmux
from libtmux.common import tmux_cmd
from libtmux.exc import LibTmuxException, TmuxCommandNotFound

from sweeper.common.full_machine import lacking
from sweeper.common.sanitize import sanitize
from sweeper.errors import EnvironmentFailure, NoRoom, Unreachable
from sweeper.paths import home

_CONFIGURATION = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tmux.conf")

_INHERITED = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TERM"),
    *("TMPDIR", "TMUX_TMPDIR", "PYTHONPATH", "XDG_DATA_HOME"),
    *("SWEEPER_HOME", "SWEEPER_TMUX_SOCKET"),
}
_NO_MORE: Mapping[str, str] = MappingProxyType({})
_NO_SOCKET = "(No such file or directory)"  # error on connecting to a missing socket
_NO_FORK = "fork failed"
_NOTHING_THERE = ("no server running", "can't find session", _NO_SOCKET, "(Connection refused)")
_TOO_LONG = "(File name too long)"
_REFUSED_FOLDER = (
    *("couldn't create directory", "couldn't read directory", "is not a directory"),
    *("has unsafe permissions", "no suitable socket path", "(Permission denied)"),
)
"""Messages of tmux about a folder in which it cannot create a socket."""
_ANSWER_SECONDS = 60.0
"""Seconds to wait for an answer. A busy machine needs seconds to open hundreds of windows."""
_REVIVAL_SECONDS = 30.0
_SOCKET_SECONDS = 3.0


def socket_name() -> str:
    """Return the socket name of sweeper's tmux server, for `tmux -L`. Raises `EnvironmentFailure`
    if the name contains a slash."""
    name = os.environ.get("SWEEPER_TMUX_SOCKET") or "sweeper"
    if "/" in name:  # tmux would create no server, but look for a folder.
        raise EnvironmentFailure(f"$SWEEPER_TMUX_SOCKET is {name!r}: use a name without a slash")
    return name


class Pane(NamedTuple):
    """A pane of a session. `id` and `window` are tmux's ids. `dead` is true after the pane's
    program has ended. `group` is a hash of the name of the window's group of jobs, or empty.
    `window_title` is the title of a window without jobs, or empty. `width` and `height` are the
    size of the window. `current` is true if the session shows the window. `word` is the pane's
    label, or empty. `command` has the last 32 characters of the pane's command."""

    id: str
    window: str
    dead: bool
    pid: int
    group: str
    window_title: str
    width: int
    height: int
    current: bool
    word: str
    command: str


_PANE = "\t".join(
    (
        *("#{pane_id}", "#{window_id}", "#{pane_dead}", "#{pane_pid}"),
        *("#{@sweeper_group}", "#{@sweeper_token}", "#{window_width}", "#{window_height}"),
        *("#{window_active}", "#{@sweeper_state}"),
        "#{=-32:pane_start_command}",
    )
)


class Refusal(Unreachable):
    """An error that tmux reported."""

    def __init__(self, message: str) -> None:
        super().__init__(f"tmux: {message}")


class TmuxServer:
    """A connection to the tmux server. Every method raises `Unreachable` if tmux does not answer,
    and `EnvironmentFailure` if there is no tmux."""

    def __init__(self) -> None:
        self._socket = socket_name()
        self._server = libtmux.Server(socket_name=self._socket, config_file=_CONFIGURATION)
        self._looked = -_REVIVAL_SECONDS
        self._unanswered: threading.Thread | None = None

    def _run(self, *arguments: str) -> list[str]:
        result = self._answer(*map(_whole, arguments))
        if result.returncode:
            message = " ".join(result.stderr) or f"exit code {result.returncode}"
            if _NO_SOCKET in message and self._revive(message):
                return self._run(*arguments)
            if _NO_FORK in message:
                raise NoRoom(f"tmux: {message}: the next job is started when resources are free")
            raise Refusal(message)
        # tmux answers, so if its socket goes missing next, it is revived at once.
        self._looked = -_REVIVAL_SECONDS
        return result.stdout

    def _answer(self, *arguments: str) -> tmux_cmd:
        """Call tmux in a thread, because libtmux waits without limit for a stopped server
        (SIGSTOP). While a call is unanswered, no other call starts."""
        answer: list[tmux_cmd | Exception] = []

        def call() -> None:
            try:
                answer.append(self._server.cmd(*arguments))
            except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
                answer.append(error)

        thread = self._unanswered
        if thread is not None:
            thread.join(_ANSWER_SECONDS)
        if thread is None or not thread.is_alive():
            thread = threading.Thread(target=call, daemon=True)
            thread.start()
            thread.join(_ANSWER_SECONDS)
        self._unanswered = thread if thread.is_alive() else None
        if not answer:
            raise Unreachable(
                f"tmux: its server has not answered for {_ANSWER_SECONDS:g} s. If the server's "
                "process was stopped, continue it with SIGCONT"
            )
        if isinstance(answer[0], TmuxCommandNotFound):
            raise EnvironmentFailure(
                "tmux is not installed: install it (Debian: `apt-get install tmux`, macOS: "
                "`brew install tmux`) or use `--backend local`"
            ) from answer[0]
        if isinstance(answer[0], LibTmuxException | OSError):
            raise _unreachable(answer[0]) from answer[0]
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]

    def _revive(self, message: str) -> bool:
        """Make a running server create its removed socket again. Return whether the socket
        exists."""
        if time.monotonic() - self._looked < _REVIVAL_SECONDS:
            return False
        self._looked = time.monotonic()
        import psutil

        servers: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                # The server has the command line of the client that started it.
                if process.name() != "tmux: server" or process.uids().real != os.getuid():
                    continue
                if process.cmdline()[1:3] == ["-L", self._socket]:
                    servers[process.pid] = process
        revived = False
        for process in servers.values():
            with suppress(psutil.Error):
                # A pane's process looks like its server until it executes its program. The signal
                # would kill it.
                if process.ppid() not in servers:
                    # The signal makes the server open its socket again.
                    process.send_signal(signal.SIGUSR1)
                    revived = True
        path = message.removeprefix("error connecting to ").removesuffix(f" {_NO_SOCKET}")
        while revived and time.monotonic() < self._looked + _SOCKET_SECONDS:
            exists = os.path.exists(path)
            time.sleep(0.02)  # The server listens shortly after it created the socket.
            if exists:
                return True
        return False

    def check(self) -> None:
        """Raise `EnvironmentFailure` if tmux is not installed or cannot create its socket."""
        try:
            self._listing("list-sessions")
        except Refusal as error:
            message = str(error)
            if _TOO_LONG in message:
                raise EnvironmentFailure(
                    f"{message}: a socket's path has at most 107 bytes; set TMUX_TMPDIR to a "
                    "folder with a shorter path, or SWEEPER_TMUX_SOCKET to a shorter name"
                ) from error
            if any(part in message for part in _REFUSED_FOLDER):
                raise EnvironmentFailure(
                    f"{message}: set TMUX_TMPDIR to a folder that you own"
                ) from error
            raise

    def is_around_us(self) -> bool:
        """Return whether this process runs in a window of this server."""
        socket = os.environ.get("TMUX", "").partition(",")[0]
        if not socket:
            return False
        path = self._run("display-message", "-p", "#{socket_path}")
        return bool(path) and os.path.realpath(path[0]) == os.path.realpath(socket)

    def session(self, folder: str) -> str | None:
        """Return the id of the session of the sweep at `folder`; None if the sweep has no session.
        If the folder is mounted at two paths, either path finds the session."""
        form = "#{session_id} #{@sweeper_folder} #{@sweeper_place}"
        name, place = _folder_hash(folder), _place(folder)
        other = None
        for line in self._listing("list-sessions", "-F", form):
            session, owner, its_place = line.split(" ")
            if owner == name:
                return session
            if place and its_place == place:
                other = session
        return other

    def ensure_window(
        self,
        name: str,
        folder: str,
        title: str,
        argv: Sequence[str],
        environment: Mapping[str, str] = _NO_MORE,
    ) -> str:
        """Ensure that a window with this title runs `argv` in the session of `folder`. Create the
        session if needed, and restart a window whose program has ended. Return the session's id.
        The program gets `environment` and the SWEEPER_HOME of this process."""
        values = {"SWEEPER_HOME": home(), **environment}
        variables = (part for item in values.items() for part in ("-e", "=".join(item)))
        argv = (*variables, *argv)
        session = self.session(folder)
        if session is None:
            return self._new_session(name, folder, title, argv)
        for pane in self.panes(session):
            if pane.window_title == title:
                if pane.dead:
                    # Closing the window first would end the session if it has no other window.
                    self._run("respawn-pane", "-k", "-t", pane.id, *argv)
                return session
        form = ("-d", "-P", "-F", "#{window_id}")
        (window,) = self._run(
            "new-window", *form, "-t", f"{session}:", "-n", as_shown(title), *argv
        )
        self._run("set-option", "-w", "-t", window, "@sweeper_token", title)
        return session

    def _new_session(self, name: str, folder: str, title: str, argv: Sequence[str]) -> str:
        # tmux would replace dots and colons by underscores. A name that the session of another
        # folder has gets a suffix.
        name = name.replace(".", "_").replace(":", "_")
        if name in self._listing("list-sessions", "-F", "#{session_name}"):
            name = f"{name}-{_folder_hash(folder)[:4]}"
        form = ("-x", "200", "-y", "50", "-P", "-F", "#{session_id}")
        named = ("-s", as_shown(name), "-n", as_shown(title))
        command = ["tmux", "-L", self._socket, "-f", _CONFIGURATION, "new-session", "-d"]
        command += [*named, *form, *map(_whole, argv)]
        # The server keeps the environment of the client that starts it and shows it to every
        # client. So pass on only the variables that programs need to run at all. Runs get their
        # environment from a file.
        environment = {k: v for k, v in os.environ.items() if k in _INHERITED}
        try:
            result = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_ANSWER_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _unreachable(error) from error
        if result.returncode:
            raise Refusal(result.stderr.strip())
        session = result.stdout.strip()
        # This option is set first, because the session is found again by it.
        self._run("set-option", "-t", session, "@sweeper_folder", _folder_hash(folder))
        self._run("set-option", "-t", session, "@sweeper_place", _place(folder))
        self._run("set-option", "-w", "-t", f"{session}:", "@sweeper_token", title)
        return session

    def panes(self, session: str) -> list[Pane]:
        """Return every pane of a session, sorted by window and position."""
        panes: list[Pane] = []
        for line in self._listing("list-panes", "-s", "-t", session, "-F", _PANE):
            fields = line.split("\t", 10)
            if len(fields) == 11:
                pane, window, dead, pid, group, title, width, height, current, word, command = (
                    fields
                )
                size = int(width or 0), int(height or 0)
                state = current == "1", word, command
                panes.append(
                    Pane(pane, window, dead == "1", int(pid or 0), group, title, *size, *state)
                )
        return panes

    def source(self, commands: Sequence[str]) -> None:
        """Run tmux commands in one call. If a command fails, run the others, and raise
        `Refusal`."""
        try:
            with tempfile.NamedTemporaryFile("w", suffix=".tmux", encoding="utf-8") as file:
                file.writelines(f"{command}\n" for command in commands)
                file.flush()
                self._run("source-file", file.name)
        except OSError as error:  # The disk with the temporary files is full.
            raise _unreachable(error) from error

    def capture(self, pane: str) -> list[str]:
        """Return the text of a pane with its history, as plain lines."""
        return self._run("capture-pane", "-p", "-J", "-S", "-", "-t", pane)

    def _listing(self, *arguments: str) -> list[str]:
        """Return the lines of a tmux listing; [] if the server or the session does not exist."""
        try:
            return self._run(*arguments)
        except Refusal as error:
            message = str(error)
            if any(part in message for part in _NOTHING_THERE):
                return []
            raise


def _unreachable(error: Exception) -> Unreachable:
    lack = lacking(error)
    return Unreachable(f"tmux: {error}") if lack is None else NoRoom(f"tmux: {lack}")


def _folder_hash(folder: str) -> str:
    """Return a hash of a path, since tmux cannot show every character that a path may contain."""
    return hashlib.sha256(folder.encode()).hexdigest()


def _place(folder: str) -> str:
    """Return a hash of a folder's device, inode and name; "" if the folder does not exist."""
    try:
        status = os.stat(folder)
    except OSError:
        return ""
    return _folder_hash(f"{status.st_dev}:{status.st_ino}:{os.path.basename(folder)}")


def _whole(argument: str) -> str:
    """Escape a final `;`, which tmux would take for the end of a command."""
    return f"{argument[:-1]}\\;" if argument.endswith(";") else argument


def as_shown(title: str) -> str:
    """Escape a text for tmux, where `#` would start a format or a shell command."""
    return sanitize(title).replace("#", "##")


def argument(text: str) -> str:
    """Quote an argument for tmux's command parser. A newline becomes an escape sequence."""
    lines = ["'" + line.replace("'", "'\\''") + "'" for line in text.split("\n")]
    return '"\\n"'.join(lines)
