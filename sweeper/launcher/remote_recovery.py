"""The launcher's part where the store is elsewhere: it checks that the store can be used, and
brings into it what dead workers left on this machine."""

import hashlib
import os
from contextlib import suppress

from sweeper.errors import SweeperError, UsageError
from sweeper.paths import home
from sweeper.storage.base import Store
from sweeper.storage.layout import Layout

__all__ = ["check", "launcher_log", "recover"]


def check(store: Store, sweep: str) -> None:
    """Check that a sweep can be launched there. Raises `UsageError` for a store that only this
    process has, `StoreError` for one that does not answer or cannot create exclusively."""
    from sweeper.storage.remote import RemoteStore

    if store.root.startswith("memory://"):
        raise UsageError(
            f"{store.root}: lies in the memory of one process, where no job finds it: use a folder"
        )
    if isinstance(store, RemoteStore):
        store.probe(Layout(sweep).launcher)


def recover(store: Store, sweep: str, *, over: bool) -> None:
    """Sync what dead workers of the sweep left on this machine; when the sweep is `over`, remove
    the copies of what is in the store. If the store does not answer, it is left for the next
    time."""
    from sweeper.worker import spool

    found, layout = spool.place(store.root, home()), Layout(sweep)
    with suppress(SweeperError):
        spool.recover(store, found, layout)
    if over:
        spool.tidy(found, layout)


def launcher_log(store: Store, sweep: str) -> str:
    """The file on this machine for the log of a detached launcher."""
    folder = os.path.join(home(), "launchers")
    os.makedirs(folder, exist_ok=True)
    name = hashlib.sha256(f"{store.root}/{sweep}".encode()).hexdigest()[:16]
    return os.path.join(folder, f"{name}.log")
