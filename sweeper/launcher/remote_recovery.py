"""Supports launchers of sweeps in remote stores: checks the store, and uploads what dead workers
left on this machine."""

import hashlib
import os
from contextlib import suppress

from sweeper.errors import SweeperError, UsageError
from sweeper.paths import home
from sweeper.store.writable import probe
from sweeper.sweep.folder import SweepFolder


def check(folder: SweepFolder) -> None:
    """Check that a sweep can be launched in a store. Raises `UsageError` for a store in this
    process's memory, `StoreError` for one that does not answer or fails the probe."""
    if folder.store.root.startswith("memory://"):
        raise UsageError(
            f"{folder.store.root}: lies in the memory of one process, where no job finds it: "
            "use a folder"
        )
    probe(folder.store, folder.launcher)


def recover(folder: SweepFolder, *, over: bool) -> None:
    """Upload what dead workers of the sweep left on this machine. If the sweep is `over`, remove
    local copies of stored files. If the store does not answer, this is left for the next call."""
    from sweeper.worker import spool

    local = folder.at(spool.place(folder.store.root, home()))
    with suppress(SweeperError):
        spool.recover(folder.store, local)
    if over:
        spool.tidy(local)


def launcher_log(folder: SweepFolder) -> str:
    """The path of a detached launcher's log on this machine."""
    logs = os.path.join(home(), "launchers")
    os.makedirs(logs, exist_ok=True)
    name = hashlib.sha256(folder.address.encode()).hexdigest()[:16]
    return os.path.join(logs, f"{name}.log")
