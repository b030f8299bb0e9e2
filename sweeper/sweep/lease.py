"""Ensures that a sweep on a remote store has only one launcher: the process that created the newest
`launcher/<epoch>`. That process holds the lease until it releases the lease, or has sent no
heartbeat for `LEASE_SECONDS`."""

# launcher/<epoch>            created exclusively, so that only one launcher gets the epoch
# launcher/<epoch>.beat       replaced every few seconds by the holder
# launcher/<epoch>.released   written when the holder releases it
#
# A launcher checks for the next epoch before each submission, and stops if there is one. If two
# launchers still submit the same attempt, only one of the two workers can claim it.

import contextlib
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Generator
from typing import NamedTuple

from sweeper.errors import AlreadyExists, AnotherLauncher, NotFound, StoreError
from sweeper.store.documents import read_as
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.process import is_gone, machine, read_who, this_process
from sweeper.sweep.settled import CHANGING, put_changing

LEASE_SECONDS = 30.0
BEAT_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_FILE = re.compile(r"[^/]+/launcher/[0-9]+(\.beat|\.released)?")


class _Held(NamedTuple):
    epoch: int
    beat: int
    released: bool


_seen: dict[tuple[str, str], tuple[_Held, float, bool]] = {}
"""For each sweep: the last state of its lease that this process saw, the time of the last change,
and whether this process itself saw a change, which means that the launcher is alive."""


def is_leased(folder: SweepFolder, *, clock: Callable[[], float] = time.monotonic) -> bool:
    """Return whether a launcher holds the sweep's lease. A launcher that died on another machine
    counts as alive until this process has seen no heartbeat for `LEASE_SECONDS`."""
    held = _look(folder)
    return held.epoch > 0 and not held.released and not _is_over(folder, held, clock)


def _is_over(folder: SweepFolder, held: _Held, clock: Callable[[], float]) -> bool:
    key = (folder.store.root, folder.name)
    before = _seen.get(key)
    if before is None or before[0] != held:
        _seen[key] = (held, clock(), before is not None and before[0].epoch == held.epoch)
        if before is None or before[0].epoch != held.epoch:
            return _died_here(folder, held)
        return False
    return clock() - before[1] > LEASE_SECONDS or _died_here(folder, held)


def is_alive(folder: SweepFolder, since: float = -math.inf) -> bool:
    """Return whether this process has seen the holder's heartbeat change at the time `since` or
    later. `since` is by the clock passed to `is_leased`. Call `is_leased` first."""
    _, changed, before_us = _seen[folder.store.root, folder.name]
    return before_us and changed >= since


def is_elsewhere(folder: SweepFolder) -> bool:
    """Return whether the newest launcher of the sweep was started on another machine. Raises
    `StoreError` if that machine is unknown."""
    held = _look(folder)
    try:
        return read_as(folder.store, _path(folder, held.epoch), read_who).host != machine()
    except NotFound as error:
        raise StoreError(str(error)) from error


@contextlib.contextmanager
def holding_lease(
    folder: SweepFolder,
    patience: float,
    *,
    existing: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    tell: Callable[[str], None] = lambda _: None,
) -> Generator[Callable[[], None]]:
    """Hold the sweep's lease while the block runs. If another launcher holds the lease, wait until
    that launcher releases the lease or the lease expires. Raises `AnotherLauncher` if the wait
    exceeds `patience` seconds and the other launcher is alive. Yields a function that raises
    `AnotherLauncher` once another launcher has taken over. Removes the lease's files if the sweep
    does not exist when the block ends. If the other launcher sends no heartbeats, `tell` gets a
    message after `patience` seconds. With `existing`, raises `NotFound` if there is no such
    sweep."""
    deadline, is_told = clock() + patience, False
    while True:
        if existing and not folder.store.exists(folder.plan):
            raise NotFound(f"no sweep {folder.name!r} in {folder.store.root}")
        held = _look(folder)
        free = held.epoch == 0 or held.released or _is_over(folder, held, clock)
        if free:
            if _take(folder, held.epoch):
                break
        elif clock() > deadline and is_alive(folder):
            raise AnotherLauncher.at_work(folder.name, folder.store.root)
        elif clock() > deadline and not is_told:
            tell(
                f"waiting: the last launcher of {folder.name!r} sends no heartbeats; its "
                f"lease expires {LEASE_SECONDS:g} s after its last heartbeat"
            )
            is_told = True
        sleep(_LOOK_SECONDS)
    lease = _Lease(folder, held.epoch + 1, clock)
    try:
        _remove_changing(folder)
        yield lease.check
    except StoreError:
        with contextlib.suppress(StoreError):
            put_changing(folder)  # The failed write may still arrive.
        raise
    finally:
        lease.release()


