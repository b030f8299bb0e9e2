"""Launches a plan: what `sweeper launch` and `sweeper.launch` do.

The order is such that a launch which cannot work leaves nothing behind: first everything that can
be missing is checked, then the engine is started, then the plan is written, then the launcher runs;
in this process, in a tmux window, or detached with a log file (`detached.py`).

Run as a module with the sweep's folder it is that launcher.
"""

import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sweeper import prices
from sweeper.backends import Away, Capabilities, may_restart, open_places
from sweeper.backends.base import Backend
from sweeper.errors import AnotherLauncher, EnvironmentFailure, NotFound, StoreError, SweeperError
from sweeper.grid.notify import notify_of, require_variables
from sweeper.launcher import hand_over, preflight, remote_recovery
from sweeper.launcher.detached import start_detached
from sweeper.launcher.engine import engine_for, ensure_engine
from sweeper.launcher.environment_cleanup import remove_unneeded_environment
from sweeper.launcher.hand_over import Offer, offer
from sweeper.launcher.manifest import record, secret_names, write_environment
from sweeper.launcher.placement_guard import Located, located, refuse_another
from sweeper.launcher.trust import Agree, refuse, require
from sweeper.model.document_reader import Part
from sweeper.model.plan import Plan
from sweeper.model.recipe import runs_anywhere
from sweeper.model.states import State
from sweeper.scheduler import account, environment
from sweeper.scheduler.account_budget import configured_budget
from sweeper.scheduler.context import Context
from sweeper.scheduler.loop import REPLANNED, Scheduler
from sweeper.scheduler.progress import Summary, exit_code, printer
from sweeper.storage import lock
from sweeper.storage.base import Store
from sweeper.storage.documents import place_of as file_of
from sweeper.storage.layout import Layout
from sweeper.storage.opening import default_root, open_store
from sweeper.storage.sweep_requests import asked_pause, forget
from sweeper.storage.sweeps import read_plan, read_states, service_of
from sweeper.storage.writable import check_root
from sweeper.worker.job import read_environment

if TYPE_CHECKING:
    from sweeper.results.status import Status

__all__ = [
    "LaunchRequest",
    "Launched",
    "Ready",
    "User",
    "drive",
    "launch",
    "launch_plan",
    "ready",
    "resume",
]

_TAKE_OVER_SECONDS = 120.0


class LaunchRequest(NamedTuple):
    """What to launch, below which root, and how.

    With `wait` this process is the launcher until the sweep has ended. With `smoke` one run goes
    first, and the others only when it has succeeded. Runs execute a copy of the checkout as it is
    now (see `snapshot.py`); with `live` the checkout itself, as it is when each starts.
    """

    plan: Plan
    root: str | None = None
    wait: bool = True
    smoke: bool = False
    live: bool = False


class User(NamedTuple):
    """How a launch reaches whoever asked for it.

    `agree` is asked before a sweep is gone on with that was not launched by this user from here
    (see `trust.py`); `notify` gets the summary whenever it has changed, `tell` a sentence about
    what this launch does to an earlier one.
    """

    agree: Agree = refuse
    notify: Callable[[Summary], None] = lambda _: None
    tell: Callable[[str], None] = lambda _: None


class Launched(NamedTuple):
    """A launched sweep. `summary` is None when the launcher was left to itself. `taken_up`: one was
    at work already, and goes on with the new plan."""

    name: str
    root: str
    summary: Summary | None
    taken_up: bool = False

    def __await__(self) -> "Generator[object, None, Status]":
        """`await sweeper.launch(..., wait=False)`: how the sweep stands when nothing is at work on
        it any more."""
        from sweeper.results.waiting import wait_async

        return wait_async(self.name, root=self.root).__await__()


def launch(
    source: "str | os.PathLike[str] | Mapping[str, object] | Plan",
    root: str | None = None,
    *,
    overrides: "Mapping[str, object] | Sequence[str] | None" = None,
    wait: bool = True,
    smoke: bool = False,
    live: bool = False,
) -> Launched:
    """Launch a grid, or go on with it: runs that are done are skipped, running ones adopted, new
    ones added, failed ones left alone unless `launch.retries` has some left.

    `source` is a grid's path, its mapping, or a plan; for the others see `LaunchRequest`. Raises
    `GridError` for a grid that cannot run, `UsageError` for a sweep of somebody else's (see
    `launch_plan`), `EnvironmentFailure` when something it needs is missing, `AnotherLauncher` when
    the sweep has one.
    """
    from sweeper.planner.plan import plan

    planned = source if isinstance(source, Plan) else plan(source, overrides)
    return launch_plan(LaunchRequest(planned, root, wait, smoke, live), User())


