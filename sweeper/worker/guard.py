"""The guard: a process that kills the recipe when its worker is killed.

A worker that gets SIGKILL cannot stop its recipe, which would run on in parallel with the next
attempt. So the worker forks a guard before it starts the recipe. The guard waits for the end of a
pipe that the worker holds. When the worker is gone, for whatever reason, the guard kills the
recipe's process group. Uses only the standard library.
"""

import os
import signal
from contextlib import suppress


class Guard:
    """Kills a process group when this process dies. Create it while there is only one thread,
    because it forks. Processes that leave the group (daemons) escape it."""

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
        """Set the process group to kill when this process dies."""
        os.write(self._writing, b"%d\n" % group)

    def dismiss(self) -> None:
        """End the guard without killing anything. The group has ended, and another one may get its
        id."""
        with suppress(OSError):  # the guard may have been killed
            os.write(self._writing, b"0\n")
        os.close(self._writing)
        # Kill it: a guard that was stopped (SIGSTOP) would not read the message.
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _wait(reading: int) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Keep only the pipe open: not the worker's terminal, not the recipe's output.
    os.dup2(reading, 0)
    os.closerange(1, max(1024, reading + 1))
    said = b""
    while chunk := os.read(0, 64):
        said += chunk
    groups = [int(line) for line in said.split()]
    if groups and groups[-1]:
        with suppress(ProcessLookupError):
            os.killpg(groups[-1], signal.SIGKILL)
