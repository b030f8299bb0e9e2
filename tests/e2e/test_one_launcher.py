"""A sweep has one launcher, which may die at any time."""

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from sweeper.errors import AnotherLauncher, NotFound
from sweeper.store.local import LocalStore
from sweeper.sweep import lock
from sweeper.sweep.folder import SweepFolder

pytestmark = pytest.mark.e2e


def test_a_suspended_reader_is_no_launcher(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.create("s/sweep.json", b"{}")
    with lock.holding_sweep(SweepFolder(store, "s")):
        pass
    looking = os.open(tmp_path / SweepFolder(store, "s").lock, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.5, os.close, (looking,)).start()
    with lock.holding_sweep(SweepFolder(store, "s"), patience=0.0):
        assert lock.is_held(SweepFolder(store, "s"))


def test_a_launcher_that_waits_for_a_deleted_sweep_locks_the_next_one(
    tmp_path: Path,
) -> None:
    """A lock belongs to a file, so the lock of a deleted sweep does not block a new sweep."""
    store = LocalStore(str(tmp_path))
    store.create("s/sweep.json", b"{}")
    waiting, held, done = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        with lock.holding_sweep(SweepFolder(store, "s"), patience=60):
            held.set()
            assert done.wait(60)

    waiter = threading.Thread(target=wait)
    with lock.holding_sweep(SweepFolder(store, "s")):
        waiter.start()
        assert waiting.wait(60)
        time.sleep(0.2)  # it has opened the old file by now, or it will open the new one
        store.remove(["s/sweep.json"])
    assert held.wait(60)
    try:
        with (
            pytest.raises(AnotherLauncher),
            lock.holding_sweep(SweepFolder(store, "s"), patience=0),
        ):
            pass
    finally:
        done.set()
        waiter.join(60)
    assert os.listdir(tmp_path) == []  # a sweep without a plan leaves no lock


def test_a_lock_makes_no_sweep_that_is_gone(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    with pytest.raises(NotFound), lock.holding_sweep(SweepFolder(store, "s"), existing=True):
        pass
    assert os.listdir(tmp_path) == []