def launch_plan(request: LaunchRequest, user: User) -> Launched:
    """Launch a plan, or go on with its sweep; `user` is asked and told. Raises as `launch` does,
    and `UsageError` where the sweep is somebody else's and nobody agrees."""
    planned, root, wait, smoke, live = request
    store = open_store(root or default_root())
    check_root(store)
    if store.is_remote:
        remote_recovery.check(store, planned.name)
    with suppress(NotFound):  # which is the case at the first launch
        require(read_plan(store, planned.name).recorded, f"{store.root}/{planned.name}", user.agree)
    if planned.budget is not None and planned.budget.usd is not None:
        prices.load()  # which the launcher needs
    _check_account(planned)
    launched = planned.launch
    names = secret_names(planned.secrets, planned.service)
    capabilities = preflight.admit(launched, store, planned.service, names, live=live)
    opened, before = _open(store, planned, user.tell)
    preflight.try_out(opened, planned, planned.runs)
    environment.require_secrets(preflight.kept_here(capabilities, names))
    environment.refuse_if_folder_missing(store, planned.name)
    url = engine_for(planned, capabilities, user.tell) if planned.service == "local" else None
    for path in environment.unused_files(but=f"{store.root}/{planned.name}"):
        environment.forget(path)
    with ExitStack() as held:
        try:
            check = held.enter_context(lock.holding_sweep(store, planned.name))
        except AnotherLauncher:
            found = Offer(url, capabilities, located(opened, before), live)
            if offer(store, planned, found, user.tell):
                return Launched(planned.name, store.root, None, taken_up=True)
            patience = lock.PATIENCE_SECONDS if not store.is_remote else _TAKE_OVER_SECONDS
            check = held.enter_context(lock.holding_sweep(store, planned.name, patience))
        record(store, planned, url, located(opened, before), live=live, tell=user.tell)
        _tell_pause(store, planned.name, user.tell)
        if wait:
            summary = _drive(store, planned.name, user.notify, smoke, check)
            return Launched(planned.name, store.root, summary)
    start_detached(store, planned.name, launched.places, smoke)
    return Launched(planned.name, store.root, None)


def _check_account(plan: Plan) -> None:
    """See that the quota and the budget of the plan's account can be used, and that the ways in
    which people are told have what they need. Raises `EnvironmentFailure`, `UsageError`."""
    notify = notify_of(plan)
    if notify is not None:
        require_variables(notify)
    account.check_place(plan)
    limits = None if plan.service == "none" else configured_budget()
    if limits is not None and limits.budget.usd is not None:
        prices.load()  # which the launcher needs


def _tell_pause(store: Store, sweep: str, tell: Callable[[str], None]) -> None:
    """A pause outlives the launcher that was at work when it was asked for."""
    if asked_pause(store, sweep) is not None:
        tell(f"the sweep is paused: nothing is started until `sweeper resume {sweep}`")


class Ready(NamedTuple):
    """A recorded sweep that can be launched, as far as one can see: see `ready`."""

    plan: Plan
    capabilities: Capabilities
    places: Located


def ready(store: Store, sweep: str, agree: Agree = refuse) -> Ready:
    """Check that the rest of a sweep can be launched from its recorded plan, with the environment
    of this process, before anything is recorded or started. Raises as `launch` does."""
    plan = read_plan(store, sweep)
    _check_account(plan)
    recorded = Part(plan.recorded, file_of(store, Layout(sweep).plan))
    for part in recorded.parts("stages") if plan.stages else [recorded]:
        runs_anywhere(part.part("recipe"))
    require(plan.recorded, f"{store.root}/{sweep}", agree)
    launched = plan.launch
    names = secret_names(plan.secrets, plan.service)
    capabilities = preflight.admit(launched, store, plan.service, names, live=False)
    opened, before = _open_again(store, sweep, plan)
    over = {run for run, s in read_states(store, sweep).items() if s.state is State.SUCCEEDED}
    left = [run for run in plan.runs if not run.retired and run.id not in over]
    preflight.try_out(opened, plan, left, some=True)
    environment.require_secrets(preflight.kept_here(capabilities, names))
    return Ready(plan, capabilities, located(opened, before))


def _open(
    store: Store, plan: Plan, tell: Callable[[str], None]
) -> tuple[dict[str, Backend], Located]:
    """Open the places of a plan that is launched, and give what is on record of those of its sweep.
    Of several one may be silent, which `tell` hears: it is tried again later. Raises
    `EnvironmentFailure` where one cannot be used, or none answers."""
    folder = f"{store.root}/{plan.name}"
    opened = open_places(plan.launch, plan.name, folder, silent=True)
    for place, backend in opened.items():
        if isinstance(backend, Away):
            tell(f"{place} is away, and is used once it answers: {backend.why}")
    return opened, _places_on_record(store, plan.name)


