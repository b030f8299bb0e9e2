"""Launches a plan: checks all requirements, starts the engine, writes the plan, and runs the
launcher here, in a tmux window, or detached. As a module, this is the detached launcher."""

import os
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sweeper.backends import Away, Capabilities, capabilities_at, may_restart, open_places
from sweeper.backends.base import Backend
from sweeper.common import logs
from sweeper.common.json_values import list_of, table_of
from sweeper.common.logs import Log
from sweeper.errors import (
    AnotherLauncher,
    EnvironmentFailure,
    NotFound,
    StoreError,
    SweeperError,
    UsageError,
)
from sweeper.grid.notify import notify_of, require_variables
from sweeper.launcher import background, environment_cleanup, preflight
from sweeper.launcher.background import offer, start_detached
from sweeper.launcher.environment_cleanup import remove_unneeded_environment
from sweeper.launcher.manifest import Offer, record, secret_names, write_environment
from sweeper.launcher.placement_guard import Located, located, refuse_another
from sweeper.launcher.preflight import engine_for, ensure_engine
from sweeper.metrics.files import NAMES
from sweeper.money import prices
from sweeper.scheduler import account
from sweeper.scheduler.budgets import configured_budget
from sweeper.scheduler.context import Context
from sweeper.scheduler.loop import REPLANNED, Scheduler
from sweeper.scheduler.progress import Summary, exit_code, printer
from sweeper.store.base import Entry, FarStore
from sweeper.store.documents import place_of as file_of
from sweeper.store.opening import default_root, open_store
from sweeper.store.shared import start_shared
from sweeper.store.writable import check_root, make_root
from sweeper.sweep import environment_file, lock
from sweeper.sweep.environment_file import read_environment
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.hint import hint
from sweeper.sweep.plan import Plan
from sweeper.sweep.recipe import runs_anywhere
from sweeper.sweep.states import ENDED, Event, State, parse_name
from sweeper.sweep.sweep_requests import asked_pause, forget
from sweeper.sweep.trust import Agree, refuse, require, require_consent

if TYPE_CHECKING:
    from sweeper.results.status import Status

_LOG = Log("sweeper.launcher.launching")  # Use the same name if this file is run as a module.

_TAKE_OVER_SECONDS = 120.0


class LaunchRequest(NamedTuple):
    """The plan to launch, the root of its store, and options. With `wait`, this process is the
    launcher until the sweep ends. With `smoke`, one run starts first, and the other runs start only
    if that run succeeds. Runs execute a copy of the current checkout (see `snapshot.py`). With
    `live`, runs execute the checkout itself, as it is when each run starts."""

    plan: Plan
    root: str | None = None
    wait: bool = True
    smoke: bool = False
    live: bool = False


class User(NamedTuple):
    """Callbacks to the user of a launch. `agree` is asked before the launch of a sweep that another
    user launched, or that was launched from another home (see `trust.py`). `drop` is asked before
    finished runs that the grid no longer has leave the sweep. `notify` gets each new summary of the
    sweep. `tell` gets messages, for example about the changes that this launch makes."""

    agree: Agree = refuse
    drop: Agree = refuse
    notify: Callable[[Summary], None] = lambda _: None
    tell: Callable[[str], None] = lambda _: None


class Launched(NamedTuple):
    """A launched sweep. `summary` is None if this process was not the launcher. `taken_up` is True
    if a launcher was already running and continues with the new plan."""

    name: str
    root: str
    summary: Summary | None
    taken_up: bool = False

    def __await__(self) -> "Generator[object, None, Status]":
        """Wait until the sweep has ended, and return its status: `await sweeper.launch(...,
        wait=False)`."""
        from sweeper.results.waiting import wait_async

        return wait_async(self.name, root=self.root).__await__()


