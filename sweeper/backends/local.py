"""Jobs as plain processes of this machine, each in a session of its own so that they outlive the
launcher. A job is found again by the command line of its worker in the process table."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress

import psutil

from sweeper.backends.base import JobSpec, JobState, JobStatus
from sweeper.errors import Unreachable

__all__ = ["LocalBackend", "open_backend"]


def open_backend(sweep: str, folder: str) -> "LocalBackend":
    """The local backend for one sweep."""
    del sweep  # the folder says it all
    return LocalBackend(folder)


class LocalBackend:
    """See `sweeper.backends.base.Backend`.

    A token is known by the worker's last arguments, `<folder> <token>`: the folder keeps apart
    sweeps that share a run.
    """

    name = "local"

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._adopted: dict[str, psutil.Process] = {}

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        for job in jobs:
            try:
                self._children[job.token] = subprocess.Popen(
                    job.argv,
                    cwd=job.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # the worker keeps the log
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                raise Unreachable(f"cannot start {job.argv[0]}: {error.strerror}") from error

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        self._adopt(set(tokens) - set(self._children))
        known = {t: str(self._children[t].pid) for t in tokens if t in self._children}
        return known | {t: str(self._adopted[t].pid) for t in tokens if t in self._adopted}

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        self._reap(set(tokens))
        self._adopt(set(tokens) - set(self._children) - set(self._adopted))
        return {token: self._status(token) for token in tokens}

    def cancel(self, tokens: Sequence[str]) -> None:
        for token in self.find(tokens):
            # Either looks first whether the process has ended and its pid is another's by now.
            process = self._children.get(token) or self._adopted[token]
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)

    def logs(self, token: str) -> Iterator[str]:
        del token
        return iter(())

    def _status(self, token: str) -> JobStatus:
        child = self._children.get(token)
        if child is not None:
            code = child.poll()
            if code is None:
                return JobStatus(JobState.RUNNING)
            return JobStatus(JobState.ENDED, code)
        process = self._adopted.get(token)
        if process is None:
            return JobStatus(JobState.ABSENT)
        # psutil compares the start time too, so that a pid used again is not taken for ours.
        try:
            alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            alive = False
        return JobStatus(JobState.RUNNING if alive else JobState.ABSENT)

    def _reap(self, wanted: set[str]) -> None:
        """Let go of the children that have ended and that nobody asks about any more."""
        for token in set(self._children) - wanted:
            if self._children[token].poll() is not None:
                del self._children[token]

    def _adopt(self, wanted: set[str]) -> None:
        """Look through the process table for workers that another launcher started."""
        if not wanted:
            return
        found: dict[int, tuple[str, psutil.Process]] = {}
        for process in psutil.process_iter():
            try:
                arguments = process.cmdline()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            if len(arguments) > 2 and arguments[-2] == self._folder and arguments[-1] in wanted:
                found[process.pid] = arguments[-1], process
        for token, process in found.values():
            with suppress(psutil.NoSuchProcess):
                # What a worker forks has its command line, and is not the job.
                if process.ppid() not in found:
                    self._adopted[token] = process
