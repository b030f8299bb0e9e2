"""Shows a sweep during `launch --wait` and `retry --wait`: with the live view on a terminal, else
as lines.

The view is a process of its own (`sweeper watch`) that reads the store, so it never holds up the
launcher. When it is closed or breaks, the launcher goes on with a progress bar instead. Ctrl-C in
the view interrupts the launcher.
"""

import os
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress

from sweeper.common.sanitize import raw, sanitize
from sweeper.common.sweeper_argv import self_command
from sweeper.scheduler.progress import Summary, line, showing_progress
from sweeper.terminal import is_screen

_INTERRUPTED = 130
_LEAVE_SECONDS = 5.0
_RESTORE = "\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?2004l\x1b[0m"
"""Leaves the alternate screen, shows the cursor, ends mouse and paste reports."""


@contextmanager
def showing(sweep: str, root: str, *, plain: bool) -> Generator[Callable[[Summary], None]]:
    """Yield a function that shows a summary of the sweep at `root`."""
    if plain or not is_screen():
        with showing_progress() as notify:
            yield notify
        return
    view = _View(sweep, root)
    try:
        yield view.notify
    finally:
        view.close()


class _View:
    """The view's process, and the bar that replaces it when it is closed."""

    def __init__(self, sweep: str, root: str) -> None:
        guest = ("--guest", str(os.getpid()))
        self._command = self_command("watch", sweep, "--root", root, *guest)
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: threading.Thread | None = None
        self._last: Summary | None = None
        self._closing = False
        self._bar = ExitStack()
        self._plain: Callable[[Summary], None] | None = None
        self._modes = termios.tcgetattr(sys.stdin)

    def notify(self, summary: Summary) -> None:
        """Show a summary in the bar; the view reads the store by itself."""
        self._last = summary
        if self._process is None:
            if summary.finished:
                return  # nothing to watch
            sys.stdout.flush()
            self._process = subprocess.Popen(self._command)
            self._waiting = threading.Thread(target=self._wait, daemon=True)
            self._waiting.start()
        elif self._process.poll() is not None:
            if self._plain is None:
                self._plain = self._bar.enter_context(showing_progress())
            self._plain(summary)

    def _wait(self) -> None:
        """Wait until the view is closed, and react to its exit code."""
        assert self._process is not None  # noqa: S101 - it has just been started
        code = self._process.wait()
        if self._closing:
            return
        if code == _INTERRUPTED:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return
        if code:
            self._restore()
        why = f"the view ended ({code})" if code else "the view is closed"
        effect = "running jobs continue, nothing new is started"
        print(f"{why}; the launcher works here, Ctrl-C ends it: {effect}", file=sys.stderr)
        if self._last is not None:
            print(sanitize(line(self._last)), file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the view, and print how the sweep stands."""
        self._closing = True
        self._bar.close()
        process, last = self._process, self._last
        shown = process is None or process.poll() is None
        if process is not None and shown:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.returncode:  # it had no time to restore the terminal itself
                self._restore()
        if last is None:
            return
        if shown or (process is not None and process.returncode == _INTERRUPTED):
            print(sanitize(line(last)), file=sys.stderr)
        if last.held:
            print(sanitize(f"held: {last.held}"), file=sys.stderr)

    def _restore(self) -> None:
        """Restore the terminal after a view that could not do so itself."""
        with suppress(termios.error, OSError):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._modes)
        raw(sys.stderr).write(_RESTORE)
        sys.stderr.flush()
