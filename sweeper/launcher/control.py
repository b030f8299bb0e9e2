"""Cancels and retries runs of launched sweeps. Requests are files that are created once, so a
killed command can be repeated."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from sweeper.errors import (
    AnotherLauncher,
    Damaged,
    EnvironmentFailure,
    NotFound,
    StoreError,
    UsageError,
)
from sweeper.results.selectors import pick
from sweeper.results.waiting import find_sweep
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.hint import hint
from sweeper.sweep.labels import plural
from sweeper.sweep.launcher import held_of
from sweeper.sweep.plan import Plan
from sweeper.sweep.requests import Happened, Requested, asked_again, request_cancel, request_retry
from sweeper.sweep.settled import changing
from sweeper.sweep.states import State, fold, is_finished
from sweeper.sweep.sweep_requests import ask_cancel, forget

if TYPE_CHECKING:
    from sweeper.launcher.launching import Ready
    from sweeper.results.runs import RecordedRun
    from sweeper.results.sweeps import Sweep
    from sweeper.sweep.trust import Agree

_FAILED = (State.FAILED, State.LOST, State.PREEMPTED)
_POLL_SECONDS = 0.5
_STOP_SECONDS = 75.0
"""Seconds added to a run's grace. In this time the launcher notices the request (it may wait a
minute for sbatch), and the worker ends."""
_TAKE_OVER_SECONDS = 3.0
_HELD_SECONDS = 15.0
"""Seconds within which a held launcher must notice the request to continue."""


def cancel(
    sweep: str,
    runs: Sequence[str] = (),
    *,
    root: str | None = None,
    state: Sequence[str] | None = None,
    where: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Requested]:
    """Stop runs of a sweep permanently, and wait until none of them is running. Return a result for
    each run.

    `runs` are selectors (default: all runs); `state` and `where` filter the runs. `tell` gets
    progress messages. Raises `NotFound` for a missing sweep or run, `UsageError` for an invalid
    `state` or `where`, and the errors of `cancel_runs`.
    """
    opened = find_sweep(sweep, root)
    ids = [run.id for run in pick(opened.runs, runs, state, where)]
    whole = not (runs or state or where)
    return cancel_runs(opened.folder, ids, whole=whole, tell=tell)


def retry(
    sweep: str,
    runs: Sequence[str] = (),
    *,
    root: str | None = None,
    state: Sequence[str] | None = None,
    where: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Requested]:
    """Start runs of a sweep again. `runs` are selectors (default: all runs); `state` and `where`
    filter the runs. Without `runs` and `state`, only runs that failed, were lost or were preempted
    start again. `state=["succeeded"]` trains finished runs again from the start. If no launcher is
    running, a detached launcher is started. Raises the errors of `launch`, and `UsageError` if a
    selected run has succeeded and `state` does not contain `succeeded`."""
    opened = find_sweep(sweep, root)
    chosen = to_retry(opened, runs, state, where)
    succeeded = State.SUCCEEDED in (state or ())
    return retry_runs(opened, [run.id for run in chosen], succeeded=succeeded, tell=tell)


def cancel_runs(
    folder: SweepFolder,
    runs: Sequence[str],
    *,
    whole: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Requested]:
    """Cancel the runs with these ids, and wait until none of them is running. `whole` says that
    these are all runs of the sweep; later stages then start only after a launch or a retry. If a
    run is still running 75 s after the longest `launch.grace` in the sweep, raise
    `EnvironmentFailure`; the requests to cancel remain recorded."""
    folder.read_plan()  # If there is no plan, the error lists the existing sweeps.
    with changing(folder):
        return _cancel_runs(folder, runs, whole, tell, sleep)


def _cancel_runs(
    folder: SweepFolder,
    runs: Sequence[str],
    whole: bool,
    tell: Callable[[str], None],
    sleep: Callable[[float], None],
) -> list[Requested]:
    from sweeper.sweep.lock import holding_sweep, is_held

    plan = folder.read_plan()
    _tell_damaged(folder, tell)
    retries = _retries(plan)
    if whole and plan.stages:
        ask_cancel(folder)
        plan = folder.read_plan()
        retries = _retries(plan)
        now = (run.id for run in plan.runs if not run.retired)
        # Add runs that were planned after `runs` was listed.
        runs = list(dict.fromkeys([*runs, *now]))
    events = folder.read_events()
    requests = {
        run: request_cancel(folder, run, events.get(run, set()), retries[run]) for run in runs
    }
    seconds = max(part.launch.grace_s for part in plan.parts) + _STOP_SECONDS
    deadline = time.monotonic() + seconds
    last_count = 0
    while left := _at_work(folder, requests, retries):
        if len(left) != last_count:
            tell(f"waiting for {plural(len(left), 'run')} to stop")
            last_count = len(left)
        if time.monotonic() > deadline:
            raise EnvironmentFailure(
                f"{plural(len(left), 'run')} of {folder.name!r} did not stop within {seconds:g} s: "
                "see "
                f"`{hint('status', folder.name, root=folder.store.root)}`"
            )
        if not is_held(folder):
            with suppress(AnotherLauncher), holding_sweep(folder, existing=True):
                _stop(folder, requests, retries, deadline, tell, sleep)
        sleep(_POLL_SECONDS)
    if not is_held(folder):
        with suppress(AnotherLauncher), holding_sweep(folder, existing=True):
            _forget_environment(folder)
    events = folder.read_events()
    return [_outcome(request, events.get(run, set())) for run, request in requests.items()]


def _tell_damaged(folder: SweepFolder, tell: Callable[[str], None]) -> None:
    try:
        folder.read_service()
    except Damaged as error:
        tell(
            f"{error}; the runs can be stopped without this file. Later, remove their saved "
            "environment with `sweeper store gc`"
        )
    except (NotFound, StoreError):
        pass  # A missing or unreadable record does not prevent stopping the runs.


def _retries(plan: Plan) -> dict[str, int]:
    """Return the number of automatic retries of each run."""
    return {run.id: plan.retries_of(run.stage) for run in plan.runs}


def _stop(
    folder: SweepFolder,
    runs: Collection[str],
    retries: Mapping[str, int],
    deadline: float,
    tell: Callable[[str], None],
    sleep: Callable[[float], None],
) -> None:
    """Stop `runs` with a scheduler that starts no runs. Return after `deadline` in any case."""
    from sweeper.backends import open_places
    from sweeper.launcher.placement_guard import located, moved_from
    from sweeper.scheduler.context import Context
    from sweeper.scheduler.loop import Scheduler

    plan = folder.read_plan()
    _refuse_addresses(plan, folder.address)
    backends = open_places(plan.launch, folder.name, folder.address, any_place=True)
    moved = moved_from(folder, plan, located(backends))
    if moved is not None:
        tell(
            f"the jobs are at {moved}, which cannot be reached from here. Each job ends when "
            "its worker sees the cancel request in the store"
        )
    scheduler = Scheduler(Context(folder, backends), starting=False)
    last_unreachable: str | None = None
    while time.monotonic() < deadline:
        summary = scheduler.step()
        if summary.unreachable is not None and summary.unreachable != last_unreachable:
            tell(f"waiting: {summary.unreachable}")
        last_unreachable = summary.unreachable
        if not _at_work(folder, runs, retries):
            return
        sleep(_POLL_SECONDS)


def _refuse_addresses(plan: Plan, folder: str) -> None:
    """Raise `UsageError` if another user's plan contains the address of a server. The backend would
    send this user's credentials to that server."""
    from sweeper.backends import options_of
    from sweeper.sweep.trust import is_ours

    named = [options_of(plan.launch, place).get("address") for place in plan.launch.places]
    if any(named) and not is_ours(plan.recorded):
        raise UsageError(
            f"{folder} was not launched by you from here, so its queued jobs at "
            f"{next(filter(None, named))} are not cancelled. The user who launched the sweep must "
            "cancel them. Running jobs stop when their workers see the cancel request"
        )