def launch(  # noqa: PLR0913  (the options of the command)
    source: "str | os.PathLike[str] | Mapping[str, object] | Sequence[object] | Plan",
    root: str | None = None,
    *,
    main: "Callable[..., object] | None" = None,
    name: str | None = None,
    overrides: "Mapping[str, object] | Sequence[str] | None" = None,
    wait: bool = True,
    smoke: bool = False,
    live: bool = False,
    drop: bool = False,
) -> Launched:
    """Launch a grid, or continue its sweep. Finished runs are skipped, running runs continue, and
    new runs are added. A failed run starts again only if `launch.retries` allows another attempt.

    `source` is the path of a grid, a grid as a mapping, or a plan. With `main`, `source` is a list
    of configs (chz objects or dataclasses), and each run calls `main(config)`; `name` is then the
    sweep's name (default: the name of `main`'s module). For the other arguments see
    `LaunchRequest`. With `drop`, finished runs that the grid no longer has leave the sweep. Raises
    `GridError` for a grid that cannot run, and `UsageError` for another user's sweep (see
    `launch_plan`). Without `drop`, raises `UsageError` if finished runs would leave the sweep.
    Raises `EnvironmentFailure` if something that the launch needs is missing, and `AnotherLauncher`
    if a running launcher of the sweep cannot continue with this plan.
    """
    from sweeper.planner.plan import plan

    if main is not None:
        from sweeper.grid.translation.from_configs import grid_of

        source = grid_of(source, main, name)
    elif not isinstance(source, Plan | str | os.PathLike | Mapping):
        raise UsageError("launch: a list of configs needs main=FUNCTION")
    elif name is not None:
        raise UsageError("launch: without main=FUNCTION, omit name: the grid sets it")
    planned = source if isinstance(source, Plan) else plan(source, overrides)

    def dropping(_: Sequence[str]) -> bool:
        return drop

    launched = launch_plan(LaunchRequest(planned, root, wait, smoke, live), User(drop=dropping))
    if wait and launched.taken_up:
        from sweeper.results.waiting import wait as wait_until_ended

        wait_until_ended(launched.name, root=launched.root)
    return launched


def launch_plan(request: LaunchRequest, user: User) -> Launched:
    """Launch a plan, or continue its sweep. Raises the errors of `launch`, and `UsageError` if the
    sweep is another user's and `user.agree` refuses."""
    planned, root, wait, smoke, live = request
    logs.level()  # Refuse a wrong value before anything is written.
    store = open_store(root or default_root())
    check_root(store)
    folder = SweepFolder(store, planned.name)
    if store.is_remote:
        if any(capabilities_at(planned.launch, place).here for place in planned.launch.places):
            start_shared(store.root)
        background.check(folder)
    with suppress(NotFound):  # at the first launch
        require(folder.read_plan().recorded, folder.address, user.agree)
    require_consent(folder, planned, user.drop)
    if planned.budget is not None and planned.budget.usd is not None:
        prices.load()  # the launcher needs these
    _check_account(planned)
    launched = planned.launch
    names = secret_names(planned.secrets, planned.service)
    load_secrets(planned.grid_path, names, user.tell)
    capabilities = preflight.admit(launched, store, planned.service, names, live=live)
    opened, before = _open(folder, planned, user.tell)
    preflight.try_out(opened, planned, planned.runs)
    preflight.require_secrets(preflight.kept_here(capabilities, names))
    environment_cleanup.refuse_if_folder_missing(folder)
    url = engine_for(planned, capabilities, user.tell) if planned.service == "local" else None
    for path in environment_cleanup.unused_files(but=folder.address):
        environment_file.forget(path)
    make_root(store)
    offered = Offer(url, capabilities, located(opened, before), live)
    with ExitStack() as held:
        try:
            check = held.enter_context(lock.holding_sweep(folder, tell=user.tell))
        except AnotherLauncher:
            if offer(folder, planned, offered, user.tell):
                _tell_joined(folder, user.tell, smoke=smoke)
                return Launched(planned.name, store.root, None, taken_up=True)
            patience = lock.PATIENCE_SECONDS if not store.is_remote else _TAKE_OVER_SECONDS
            check = held.enter_context(lock.holding_sweep(folder, patience, user.tell))
        record(folder, planned, offered, user.tell)
        _tell_pause(folder, user.tell)
        if wait:
            summary = _drive(folder, user.notify, smoke, check)
            return Launched(planned.name, store.root, summary)
    start_detached(folder, launched.places, smoke)
    return Launched(planned.name, store.root, None)


