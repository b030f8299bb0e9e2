"""Starts the recipe with `fork` and `exec`, since loading `subprocess` would slow every worker.
Also starts a guard process that kills the recipe when its worker is killed. Uses only the standard
library."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from sweeper.common.daemon import CHANGED_SIGNALS
from sweeper.errors import EnvironmentFailure


class Guard:
    """A process that kills a process group when the worker that created the guard dies. Processes
    that leave the group (daemons) are not killed. Creating a guard forks, so the worker must still
    have only one thread."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(self._writing)
            raise
        if self._pid == 0:
            try:
                os.close(self._writing)
                _wait(reading)
            finally:
                os._exit(0)
        os.close(reading)

    def watch(self, group: int) -> None:
        """Set the process group that the guard kills when the worker dies; 0 means no group."""
        os.write(self._writing, b"%d\n" % group)

    def dismiss(self) -> None:
        """End the guard without killing the group. Call this when the group has ended, because a
        new process group may get the same id."""
        with suppress(OSError):  # The guard may have been killed.
            os.write(self._writing, b"0\n")
        os.close(self._writing)
        # Kill the guard, because a guard that was stopped (SIGSTOP) would not read a message.
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _wait(reading: int) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Keep only the pipe open, not the worker's terminal or the recipe's output.
    os.dup2(reading, 0)
    os.closerange(1, max(1024, reading + 1))
    message = b""
    while chunk := os.read(0, 64):
        message += chunk
    groups = [int(line) for line in message.split()]
    if groups and groups[-1]:
        with suppress(ProcessLookupError):
            os.killpg(groups[-1], signal.SIGKILL)


class Child:
    """The recipe's process, which is the leader of a process group. `output` is the read end of
    the pipe for the recipe's output."""

    def __init__(self, pid: int, output: int) -> None:
        self.pid = pid
        self.output = output
        self._reaped: tuple[int, int] | None = None

    def await_end(self) -> None:
        """Wait until the process has ended, without reaping it if the platform allows that.
        Until the process is reaped, no other process group can get its id, so signals to the
        group are safe."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13 lacks this function.
            self.reap()

    def reap(self) -> tuple[int, int]:
        """Reap the process. Return its exit code (negative for a signal) and its peak memory in
        bytes. If a child of the process had a larger peak, return this peak instead."""
        if self._reaped is None:
            _, status, usage = os.wait4(self.pid, 0)
            unit = 1 if sys.platform == "darwin" else 1024
            self._reaped = os.waitstatus_to_exitcode(status), usage.ru_maxrss * unit
        return self._reaped


def spawn(
    command: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    guard: Guard,
    *,
    terminal: bool = False,
) -> Child:
    """Start `command`. With `terminal`, the command runs on a new pseudo-terminal, and
    `Child.output` is its master side. Since `spawn` forks, call it while there is only one thread.
    Raises `EnvironmentFailure` if the command cannot be executed, for example because the program
    or `cwd` does not exist, and `OSError` if no process can be created."""
    pipes: list[int] = []
    try:
        pipes += os.openpty() if terminal else os.pipe()
        pipes += os.pipe()
        pid = os.fork()
    except OSError:
        for descriptor in pipes:
            os.close(descriptor)
        raise
    output, writing, failed, failing = pipes
    if pid == 0:
        _become(command, cwd, environment, guard, writing, failing)
    os.close(writing)
    os.close(failing)
    # A successful exec closes this pipe. Otherwise the reason why it failed arrives first.
    with os.fdopen(failed, "rb") as file:
        reason = file.read()
    if reason:
        os.close(output)
        os.waitpid(pid, 0)
        raise EnvironmentFailure(f"cannot start the recipe: {reason.decode(errors='replace')}")
    return Child(pid, output)


def _take_terminal(descriptor: int) -> None:
    """Make a terminal the controlling terminal of this process's session."""
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


def _become(
    command: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    guard: Guard,
    writing: int,
    failing: int,
) -> NoReturn:
    place = cwd
    try:
        os.setsid()
        guard.watch(os.getpid())
        for number in CHANGED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd)
        if os.isatty(writing):
            _take_terminal(writing)
            os.dup2(writing, 0)
        else:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        place = command[0]
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        os.write(failing, f"{place[:200]}: {error.strerror}".encode("utf-8", "replace"))
    except BaseException as error:  # noqa: BLE001 - whatever it is, this is no second worker
        os.write(failing, f"{place[:200]}: {error}".encode("utf-8", "replace"))
    os._exit(127)
