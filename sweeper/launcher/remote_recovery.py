"""Supports launchers of sweeps in remote stores: checks the store, and uploads what dead workers
left on this machine."""

import hashlib
import os
from contextlib import suppress

from sweeper.errors import SweeperError, UsageError
from sweeper.paths import home
from sweeper.storage.base import Store
from sweeper.storage.layout import Layout
from sweeper.storage.writable import probe

__all__ = ["check", "launcher_log", "recover"]


def check(store: Store, sweep: str) -> None:
    """Check that a sweep can be launched in a store. Raises `UsageError` for a store in this
    process's memory, `StoreError` for one that does not answer or fails the probe."""
    if store.root.startswith("memory://"):
        raise UsageError(
            f"{store.root}: lies in the memory of one process, where no job finds it: use a folder"
        )
    probe(store, Layout(sweep).launcher)


def recover(store: Store, sweep: str, *, over: bool) -> None:
    """Upload what dead workers of the sweep left on this machine. If the sweep is `over`, remove
    local copies of stored files. If the store does not answer, this is left for the next call."""
    from sweeper.worker import spool

    found, layout = spool.place(store.root, home()), Layout(sweep)
    with suppress(SweeperError):
        spool.recover(store, found, layout)
    if over:
        spool.tidy(found, layout)


def launcher_log(store: Store, sweep: str) -> str:
    """The path of a detached launcher's log on this machine."""
    folder = os.path.join(home(), "launchers")
    os.makedirs(folder, exist_ok=True)
    name = hashlib.sha256(f"{store.root}/{sweep}".encode()).hexdigest()[:16]
    return os.path.join(folder, f"{name}.log")
