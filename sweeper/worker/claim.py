"""Claims an attempt. A backend may start several workers for an attempt, and only one may train."""

import os
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Never, TypeVar

from sweeper.common.document_reader import SCHEMA
from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.store.documents import encode, read_as, timestamp
from sweeper.sweep import event
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

T = TypeVar("T")
_NOTHING: Mapping[str, Never] = MappingProxyType({})
_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between the attempts of `with_retries`."""


def with_retries(action: Callable[[], T]) -> T:
    """Call `action`, with a few retries while the store does not answer. `NotFound` and
    `AlreadyExists` are answers, and are raised at once."""
    for pause in _PAUSES:
        try:
            return action()
        except (NotFound, AlreadyExists):
            raise
        except StoreError:
            time.sleep(pause)
    return action()


def claim(
    folder: SweepFolder,
    run: str,
    attempt: int,
    submitted: int | None = None,
    origin: Mapping[str, object] = _NOTHING,
) -> bool:
    """Claim the attempt. Returns whether it belongs to this worker. If the reply to the create was
    lost, the nonce distinguishes our own claim from another worker's. `origin` says what the
    attempt runs."""
    nonce = os.urandom(8).hex()
    path = folder.event(run, attempt, Event.CLAIMED)
    body = {
        "schema": SCHEMA,
        "time": timestamp(),
        "started": timestamp(),
        "nonce": nonce,
        "submitted": attempt if submitted is None else submitted,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        **origin,
    }
    if with_retries(lambda: newer_attempt(folder, run, attempt)):
        return False
    try:
        with_retries(lambda: folder.store.create(path, encode(body)))
    except AlreadyExists:
        return with_retries(lambda: read_as(folder.store, path, event.read)).nonce == nonce
    return True


def newer_attempt(folder: SweepFolder, run: str, attempt: int) -> bool:
    """Return whether the next attempt is open, which means that the launcher has given this one
    up."""
    return folder.store.exists(folder.event(run, attempt + 1, Event.INTENT))
