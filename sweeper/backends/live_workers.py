"""Finds the live workers of a sweep on this machine by their command lines and locks, whichever
user or launcher started them. The backends `local` and `tmux` search for the worker of a job before
they report that the job does not exist."""

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property

import psutil

from sweeper.common.full_machine import lacking
from sweeper.errors import NoRoom, Unreachable
from sweeper.sweep import worker_lock
from sweeper.sweep.folder import SweepFolder, attempt_of

_Identity = tuple[int, int]


class Workers:
    """The live workers of the sweep at `folder`, which may be a remote address."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._processes: dict[str, psutil.Process] = {}

    def find(self, tokens: Iterable[str]) -> dict[str, psutil.Process]:
        """Return a dict from token to process, for the live workers that this process can see.
        Raises `Unreachable` if the process table cannot be read."""
        wanted = set(tokens)
        self._processes = {t: p for t, p in self._processes.items() if t not in wanted or _lives(p)}
        missing = wanted - self._processes.keys()
        if missing:
            self._processes |= self._look(missing)
        return {token: self._processes[token] for token in wanted & self._processes.keys()}

    def holding(self, tokens: Iterable[str]) -> set[str]:
        """Return the tokens whose worker is alive. A worker that this process cannot see is found
        by its lock. Raises `Unreachable` if the process table cannot be read."""
        wanted = set(tokens)
        held = {token for token in wanted if worker_lock.is_held(self._job(token))}
        return held | self.find(wanted - held).keys()

    def _job(self, token: str) -> str:
        return os.path.join(self._sweep.store.root, self._sweep.job(*attempt_of(token)))

    @cached_property
    def _sweep(self) -> SweepFolder:
        return SweepFolder.at_address(self._folder)

    def _look(self, wanted: set[str]) -> dict[str, psutil.Process]:
        identity = _identity(self._folder)
        processes: dict[int, tuple[str, psutil.Process]] = {}
        try:
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    words = process.cmdline()
                    if (
                        len(words) > 2
                        and words[-1] in wanted
                        and self._is_ours(process.pid, words[-2], identity)
                    ):
                        processes[process.pid] = words[-1], process
        except OSError as error:
            if (lack := lacking(error)) is not None:
                raise NoRoom(f"cannot read the process table: {lack}") from error
            raise Unreachable(f"cannot read the process table: {error.strerror}") from error
        workers: dict[str, psutil.Process] = {}
        for token, process in processes.values():
            with suppress(psutil.Error):
                # A child that a worker has forked has the same command line, but is not the job.
                if process.ppid() not in processes and _lives(process):
                    workers[token] = process
        return workers

    def _is_ours(self, pid: int, folder: str, identity: _Identity | None) -> bool:
        if folder == self._folder:
            return True
        if identity is None or os.path.basename(folder) != os.path.basename(self._folder):
            return False
        # The path as the process sees it, the path as we see it, and its working folder.
        seen = (f"/proc/{pid}/root{folder}", folder, f"/proc/{pid}/cwd")
        return any(_identity(path) == identity for path in seen)


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _lives(process: psutil.Process) -> bool:
    """Return whether the process lives. Another process that reuses the pid does not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True  # The process exists, but this user may not inspect it.
