"""What outlives a worker that is killed: a process that takes the recipe with it.

A worker that gets SIGKILL can do nothing for its recipe, which would go on beside the next
attempt. The guard is forked off before the recipe starts and does nothing but wait for the end of a
pipe that the worker holds. When the worker is gone, however it went, the guard kills the recipe's
process group. Standard library only.
"""

import os
import signal
from contextlib import suppress

__all__ = ["Guard"]


class Guard:
    """Watches over one process group on behalf of this process. Make it while there is one
    thread: it forks. Processes that leave the recipe's group (daemons) escape it."""

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
        """The process group to kill when this process has gone."""
        os.write(self._writing, b"%d\n" % group)

    def dismiss(self) -> None:
        """The group has ended, or its id may become another's: the guard goes, and kills none."""
        with suppress(OSError):  # somebody killed the guard
            os.write(self._writing, b"0\n")
        os.close(self._writing)
        # It has nothing left to do, and may have been stopped: do not wait for it to find out.
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _wait(reading: int) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Nothing of the worker's is kept open but the pipe: not its terminal, not the recipe's output.
    os.dup2(reading, 0)
    os.closerange(1, max(1024, reading + 1))
    said = b""
    while chunk := os.read(0, 64):
        said += chunk
    groups = [int(line) for line in said.split()]
    if groups and groups[-1]:
        with suppress(ProcessLookupError):
            os.killpg(groups[-1], signal.SIGKILL)