def _forget_environment(folder: SweepFolder) -> None:
    """Remove the environment file of the sweep's runs. Keep the file if a run is not finished, or
    if the backend may restart a run."""
    from sweeper.launcher import environment_cleanup
    from sweeper.sweep import environment_file

    events = folder.read_events()
    plan = folder.read_plan()
    for run in plan.runs:
        happened, retries = events.get(run.id, set()), plan.retries_of(run.stage)
        if fold(happened).at_work or not is_finished(happened, retries, retired=run.retired):
            return
    if environment_cleanup.is_needed_later(folder):
        return
    with suppress(NotFound, StoreError):  # `sweeper store gc` removes the file later.
        environment_file.forget(folder.read_service().env_file, folder.address)


def _at_work(folder: SweepFolder, runs: Iterable[str], retries: Mapping[str, int]) -> list[str]:
    """Return the `runs` that may be running. Repeat every request to cancel, because a launcher may
    have started a new attempt after the last call."""
    events = folder.read_events()
    left: list[str] = []
    for run in runs:
        happened = events.get(run, set())
        request_cancel(folder, run, happened, retries[run])
        if fold(happened).at_work:
            left.append(run)
    return left


def _outcome(request: Requested, happened: Happened) -> Requested:
    state = fold(happened).state
    if not request.accepted:
        return request
    if state is State.CANCELLED:
        return request._replace(why="cancelled")
    return request._replace(why=f"{state.value} before they could be stopped")


def to_retry(
    sweep: "Sweep",
    runs: Sequence[str] = (),
    state: Sequence[str] | None = None,
    where: str | None = None,
    *,
    failed: bool = False,
) -> "list[RecordedRun]":
    """Select runs to retry. Without `runs` and `state`, or with `failed`, select only runs that
    failed, were lost or were preempted. Raises `UsageError` if a selected run has succeeded and
    `state` does not contain `succeeded`."""
    chosen = pick(sweep.runs, runs, state, where)
    if failed or not (runs or state):
        chosen = [run for run in chosen if run.state in _FAILED]
    succeeded = [run for run in chosen if run.state is State.SUCCEEDED]
    if succeeded and runs and State.SUCCEEDED not in (state or ()):
        raise UsageError(
            f"{succeeded[0].name} of {sweep.name} has succeeded: add --state succeeded to "
            "train it again"
        )
    return chosen


