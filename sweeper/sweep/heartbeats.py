"""Reads workers' heartbeats. A poll reads only heartbeats that have changed."""

import os
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import Clamp, Time, Whole
from sweeper.errors import NotFound, StoreError
from sweeper.store.base import Store, each
from sweeper.store.documents import read_as
from sweeper.sweep.event import Paused
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.usage import NO_USAGE, Usage


class Heartbeat(NamedTuple):
    """A heartbeat. `time` is when the worker wrote the heartbeat, by the worker's clock. `up_s` is
    the number of seconds since the worker began the attempt, and `paused_s` is how many of these
    seconds the service delayed the attempt. `pauses` lists the longest pauses and the current one.
    `usage` is the attempt's usage of the service. `gpus` are the attempt's devices (`0,1`), or
    `waiting` if the attempt waits for devices. `sessions` are the ids of the recipe's sessions at
    the service. `document` is the heartbeat's whole JSON object."""

    time: Time | None = None
    up_s: float | None = None
    paused: Paused | None = None
    paused_s: Annotated[float, Clamp(0.0)] = 0.0
    pauses: tuple[Paused, ...] = ()
    usage: Usage = NO_USAGE
    gpus: str | None = None
    sessions: tuple[str, ...] = ()
    document: Whole[Mapping[str, object]] = MappingProxyType({})


NO_HEARTBEAT = Heartbeat()
"""Stands for a heartbeat that is missing or cannot be read."""


_DOUBT_SECONDS = 15.0
"""Seconds without a new heartbeat after which `Beat.older` is used: a few times the interval of
heartbeats."""

Attempt = tuple[str, int]
"""A run's id and the number of its attempt."""


class Beat(NamedTuple):
    """An attempt's heartbeat as polled. `stamp` changes with each heartbeat (0: there is none yet).
    `seen` is the time of the last change of `stamp`, or of the first poll. `began` is when the
    attempt began, if known. Both times are by this process's monotonic clock. `older` is the age of
    the heartbeat at the first poll, computed from its `time`. `older` is 0 if the age is unknown or
    was already subtracted from `seen`."""

    stamp: int
    seen: float
    body: Heartbeat = NO_HEARTBEAT
    began: float | None = None
    older: float = 0.0


class Heartbeats:
    """The heartbeats of attempts that may be running. Their ages are measured by this process's
    clock, because a worker's clock may be wrong by hours. An attempt counts as alive at its first
    poll."""

    def __init__(
        self,
        folder: SweepFolder,
        clock: Callable[[], float],
        *,
        wall: Callable[[], float] | None = None,
        most: int | None = None,
    ) -> None:
        """Set the clocks and the limit. `wall` returns seconds since 1970. With `wall`, if a
        heartbeat does not change within `_DOUBT_SECONDS` of its first poll, the heartbeat's age is
        computed from its `time`. On a remote store, one poll reads at most `most` changed
        heartbeats (None: all)."""
        self._store, self._folder = folder.store, folder
        self._clock, self._wall = clock, wall
        self._most = most
        self._top = folder.store.local_path(folder.heartbeats)
        self.known: dict[Attempt, Beat] = {}

    def check(self, attempts: Iterable[Attempt]) -> None:
        """Poll these attempts, and forget all other attempts. Raises `StoreError`."""
        now, wanted = self._clock(), list(attempts)
        stamps = self._stamps(wanted)
        limit = self._most if self._top is None else None
        beats: dict[Attempt, Beat] = {}
        changed: list[Attempt] = []
        for attempt in wanted:
            beat, stamp = self.known.get(attempt), stamps.get(attempt, 0)
            if not stamp or (beat is not None and beat.stamp == stamp):
                beats[attempt] = Beat(0, now) if beat is None else self._doubted(beat, now)
            elif limit is None or len(changed) < limit:
                changed.append(attempt)
            elif beat is not None:
                beats[attempt] = beat._replace(stamp=stamp, seen=now, older=0.0)
        paths = [self._folder.heartbeat(*attempt) for attempt in changed]
        bodies = each(self._store, lambda path: read_heartbeat(self._store, path), paths)
        for attempt, body in zip(changed, bodies, strict=True):
            beats[attempt] = self._beat(body, stamps[attempt], self.known.get(attempt), now)
        self.known = beats

    def quiet(self, run: str, attempt: int) -> float:
        """Return the seconds since the heartbeat of a polled attempt last changed."""
        return self._clock() - self.known[run, attempt].seen

    def of(self, run: str, attempt: int) -> tuple[float, Mapping[str, object]]:
        """Return the seconds since the heartbeat last changed, and the heartbeat's JSON object. The
        object is empty before the first heartbeat. Return (0, {}) for an attempt that was not
        polled."""
        beat = self.known.get((run, attempt))
        return (0.0, {}) if beat is None else (self._clock() - beat.seen, beat.body.document)

    def paused(self, run: str, attempt: int) -> Paused | None:
        """Return the reason and the start of the current pause by the service; None if there is no
        pause."""
        return self.known[run, attempt].body.paused

    def _stamps(self, attempts: Iterable[Attempt]) -> dict[Attempt, int]:
        folder = self._folder.heartbeats
        if self._top is None:
            listed = {entry.path: entry.stamp for entry in self._store.list(folder)}
            return {
                attempt: listed.get(self._folder.heartbeat(*attempt), 0) for attempt in attempts
            }
        self._store.exists(folder)  # `exists` raises if the whole store is missing.
        return {attempt: _stamp(f"{self._top}/{attempt[0]}.{attempt[1]}") for attempt in attempts}

    def _beat(self, body: Heartbeat, stamp: int, previous: Beat | None, now: float) -> Beat:
        began = None if body.up_s is None else now - body.up_s
        return Beat(stamp, now, body, began, 0.0 if previous else self._since(body.time))

    def _doubted(self, previous: Beat, now: float) -> Beat:
        if previous.older and now - previous.seen > _DOUBT_SECONDS:
            return previous._replace(seen=previous.seen - previous.older, older=0.0)
        return previous

    def _since(self, written: str | None) -> float:
        if written is None or self._wall is None:
            return 0.0
        # Imported late, since `status` of an ended sweep needs no times.
        from datetime import datetime

        return max(0.0, self._wall() - datetime.fromisoformat(written).timestamp())


def _stamp(path: str) -> int:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    return status.st_mtime_ns ^ status.st_ino


def _read(document: object, place: str) -> Heartbeat:
    return codec.read(Heartbeat, document, place)


def read_heartbeat(store: Store, path: str) -> Heartbeat:
    """Read a heartbeat. Return `NO_HEARTBEAT` if the file is missing or damaged."""
    try:
        return read_as(store, path, _read)
    except (NotFound, StoreError):
        return NO_HEARTBEAT
