"""Starts a launcher that outlives the command that starts it: in a tmux window, or as a process of
its own with a log file.

The launcher is `launching.py` run as a module. The caller waits until the launcher has published
its first observations: they say that it holds the sweep, or why it gave up.
"""

import fcntl
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

from sweeper.errors import EnvironmentFailure, NotFound, StoreError
from sweeper.launcher import remote_recovery
from sweeper.scheduler import environment, parallelism
from sweeper.store.local import refuse_links
from sweeper.sweep import lock
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.hint import hint

_START_SECONDS = 60.0
"""Time limit for a detached launcher to take its sweep's lock, which is slow on a busy machine. A
launcher that fails earlier is reported at once."""
_FIRST_SECONDS = 3.0
"""Time limit for the first step of a detached launcher. A backend may refuse the sweep in it."""
_ENDS = (0, 3, 4)
"""Exit codes of a launcher that did its work."""


def start_detached(folder: SweepFolder, places: Collection[str], smoke: bool = False) -> None:
    """Start a launcher that outlives this process, and wait until it has taken over. Raises
    `EnvironmentFailure` if it failed or gave up, `StoreError` if it did not start."""
    before = _published(folder)
    command = [sys.executable, "-P", "-m", "sweeper.launcher.launching", folder.address]
    command += ["--smoke"] if smoke else []
    if folder.store.is_remote:
        command += ["--env", environment.env_file(folder.address)]
    if "tmux" in places:
        where = f"its window: `{hint('attach', folder.name, root=folder.store.root)}`"
        start_again_or_raise = _in_a_window(folder, command)
    else:
        kept = folder.store.local_path(folder.launcher_log)
        if kept is not None:
            refuse_links(folder.address, kept)
        where = kept or remote_recovery.launcher_log(folder)
        start_again_or_raise = _on_its_own(command, where)
    pause = 0.05 if not folder.store.is_remote else 0.5
    deadline, again = time.monotonic() + _START_SECONDS, time.monotonic() + 1
    held = False
    while time.monotonic() < deadline:
        if _has_begun(folder, before):
            return
        if not held and lock.is_held(folder):
            held, deadline = True, time.monotonic() + _FIRST_SECONDS
        time.sleep(pause)
        if not held and time.monotonic() >= again:
            start_again_or_raise()
            again += 1
    if not lock.is_held(folder):
        start_again_or_raise()
        raise StoreError(f"the launcher of {folder.name!r} did not start: see {where}")


def _in_a_window(folder: SweepFolder, command: Sequence[str]) -> Callable[[], object]:
    """Start the launcher in a tmux window. Returns a function that starts it again, since an
    earlier launcher that was about to exit may have been in the window."""
    from sweeper.backends.tmux.backend import ensure_view
    from sweeper.backends.tmux.server import TmuxServer

    server = TmuxServer()
    ensure_view(server, folder.name, folder.address)
    window = folder.name, folder.address, "launcher", command
    start_again_or_raise = partial(server.ensure_window, *window, parallelism.handed_on())
    start_again_or_raise()
    return start_again_or_raise


def _on_its_own(command: Sequence[str], where: str) -> Callable[[], object]:
    """Start the launcher with a log file. Returns a function that raises `EnvironmentFailure` with
    the log's last line if the launcher has failed."""
    with open(where, "ab") as log:
        with suppress(OSError):  # a disk without locks
            # The launcher inherits the lock, which keeps `sweeper gc` from removing its log.
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
        begin = log.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    def start_again_or_raise() -> None:
        if process.poll() in (None, *_ENDS):
            return
        with open(where, "rb") as log:
            log.seek(begin)
            said = log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise EnvironmentFailure(
            said.removeprefix("sweeper: ") or f"the launcher ended with {process.returncode}"
        )

    return start_again_or_raise


def _published(folder: SweepFolder) -> object:
    """The last launcher's observations, which change when another launcher begins."""
    with suppress(NotFound):
        return folder.store.read(folder.observations)
    return None


def _has_begun(folder: SweepFolder, before: object) -> bool:
    """Whether the published observations differ from `before`. Raises `EnvironmentFailure` if they
    say why the launcher gave up."""
    if _published(folder) == before:
        return False
    seen = folder.read_observations()
    if seen.gave_up:
        raise EnvironmentFailure(str(seen.held))
    return True
