"""Makes sure that a sweep on a remote store has one launcher.

    launcher/<epoch>            who: created exclusively, so that of two only one has the epoch
    launcher/<epoch>.beat       replaced every few seconds by the holder
    launcher/<epoch>.released   written when the holder lets go

The holder of the highest epoch is the launcher, until it lets go, or its beat does not change for
`LEASE_SECONDS` by the clock of whoever looks; then the next epoch may be created. A launcher looks
for the next epoch before it submits anything, and stops when it is there. If it slept between that
look and the submission, no harm is done: both launchers meant the same attempt, and of two workers
one claims it.
"""

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
from sweeper.sweep.launcher import read_who
from sweeper.sweep.process import is_gone, machine, this_process

LEASE_SECONDS = 30.0
BEAT_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_FILE = re.compile(r"[^/]+/launcher/[0-9]+(\.beat|\.released)?")


class _Held(NamedTuple):
    """The newest epoch; the stamp of its beat (0 without); whether it has ended."""

    epoch: int
    beat: int
    released: bool


_seen: dict[tuple[str, str], tuple[_Held, float, bool]] = {}
"""What this process saw last of each sweep, since when that has not changed, and whether it saw it
change: then the launcher is alive."""


def is_leased(folder: SweepFolder, *, clock: Callable[[], float] = time.monotonic) -> bool:
    """Return whether a launcher holds the sweep, as far as one look can tell: one that died on
    another machine counts as alive for `LEASE_SECONDS` after the first look."""
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
    """Return whether we have seen the holder's beat change, `since` a moment of our clock. To be
    called after `is_leased`."""
    _, changed, before_us = _seen[folder.store.root, folder.name]
    return before_us and changed >= since


def is_elsewhere(folder: SweepFolder) -> bool:
    """Return whether the last launcher that held the sweep is, or was, on another machine. Raises
    `StoreError` if that cannot be told."""
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
    """Hold the sweep once nobody else does. Waits until the other launcher is seen to beat, and
    then for `patience` seconds, or until its lease has run out. Yield a function that raises
    `AnotherLauncher` when another has taken the sweep over. A lease of a sweep that is not there
    when the block ends leaves no files behind. `tell` gets a sentence if this waits for a lease to
    run out. Raises `AnotherLauncher`; with `existing` also `NotFound` if there is no such sweep."""
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
                f"waiting for the last launcher of {folder.name!r}: it gives no sign of life, and "
                f"has the sweep until it has been silent for {LEASE_SECONDS:g} s"
            )
            is_told = True
        sleep(_LOOK_SECONDS)
    lease = _Lease(folder, held.epoch + 1, clock)
    try:
        yield lease.check
    finally:
        lease.release()


def _take(folder: SweepFolder, before: int) -> bool:
    """Create the epoch after `before`. Return whether it is ours, also if the reply to the create
    was lost and our own is found at the second try."""
    who, path = _who(), _path(folder, before + 1)
    try:
        folder.store.create(path, who)
    except AlreadyExists:
        try:
            if folder.store.read(path) != who:
                return False
        except NotFound:  # its sweep was deleted, with all epochs
            return False
    if before and not folder.store.exists(_path(folder, before)):
        folder.store.remove([path])  # the same: another may have begun with epoch 1 since
        return False
    return True


class _Lease:
    """An epoch that is ours, kept by a thread that beats."""

    def __init__(self, folder: SweepFolder, epoch: int, clock: Callable[[], float]) -> None:
        self._folder, self._store = folder, folder.store
        self._epoch, self._clock = epoch, clock
        self._beats = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `AnotherLauncher` if another launcher has the sweep by now."""
        if self._store.exists(_path(self._folder, self._epoch + 1)):
            raise AnotherLauncher(
                f"another launcher has taken over {self._folder.name!r}: this one ends"
            )

    def release(self) -> None:
        """Let go of the lease; if that does not reach the store, the lease runs out."""
        self._ended.set()
        self._thread.join()
        own = _path(self._folder, self._epoch)
        with contextlib.suppress(StoreError):
            if self._store.exists(self._folder.plan):
                self._store.create(f"{own}.released", b"")
                return
            earlier = (_path(self._folder, number) for number in range(1, self._epoch))
            for path in (*earlier, own):  # ours is the last: nobody else takes the sweep until then
                self._store.remove([f"{path}.beat", f"{path}.released", path])

    def _keep(self) -> None:
        while True:
            self._beats += 1
            with contextlib.suppress(StoreError):  # the next may get through
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
    """Return whether a file of a sweep belongs to its lease."""
    return _FILE.fullmatch(path) is not None


def _path(folder: SweepFolder, epoch: int) -> str:
    return f"{folder.launcher}/{epoch}"


def _who() -> bytes:
    """Describe this process, so that others on this machine need not wait for its lease to run
    out."""
    own = {**this_process()._asdict(), "nonce": os.urandom(8).hex()}
    return json.dumps(own).encode() + b"\n"


def _died_here(folder: SweepFolder, held: _Held) -> bool:
    """Return whether the holder was a process of this machine that is gone."""
    try:
        return is_gone(read_as(folder.store, _path(folder, held.epoch), read_who))
    except (NotFound, StoreError):
        return False