def retry_runs(
    sweep: "Sweep",
    runs: Sequence[str],
    *,
    succeeded: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Requested]:
    """Request another attempt of each of the runs with these ids. A run that succeeded starts again
    only if `succeeded` is set. If no launcher is running, start a detached launcher. Raises the
    errors of `launch`."""
    from sweeper.launcher.launching import resume

    requests = request_retries(sweep, runs, succeeded=succeeded)
    if requests.again and not take_up(sweep, tell):
        resume(sweep.folder, wait=False, checked=requests.ready, tell=tell)
    return requests.done


class RetryRequests(NamedTuple):
    """The results of requests to retry runs. `ready` is the checked sweep if a launcher must be
    started; None if a launcher is running or no run starts again."""

    done: list[Requested]
    ready: "Ready | None"

    @property
    def again(self) -> int:
        """The number of runs that will start again."""
        return sum(request.accepted for request in self.done)


def request_retries(
    sweep: "Sweep",
    runs: Sequence[str],
    agree: "Agree | None" = None,
    *,
    succeeded: bool = False,
) -> RetryRequests:
    """Record requests to start runs again. A run that succeeded starts again only if `succeeded` is
    set. If no launcher is running, first check that the sweep can be launched (see
    `launching.ready`). Raises the errors of `launch`."""
    from sweeper.launcher.launching import ready
    from sweeper.sweep.lock import is_held
    from sweeper.sweep.trust import refuse

    folder = sweep.folder
    events = folder.read_events()
    happened = {run: events.get(run, set()) for run in runs}
    requests = (asked_again(run, state, succeeded=succeeded) for run, state in happened.items())
    wanted = any(request.accepted for request in requests)
    checked: Ready | None = None
    if wanted:
        # A process that reads the retry must no longer find the cancel request.
        with changing(folder):
            forget(folder, "cancel")
    if wanted and not is_held(folder):
        checked = ready(folder, agree or refuse)
    with changing(folder):
        done = [
            request_retry(folder, run, state, succeeded=succeeded)
            for run, state in happened.items()
        ]
    return RetryRequests(done, checked)


def take_up(
    sweep: "Sweep",
    tell: Callable[[str], None] = lambda _: None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return True if a running launcher will read the recorded requests to retry runs, and False if
    the caller must start a launcher. Tell the user if the code has changed since the launch, and
    what the call waits for. Raises `EnvironmentFailure` if, after 15 s, the running launcher is
    still held for another reason than a pause."""
    _tell_code(sweep, tell)
    return _taken_up(sweep.folder, tell, clock, sleep)


def _tell_code(sweep: "Sweep", tell: Callable[[str], None]) -> None:
    """Tell the user if the code has changed since the launch: retried runs execute the launched
    code."""
    from sweeper.launcher.manifest import hidden_values, secret_names
    from sweeper.recipe import snapshot
    from sweeper.recipe.launch_record import has_changed
    from sweeper.sweep.trust import is_ours

    recorded = sweep.plan.snapshot
    # Do not run git in a folder that another user's plan names.
    if not recorded or not is_ours(sweep.plan.recorded):
        return
    values = hidden_values(secret_names(sweep.plan.secrets, sweep.plan.service))
    if has_changed(sweep.folder, sweep.plan, values):
        tell(
            "the code has changed since the launch, but retried runs use the old code: "
            "to use the new code, launch the grid again"
        )
    else:
        snapshot.relink(recorded)


def _taken_up(
    folder: SweepFolder,
    tell: Callable[[str], None],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> bool:
    """Return whether a running launcher will read the recorded requests. A launcher that is about
    to end may hold the lock without reading requests, and the lease of a dead launcher remains for
    a while. Therefore only a heartbeat shows that a launcher is running. While a running `cancel`
    has the lock, wait. Raises `EnvironmentFailure` if, after `_HELD_SECONDS`, the launcher is still
    held for another reason than a pause."""
    from sweeper.sweep.lock import is_alive, is_held

    began, is_told = clock(), False
    while is_held(folder, clock=clock):
        waited = clock() - began
        if waited > _TAKE_OVER_SECONDS and is_alive(folder, began):
            observed = folder.read_observations()
            if not observed.starting:
                if not is_told:
                    tell("waiting until a running `sweeper cancel` of the sweep ends")
                is_told = True
            elif observed.held is None or observed.paused:
                return True  # A paused sweep continues when a user resumes it.
            elif waited > _HELD_SECONDS:
                raise EnvironmentFailure(
                    f"the running launcher of {folder.name!r} starts no runs "
                    f"({held_of(observed)}): repeat the command when that launcher has ended"
                )
        elif waited > _TAKE_OVER_SECONDS and not is_told:
            tell("the sweep's launcher sends no heartbeats: waiting until its lease expires")
            is_told = True
        sleep(0.1 if not folder.store.is_remote else _POLL_SECONDS)
    return False
