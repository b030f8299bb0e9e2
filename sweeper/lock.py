"""One launcher a sweep."""

import contextlib
import fcntl
import os
from collections.abc import Generator

from sweeper.errors import AnotherLauncher, StoreError
from sweeper.layout import Layout
from sweeper.store import Store

__all__ = ["holding_sweep", "is_held"]


@contextlib.contextmanager
def holding_sweep(store: Store, sweep: str) -> Generator[None]:
    """Hold the sweep's lock. The kernel lets go of it when the process ends, however it ends.

    Raises `AnotherLauncher` when it is taken.
    """
    descriptor = _open(store, sweep)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AnotherLauncher(
                f"another launcher is at work on {sweep!r} in {store.root}: "
                f"watch it with `sweeper status {sweep}`, or wait until it ends"
            ) from error
        yield
    finally:
        os.close(descriptor)


def is_held(store: Store, sweep: str) -> bool:
    """Whether some launcher holds the sweep now."""
    try:
        with holding_sweep(store, sweep):
            return False
    except AnotherLauncher:
        return True


def _open(store: Store, sweep: str) -> int:
    path = store.local_path(Layout(sweep).lock)
    if path is None:
        raise StoreError(f"{store.root}: a launcher needs a local folder to lock")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Not inherited: a job must not keep the lock of the launcher that started it.
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
