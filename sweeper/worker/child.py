"""Start the recipe, by hand: loading `subprocess` would cost every worker more than this.

The recipe gets a session and process group of its own, no input, one pipe for both outputs, and the
signals as they are by default. The guard hears of the group from the recipe's own process before
it becomes the recipe: there is no moment at which killing the worker leaves it behind.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from sweeper.errors import EnvironmentFailure
from sweeper.worker.guard import Guard

__all__ = ["Child", "spawn"]


class Child:
    """The recipe's process, which leads the group of the same id. `output` is the reading end of
    what it prints."""

    def __init__(self, pid: int, output: int) -> None:
        self.pid = pid
        self.output = output
        self._reaped: tuple[int, int] | None = None

    def await_end(self) -> None:
        """Return when it has ended, and leave it unreaped where that can be: until then its group's
        id is nobody else's, and what is left of the group can be signalled."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13
            self.reap()

    def reap(self) -> tuple[int, int]:
        """How it ended (negative: by that signal), and the bytes of memory that its largest process
        had: of itself, and of its children as far as it waited for them."""
        if self._reaped is None:
            _, status, usage = os.wait4(self.pid, 0)
            unit = 1 if sys.platform == "darwin" else 1024
            self._reaped = os.waitstatus_to_exitcode(status), usage.ru_maxrss * unit
        return self._reaped


def spawn(command: Sequence[str], cwd: str, environment: Mapping[str, str], guard: Guard) -> Child:
    """Start `command`. Call it while there is one thread: it forks. Raises `EnvironmentFailure`
    when there is no such program or folder, `OSError` when there is no process to be had."""
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
    # Closed by the exec: what comes until then is why there was none.
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
"""What Python, the worker, or a shell that put us into the background may have changed."""


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
        for number in _DEFAULT:
            signal.signal(number, signal.SIG_DFL)
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
