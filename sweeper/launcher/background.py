"""Starts launchers that outlive the command, passes new plans to running launchers, and uploads
the files that dead workers left on this machine."""

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from sweeper.common.daemon import outlive
from sweeper.common.logs import LEVEL, logging_to
from sweeper.common.redaction import Redactor, secret_values
from sweeper.errors import (
    AnotherLauncher,
    Damaged,
    EnvironmentFailure,
    NotFound,
    StoreError,
    SweeperError,
    UsageError,
)
from sweeper.launcher.manifest import Offer, keep_environment, merged, tell_changes, with_code
from sweeper.launcher.placement_guard import is_same
from sweeper.launcher.preflight import environment_in_store
from sweeper.paths import home
from sweeper.planner.plan import repeats_by_default
from sweeper.scheduler import account
from sweeper.store.documents import encode
from sweeper.store.local import refuse_links
from sweeper.store.writable import probe
from sweeper.sweep import environment_file, lock
from sweeper.sweep.environment_file import read_environment
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.hint import hint
from sweeper.sweep.plan import Plan
from sweeper.sweep.sweep_requests import asked_plan, asked_stop, forget, propose_plan
from sweeper.sweep.trust import is_ours, sealed


def check(folder: SweepFolder) -> None:
    """Check that the store of a sweep can be used for a launch. Raises `UsageError` if the store is
    in this process's memory, and `StoreError` if it does not answer or if a test write fails."""
    if folder.store.root.startswith("memory://"):
        raise UsageError(
            f"jobs cannot read {folder.store.root}, which is in the memory of this process: "
            "use a folder"
        )
    probe(folder.store, folder.launcher)


def recover(folder: SweepFolder, *, over: bool) -> None:
    """Upload the files that dead workers of the sweep left on this machine. If the sweep is
    `over`, also remove local copies of stored files. If the store does not answer, a later call
    uploads the files."""
    from sweeper.worker import spool

    local = folder.at(spool.place(folder.store.root, home()))
    with suppress(SweeperError):
        spool.recover(folder.store, local)
    if over:
        spool.tidy(local)


def messages_file(folder: SweepFolder) -> str:
    """Return the path of the file with the log messages of a sweep's launchers."""
    path = folder.store.local_path(folder.launcher_messages)
    return path or launcher_log(folder).removesuffix(".log") + ".messages.log"