def _places_on_record(store: Store, sweep: str) -> Located:
    with suppress(NotFound, StoreError):  # what is damaged is judged where it is written anew
        return service_of(store, sweep).places
    return ()


def _open_again(store: Store, sweep: str, plan: Plan) -> tuple[dict[str, Backend], Located]:
    """Open the places of a sweep that was launched before, and give what is on record of them. Of
    several one may be away, which is tried again later. Raises `EnvironmentFailure` where all
    are."""
    before = _places_on_record(store, sweep)
    accept = partial(refuse_another, before)
    opened = open_places(plan.launch, sweep, f"{store.root}/{sweep}", some=True, accept=accept)
    away = [backend.why for backend in opened.values() if isinstance(backend, Away)]
    if len(away) == len(opened):
        raise EnvironmentFailure("; ".join(dict.fromkeys(away)))
    return opened, before


def resume(
    store: Store,
    sweep: str,
    *,
    wait: bool,
    notify: Callable[[Summary], None] = lambda _: None,
    known: Ready | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Launched:
    """Launch the rest of a sweep; `known` is what `ready` has found of it, `tell` hears of a record
    of its last launch that is damaged. Raises as `launch` does, `AnotherLauncher` when one is at
    work on it already."""
    plan, capabilities, places = known or ready(store, sweep)
    url = None
    if plan.service == "local":
        url = preflight.engine_url(capabilities) or ensure_engine(plan.launch.places).url
    with lock.holding_sweep(store, sweep) as check:
        write_environment(store, plan, url, capabilities, places, tell)
        forget(store, sweep, "stop")
        if wait:
            return Launched(sweep, store.root, _drive(store, sweep, notify, check=check))
    start_detached(store, sweep, plan.launch.places)
    return Launched(sweep, store.root, None)


def drive(
    folder: str,
    notify: Callable[[Summary], None],
    *,
    smoke: bool = False,
    patience: float = lock.PATIENCE_SECONDS,
) -> Summary:
    """Be the launcher of the sweep at `folder` until it has ended. `patience` is how many seconds
    to wait for the lock."""
    root, _, sweep = folder.rpartition("/")
    store = open_store(root)
    read_plan(store, sweep)  # else the lock would make a folder for a sweep that is not there
    with lock.holding_sweep(store, sweep, patience) as check:
        return _drive(store, sweep, notify, smoke, check)


def _drive(
    store: Store,
    sweep: str,
    notify: Callable[[Summary], None],
    smoke: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Summary:
    while True:
        hand_over.take_up(store, sweep)
        summary = _drive_plan(store, sweep, notify, smoke, check)
        if summary.ends != REPLANNED:
            return summary


def _drive_plan(
    store: Store,
    sweep: str,
    notify: Callable[[Summary], None],
    smoke: bool,
    check: Callable[[], None],
) -> Summary:
    """Drive the plan that is on record, until all is over or the launcher is to end."""
    folder = f"{store.root}/{sweep}"
    plan = read_plan(store, sweep)
    launched = plan.launch
    env_file = service_of(store, sweep).env_file
    backends, _ = _open_again(store, sweep, plan)

    def bring_home(*, over: bool = True) -> None:
        if store.is_remote:
            remote_recovery.recover(store, sweep, over=over)

    bring_home(over=False)
    context = Context(store, sweep, backends)
    scheduler = Scheduler(context, notify=notify, smoke=smoke, check=check, ending=bring_home)
    mark = environment.mark_of(environment.env_file(folder))
    try:
        summary = scheduler.run()
    except AnotherLauncher:
        if not may_restart(launched):
            remove_unneeded_environment(store, sweep, backends.values(), mark)
        raise
    if summary.ends is not None:
        with suppress(StoreError):
            forget(store, sweep, "stop")
        return summary
    with suppress(StoreError, NotFound):  # `gc` finds what is left behind here
        if not environment.is_needed_later(store, sweep):
            environment.forget(env_file, folder)
            environment.forget(environment.env_file(folder))
    return summary


def main(arguments: Sequence[str]) -> int:
    """Be a detached launcher, which prints a line at every change."""
    from sweeper.sanitize import guarded
    from sweeper.terminal import complain

    with guarded():
        try:
            smoke = "--smoke" in arguments[1:]
            if "--env" in arguments:  # a store that is elsewhere is reached as by who launched
                os.environ.update(read_environment(arguments[arguments.index("--env") + 1]))
            # A `cancel` may hold the lock for a moment.
            summary = drive(
                arguments[0], printer(sys.stdout), smoke=smoke, patience=_TAKE_OVER_SECONDS
            )
        except SweeperError as error:
            return complain(error)
        except KeyboardInterrupt:
            print("interrupted: the jobs go on", file=sys.stderr)
            return 130
        return exit_code(summary)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