def _check_account(plan: Plan) -> None:
    """Check the settings of the account's quota and budget, and the variables that notifications
    need. Raises `EnvironmentFailure`, `UsageError`."""
    notify = notify_of(plan)
    if notify is not None:
        require_variables(notify)
    account.check_place(plan)
    limits = None if plan.service == "none" else configured_budget()
    if limits is not None and limits.budget.usd is not None:
        prices.load()  # the launcher needs these


def _tell_joined(folder: SweepFolder, tell: Callable[[str], None], *, smoke: bool) -> None:
    """Tell the user if the running launcher starts no runs now, or ignores `smoke`."""
    held = folder.read_observations().held
    if held is not None:
        tell(f"the running launcher starts no runs now: {held}")
    if smoke:
        tell("--smoke has no effect: the sweep has started already")


def _tell_pause(folder: SweepFolder, tell: Callable[[str], None]) -> None:
    """Tell the user if the sweep is paused: a pause outlives its launcher."""
    if asked_pause(folder) is not None:
        again = hint("resume", folder.name, root=folder.store.root)
        tell(f"the sweep is paused: no runs are started until `{again}`")


class Ready(NamedTuple):
    """A recorded sweep that `ready` has checked, and that may be launched again."""

    plan: Plan
    capabilities: Capabilities
    places: Located


def ready(folder: SweepFolder, agree: Agree = refuse) -> Ready:
    """Check that the unfinished runs of a sweep can be launched from its recorded plan with this
    process's environment. Write and start nothing. Raises the errors of `launch`."""
    plan = folder.read_plan()
    _check_account(plan)
    file = file_of(folder.store, folder.plan)
    if not plan.stages:
        runs_anywhere(plan.recorded.get("recipe"), file, "recipe")
    for number, stage in enumerate(list_of(plan.recorded.get("stages"))):
        runs_anywhere(table_of(stage).get("recipe"), file, f"stages[{number}].recipe")
    require(plan.recorded, folder.address, agree)
    launched = plan.launch
    names = secret_names(plan.secrets, plan.service)
    load_secrets(plan.grid_path, names, lambda _: None)
    capabilities = preflight.admit(launched, folder.store, plan.service, names, live=False)
    opened, before = _open_again(folder, plan)
    over = {run for run, s in folder.read_states().items() if s.state is State.SUCCEEDED}
    left = [run for run in plan.runs if not run.retired and run.id not in over]
    preflight.try_out(opened, plan, left, any_place=True)
    preflight.require_secrets(preflight.kept_here(capabilities, names))
    return Ready(plan, capabilities, located(opened, before))


def _open(
    folder: SweepFolder, plan: Plan, tell: Callable[[str], None]
) -> tuple[dict[str, Backend], Located]:
    """Open the backends of a plan to launch. Return the backends and the places that the last
    launch recorded (empty if no record can be read). If one of several backends does not answer,
    tell the user; the launcher tries again later. Raises `EnvironmentFailure` if a backend cannot
    be used, or if no backend answers."""
    opened = open_places(plan.launch, plan.name, folder.address, quiet=True)
    for place, backend in opened.items():
        if isinstance(backend, Away):
            tell(f"{place} does not answer, and gets no jobs until it does: {backend.why}")
    return opened, _places_on_record(folder)


def _places_on_record(folder: SweepFolder) -> Located:
    # A damaged record is handled by the code that rewrites it.
    with suppress(NotFound, StoreError):
        return folder.read_service().places
    return ()


