"""Errors of a machine at its limits, and how they are handled."""

import errno
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support import written

from sweeper import cli
from sweeper.backends.base import JobSpec, JobState
from sweeper.backends.local.backend import LocalBackend
from sweeper.common import full_machine as limits
from sweeper.errors import NoRoom, StoreError


def test_errors_of_a_full_machine_are_recognised():
    assert "processes or threads" in str(limits.lacking(RuntimeError("can't start new thread")))
    assert "`ulimit -n`" in str(limits.lacking(OSError(errno.EMFILE, "Too many open files")))
    assert "`ulimit -u`" in str(limits.lacking(BlockingIOError(errno.EAGAIN, "again")))
    assert limits.lacking(OSError(errno.ENOENT, "no such file")) is None
    assert limits.lacking(RuntimeError("anything else")) is None
    error = StoreError("state: Too many open files in system")
    error.__cause__ = OSError(errno.ENFILE, "Too many open files in system")
    assert limits.lacking(error) == "this machine has no more open files"


def test_only_errors_of_a_full_machine_are_retried():
    pauses: list[float] = []
    left: list[Exception] = [OSError(errno.EAGAIN, "again"), RuntimeError("can't start new thread")]

    def start() -> str:
        if left:
            raise left.pop()
        return "started"

    assert limits.when_there_is_room(start, pauses.append) == "started" and len(pauses) == 2
    left[:] = [OSError(errno.EAGAIN, "again")] * 99
    with pytest.raises(BlockingIOError):
        limits.when_there_is_room(start, pauses.append)
    left[:] = [ValueError("of another kind")]
    with pytest.raises(ValueError, match="another kind"):
        limits.when_there_is_room(start, pauses.append)


@contextmanager
def _no_more_files() -> Iterator[None]:
    """Prevent this process from opening any other file."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_no_file_to_open_is_no_room_for_jobs(tmp_path):
    """A poll of running jobs then fails; it does not report them as absent."""
    backend, token = LocalBackend(str(tmp_path)), "aaaaaaaaaaaa-a1"
    argv = [sys.executable, "-c", "import time; time.sleep(60)", str(tmp_path), token]
    job = JobSpec(token, "x", argv, str(tmp_path), {})
    with _no_more_files(), pytest.raises(NoRoom, match="ulimit -n"):
        backend.submit([job])
    assert backend.poll([token])[token].state is JobState.ABSENT
    backend.submit([job])
    try:
        other = LocalBackend(str(tmp_path))
        with _no_more_files(), pytest.raises(NoRoom):
            other.poll([token])
        # The process table may lack a command line for a moment after its process has started.
        while other.poll([token])[token].state is not JobState.RUNNING:
            time.sleep(0.01)
    finally:
        backend.cancel([token])
        while backend.poll([token])[token].state is not JobState.ENDED:
            time.sleep(0.01)


def test_a_verb_on_a_full_machine_reports_it_in_one_line(tmp_path, capsys):
    sweep = written.Written(tmp_path, "s", {"lr": [1]})
    sweep.run({"lr": 1}, 0)
    sweep.save()
    status = ["status", "s", "--root", str(tmp_path)]
    assert cli.main(status) == 0  # loads what the verb needs
    with _no_more_files():
        assert cli.main(status) == 6
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("sweep.json: Too many open files")
