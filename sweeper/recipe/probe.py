"""Sends one request to the recipe's interpreter. The process that answers runs `start.py check`,
and can be started before the request is known. This module is loaded first, so it imports few
others."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress

from sweeper.common.sweeper_argv import BOOTSTRAP

TYPE_CHECKING = False  # importing typing slows the start by milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

_GLANCE = 4096
_ready: "list[Probe]" = []
"""The process that was started in advance, until it is used."""


class Answer:
    """The result of a request: the exit code (negative: a signal), the answer in JSON, and
    everything that the process or the recipe has printed."""

    def __init__(self, code: int, output: bytes, printed: str) -> None:
        self.code, self.output, self.printed = code, output, printed


class Probe:
    """A process that answers one request. The constructor raises OSError or ValueError if the
    process does not start."""

    meanwhile: "Callable[[], object] | None" = None
    """A function that is called while the process answers."""

    def __init__(
        self, python: str, cwd: str, env: Mapping[str, str], early: Sequence[str] = ()
    ) -> None:
        self.key = python, os.path.realpath(cwd), dict(env)
        # Files instead of pipes: processes that the import starts may hold a pipe open forever, and
        # a reader that does not read must not block us.
        self._files = [_temporary(), _temporary(), _temporary()]
        waits, self._go = os.pipe()
        try:
            self._child = subprocess.Popen(
                [python, BOOTSTRAP, "check", str(waits), *early],
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
        """Send the request, wait for the answer, and close. Raises TimeoutError after
        `seconds`."""
        request_file, answered, printed = self._files
        try:
            request_file.write(request)
            request_file.flush()
            request_file.seek(0)
            # If the process has already ended, its exit code is the result.
            with suppress(BrokenPipeError):
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
        """End the process, and close its files. May be called again."""
        self._kill()
        if self._go >= 0:
            os.close(self._go)
            self._go = -1
        for file in self._files:
            file.close()

    def _kill(self) -> None:
        if self._child.returncode is not None:
            return
        # The child has its own session, so its group consists of the child and the processes that
        # the import has started. No other group can get its number before `wait` returns.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


@contextmanager
def ahead(
    words: Sequence[str] = (), meanwhile: "Callable[[], object] | None" = None
) -> Generator[None]:
    """Start a process that can inspect a recipe. End the process when the `with` block ends.
    `words` are command-line arguments. `meanwhile` is called between a request and its answer."""
    with suppress(OSError, ValueError):  # The code that needs it reports the error.
        started = Probe(sys.executable, os.getcwd(), os.environ, _early(words))
        started.meanwhile = meanwhile
        _ready.append(started)
    try:
        yield
    finally:
        while _ready:
            _ready.pop().close()


def _early(words: Sequence[str]) -> list[str]:
    """Return the modules of sweeper's own recipes that are used by the grids in `words`. Recipes
    of users may not be imported before the grid is checked."""
    recipes = os.path.join(os.path.dirname(os.path.dirname(BOOTSTRAP)), "recipes")
    names: list[str] = []
    for grid in filter(os.path.isfile, words):
        with open(grid, errors="replace") as file:
            names += [line[7:].strip() for line in file.readlines(_GLANCE) if line[:7] == "recipe:"]
    return [
        f"sweeper.recipes.{name}"
        for name in names
        if name.isidentifier() and os.path.isfile(os.path.join(recipes, f"{name}.py"))
    ]


def probe(python: str, cwd: str, env: Mapping[str, str]) -> Probe:
    """Return the process started by `ahead` if it has the same arguments, else a new one."""
    if _ready and _ready[0].key == (python, os.path.realpath(cwd), dict(env)):
        return _ready.pop()
    return Probe(python, cwd, env)


def _wait(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Wait until the child has ended, without reaping it, so that no other process gets its id.
    Raises TimeoutError."""
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
    """Open a temporary file without a name."""
    if hasattr(os, "memfd_create"):  # `tempfile` takes milliseconds to load.
        return os.fdopen(os.memfd_create("sweeper"), "w+b")
    import tempfile

    return tempfile.TemporaryFile()
