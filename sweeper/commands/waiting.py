"""`launch --wait` and `retry --wait`: show a sweep until it ends, and report the result. The
live view is a separate process, which never delays the launcher."""

import os
import signal
import subprocess
import sys
import termios
import threading
from argparse import Namespace
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from sweeper.common.sanitize import raw, sanitize
from sweeper.common.sweeper_argv import self_command
from sweeper.scheduler.progress import Summary, line, showing_progress
from sweeper.sweep.hint import hint
from sweeper.sweep.labels import plural
from sweeper.sweep.states import State
from sweeper.terminal import is_screen, say, warn

if TYPE_CHECKING:
    from sweeper.sweep.plan import Plan

_INTERRUPTED = 130
_LEAVE_SECONDS = 5.0
_RESTORE = "\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?2004l\x1b[0m"
"""Terminal codes that leave the alternate screen, show the cursor, and turn off mouse and paste
reports."""


@contextmanager
def showing(sweep: str, root: str, *, plain: bool) -> Generator[Callable[[Summary], None]]:
    """Show a sweep during the block. Yield a function that the block calls with each new
    summary."""
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
    """The live view, which runs in its own process. After the user has closed the view, a status
    bar shows the summaries."""

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
        """Start the view at the first summary. After the view is closed, show summaries in the
        status bar."""
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
        """Wait until the view is closed. After Ctrl-C in the view, interrupt this process."""
        assert self._process is not None  # noqa: S101 - it has just been started
        code = self._process.wait()
        if self._closing:
            return
        if code == _INTERRUPTED:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return
        if code:
            self._restore()
        why = f"the view ended with exit code {code}" if code else "the view is closed"
        effect = "after that, running jobs continue and nothing new is started"
        print(f"{why}; the launcher runs here until you press Ctrl-C; {effect}", file=sys.stderr)
        if self._last is not None:
            print(sanitize(line(self._last)), file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the view, and print the last summary of the sweep."""
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
            if process.returncode:  # the view had no time to restore the terminal itself
                self._restore()
        if last is None:
            return
        if shown or (process is not None and process.returncode == _INTERRUPTED):
            print(sanitize(line(last)), file=sys.stderr)
        if last.held:
            print(sanitize(f"held: {last.held}"), file=sys.stderr)

    def _restore(self) -> None:
        """Restore the terminal's modes and screen after the view was killed or failed."""
        with suppress(termios.error, OSError):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._modes)
        raw(sys.stderr).write(_RESTORE)
        sys.stderr.flush()


def follow(plan: "Plan", root: str, *, plain: bool) -> int:
    """Follow a sweep whose launcher is another process, until no job and no launcher is running.
    Return the exit code of the sweep, or 130 if interrupted."""
    from sweeper.commands import watch
    from sweeper.results.waiting import wait

    try:
        arguments = Namespace(sweep=plan.name, root=root, plain=plain, guest=None, until_ended=True)
        closed = watch.run(arguments) == 0
        status = wait(plan.name, root=root, timeout=0)
        if status.at_work and not closed:
            raise KeyboardInterrupt
        if status.at_work:
            warn(
                "the view is closed, and this command waits until the sweep ends; Ctrl-C stops "
                "only this command"
            )
            status = wait(plan.name, root=root)
    except KeyboardInterrupt:
        warn("interrupted: the running launcher continues")
        return 130
    tell_end(plan, root, status.counts.get(State.FAILED, 0))
    return status.exit_code


def tell_end(plan: "Plan", root: str, failed: int) -> None:
    """Print how to start failed runs again. If there is a metric and more than one cell, also print
    the verdict."""
    tell_failed(plan.name, root, failed)
    judged = plan.metric is not None or any(stage.metric for stage in plan.stages)
    if not judged or len({run.cell for run in plan.runs}) < 2:
        return
    from sweeper.analysis.page.verdict_line import verdict_line
    from sweeper.results.registry import Registry

    line = verdict_line(Registry(root, snapshot=True), plan.name)
    if line is not None:
        say(f"{plan.name}: {line}")
        say(f"`{hint('analyze', plan.name, root=root)}` writes the report")


def tell_failed(sweep: str, root: str, count: int) -> None:
    """Print how to start failed runs again. Print nothing if no run failed."""
    if count:
        logs = hint("logs", sweep, "--state", "failed", root=root)
        again = hint("retry", sweep, root=root)
        warn(
            f"{plural(count, 'run')} failed: `{logs}` shows their output, `{again}` starts them "
            "again"
        )


def tell_interrupted(sweep: str, root: str) -> int:
    """Print what happens to the runs after the user interrupted this process. Return 130."""
    from sweeper.sweep.folder import SweepFolder

    folder = SweepFolder.open(root, sweep)
    if not folder.store.exists(folder.plan):
        warn("interrupted: nothing was launched")
        return 130
    again = hint("resume", sweep, root=root)
    warn(f"interrupted: running jobs continue, nothing new is started; `{again}` starts the rest")
    return 130
