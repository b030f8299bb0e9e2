"""What a launcher does besides where the store is elsewhere: see that it can be used, and bring
into it what dead workers left on this machine."""

import hashlib
import os
from argparse import Namespace
from contextlib import suppress
from typing import Any

from sweeper.errors import EnvironmentFailure, SweeperError, UsageError
from sweeper.paths import home
from sweeper.store.documents import SCHEMA
from sweeper.store.files import Store, open_store
from sweeper.store.layout import Layout
from sweeper.terminal import print_json, say, warn

__all__ = ["check", "launcher_log", "recover", "sync"]


def check(store: Store, sweep: str) -> None:
    """See that a sweep can be launched there. Raises `UsageError` for a store that only this
    process has, `StoreError` for one that does not answer or cannot create exclusively."""
    from sweeper.store.remote import RemoteStore

    if store.root.startswith("memory://"):
        raise UsageError(
            f"{store.root}: lies in the memory of one process, where no job finds it: use a folder"
        )
    if isinstance(store, RemoteStore):
        store.probe(Layout(sweep).launcher)


def recover(store: Store, sweep: str, *, over: bool) -> None:
    """Sync what workers of the sweep that are dead left on this machine; when it is `over` remove
    the copies of what is in the store. A store that does not answer is for the next time."""
    from sweeper.worker import spool

    found, layout = spool.place(store.root, home()), Layout(sweep)
    with suppress(SweeperError):
        spool.recover(store, found, layout)
    if over:
        spool.tidy(found, layout)


def sync(arguments: Namespace) -> int:
    """The verb: sync what dead workers left on this machine, of every sweep or of one."""
    from sweeper.worker import spool

    done: list[dict[str, Any]] = []
    left: list[str] = []
    for root, found, sweeps in spool.spools(home()):
        chosen = [name for name in sweeps if arguments.sweep in (None, name)]
        if chosen and arguments.root in (None, root):
            store = open_store(root)
            for name in chosen:
                count = spool.recover(store, found, Layout(name), tell=left.append)
                done.append({"root": root, "sweep": name, "attempts": count})
    for line in left:
        warn(line)
    code = EnvironmentFailure.exit_code if left else 0
    if arguments.json:
        return print_json({"schema": SCHEMA, "sweeps": done}) or code
    for one in done:
        say(f"{one['root']}/{one['sweep']}: {one['attempts']} attempts brought into the store")
    if not done:
        say("nothing lies here that is not in its store")
    return code


def launcher_log(store: Store, sweep: str) -> str:
    """Where the launcher's own log lies on this machine."""
    folder = os.path.join(home(), "launchers")
    os.makedirs(folder, exist_ok=True)
    name = hashlib.sha256(f"{store.root}/{sweep}".encode()).hexdigest()[:16]
    return os.path.join(folder, f"{name}.log")
