"""Hands a new plan to the launcher that is already at work on the sweep.

The launching process checks everything, saves the environment and the code, and stores the plan
next to the sweep's. The launcher finds it within a round, makes it the sweep's plan, and starts
over with it, as after a restart. If either process is killed, the next launcher takes up the stored
plan.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from sweeper.backends import Capabilities
from sweeper.errors import AnotherLauncher, Damaged, NotFound
from sweeper.launcher.manifest import keep_environment, merged, tell_changes, with_code
from sweeper.launcher.placement_guard import Located, is_same
from sweeper.launcher.preflight import environment_in_store
from sweeper.launcher.trust import is_ours, sealed
from sweeper.planner.plan import repeats_by_default
from sweeper.scheduler import environment
from sweeper.store.documents import encode
from sweeper.sweep import lock
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.hint import hint
from sweeper.sweep.plan import Plan
from sweeper.sweep.sweep_requests import asked_plan, asked_stop, forget, propose_plan

_WAIT_SECONDS = 60.0
"""Time limit for a launcher's round, in which it may wait for its backend or its store."""
_QUIET_SECONDS = 5.0
_POLL_SECONDS = 0.2
_REMOTE_POLL_SECONDS = 2.0
_OF_A_LAUNCH = ("created", "provenance", "launches", "snapshot", "seal", "grid_path")
"""Fields that differ between launches of the same grid."""


class Offer(NamedTuple):
    """What a launch determined: its engine's address, the capabilities and locations of its places,
    and whether it is `--live`."""

    url: str | None
    capabilities: Capabilities
    places: Located
    live: bool = False


def offer(folder: SweepFolder, plan: Plan, found: Offer, tell: Callable[[str], None]) -> bool:
    """Give a plan to the launcher at work, unless it has the same already, and wait until it takes
    the plan up. Returns False if the launcher ended instead, so that the sweep is free. Raises
    `AnotherLauncher` if the launcher cannot continue with the plan."""
    try:
        before = folder.read_plan()
    except NotFound as error:  # another launch is about to write it
        raise AnotherLauncher.at_work(plan.name, folder.store.root) from error
    plan = folder.with_chosen(plan)
    if asked_stop(folder) is not None or folder.store.exists(folder.deletion):
        return False  # it is about to end, or a deletion holds the lock
    if not folder.read_observations().starting:  # a `cancel` is at work
        raise AnotherLauncher.at_work(plan.name, folder.store.root)
    is_same_grid = _essence(merged(folder.store, before, plan)) == _essence(before)
    if not is_same_grid:
        _refuse(folder, plan, before, found)
    now = with_code(folder, plan, live=found.live, tell=tell)
    if is_same_grid:
        if _code_of(now) == _code_of(before):
            return True
        _refuse(folder, plan, before, found)
    keep_environment(folder, plan, found.url, found.capabilities)
    tell_changes(folder.store, before, merged(folder.store, before, now), tell)
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
            tell("waiting for the launcher at work to continue with this plan")
            is_told = True
        time.sleep(_REMOTE_POLL_SECONDS if folder.store.is_remote else _POLL_SECONDS)
    if folder.read_plan().provenance == now.provenance:
        return True
    if lock.is_held(folder):
        raise AnotherLauncher.at_work(plan.name, folder.store.root)
    return False


def _code_of(plan: Plan) -> str | None:
    """Return the hash of the copy of the code that the plan's runs execute."""
    return None if plan.snapshot is None else plan.snapshot.hash


def _essence(plan: Plan) -> dict[str, object]:
    return {key: value for key, value in plan.document().items() if key not in _OF_A_LAUNCH}


def _refuse(folder: SweepFolder, plan: Plan, before: Plan, found: Offer) -> None:
    """Raise `AnotherLauncher` if the plan changes something that a launcher at work cannot
    change."""
    stop = hint("stop", plan.name, root=folder.store.root)
    try:
        service = folder.read_service()
    except Damaged as error:
        raise Damaged(
            f"{error}; end the launcher at work with `{stop}`: the next launch writes it anew"
        ) from error
    elsewhere = False
    if folder.store.is_remote:
        from sweeper.sweep.lease import is_elsewhere

        elsewhere = is_elsewhere(folder)
    own_files = (environment.env_file(folder.address), environment_in_store(folder))
    foreign = service.env_file is None or service.env_file not in own_files
    moved = bool(service.places) and not is_same(service.places, found.places)
    other = (before.launch.backend, before.service) != (plan.launch.backend, plan.service)
    if elsewhere or moved or other or foreign:
        raise AnotherLauncher(
            f"{AnotherLauncher.at_work(plan.name, folder.store.root)}, or end it with `{stop}`: "
            "only one on this machine, for the same backend and service, can go on with another "
            "plan"
        )


def take_up(folder: SweepFolder) -> None:
    """Replace the sweep's plan by the proposed plan, if this user proposed one. The caller holds
    the sweep's lock. Raises `StoreError`."""
    proposed = asked_plan(folder)
    if proposed is not None and proposed.name == folder.name and is_ours(proposed.recorded):
        before = folder.read_plan()
        if before.provenance != proposed.provenance:  # else a killed launcher already took it up
            now = merged(folder.store, before, folder.with_chosen(proposed))
            folder.store.replace(folder.plan, encode(sealed(now.document())))
        forget(folder, "parallel", "cancel")
    forget(folder, "plan")
