"""The terminal of a run under the debugger: input that the user types in the pane is sent to the
recipe. Loaded only by workers of such runs."""

import fcntl
import os
import select
import signal
import termios
import threading
import tty
from contextlib import suppress

from sweeper.errors import EnvironmentFailure
from sweeper.worker.child import Child, Guard, spawn
from sweeper.worker.fork_client import Program

_CHUNK = 1 << 12


class Terminal:
    """The terminal of the worker, in raw mode while the recipe has a terminal of its own."""

    def __init__(self) -> None:
        try:
            self._before = termios.tcgetattr(0)
        except termios.error as error:
            raise EnvironmentFailure("--debug needs a terminal, and this job has none") from error

    def spawn(self, program: Program, guard: Guard) -> Child:
        """Start the recipe on its own terminal. Raises the errors of `child.spawn`."""
        environment = {"TERM": os.environ.get("TERM", "screen"), **program.environment}
        program = program._replace(environment=environment)
        child = spawn(*program, guard, terminal=True)
        _copy_size(child.output)

        def resized(number: int, frame: object) -> None:
            del number, frame
            _copy_size(child.output)

        signal.signal(signal.SIGWINCH, resized)
        tty.setraw(0, termios.TCSANOW)
        threading.Thread(target=_relay, args=(child.output,), daemon=True).start()
        return child

    def restore(self) -> None:
        """Restore the settings that the terminal had when this object was created."""
        with suppress(OSError, termios.error):
            termios.tcsetattr(0, termios.TCSANOW, self._before)


def _relay(master: int) -> None:
    """Forward typed input until the recipe's terminal is closed."""
    with suppress(OSError):
        while select.select([0], [], [])[0]:
            data = os.read(0, _CHUNK)
            if not data:
                return
            os.write(master, data)


def _copy_size(master: int) -> None:
    with suppress(OSError):
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(master, termios.TIOCSWINSZ, size)
