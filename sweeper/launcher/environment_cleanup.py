"""Cleans up after a launcher that lost its sweep on a remote store to another launcher: the secrets
that it kept for its jobs must not stay on this machine."""

import time
from collections.abc import Callable, Iterable

from sweeper.backends.base import Backend, JobState
from sweeper.errors import NotFound, StoreError, Unreachable
from sweeper.scheduler import environment
from sweeper.sweep import lease
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.states import OPEN, fold

_WAIT_SECONDS = 60.0
"""Time limit for jobs to begin. If one takes longer, `gc` or the next launch from here removes the
file."""
_LOOK_SECONDS = 1.0
_AT_WORK = (JobState.PENDING, JobState.RUNNING, JobState.STOPPING)


def remove_unneeded_environment(
    folder: SweepFolder,
    backends: Iterable[Backend],
    mark: str | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Remove the environment file of the runs of `sweep` on this machine once no job started from
    here needs it: each has sent a heartbeat or has ended. The file stays if the new launcher is on
    this machine, since it may use the file, or if the file is no longer ours (`mark` identifies
    ours: see `environment.mark_of`)."""
    path = environment.env_file(folder.address)
    deadline = clock() + _WAIT_SECONDS
    while mark is not None and environment.mark_of(path) == mark:
        try:
            if not lease.is_elsewhere(folder):
                return
            if not _is_needed(folder, backends):
                if environment.mark_of(path) == mark:  # the check took some time
                    environment.forget(path, folder.address)
                return
        except (NotFound, StoreError, Unreachable):
            pass  # unknown for now: try again
        if clock() > deadline:
            return
        sleep(_LOOK_SECONDS)


def _is_needed(folder: SweepFolder, backends: Iterable[Backend]) -> bool:
    """Whether a job that the backends here know has not sent a heartbeat yet. A worker reads its
    environment before its first heartbeat."""
    jobs = dict[str, str]()
    for run, happened in folder.read_events().items():
        state = fold(happened)
        if state.state in OPEN:
            jobs[token(run, state.attempt)] = folder.heartbeat(run, state.attempt)
        elif state.unacknowledged:
            jobs[token(run, state.opened)] = folder.heartbeat(run, state.opened)
    statuses = [pair for backend in backends for pair in backend.poll(list(jobs)).items()]
    at_work = [job for job, status in statuses if status.state in _AT_WORK]
    return not all(folder.store.exists(jobs[job]) for job in at_work)
