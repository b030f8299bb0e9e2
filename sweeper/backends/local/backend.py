"""Runs jobs as plain processes on this machine, each in its own session so that it outlives the
launcher. Jobs of another launcher are found in the process table, or by their worker's lock
(`backends/live_workers.py`)."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import psutil

from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus
from sweeper.backends.gpu_room import GpuRoom
from sweeper.backends.live_workers import Workers
from sweeper.common.daemon import outlive
from sweeper.common.full_machine import lacking
from sweeper.errors import NoRoom, Unreachable


class LocalBackend(Backend):
    """A backend (see `sweeper.backends.base.Backend`).

    `submit`, `find`, `poll` and `cancel` first reap children that have ended. `poll` forgets the
    exit codes of ended children whose tokens are not among its arguments.
    """

    name = "local"

    def __init__(self, folder: str, options: Mapping[str, object] = MappingProxyType({})) -> None:
        self._workers = Workers(folder)
        self._gpus = GpuRoom(options, self.name)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        self._reap()
        self._gpus.submitted(jobs)
        environment = dict(os.environ)
        # At the end of a Slurm allocation, every process gets a signal.
        if "SLURM_JOB_ID" in environment:
            environment["SWEEPER_SIGNALS"] = "everybody"
        started: list[subprocess.Popen[bytes]] = []
        try:
            for job in jobs:
                self._children[job.token] = _start(job, environment)
                started.append(self._children[job.token])
        finally:
            outlive(*started)

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        self._reap()
        processes = {t: str(self._children[t].pid) for t in tokens if t in self._children}
        others = set(tokens) - processes.keys()
        processes |= {
            token: str(process.pid) for token, process in self._workers.find(others).items()
        }
        others -= processes.keys()
        return processes | dict.fromkeys(self._workers.holding(others), "elsewhere")

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        self._reap()
        for token in self._children.keys() - set(tokens):
            if self._children[token].returncode is not None:
                del self._children[token]
        children = {t: child for t in tokens if (child := self._children.get(t)) is not None}
        ended = {
            t: child.returncode for t, child in children.items() if child.returncode is not None
        }
        alive = children.keys() - ended.keys()
        # A job that was started twice may have one ended process and one that runs elsewhere.
        alive |= self._workers.holding(set(tokens) - alive)
        return {token: _status(token in alive, ended, token) for token in tokens}

    def cancel(self, tokens: Sequence[str]) -> None:
        self._reap()
        others = self._workers.find(set(tokens) - self._children.keys())
        children = [child for t in tokens if (child := self._children.get(t)) is not None]
        # `send_signal` of both kinds checks that the process still runs, so a reused pid gets no
        # signal.
        for process in (*children, *others.values()):
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)

    def logs(self, token: str) -> Iterator[str]:
        del token
        return iter(())

    def preflight(self, resources: Sequence[Mapping[str, object]]) -> None:
        self._gpus.check(resources)

    def room(self, resources: Mapping[str, object] | None = None) -> int | None:
        return self._gpus.room(resources)

    def _reap(self) -> None:
        for child in self._children.values():
            child.poll()


def _start(job: JobSpec, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a job's process. Raises `NoRoom` if the machine lacks resources, and `Unreachable` for
    other errors."""
    try:
        return subprocess.Popen(
            job.argv,
            cwd=job.cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # The worker writes the log.
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        if (lack := lacking(error)) is not None:
            raise NoRoom(f"{lack}: the next job is started when resources are free") from error
        raise Unreachable(f"cannot start {job.argv[0]}: {error.strerror}") from error


def _status(alive: bool, ended: Mapping[str, int], token: str) -> JobStatus:
    if alive:
        return JobStatus(JobState.RUNNING)
    if token in ended:
        return JobStatus(JobState.ENDED, ended[token])
    return JobStatus(JobState.ABSENT)
