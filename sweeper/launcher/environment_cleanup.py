"""Finds the environment files that launches left on this machine, and removes those that no
sweep needs."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from sweeper.backends import may_restart
from sweeper.backends.base import Backend, JobState
from sweeper.common.json_values import table_of
from sweeper.engine.lifecycle import EngineInfo, client_key
from sweeper.errors import NotFound, StoreError, SweeperError, Unreachable
from sweeper.paths import environments, home
from sweeper.sweep import lease
from sweeper.sweep.environment_file import OWNER, PLACE, env_file, forget, mark_of, read_environment
from sweeper.sweep.folder import Events, SweepFolder, token
from sweeper.sweep.lock import is_held
from sweeper.sweep.states import OPEN, State, fold, wants_attempt

_YOUNG_SECONDS = 3600.0

_AGAIN = frozenset({State.PREEMPTED, State.LOST})


class _Environment(NamedTuple):
    """An environment file: its path, the time when it was written, and its contents ({} for an
    unreadable file)."""

    path: str
    written: float
    document: Mapping[str, object]

    @property
    def folder(self) -> str:
        """The folder of the file's sweep; "" if the file does not name a sweep."""
        return str(self.document.get(OWNER, ""))


def _environments(where: str) -> Iterator[_Environment]:
    """Yield the environment files in the home folder `where`."""
    try:
        entries = sorted(os.scandir(environments(where)), key=lambda e: e.name)
    except OSError:
        return
    for entry in entries:
        document: object = None
        if not entry.name.endswith(".json"):
            continue
        try:
            written = entry.stat().st_mtime
            with suppress(ValueError, PermissionError), open(entry.path, encoding="utf-8") as file:
                document = json.load(file)
        except OSError:
            continue  # The file was removed, or cannot be read now.
        yield _Environment(entry.path, written, table_of(document))


def _old() -> Iterator[_Environment]:
    """Yield the environment files that are at least an hour old. Some files contain only the path
    of another environment file. For such a file, yield the other file if it exists, else the file
    itself. Yield neither if the other file's folder is missing: a disk may be unmounted."""
    for environment in _environments(home()):
        place = environment.document.get(PLACE)
        if time.time() - environment.written < _YOUNG_SECONDS:
            continue
        if not isinstance(place, str):
            yield environment
        elif os.path.exists(place):
            yield environment._replace(path=place)  # The next call yields the file that names it.
        elif os.path.isdir(os.path.dirname(place)):  # otherwise its disk may be unmounted
            yield environment


def sweeps_using(info: EngineInfo) -> list[str]:
    """Return the folders of the sweeps that use the engine `info` and may be running. A sweep that
    cannot be read counts as running."""
    sweeps: list[str] = []
    for entry in _environments(info.home):
        environment = entry.document
        place = environment.get(PLACE)
        if isinstance(place, str):
            with suppress(SweeperError):
                environment = read_environment(place)
        # An engine is identified by its key, which stays the same when its address changes.
        if environment.get("TINKER_API_KEY") == client_key(info.home) and entry.folder:
            try:
                used = _in_use(SweepFolder.at_address(entry.folder))
            except (SweeperError, OSError):
                used = True
            sweeps += [entry.folder] * used
    return sweeps


def unused_files(
    but: str = "", unknown: Callable[[str, str], object] = lambda path, _: path
) -> Iterator[str]:
    """Yield the environment files that no sweep uses. Such a file is at least an hour old, and its
    sweep has no running jobs and no launcher. The file of the sweep at `but` is skipped. If a
    file's sweep is missing or cannot be read, call `unknown` with the paths of the file and of the
    sweep's folder, and do not yield the file."""
    for entry in _old():
        if entry.folder == but:
            continue
        try:
            if entry.folder and _in_use(SweepFolder.at_address(entry.folder)):
                continue
        except (SweeperError, OSError):
            unknown(entry.path, entry.folder)
            continue
        yield entry.path


def refuse_if_folder_missing(folder: SweepFolder) -> None:
    """Raise `StoreError` if an unfinished sweep that was launched from this machine is missing from
    the store. The disk of the store may be unmounted while the sweep's jobs are running. A launch
    would start these jobs a second time."""
    path = env_file(folder.address)
    if os.path.exists(path) and not _has_anything(folder):
        raise StoreError(
            f"{folder.address}: this sweep was launched before and has not ended, but its folder "
            f"is missing. Check that its disk is mounted. If you have removed the sweep, also "
            f"remove {path}"
        )


def _has_anything(folder: SweepFolder) -> bool:
    """Return whether the store has any file of a sweep."""
    return next(iter(folder.store.names(folder.name)), None) is not None


def _in_use(folder: SweepFolder) -> bool:
    """Return whether a job of the sweep, or its launcher, may be running. Raises `NotFound` if the
    sweep is not in the store."""
    try:
        events = folder.read_events()
    except NotFound:
        if not _has_anything(folder):
            raise
        events = {}
    states = map(fold, events.values())
    if any(state.at_work for state in states):
        return True
    return _may_restart(folder, events) or is_held(folder)


def is_needed_later(folder: SweepFolder) -> bool:
    """Return whether the backend may start a run of the sweep again without a launcher."""
    return _may_restart(folder, folder.read_events())


def _may_restart(folder: SweepFolder, events: Events) -> bool:
    if not any(
        fold(happened).state in _AGAIN and wants_attempt(happened, 0)  # as in `worker.requeue`
        for happened in events.values()
    ):
        return False
    return may_restart(folder.read_plan().launch)


_WAIT_SECONDS = 60.0
"""Seconds that jobs have to start. If a job takes longer, `gc` or the next launch from this machine
removes the environment file."""
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
    """Remove this machine's environment file of the sweep once each of the sweep's jobs at
    `backends` has sent a heartbeat or has ended. Keep the file if this takes longer than
    `_WAIT_SECONDS`, if a new launcher runs on this machine, or if another launch has written the
    file. `mark` is the random value in this launch's file; if it is None, do nothing."""
    path = env_file(folder.address)
    deadline = clock() + _WAIT_SECONDS
    while mark is not None and mark_of(path) == mark:
        try:
            if not lease.is_elsewhere(folder):
                return
            if not _is_needed(folder, backends):
                if mark_of(path) == mark:  # The file may have changed during the check.
                    forget(path, folder.address)
                return
        except (NotFound, StoreError, Unreachable):
            pass  # Whether the file is needed is unknown for now, so try again.
        if clock() > deadline:
            return
        sleep(_LOOK_SECONDS)


def _is_needed(folder: SweepFolder, backends: Iterable[Backend]) -> bool:
    """Return whether some job at `backends` has not sent a heartbeat yet: a worker reads the
    environment file before its first heartbeat."""
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
