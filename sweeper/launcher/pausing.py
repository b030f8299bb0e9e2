"""Pauses and resumes a sweep, changes its number of parallel jobs, and stops its launcher. Each
command records a request, which the running launcher or the next one reads. A killed command can be
repeated."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from sweeper.errors import AnotherLauncher, EnvironmentFailure, UsageError
from sweeper.store.opening import default_root
from sweeper.sweep import sweep_requests
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.hint import hint
from sweeper.sweep.states import fold, is_finished

if TYPE_CHECKING:
    from sweeper.sweep.trust import Agree

_STOP_SECONDS = 75.0
"""Seconds that a launcher's step may take, since it may wait for its backend."""
_POLL_SECONDS = 0.2
_REMOTE_POLL_SECONDS = 1.0
_MOST = 1_000_000


class Steered(NamedTuple):
    """The result of a request to a sweep. `launcher` is True if a running launcher will read the
    request. `started` is True if the call started that launcher. `changed` is False if the sweep
    was already in the requested state."""

    sweep: str
    launcher: bool
    started: bool = False
    changed: bool = True


def pause(sweep: str, *, root: str | None = None, runs: bool = False) -> Steered:
    """Start no new runs of a sweep until `resume`. Running runs continue. With `runs`, running runs
    save a checkpoint and stop, and continue from the checkpoint after `resume`. If no launcher is
    running, one is started to stop these runs. The sweep stays paused when the launcher ends.
    Raises `NotFound`, `StoreError`, and the errors of `launch` if a launcher is started."""
    folder = _existing(sweep, root)
    before = sweep_requests.asked_pause(folder)
    sweep_requests.ask_pause(folder, on=True, runs=runs)
    changed = before is None or before.runs != runs
    at_work = any(fold(events).at_work for events in folder.read_events().values())
    if runs and at_work and not _has_launcher(folder):
        with suppress(AnotherLauncher):  # Another process was faster.
            return _start_launcher(folder)._replace(changed=changed)
    return Steered(sweep, _has_launcher(folder), changed=changed)


def resume(
    sweep: str,
    *,
    root: str | None = None,
    agree: "Agree | None" = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Steered:
    """Continue a sweep that was paused, or whose launcher has ended. If no launcher is running and
    a run is not finished, start a detached launcher. Tell the user if the record of the last launch
    is damaged. Raises the errors of `launch`."""
    folder = _existing(sweep, root)
    was_paused = sweep_requests.asked_pause(folder) is not None
    if not _has_launcher(folder):
        if _is_over(folder):
            sweep_requests.forget(folder, "pause")
            return Steered(sweep, False, changed=False)
        with suppress(AnotherLauncher):  # Another process was faster.
            return _start_launcher(folder, agree, tell, goes_on=True)
    if was_paused:
        sweep_requests.ask_pause(folder, on=False)
    return Steered(sweep, True, changed=was_paused)


def parallel(sweep: str, jobs: int, *, root: str | None = None) -> Steered:
    """Set the number of parallel jobs of a sweep until its next launch. Running jobs continue, even
    if more than `jobs` are running. Raises `UsageError` for an invalid number, `NotFound`,
    `StoreError`."""
    if not 1 <= jobs <= _MOST:
        raise UsageError(f"cannot run {jobs} jobs at once: use a number from 1 to {_MOST}")
    folder = _existing(sweep, root)
    before = sweep_requests.asked_parallel(folder)
    sweep_requests.ask_parallel(folder, jobs)
    changed = jobs != (before or folder.read_plan().launch.max_parallel)
    return Steered(sweep, _has_launcher(folder), changed=changed)


def stop(
    sweep: str,
    *,
    root: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Steered:
    """Stop the launcher of a sweep, and wait until it has ended. Running runs continue. No new
    runs start until a launcher is started again. Raises `NotFound`, `StoreError`, and
    `EnvironmentFailure` if the launcher does not end."""
    folder = _existing(sweep, root)
    if not _has_launcher(folder):
        return Steered(sweep, False, changed=False)
    sweep_requests.ask_stop(folder)
    now = clock()
    deadline, tell_at = now + _STOP_SECONDS, now + 2.0
    while _has_launcher(folder):
        if clock() > deadline:
            raise EnvironmentFailure(
                f"the launcher of {sweep!r} has not ended after {_STOP_SECONDS:g} s, though "
                f"it was asked to: see `{hint('status', sweep, root=folder.store.root)}`"
            )
        if tell_at < clock():
            tell("waiting for the launcher to end")
            tell_at = deadline  # report only once
        sleep(_REMOTE_POLL_SECONDS if folder.store.is_remote else _POLL_SECONDS)
    sweep_requests.forget(folder, "stop")
    return Steered(sweep, False)


def _existing(sweep: str, root: str | None) -> SweepFolder:
    """Return the folder of an existing sweep. Raises `NotFound`."""
    folder = SweepFolder.open(root or default_root(), sweep)
    folder.read_plan()
    return folder


def _has_launcher(folder: SweepFolder) -> bool:
    from sweeper.sweep.lock import is_held

    return is_held(folder)


def _is_over(folder: SweepFolder) -> bool:
    plan, events = folder.read_plan(), folder.read_events()
    return all(
        is_finished(events.get(run.id, set()), plan.retries_of(run.stage), retired=run.retired)
        for run in plan.runs
    )


def _start_launcher(
    folder: SweepFolder,
    agree: "Agree | None" = None,
    tell: Callable[[str], None] = lambda _: None,
    *,
    goes_on: bool = False,
) -> Steered:
    """Check the sweep with `ready`, end a pause if `goes_on` is set, and start a launcher."""
    from sweeper.launcher import launching
    from sweeper.sweep.trust import refuse

    ready = launching.ready(folder, agree or refuse)
    if goes_on:
        sweep_requests.ask_pause(folder, on=False)
    launching.resume(folder, wait=False, checked=ready, tell=tell)
    return Steered(folder.name, True, started=True)
