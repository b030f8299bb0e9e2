"""Ensures that a sweep has at most one launcher: with a kernel lock if the store is a folder, with
a lease (`lease.py`) if the store is remote."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Generator

from sweeper.errors import AnotherLauncher, NotFound, StoreError
from sweeper.store.base import Store
from sweeper.store.local import refuse_links
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.hint import hint

PATIENCE_SECONDS = 0.5
"""Seconds to wait for a launcher that is about to end."""
_LOOK_SECONDS = 60.0
"""Seconds to wait for a process that only checks the lock. Such a process holds the lock only
briefly, unless it is stopped (SIGSTOP)."""

_OPENINGS = 100
"""How many times to try to create the lock's file while other processes remove its folder."""


@contextlib.contextmanager
def holding_sweep(
    folder: SweepFolder,
    patience: float = PATIENCE_SECONDS,
    tell: Callable[[str], None] = lambda _: None,
    *,
    existing: bool = False,
    deletes: bool = False,
) -> Generator[Callable[[], None]]:
    """Hold the sweep's lock while the block runs (see `_holding`). Without `deletes`, also raises
    `StoreError` if a deletion of the sweep was interrupted."""
    with _holding(folder, patience, tell, existing=existing) as check:
        if not deletes and folder.store.exists(folder.deletion):
            finish = hint("sweep delete", folder.name, root=folder.store.root)
            raise StoreError(
                f"the deletion of {folder.address} was interrupted: `{finish}` deletes what is left"
            )
        yield check


@contextlib.contextmanager
def _holding(
    folder: SweepFolder, patience: float, tell: Callable[[str], None], *, existing: bool
) -> Generator[Callable[[], None]]:
    """Hold the sweep's lock. The kernel releases a local lock when the process ends, even if the
    process is killed. Yields a function that raises `AnotherLauncher` once another launcher has
    taken over (possible only with a lease).

    Removes the lock's files if there is no `sweep.json` when the block ends (the sweep was deleted,
    or its launch failed).

    Raises `AnotherLauncher` if a launcher still has the lock after `patience` seconds. With
    `existing`, raises `NotFound` if the sweep does not exist. `tell` gets a message if the caller
    must wait for a lease to expire.
    """
    if folder.store.is_remote:
        from sweeper.sweep.lease import holding_lease

        with holding_lease(folder, patience, existing=existing, tell=tell) as check:
            yield check
        return
    path = _path(folder)
    refuse_links(os.path.join(folder.store.root, folder.name), path)
    if existing:
        _require_sweep(folder)
    descriptor = _lock(folder, path, patience)
    try:
        if existing:
            _require_sweep(folder)  # The sweep may have been deleted before we got the lock.
        yield _ours
    finally:
        with contextlib.suppress(OSError, StoreError):
            if not folder.store.exists(folder.plan) and _is_at(descriptor, path):
                _remove(path)
        os.close(descriptor)


def _require_sweep(folder: SweepFolder) -> None:
    """Raise `NotFound` if there is no such sweep."""
    if not folder.store.exists(folder.plan):
        raise NotFound(f"no sweep {folder.name!r} in {folder.store.root}")


def is_of_lock(store: Store, path: str) -> bool:
    """Return whether the file at `path` belongs to a sweep's lock. `holding_sweep` removes the
    lock's files."""
    if store.is_remote:
        from sweeper.sweep.lease import is_of_lease

        return is_of_lease(path)
    return path.endswith("/launcher/lock") and path.count("/") == 2


def _lock(folder: SweepFolder, path: str, patience: float) -> int:
    """Lock the file at `path`, and return the file's descriptor. If the file was removed meanwhile,
    lock the new file at `path`."""
    begun = time.monotonic()
    while True:
        descriptor = _open(path)
        try:
            while not _try(descriptor, fcntl.LOCK_EX):
                waited = time.monotonic() - begun
                if waited > patience and (waited > _LOOK_SECONDS or not _is_shared(descriptor)):
                    raise AnotherLauncher.at_work(folder.name, folder.store.root)
                time.sleep(0.02)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _open(path: str) -> int:
    """Open the lock's file, creating it if it is missing. Raises `StoreError`."""
    for tries_left in reversed(range(_OPENINGS)):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            # The folder may have been removed with its sweep.
            if not tries_left or not isinstance(error, FileNotFoundError):
                raise StoreError(f"{path}: {error.strerror}") from error
    raise AssertionError


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _remove(path: str) -> None:
    """Remove the lock's file and the two folders above it. Raises `OSError` if a folder is not
    empty: another process has created a new sweep there."""
    os.unlink(path)
    folder = os.path.dirname(path)
    os.rmdir(folder)
    top = os.path.dirname(folder)
    if os.path.islink(top):
        os.unlink(top)  # The folder that a link leads to stays.
    else:
        os.rmdir(top)


def is_held(folder: SweepFolder, *, clock: Callable[[], float] = time.monotonic) -> bool:
    """Return whether a launcher holds the sweep's lock now. Creates no files. Raises `StoreError`
    if the lock cannot be checked."""
    if folder.store.is_remote:
        from sweeper.sweep.lease import is_leased

        return is_leased(folder, clock=clock)
    path = _path(folder)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # The file may be a pipe.
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    try:
        return not _try(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def is_alive(folder: SweepFolder, since: float) -> bool:
    """Return whether the lock's holder was alive at the time `since` (monotonic seconds) or later.
    Call `is_held` first. The holder of a local lock is always alive, because the kernel releases
    the lock of a dead process."""
    if not folder.store.is_remote:
        return True
    from sweeper.sweep import lease

    return lease.is_alive(folder, since)


def _ours() -> None:
    """Do nothing: a kernel lock cannot be lost to another launcher."""


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_shared(descriptor: int) -> bool:
    """Return whether no launcher holds the lock. Processes that only check the lock share it."""
    shared = _try(descriptor, fcntl.LOCK_SH)
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return shared


def _path(folder: SweepFolder) -> str:
    path = folder.store.local_path(folder.lock)
    if path is None:
        raise StoreError(f"{folder.store.root}: a launcher needs a local folder to lock")
    return path
