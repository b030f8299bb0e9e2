"""A background process that serves other processes of the same user through a socket. The process
starts on demand, and holds a lock as long as it lives. This module imports only the standard
library, most of it on demand."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    import subprocess

CHANGED_SIGNALS = (
    *(signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT),
    *(signal.SIGPIPE, signal.SIGXFSZ),
)
"""Signals whose handlers Python, a worker or a shell may have changed."""
LISTENING = 3
"""The descriptor of a daemon's listening socket. The next number is the descriptor of its lock."""
OF_A_TERMINAL = (
    *("SSH_", "TERM", "COLUMNS", "LINES", "WINDOWID", "PWD", "OLDPWD", "SHLVL", "_"),
    *("INVOCATION_ID", "JOURNAL_STREAM", "XDG_SESSION_ID", "XDG_VTNR", "DBUS_SESSION"),
)
"""Prefixes of environment variables that differ between launches or terminals."""


_SCOPE = r"[^/\n]*[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[^/\n]*\.scope"
"""Matches the name of the control group of a single terminal window. Such a group sets no
limits."""
_STARTING_SECONDS = 2.0
"""Seconds to retry while another process starts the daemon, or the previous daemon ends."""

_OUTLIVING: "list[subprocess.Popen[bytes]]" = []


def outlive(*processes: "subprocess.Popen[bytes]") -> None:
    """Keep references to child processes that may outlive this process, since Python warns about
    running children without a reference. Each call also drops the children that have ended."""
    _OUTLIVING[:] = [*(child for child in _OUTLIVING if child.poll() is None), *processes]


class Daemon:
    """A client that starts its daemon if needed. The daemon runs `argv` with `environment`. The
    daemon's socket and lock are the files `NAME.socket` and `NAME.lock` in `folder`, which only
    this user can enter."""

    def __init__(
        self,
        folder: str,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        timeout: float,
    ) -> None:
        self._folder, self._name = folder, name
        self._argv, self._environment = argv, environment
        self._timeout = timeout

    def path(self, kind: str) -> str:
        """Return the path of the daemon's file `NAME.KIND`. `kind` is `lock` or `socket`."""
        return os.path.join(self._folder, f"{self._name}.{kind}")

    def connect(self) -> "socket.socket":
        """Connect to the daemon, after starting it if it is not running. Raises `OSError`."""
        deadline, started = time.monotonic() + _STARTING_SECONDS, False
        while True:
            try:
                return self._connect()
            except (FileNotFoundError, ConnectionRefusedError):
                if started or time.monotonic() > deadline:
                    raise
            started = self._start()
            if not started:
                time.sleep(0.01)

    def _connect(self) -> "socket.socket":
        import socket

        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self._timeout)
        try:
            with self._short_path() as path:
                connection.connect(path)
            if user_of(connection) != os.getuid():
                raise ConnectionRefusedError(f"{self.path('socket')} belongs to another user")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _short_path(self) -> Generator[str]:
        """Yield a short path of the socket through `/proc/self/fd`. A socket's path has at most 107
        bytes."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{folder}/{self._name}.socket"
        finally:
            os.close(folder)

    def _start(self) -> bool:
        """Start the daemon. Clients can connect at once, but get no answer before the daemon has
        imported its modules. Return False if another process is starting the daemon, or if the
        previous daemon has not ended yet."""
        import fcntl
        import socket

        lock = os.open(self.path("lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            with suppress(FileNotFoundError):
                os.unlink(self.path("socket"))
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                with self._short_path() as path:
                    listener.bind(path)
                listener.listen(512)
                self._execute(listener.fileno(), lock)
        finally:
            os.close(lock)
        return True

    def _execute(self, listening: int, lock: int) -> None:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        try:
            os.setsid()
            if os.fork() == 0:
                for number in CHANGED_SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                null = os.open(os.devnull, os.O_RDWR)
                high = [_high_copy(descriptor) for descriptor in (listening, lock)]
                for descriptor in (0, 1, 2):
                    os.dup2(null, descriptor)
                os.dup2(high[0], LISTENING)
                os.dup2(high[1], LISTENING + 1)
                os.closerange(LISTENING + 2, 1024)
                os.chdir("/")
                os.execvpe(self._argv[0], list(self._argv), dict(self._environment))
        finally:
            os._exit(0)


def private_folder(path: str) -> bool:
    """Create a folder that only this user can enter, if it does not exist. Return whether the
    folder exists and is private."""
    import stat

    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.lstat(path)
    except OSError:
        return False
    owned = status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode)
    return owned and not status.st_mode & 0o077


def is_possible() -> bool:
    """Return whether this system supports daemons, which need Linux and pidfd."""
    return sys.platform.startswith("linux") and hasattr(os, "pidfd_open")


def user_of(connection: "socket.socket") -> int:
    """Return the user id of the process at the other end of the connection."""
    import socket
    import struct

    form = struct.Struct("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    return form.unpack(credentials)[1]


def of_this_process() -> Iterator[object]:
    """Yield properties of this process that its children inherit, such as limits and namespaces."""
    import resource

    yield os.getuid(), os.getgid(), sorted(os.getgroups())
    yield os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            yield name, resource.getrlimit(getattr(resource, name))
    for name in ("mnt", "net", "pid", "user", "ipc", "uts"):
        with suppress(OSError):
            yield os.readlink(f"/proc/self/ns/{name}")
    yield os.uname().nodename  # Several machines may share a home folder.
    for name in ("/proc/sys/kernel/random/boot_id", "/proc/self/oom_score_adj"):
        with suppress(OSError), open(name) as file:
            yield file.read()
    with suppress(OSError), open("/proc/self/cgroup") as file:
        yield re.sub(_SCOPE, "", file.read())


def digest(value: object) -> str:
    """Return a short hash of a JSON value."""
    import hashlib

    return hashlib.sha256(json.dumps(value, default=str, sort_keys=True).encode()).hexdigest()[:16]


def _high_copy(descriptor: int) -> int:
    """Return a copy of the descriptor with a number of 64 or more."""
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64)