def _take(folder: SweepFolder, before: int) -> bool:
    """Take the lease: create the file `launcher/<before + 1>`. Return False if another process has
    created this file, or if the sweep was deleted. An existing file with our content is ours: the
    store's client has repeated a request whose reply was lost."""
    holder, path = _this_holder(), _path(folder, before + 1)
    try:
        folder.store.create(path, holder)
    except AlreadyExists:
        try:
            if folder.store.read(path) != holder:
                return False
        except NotFound:  # The sweep was deleted with all its epochs.
            return False
    if before and not folder.store.exists(_path(folder, before)):
        # The sweep was deleted, so delete this epoch too. A new sweep may have begun with epoch 1.
        folder.store.remove([path])
        return False
    return True


def _remove_changing(folder: SweepFolder) -> None:
    """Remove the files that commands of this machine created with `settled.changing`, and left when
    they were killed."""
    with contextlib.suppress(StoreError):
        for path in [*folder.store.names(folder.launcher)]:
            if path.startswith(f"{folder.launcher}/{CHANGING}"):
                with contextlib.suppress(NotFound):
                    if is_gone(read_as(folder.store, path, read_who)):
                        folder.store.remove([path])


class _Lease:
    """The lease that this process holds: the file `launcher/<epoch>`. A thread sends heartbeats."""

    def __init__(self, folder: SweepFolder, epoch: int, clock: Callable[[], float]) -> None:
        self._folder, self._store = folder, folder.store
        self._epoch, self._clock = epoch, clock
        self._beats = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def check(self) -> None:
        if self._store.exists(_path(self._folder, self._epoch + 1)):
            raise AnotherLauncher(
                f"another launcher has taken over {self._folder.name!r}, so this one ends"
            )

    def release(self) -> None:
        """Release the lease. If the store does not answer, the lease expires instead."""
        self._ended.set()
        self._thread.join()
        epoch = _path(self._folder, self._epoch)
        with contextlib.suppress(StoreError):
            if self._store.exists(self._folder.plan):
                self._store.create(f"{epoch}.released", b"")
                return
            earlier = (_path(self._folder, number) for number in range(1, self._epoch))
            # Our epoch comes last: while it exists, the sweep is ours.
            for path in (*earlier, epoch):
                self._store.remove([f"{path}.beat", f"{path}.released", path])

    def _keep(self) -> None:
        while True:
            self._beats += 1
            with contextlib.suppress(StoreError):  # The next heartbeat may succeed.
                beat = f"{_path(self._folder, self._epoch)}.beat"
                self._store.replace(beat, b"%d\n" % self._beats, durable=False)
            if self._ended.wait(BEAT_SECONDS):
                return


def _look(folder: SweepFolder) -> _Held:
    top = folder.launcher
    epoch, beats, released = 0, dict[int, int](), set[int]()
    for entry in folder.store.list(top):
        number, _, word = entry.path[len(top) + 1 :].partition(".")
        if not number.isdecimal():
            continue
        if word == "beat":
            beats[int(number)] = entry.stamp
        elif word == "released":
            released.add(int(number))
        elif not word:
            epoch = max(epoch, int(number))
    return _Held(epoch, beats.get(epoch, 0), epoch in released)


def is_of_lease(path: str) -> bool:
    """Return whether a file of a sweep belongs to the sweep's lease."""
    return _FILE.fullmatch(path) is not None


def _path(folder: SweepFolder, epoch: int) -> str:
    return f"{folder.launcher}/{epoch}"


def _this_holder() -> bytes:
    """Return a description of this process, by which other processes of this machine detect that
    this process has died."""
    identity = {**this_process()._asdict(), "nonce": os.urandom(8).hex()}
    return json.dumps(identity).encode() + b"\n"


def _died_here(folder: SweepFolder, held: _Held) -> bool:
    """Return whether the holder was a process of this machine that has ended."""
    try:
        return is_gone(read_as(folder.store, _path(folder, held.epoch), read_who))
    except (NotFound, StoreError):
        return False
