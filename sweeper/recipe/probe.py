"""One question to the recipe's interpreter: `bootstrap.py check` in a process of its own, of which
nothing is left running.

The process can be started before the question is known: it waits for a byte. Most recipes run in
sweeper's own interpreter and in the current folder, so `sweeper plan` starts that one at once, and
it gets ready while the grid is read (`ahead`).

Loaded first of all, so: the standard library, and little of it.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

from sweeper.command import BOOTSTRAP

TYPE_CHECKING = False  # typing itself costs the start some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

__all__ = ["Answer", "Probe", "ahead", "probe"]


_ready: "list[Probe]" = []
"""The one that was started ahead, until somebody takes it."""


class Answer:
    """How the process ended (negative: by which signal), what it answered, and what it, or the
    recipe, printed."""

    def __init__(self, code: int, output: bytes, printed: str) -> None:
        self.code, self.output, self.printed = code, output, printed


class Probe:
    """The process, to be asked once or closed. Raises OSError or ValueError when it does not
    start."""

    meanwhile: "Callable[[], object] | None" = None
    """Called once the process has been asked, while it answers."""

    def __init__(self, python: str, cwd: str, env: Mapping[str, str]) -> None:
        self.key = python, os.path.realpath(cwd), dict(env)
        # Files and not pipes: what the import has started may hold their ends open for ever, and
        # who does not read must not keep us waiting.
        self._files = [_temporary(), _temporary(), _temporary()]
        waits, self._go = os.pipe()
        try:
            self._child = subprocess.Popen(
                [python, BOOTSTRAP, "check", str(waits)],
                stdin=self._files[0],
                stdout=self._files[1],
                stderr=self._files[2],
                cwd=cwd,
                env=env,
                pass_fds=(waits,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._go)
            for file in self._files:
                file.close()
            raise
        finally:
            os.close(waits)

    def ask(self, request: bytes, seconds: float) -> Answer:
        """Ask, wait for the answer, and close. Raises TimeoutError after `seconds`."""
        asked, answered, printed = self._files
        try:
            asked.write(request)
            asked.flush()
            asked.seek(0)
            with suppress(BrokenPipeError):  # it has ended already: its code says how
                os.write(self._go, b"!")
            if self.meanwhile is not None:
                self.meanwhile()
            _wait(self._child, seconds)
            self._kill()
            answered.seek(0)
            printed.seek(0)
            text = printed.read().decode(errors="replace")
            return Answer(self._child.returncode, answered.read(), text)
        finally:
            self.close()

    def close(self) -> None:
        """End the process and forget the rest; may be done again."""
        self._kill()
        if self._go >= 0:
            os.close(self._go)
            self._go = -1
        for file in self._files:
            file.close()

    def _kill(self) -> None:
        if self._child.returncode is not None:
            return
        # Its session is its own, so the group is it and what the import has started. As long as it
        # is not waited for, no other group has its number.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


@contextmanager
def ahead(meanwhile: "Callable[[], object] | None" = None) -> Generator[None]:
    """Have the most likely process get ready; at the end of the block it is gone, asked or not.
    `meanwhile` is called while it answers."""
    with suppress(OSError, ValueError):  # whoever needs it tells what is wrong
        started = Probe(sys.executable, os.getcwd(), os.environ)
        started.meanwhile = meanwhile
        _ready.append(started)
    try:
        yield
    finally:
        while _ready:
            _ready.pop().close()


def probe(python: str, cwd: str, env: Mapping[str, str]) -> Probe:
    """The process that was started ahead, if it is such a one, else a new one."""
    if _ready and _ready[0].key == (python, os.path.realpath(cwd), dict(env)):
        return _ready.pop()
    return Probe(python, cwd, env)


def _wait(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Wait until the child has ended; it is not reaped, so that its number stays its own. Raises
    TimeoutError. `Popen.wait` would look only every 50 ms."""
    try:
        descriptor = os.pidfd_open(child.pid)
    except (AttributeError, OSError):  # another system, or a sandbox
        deadline = time.monotonic() + seconds
        while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(0.005)
        return
    try:
        if not select.select([descriptor], [], [], seconds)[0]:
            raise TimeoutError
    finally:
        os.close(descriptor)


def _temporary() -> "IO[bytes]":
    """A file without a name."""
    if hasattr(os, "memfd_create"):  # `tempfile` takes milliseconds to load
        return os.fdopen(os.memfd_create("sweeper"), "w+b")
    import tempfile

    return tempfile.TemporaryFile()