def _open_again(folder: SweepFolder, plan: Plan) -> tuple[dict[str, Backend], Located]:
    """Open the backends of a sweep that was launched before. Return the backends and the places
    that the last launch recorded. The launcher later tries to open backends that do not answer now.
    Raises `EnvironmentFailure` if no backend answers."""
    before = _places_on_record(folder)
    accept = partial(refuse_another, before)
    opened = open_places(plan.launch, folder.name, folder.address, any_place=True, accept=accept)
    away = [backend.why for backend in opened.values() if isinstance(backend, Away)]
    if len(away) == len(opened):
        raise EnvironmentFailure("; ".join(dict.fromkeys(away)))
    return opened, before


def resume(
    folder: SweepFolder,
    *,
    wait: bool,
    notify: Callable[[Summary], None] = lambda _: None,
    checked: Ready | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Launched:
    """Launch the unfinished runs of a sweep. `checked` is the result of `ready` (None: call
    `ready`). Tell the user if the record of the last launch is damaged. Raises the errors of
    `launch`, and `AnotherLauncher` if a launcher is already running."""
    plan, capabilities, places = checked or ready(folder)
    url = None
    if plan.service == "local":
        url = preflight.engine_url(capabilities) or ensure_engine(plan.launch.places).url
    with lock.holding_sweep(folder, existing=True, tell=tell) as check:
        write_environment(folder, plan, url, capabilities, places, tell)
        forget(folder, "stop")
        if wait:
            return Launched(folder.name, folder.store.root, _drive(folder, notify, check=check))
    start_detached(folder, plan.launch.places)
    return Launched(folder.name, folder.store.root, None)


def drive(
    address: str,
    notify: Callable[[Summary], None],
    *,
    smoke: bool = False,
    patience: float = lock.PATIENCE_SECONDS,
) -> Summary:
    """Wait at most `patience` seconds for the lock of the sweep at `address`. Then run as the
    sweep's launcher until the sweep ends or a user stops the launcher, and return the last
    summary."""
    folder = SweepFolder.at_address(address)
    folder.read_plan()  # If there is no plan, the error lists the existing sweeps.
    with lock.holding_sweep(folder, patience, existing=True) as check:
        return _drive(folder, notify, smoke, check)


def _drive(
    folder: SweepFolder,
    notify: Callable[[Summary], None],
    smoke: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Summary:
    with background.logging_of(folder):
        while True:
            background.take_up(folder)
            summary = _drive_plan(folder, notify, smoke, check)
            if summary.ends != REPLANNED:
                _LOG.info("the launcher ends: %s", summary.ends or "nothing is left to do")
                return summary
            _LOG.info("%s", REPLANNED)


def _drive_plan(
    folder: SweepFolder,
    notify: Callable[[Summary], None],
    smoke: bool,
    check: Callable[[], None],
) -> Summary:
    """Run the scheduler on the recorded plan until all runs are over, the sweep gets a new plan, or
    the launcher must end."""
    plan = folder.read_plan()
    launched = plan.launch
    env_file = folder.read_service().env_file
    backends, _ = _open_again(folder, plan)

    def bring_home(*, over: bool = True) -> None:
        if folder.store.is_remote:
            background.recover(folder, over=over)

    bring_home(over=False)
    places = ", ".join(backends)
    _LOG.info(
        "launcher: process %d; places of the jobs: %s; runs: %d",
        os.getpid(),
        places,
        len(plan.runs),
    )
    context = Context(folder, backends)
    scheduler = Scheduler(context, notify=notify, smoke=smoke, check=check, ending=bring_home)
    mark = environment_file.mark_of(environment_file.env_file(folder.address))
    try:
        summary = scheduler.run()
    except AnotherLauncher:
        if not may_restart(launched):
            remove_unneeded_environment(folder, backends.values(), mark)
        raise
    if summary.ends is not None:
        with suppress(StoreError):
            forget(folder, "stop")
        return summary
    pack_results(folder, scheduler.outcomes)
    with suppress(StoreError, NotFound):  # `sweeper store gc` removes what is left.
        if not environment_cleanup.is_needed_later(folder):
            environment_file.forget(env_file, folder.address)
            environment_file.forget(environment_file.env_file(folder.address))
    return summary


def pack_results(folder: SweepFolder, outcomes: Mapping[str, bytes] | None = None) -> None:
    """Pack the outcomes, alarms and small metrics files of a finished sweep, so that reading them
    takes few requests. `outcomes` maps paths of outcome files to contents that were read already.
    Do nothing if the store is local or does not answer."""
    if not isinstance(folder.store, FarStore):
        return
    from sweeper.store.packed import pack
    from sweeper.store.snapshot import Snapshot

    snapshot = Snapshot(folder.store)
    try:
        entries = [entry for entry in snapshot.list(folder.name) if _is_result(folder, entry)]
        before = outcomes or {}
        pack(snapshot, folder.name, entries, lambda path: before.get(path) or snapshot.read(path))
    except StoreError as error:
        _LOG.info(
            "the results could not be packed into fewer files, so reading needs more requests: %s",
            error,
        )


def _is_result(folder: SweepFolder, entry: Entry) -> bool:
    parent, _, name = entry.path.rpartition("/")
    if entry.path.startswith(f"{folder.state}/"):
        event = parse_name(name)
        return event is not None and event[1] in ENDED | {Event.LOST}
    return parent == folder.alarms or (parent.startswith(f"{folder.runs}/") and name in NAMES)


def main(arguments: Sequence[str]) -> int:
    """Run as a detached launcher, and print a line for each change."""
    from sweeper.common.sanitize import guarded
    from sweeper.terminal import complain

    with guarded():
        try:
            smoke = "--smoke" in arguments[1:]
            if "--env" in arguments:  # A remote store may need the environment of the launch.
                os.environ.update(read_environment(arguments[arguments.index("--env") + 1]))
            # A `cancel` may hold the lock for a moment.
            summary = drive(
                arguments[0], printer(sys.stdout), smoke=smoke, patience=_TAKE_OVER_SECONDS
            )
        except SweeperError as error:
            return complain(error)
        except KeyboardInterrupt:
            print("interrupted: running jobs continue", file=sys.stderr)
            return 130
        return exit_code(summary)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


_SECRETS_FILE = ".env"
_LARGEST_SECRETS = 1_000_000
_SECRETS_LINE = re.compile(
    r"""\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*
    (?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<plain>[^#'"\s][^#]*?|))\s*(?:\#.*)?\Z""",
    re.VERBOSE | re.ASCII,
)


def load_secrets(grid_path: str, names: Sequence[str], tell: Callable[[str], None]) -> None:
    """Read the file .env beside the grid, and set the secrets in `names` that this process's
    environment lacks. Tell the user which secrets were set. Raises `UsageError` if the file, or the
    line of such a secret, cannot be read."""
    path = os.path.join(os.path.dirname(os.path.abspath(grid_path)), _SECRETS_FILE)
    missing = {name for name in names if not os.environ.get(name)}
    if not grid_path or not missing or not os.path.isfile(path):
        return
    values = {name: value for name, value in _values(path, missing) if value}
    os.environ.update(values)
    if values:
        tell(f"secrets from {path}: {', '.join(sorted(values))}")


def _values(path: str, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, value) for each wanted name in a file .env."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read(_LARGEST_SECRETS).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        match = _SECRETS_LINE.match(line)
        if match is None:
            name = line.partition("=")[0].strip().removeprefix("export ").strip()
            if name in wanted:
                raise UsageError(
                    f"{path}:{number}: the line of {name} cannot be read: write {name}=VALUE, or "
                    f"{name}='VALUE' if the value has spaces or quotes"
                )
        elif match["name"] in wanted:
            kinds = (match[kind] for kind in ("single", "double", "plain"))
            yield match["name"], next(value for value in kinds if value is not None)
