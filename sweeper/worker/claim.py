"""Claiming an attempt: of all the workers that a backend may start for it, one trains."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.model import event
from sweeper.model.states import Event
from sweeper.storage.documents import SCHEMA, encode, read_as, timestamp
from sweeper.storage.files import Store
from sweeper.storage.layout import Layout

__all__ = ["claim", "newer_attempt", "patiently"]

T = TypeVar("T")
_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between tries of what must not fail for a store that does not answer at once."""


def patiently(action: Callable[[], T]) -> T:
    """Do `action`; again, a few times, when the store does not answer. What it says (`NotFound`,
    `AlreadyExists`) is an answer."""
    for pause in _PAUSES:
        try:
            return action()
        except (NotFound, AlreadyExists):
            raise
        except StoreError:
            time.sleep(pause)
    return action()


def claim(
    store: Store, layout: Layout, run: str, attempt: int, submitted: int | None = None
) -> bool:
    """Whether the attempt is ours from now on. The nonce tells our own claim, when the reply to the
    create was lost and it is tried again, from another worker's."""
    nonce = os.urandom(8).hex()
    path = layout.event(run, attempt, Event.CLAIMED)
    body = {
        "schema": SCHEMA,
        "time": timestamp(),
        "started": timestamp(),
        "nonce": nonce,
        "submitted": attempt if submitted is None else submitted,
        "host": os.uname().nodename,
        "pid": os.getpid(),
    }
    if patiently(lambda: newer_attempt(store, layout, run, attempt)):
        return False
    try:
        patiently(lambda: store.create(path, encode(body)))
    except AlreadyExists:
        return patiently(lambda: read_as(store, path, event.read)).nonce == nonce
    return True


def newer_attempt(store: Store, layout: Layout, run: str, attempt: int) -> bool:
    """Whether the launcher has given this attempt up and opened the next."""
    return store.exists(layout.event(run, attempt + 1, Event.INTENT))
