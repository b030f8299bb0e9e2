"""Requests to the launcher of a sweep: files beside what it publishes, each replaced as a whole. A
launcher looks for them in every round, and the next one finds them too."""

import getpass
import os
from collections.abc import Callable
from typing import TypeVar

from sweeper.errors import NotFound, StoreError
from sweeper.model import plan_file
from sweeper.model.plan import Plan
from sweeper.model.request import Asked, Pause, read_asked, read_parallel, read_pause
from sweeper.storage.base import Store
from sweeper.storage.documents import encode, read_as, timestamp
from sweeper.storage.layout import Layout

__all__ = [
    "ask_cancel",
    "ask_parallel",
    "ask_pause",
    "ask_stop",
    "asked_cancel",
    "asked_now",
    "asked_parallel",
    "asked_pause",
    "asked_plan",
    "asked_stop",
    "forget",
    "propose_plan",
    "user",
]

T = TypeVar("T")


def user() -> str:
    """Who asks: the user of this process, and the machine."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"


def asked_now() -> Asked:
    """A request of this user's, made now."""
    return Asked(user(), timestamp())


def ask_pause(store: Store, sweep: str, *, on: bool, runs: bool = False) -> None:
    """Ask that nothing new be started, or that it go on. Raises `StoreError`."""
    _ask(store, sweep, "pause", asked_now().document(on=on, runs=runs))


def ask_parallel(store: Store, sweep: str, most: int | None) -> None:
    """Ask for so many jobs at once; None: as many as the plan says. Raises `StoreError`."""
    _ask(store, sweep, "parallel", asked_now().document(max_parallel=most))


def ask_stop(store: Store, sweep: str) -> None:
    """Ask the launcher at work to end. A launch takes the request back. Raises `StoreError`."""
    _ask(store, sweep, "stop", asked_now().document())


def ask_cancel(store: Store, sweep: str, by: str | None = None) -> None:
    """Ask that nothing more be chosen of a sweep's stages, all of which is cancelled. A launch and
    a retry take the request back. Raises `StoreError`."""
    asked = asked_now() if by is None else Asked(by, timestamp())
    _ask(store, sweep, "cancel", asked.document())


def propose_plan(store: Store, sweep: str, document: dict[str, object]) -> None:
    """Give the launcher at work a plan to go on with. Raises `StoreError`."""
    _ask(store, sweep, "plan", document)


def asked_pause(store: Store, sweep: str) -> Pause | None:
    """The pause that was asked for, if there is one. Raises `StoreError`."""
    return _read(store, sweep, "pause", read_pause)


def asked_parallel(store: Store, sweep: str) -> int | None:
    """How many jobs at once were asked for, if that was. Raises `StoreError`."""
    return _read(store, sweep, "parallel", read_parallel)


def asked_stop(store: Store, sweep: str) -> Asked | None:
    """Who wants the launcher to end, if anybody does. Raises `StoreError`."""
    return _read(store, sweep, "stop", read_asked)


def asked_cancel(store: Store, sweep: str) -> Asked | None:
    """Who has cancelled the whole sweep, if anybody has. Raises `StoreError`."""
    return _read(store, sweep, "cancel", read_asked)


def asked_plan(store: Store, sweep: str) -> Plan | None:
    """The plan to go on with, if there is another. Raises `StoreError`."""
    return _read(store, sweep, "plan", plan_file.read)


def forget(store: Store, sweep: str, *names: str) -> None:
    """Take back requests (`plan`, `parallel`, `stop`, `cancel`). Raises `StoreError`."""
    store.remove([Layout(sweep).request(name) for name in names])


def _ask(store: Store, sweep: str, name: str, document: dict[str, object]) -> None:
    store.replace(Layout(sweep).request(name), encode(document))


def _read(store: Store, sweep: str, name: str, read: Callable[[object, str], T]) -> T | None:
    """What a request says. One that is damaged counts as none: it must not end a launcher."""
    try:
        return read_as(store, Layout(sweep).request(name), read)
    except NotFound:
        return None
    except StoreError:
        if store.exists(Layout(sweep).request(name)):
            return None
        raise
