"""Claims an attempt: a backend may start several workers for it, and only one may train."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.model import event
from sweeper.model.states import Event
from sweeper.storage.base import Store
from sweeper.storage.documents import SCHEMA, encode, read_as, timestamp
from sweeper.storage.layout import Layout

__all__ = ["claim", "newer_attempt", "with_retries"]

T = TypeVar("T")
_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between the tries of `with_retries`."""


def with_retries(action: Callable[[], T]) -> T:
    """Do `action`, and try again a few times while the store does not answer. `NotFound` and
    `AlreadyExists` are answers."""
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
    """Claim the attempt. Returns whether it is ours from now on. If the reply to the create was
    lost, the nonce tells our own claim from another worker's."""
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
    if with_retries(lambda: newer_attempt(store, layout, run, attempt)):
        return False
    try:
        with_retries(lambda: store.create(path, encode(body)))
    except AlreadyExists:
        return with_retries(lambda: read_as(store, path, event.read)).nonce == nonce
    return True


def newer_attempt(store: Store, layout: Layout, run: str, attempt: int) -> bool:
    """Whether the next attempt has been opened: the launcher has given this one up."""
    return store.exists(layout.event(run, attempt + 1, Event.INTENT))
