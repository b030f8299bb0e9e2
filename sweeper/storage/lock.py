"""Makes sure that a sweep has one launcher: by a lock of the kernel's where the store is a folder,
by a lease (`lease.py`) where it is remote."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Generator

from sweeper.errors import AnotherLauncher, StoreError
from sweeper.storage.base import Store
from sweeper.storage.layout import Layout
from sweeper.storage.local import refuse_links

__all__ = ["PATIENCE_SECONDS", "holding_sweep", "is_alive", "is_held"]

PATIENCE_SECONDS = 0.5
"""How long to wait for a launcher that is about to end."""
_LOOK_SECONDS = 60.0
"""How long to wait for a process that looks whether the lock is held, and stands still then."""


@contextlib.contextmanager
def holding_sweep(
    store: Store, sweep: str, patience: float = PATIENCE_SECONDS
) -> Generator[Callable[[], None]]:
    """Hold the sweep's lock. The kernel releases it when the process ends, however it ends. Yields
    a function that raises `AnotherLauncher` once the sweep is not ours any more, which can only
    happen to a lease.

    Raises `AnotherLauncher` when a launcher has it, and still does after `patience` seconds.
    """
    if store.is_remote:
        from sweeper.storage.lease import holding_lease

        with holding_lease(store, sweep, patience) as check:
            yield check
        return
    path = _path(store, sweep)
    refuse_links(os.path.join(store.root, sweep), path)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    try:
        begun = time.monotonic()
        while not _try(descriptor, fcntl.LOCK_EX):
            waited = time.monotonic() - begun
            if waited > patience and (waited > _LOOK_SECONDS or not _is_shared(descriptor)):
                raise AnotherLauncher.at_work(sweep, store.root)
            time.sleep(0.02)
        yield _ours
    finally:
        os.close(descriptor)


def is_held(store: Store, sweep: str) -> bool:
    """Whether a launcher holds the sweep now. Leaves nothing behind. Raises `StoreError` if that
    cannot be told."""
    if store.is_remote:
        from sweeper.storage.lease import is_leased

        return is_leased(store, sweep)
    path = _path(store, sweep)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # it may be a pipe
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    try:
        return not _try(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def is_alive(store: Store, sweep: str, since: float) -> bool:
    """Whether the holder of the sweep, by `is_held`, is known to have lived at `since` or later, by
    the monotonic clock. The kernel keeps no lock for a dead process."""
    if not store.is_remote:
        return True
    from sweeper.storage import lease

    return lease.is_alive(store, sweep, since)


def _ours() -> None:
    """The check of a kernel lock, which is never taken away."""


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_shared(descriptor: int) -> bool:
    """Whether those who hold the lock only look: a launcher shares it with nobody."""
    shared = _try(descriptor, fcntl.LOCK_SH)
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return shared


def _path(store: Store, sweep: str) -> str:
    path = store.local_path(Layout(sweep).lock)
    if path is None:
        raise StoreError(f"{store.root}: a launcher needs a local folder to lock")
    return path