@contextmanager
def logging_of(folder: SweepFolder) -> Generator[None]:
    """Write log messages of the `with` block to the launcher's log file. Secrets are redacted."""
    environment = dict(os.environ)
    secrets: Sequence[str] = ()
    with suppress(SweeperError):
        secrets = folder.read_plan().secrets
        environment |= read_environment(folder.read_service().env_file)
    path = messages_file(folder)
    if folder.store.local_path(folder.launcher_messages) is not None:
        refuse_links(folder.address, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with logging_to(path, Redactor(secret_values(environment, secrets)).text):
        yield


def launcher_log(folder: SweepFolder) -> str:
    """Return the path on this machine for the output of a sweep's detached launcher."""
    logs = os.path.join(home(), "launchers")
    os.makedirs(logs, exist_ok=True)
    name = hashlib.sha256(folder.address.encode()).hexdigest()[:16]
    return os.path.join(logs, f"{name}.log")


_START_SECONDS = 60.0
"""Time limit for a detached launcher to take its sweep's lock. It is long because a busy machine
starts programs slowly. A launcher that fails earlier is reported immediately."""
_FIRST_SECONDS = 3.0
"""Seconds that a detached launcher has for its first step, in which a backend may refuse the
sweep."""
_ENDS = (0, 3, 4)
"""Exit codes of a launcher that did its work."""


def start_detached(folder: SweepFolder, places: Collection[str], smoke: bool = False) -> None:
    """Start a launcher that outlives this process. Wait until the launcher has published a status,
    or has held the sweep's lock for `_FIRST_SECONDS`. Raises `EnvironmentFailure` if the launcher
    failed or gave up, and `StoreError` if it has not taken the lock after `_START_SECONDS`."""
    before = published(folder)
    command = [sys.executable, "-P", "-m", "sweeper.launcher.launching", folder.address]
    command += ["--smoke"] if smoke else []
    if folder.store.is_remote:
        command += ["--env", environment_file.env_file(folder.address)]
    if "tmux" in places:
        where = f"its window with `{hint('attach', folder.name, root=folder.store.root)}`"
        start_again_or_raise = _in_a_window(folder, command)
    else:
        log_path = folder.store.local_path(folder.launcher_log)
        if log_path is not None:
            refuse_links(folder.address, log_path)
        where = log_path or launcher_log(folder)
        start_again_or_raise = start_with_log(command, where)
    pause = 0.05 if not folder.store.is_remote else 0.5
    deadline, again = time.monotonic() + _START_SECONDS, time.monotonic() + 1
    held = False
    while time.monotonic() < deadline:
        if has_begun(folder, before):
            return
        if not held and lock.is_held(folder):
            held, deadline = True, time.monotonic() + _FIRST_SECONDS
        time.sleep(pause)
        if not held and time.monotonic() >= again:
            start_again_or_raise()
            again += 1
    if not lock.is_held(folder):
        start_again_or_raise()
        raise StoreError(f"the launcher of {folder.name!r} did not start: see {where}")


def _in_a_window(folder: SweepFolder, command: Sequence[str]) -> Callable[[], object]:
    """Start the launcher in a tmux window, unless an earlier launcher still runs there. Return a
    function that repeats this step."""
    from sweeper.backends.tmux.backend import ensure_view
    from sweeper.backends.tmux.server import TmuxServer

    server = TmuxServer()
    ensure_view(server, folder.name, folder.address)
    window = folder.name, folder.address, "launcher", command
    level = os.environ.get(LEVEL)
    handed_on = account.handed_on() | ({LEVEL: level} if level else {})
    start_again_or_raise = partial(server.ensure_window, *window, handed_on)
    start_again_or_raise()
    return start_again_or_raise


def start_with_log(command: Sequence[str], where: str) -> Callable[[], object]:
    """Start the launcher, with its output in a log file. Return a function that raises
    `EnvironmentFailure` with the log's last line if the launcher has failed."""
    with open(where, "ab") as log:
        with suppress(OSError):  # This disk has no locks.
            # The launcher inherits the lock, which keeps `sweeper store gc` from removing its log.
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
        begin = log.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    outlive(process)

    def start_again_or_raise() -> None:
        if process.poll() in (None, *_ENDS):
            return
        with open(where, "rb") as log:
            log.seek(begin)
            last_line = log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise EnvironmentFailure(
            last_line.removeprefix("sweeper: ")
            or f"the launcher ended with exit code {process.returncode}"
        )

    return start_again_or_raise


def published(folder: SweepFolder) -> object:
    """Return the status document that the last launcher published, or None if there is none."""
    with suppress(NotFound):
        return folder.store.read(folder.observations)
    return None


def has_begun(folder: SweepFolder, before: object) -> bool:
    """Return whether the published status document differs from `before`. Raises
    `EnvironmentFailure` if the document says that the launcher gave up."""
    if published(folder) == before:
        return False
    seen = folder.read_observations()
    if seen.gave_up:
        raise EnvironmentFailure(str(seen.held))
    return True


_WAIT_SECONDS = 60.0
"""Seconds that a launcher's step may take, since it may wait for its backend or its store."""
_QUIET_SECONDS = 5.0
_POLL_SECONDS = 0.2
_REMOTE_POLL_SECONDS = 2.0
_OF_A_LAUNCH = ("created", "provenance", "launches", "snapshot", "seal", "grid_path")
"""Fields that differ between launches of the same grid."""


def offer(folder: SweepFolder, plan: Plan, offered: Offer, tell: Callable[[str], None]) -> bool:
    """Give a plan to the running launcher, and wait until the launcher uses the plan. If the
    launcher already has this plan, return True immediately. Return False if the launcher has ended
    or is about to end. Raises `AnotherLauncher` if the launcher cannot use the plan, or does not
    use it within a minute."""
    try:
        before = folder.read_plan()
    except NotFound as error:  # Another launch is about to write the plan.
        raise AnotherLauncher.at_work(plan.name, folder.store.root) from error
    plan = folder.with_chosen(plan)
    if asked_stop(folder) is not None or folder.store.exists(folder.deletion):
        return False  # The launcher is about to end, or a deletion holds the lock.
    if not folder.read_observations().starting:  # A `cancel` is running.
        raise AnotherLauncher.at_work(plan.name, folder.store.root)
    is_same_grid = _essence(merged(folder, before, plan)) == _essence(before)
    if not is_same_grid:
        _refuse(folder, plan, before, offered)
    now = with_code(folder, plan, offered, tell)
    if is_same_grid:
        if _code_of(now) == _code_of(before):
            return True
        _refuse(folder, plan, before, offered)
    keep_environment(folder, plan, offered.url, offered.capabilities)
    tell_changes(folder, before, merged(folder, before, now), tell)
    for warning in repeats_by_default(plan, before):
        tell(warning)
    propose_plan(folder, sealed(now.document()))
    begun, is_told = time.monotonic(), False
    while folder.store.exists(folder.request("plan")):
        waited = time.monotonic() - begun
        if waited > _WAIT_SECONDS or not lock.is_held(folder):
            forget(folder, "plan")
            break
        if waited > _QUIET_SECONDS and not is_told:
            tell("waiting until the running launcher takes up this plan")
            is_told = True
        time.sleep(_REMOTE_POLL_SECONDS if folder.store.is_remote else _POLL_SECONDS)
    if folder.read_plan().provenance == now.provenance:
        return True
    if lock.is_held(folder):
        raise AnotherLauncher.at_work(plan.name, folder.store.root)
    return False


def _code_of(plan: Plan) -> str | None:
    """Return the hash of the plan's copy of the code; None if the plan has no copy."""
    return None if plan.snapshot is None else plan.snapshot.hash


def _essence(plan: Plan) -> dict[str, object]:
    return {key: value for key, value in plan.document().items() if key not in _OF_A_LAUNCH}


def _refuse(folder: SweepFolder, plan: Plan, before: Plan, offered: Offer) -> None:
    """Raise `AnotherLauncher` if the plan changes something that a running launcher cannot
    change."""
    stop = hint("stop", plan.name, root=folder.store.root)
    try:
        service = folder.read_service()
    except Damaged as error:
        raise Damaged(
            f"{error}: end the running launcher with `{stop}`, and launch again to rewrite this "
            "file"
        ) from error
    elsewhere = False
    if folder.store.is_remote:
        from sweeper.sweep.lease import is_elsewhere

        elsewhere = is_elsewhere(folder)
    own_files = (environment_file.env_file(folder.address), environment_in_store(folder))
    foreign = service.env_file is None or service.env_file not in own_files
    moved = bool(service.places) and not is_same(service.places, offered.places)
    other = (before.launch.backend, before.service) != (plan.launch.backend, plan.service)
    if elsewhere or moved or other or foreign:
        raise AnotherLauncher(
            f"{AnotherLauncher.at_work(plan.name, folder.store.root)}, or end it with "
            f"`{stop}`. A running launcher accepts a new plan only from the same machine, and only "
            "for the same backend and service"
        )


def take_up(folder: SweepFolder) -> None:
    """Replace the sweep's plan with the plan that this user has offered, if any. The caller holds
    the sweep's lock. Raises `StoreError`."""
    proposed = asked_plan(folder)
    if proposed is not None and proposed.name == folder.name and is_ours(proposed.recorded):
        before = folder.read_plan()
        # If they are equal, a launcher that was killed has already replaced the plan.
        if before.provenance != proposed.provenance:
            now = merged(folder, before, folder.with_chosen(proposed))
            folder.store.replace(folder.plan, encode(sealed(now.document())))
        forget(folder, "parallel", "cancel")
    forget(folder, "plan")
