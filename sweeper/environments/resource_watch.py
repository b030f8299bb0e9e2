"""Monitors the resources that all processes of an environment use together, which limits per
process cannot bound: memory and the number of files. It runs outside, so nothing inside can
interfere."""

import itertools
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress

from sweeper.environments.base import Ended, Limits

_EVERY_SECONDS = 0.1
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Watched:
    """An environment's first process, its limits, and a function to end its processes."""

    def __init__(self, pid: int, limits: Limits, end_all: Callable[[], None]) -> None:
        self.pid, self.limits, self.end_all = pid, limits, end_all
        self._ended: Ended = ""
        self._most_files, self._just_ended = limits.files, False

    def why(self) -> Ended:
        """Return why it was last ended, and clear that."""
        reason, self._ended = self._ended, ""
        return reason

    def look(self) -> None:
        """End the environment's processes if they exceed a limit. Files stay, because they are the
        task's."""
        processes = list(itertools.islice(below(self.pid), 4 * self.limits.processes + 2))
        too_much = sum(map(_private_mb, processes)) > self.limits.memory_mb
        if too_much:
            # On a busy machine, killed processes may not have released their memory yet. The next
            # command must not be ended for that.
            alive = [pid for pid in processes if not _is_dying(pid)]
            too_much = sum(map(_private_mb, alive)) > self.limits.memory_mb
        ended: Ended = "memory" if too_much else ""
        with suppress(OSError):
            if not ended:
                system = os.statvfs(f"/proc/{self.pid}/root/")
                files = system.f_files - system.f_ffree
                if self._just_ended:  # tolerate the existing files, so that they can be removed
                    self._most_files = max(files, self._most_files)
                ended = "files" if files > self._most_files else ""
        self._just_ended = bool(ended)
        if ended:
            self._ended = ended
            self.end_all()


def below(pid: int) -> Iterator[int]:
    """Yield all descendants of a process."""
    left = [pid]
    while left:
        at = left.pop()
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{at}/task"):
                with open(f"/proc/{at}/task/{thread}/children", encoding="ascii") as file:
                    children = [int(child) for child in file.read().split()]
                yield from children
                left += children


def _private_mb(pid: int) -> float:
    """Return a process's memory that is not backed by files."""
    with suppress(OSError, IndexError, ValueError):
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            fields = file.read().split()
        return (int(fields[1]) - int(fields[2])) * _PAGE_MB
    return 0.0


def _is_dying(pid: int) -> bool:
    """Return whether a process was killed and has not run since."""
    with suppress(OSError, IndexError, ValueError):
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            waiting = [line.split()[1] for line in file if line.startswith(("SigPnd:", "ShdPnd:"))]
        return any(int(signals, 16) >> (signal.SIGKILL - 1) & 1 for signals in waiting)
    return False


_lock = threading.Lock()
_watched: "weakref.WeakSet[Watched]" = weakref.WeakSet()
_thread: threading.Thread | None = None


def watch(one: Watched) -> None:
    """Monitor an environment for as long as the object is referenced."""
    global _thread  # noqa: PLW0603 -- one for all environments of this process
    with _lock:
        _watched.add(one)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_look_again, name="environments", daemon=True)
            _thread.start()


def unwatch(one: Watched) -> None:
    """Stop to monitor an environment."""
    with _lock:
        _watched.discard(one)


def _look_again() -> None:
    while True:
        time.sleep(_EVERY_SECONDS)
        with _lock:
            known = list(_watched)
        for one in known:
            one.look()
        del known
