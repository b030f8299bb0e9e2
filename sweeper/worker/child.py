"""Starts the recipe with `fork` and `exec`, because loading `subprocess` would make every worker
slower. The recipe gets its own session and process group, no input, one pipe for standard output
and standard error, and the default signal handlers. The child process sends its group to the guard
before the exec, so killing the worker can never leave a recipe behind."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from sweeper.errors import EnvironmentFailure
from sweeper.worker.guard import Guard


class Child:
    """The recipe's process, which leads the process group of the same id. `output` is the read end
    of the pipe for its output."""

    def __init__(self, pid: int, output: int) -> None:
        self.pid = pid
        self.output = output
        self._reaped: tuple[int, int] | None = None

    def await_end(self) -> None:
        """Wait until the process has ended, without reaping it where the platform allows that.
        Until it is reaped, no other process group can get its id, so signals to the group are
        safe."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13
            self.reap()

    def reap(self) -> tuple[int, int]:
        """Reap the process. Returns its exit code (negative for a signal) and the peak memory, in
        bytes, of the process or a child that it waited for."""
        if self._reaped is None:
            _, status, usage = os.wait4(self.pid, 0)
            unit = 1 if sys.platform == "darwin" else 1024
            self._reaped = os.waitstatus_to_exitcode(status), usage.ru_maxrss * unit
        return self._reaped


def spawn(command: Sequence[str], cwd: str, environment: Mapping[str, str], guard: Guard) -> Child:
    """Start `command`. Call it while there is only one thread, because it forks. Raises
    `EnvironmentFailure` if the program or folder does not exist, and `OSError` if no process can
    be created."""
    pipes: list[int] = []
    try:
        pipes += os.pipe()
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
    # The exec closes this pipe. Text that arrives before is the reason why the exec failed.
    with os.fdopen(failed, "rb") as file:
        reason = file.read()
    if reason:
        os.close(output)
        os.waitpid(pid, 0)
        raise EnvironmentFailure(f"cannot start the recipe: {reason.decode(errors='replace')}")
    return Child(pid, output)


_DEFAULT = (
    *(signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT),
    *(signal.SIGPIPE, signal.SIGXFSZ),
)
"""Signals whose handlers Python, the worker or a shell may have changed. The recipe gets the
default handlers."""


def take_default_signals() -> None:
    """Restore the default signal handlers."""
    for number in _DEFAULT:
        signal.signal(number, signal.SIG_DFL)


def _become(
    command: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    guard: Guard,
    writing: int,
    failing: int,
) -> NoReturn:
    what = cwd
    try:
        os.setsid()
        guard.watch(os.getpid())
        take_default_signals()
        os.chdir(cwd)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        what = command[0]
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        os.write(failing, f"{what[:200]}: {error.strerror}".encode("utf-8", "replace"))
    except BaseException as error:  # noqa: BLE001 - whatever it is, this is no second worker
        os.write(failing, f"{what[:200]}: {error}".encode("utf-8", "replace"))
    os._exit(127)
