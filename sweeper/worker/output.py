"""Copies the recipe's output to the log and the terminal, and passes it to the detection of pauses.
Makes one pass in bounded memory, and masks secrets first."""

import errno
import os
import select
import sys
from contextlib import suppress

from sweeper.common.redaction import Redactor
from sweeper.common.sanitize import sanitize
from sweeper.errors import StoreError
from sweeper.store.base import Store
from sweeper.worker.rate_limits import Pauses

_CHUNK = 1 << 16
_TAIL = 1 << 13
_ANSWER = 1.0
_PATIENCE = 0.1
"""Seconds to wait for the terminal before output to it is dropped."""


class Output:
    """A copier of a recipe's output from a pipe to the log at `path` and to the worker's terminal.

    A full disk or a blocked terminal does not stop the recipe. `tail` is the end of the output.
    `lost` is the number of bytes that are missing in the log. `trouble` is the last error that
    occurred when the log was written.
    """

    def __init__(self, store: Store, path: str, redactor: Redactor, pauses: Pauses) -> None:
        self._store = store
        self._path = path
        self._redactor = redactor
        self._pauses = pauses
        self._patient = True
        self._missing = 0
        self.tail = b""
        self.lost = 0
        self.trouble: str | None = None

    def copy(self, source: int, over: int) -> None:
        """Copy from the pipe `source` until all its writers have closed it. A process that the
        recipe leaves behind may keep `source` open. Therefore, when the other end of the pipe
        `over` is closed, copy only the bytes that `source` holds at that moment, and return."""
        is_over = False
        while not is_over:
            is_over = over in select.select([source, over], [], [])[0]
            chunk = _read(source, _bytes_in(source) if is_over else _CHUNK)
            if not chunk:
                break
            self._take(self._redactor.feed(chunk))
        self._take(self._redactor.end())

    def _take(self, data: bytes) -> None:
        if not data:
            return
        self._keep(data)
        self._pauses.feed(data)
        self.tail = (self.tail + data)[-_TAIL:]
        self._patient = show(data, _PATIENCE if self._patient else 0.0)

    def _keep(self, data: bytes) -> None:
        try:
            if self._missing:
                gap = f"\n[sweeper: {self._missing} bytes are missing here: {self.trouble}]\n"
                self._store.append(self._path, gap.encode())
                self._missing = 0
            self._store.append(self._path, data)
        except StoreError as error:
            if str(error) != self.trouble:  # Report it once, not for every lost line.
                self.trouble = str(error)
                say(f"sweeper: cannot write the log: {error}")
            self._missing += len(data)
            self.lost += len(data)


def _read(source: int, most: int) -> bytes:
    try:
        return os.read(source, most)
    except OSError as error:
        if error.errno != errno.EIO:  # The other side of the terminal was closed.
            raise
        return b""


def _bytes_in(pipe: int) -> int:
    import fcntl
    import termios

    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def show(data: bytes, patience: float) -> bool:
    """Write to the worker's terminal. If the terminal accepts no data for `patience` seconds, or is
    closed, return False."""
    view = memoryview(data)
    try:
        descriptor = sys.stdout.fileno()
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                if not select.select([], [descriptor], [], patience)[1]:
                    return False
    except (OSError, ValueError, AttributeError):  # The terminal is gone.
        return False
    return True


def say(line: str) -> None:
    """Print a line to the terminal. If the terminal is closed, do nothing."""
    show(line.encode("utf-8", "replace") + b"\n", _PATIENCE)


def last_word(word: str) -> None:
    """Show `word`, the outcome of the run, in the title of the tmux pane. Wait until the terminal
    has read the title, because a terminal may lose output if the process exits at once."""
    try:
        if not os.isatty(0) or not os.isatty(1) or os.tcgetpgrp(0) != os.getpgrp():
            return
    except OSError:
        return
    import termios

    with suppress(OSError, termios.error):
        before = termios.tcgetattr(0)
        quiet = [*before]
        quiet[3] &= ~(termios.ECHO | termios.ICANON)  # The terminal's reply is not user input.
        termios.tcsetattr(0, termios.TCSANOW, quiet)
        show(f"\x1b]2;sweeper: {sanitize(word)}\x1b\\\x1b[5n".encode(), _PATIENCE)
        _await_answer(0)
        termios.tcsetattr(0, termios.TCSANOW, before)


def _await_answer(descriptor: int) -> None:
    answer = b""
    while b"\x1b[0n" not in answer and select.select([descriptor], [], [], _ANSWER)[0]:
        more = os.read(descriptor, 1024)
        if not more:
            return
        answer = (answer + more)[-1024:]


def set_blocking(blocking: bool) -> None:
    """Choose whether a write to a blocked terminal waits or fails. Other programs that use the
    terminal later get the same mode."""
    with suppress(OSError, ValueError, AttributeError):
        os.set_blocking(sys.stdout.fileno(), blocking)


def sync_files(folder: str) -> None:
    """Flush the files directly in `folder`, and the folder itself, to disk."""
    with os.scandir(folder) as entries:
        paths = [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
    for path in [*paths, folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
