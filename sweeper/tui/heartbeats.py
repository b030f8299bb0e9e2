"""Signs of life, by the cheapest look that tells: runs' states from the stamps of their folders,
heartbeats from theirs. What has not changed is not read again."""

import os
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple

from sweeper.errors import StoreError
from sweeper.launcher.heartbeats import read_heartbeat, why_paused
from sweeper.states import Event, RunState, fold, parse_name, retry_asked, wants_attempt
from sweeper.store.files import Store
from sweeper.store.layout import Layout
from sweeper.store.sweeps import read_events

__all__ = ["Beat", "Heartbeats", "States"]

_SETTLED = 2
"""Looks after which a folder's time is believed: two changes within a tick of the kernel's clock
leave the same one."""
_DOUBT_SECONDS = 15.0
"""A few beats of a worker's."""
_READS = 16
"""Most heartbeats of a remote store that are read in one look."""


class States:
    """The states of a sweep's runs, whose launcher makes good for so many failures. `again` has
    those that somebody has asked to be started again, which they were not yet."""

    def __init__(self, store: Store, layout: Layout, retries: int = 0) -> None:
        self._store, self._layout, self._retries = store, layout, retries
        self._top = store.local_path(layout.state)
        self._stamps: dict[str, tuple[int, int]] = {}
        self._folded: dict[frozenset[tuple[int, Event]], RunState] = {}
        self.events: dict[str, frozenset[tuple[int, Event]]] = {}
        self.known: dict[str, RunState] = {}
        self.again: set[str] = set()
        self._settled: set[str] = set()

    def wants(self, run: str) -> bool:
        """Whether a run is still to be started (again), or may be about to be."""
        return run not in self._settled

    def look(self, runs: Iterable[str]) -> list[str]:
        """Which of `runs` have had events since the last look."""
        if self._top is None:
            found = read_events(self._store, self._layout.sweep)
            return [run for run in runs if self._see(run, found.get(run, ()))]
        return [run for run in runs if self._changed(run)]

    def _changed(self, run: str) -> bool:
        folder = f"{self._top}/{run}"
        try:
            stamp = os.stat(folder).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return self._see(run, ())
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}") from error
        before, looks = self._stamps.get(run, (-1, 0))
        if before == stamp and looks >= _SETTLED:
            return False
        self._stamps[run] = (stamp, looks + 1 if before == stamp else 0)
        try:
            names = os.listdir(folder)
        except OSError:
            return False
        return self._see(run, filter(None, map(parse_name, names)))

    def _see(self, run: str, happened: Iterable[tuple[int, Event]]) -> bool:
        events = frozenset(happened)
        if self.events.get(run, frozenset()) == events:
            return False
        if events not in self._folded:
            self._folded[events] = fold(events)
        self.events[run], self.known[run] = events, self._folded[events]
        (self.again.add if retry_asked(events) else self.again.discard)(run)
        wants = wants_attempt(events, self._retries) or self.known[run].unacknowledged
        (self._settled.discard if wants else self._settled.add)(run)
        return True


class Beat(NamedTuple):
    """A heartbeat: its stamp; when it was seen to change, or first (by our monotonic clock); why
    the service holds the run back, if it does; when the attempt began, by our clock, if that is
    known; and how much older it may be than our first look, by the time that the worker wrote."""

    stamp: int
    seen: float
    paused: str = ""
    began: float | None = None
    older: float = 0.0


class Heartbeats:
    """The heartbeats of attempts that may be at work, by our clock: a worker's may differ by hours.
    Its own time counts only for one that has not changed before our eyes for so long that nobody
    seems to be there."""

    def __init__(
        self,
        store: Store,
        layout: Layout,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._store, self._layout = store, layout
        self._clock, self._wall = clock, wall
        self._top = store.local_path(layout.heartbeats)
        self.known: dict[tuple[str, int], Beat] = {}

    def look(self, attempts: Iterable[tuple[str, int]]) -> None:
        """Look at those of these (run, attempt), and forget the others."""
        stamps = None if self._top is not None else self._listed()
        reads = _READS
        kept: dict[tuple[str, int], Beat] = {}
        for run, attempt in attempts:
            place = (run, attempt)
            path = self._layout.heartbeat(run, attempt)
            stamp = self._stamp(run, attempt) if stamps is None else stamps.get(path, 0)
            known = self.known.get(place)
            if stamp and (known is None or known.stamp != stamp):
                now = self._clock()
                if stamps is None or reads:
                    reads -= 1
                    beat = read_heartbeat(self._store, path)
                    began = None if beat.up_s is None else now - beat.up_s
                    older = 0.0 if known else self._since(beat.time)
                    known = Beat(stamp, now, why_paused(beat) or "", began, older)
                elif known is not None:
                    known = Beat(stamp, now, known.paused, known.began)
            elif known is not None and known.older and self._clock() - known.seen > _DOUBT_SECONDS:
                known = known._replace(seen=known.seen - known.older, older=0.0)
            if known is not None:
                kept[place] = known
        self.known = kept

    def _listed(self) -> dict[str, int]:
        return {entry.path: entry.stamp for entry in self._store.list(self._layout.heartbeats)}

    def _stamp(self, run: str, attempt: int) -> int:
        try:
            status = os.stat(f"{self._top}/{run}.{attempt}")
        except OSError:
            return 0
        return status.st_mtime_ns ^ status.st_ino

    def _since(self, written: str | None) -> float:
        """Seconds since a moment of the worker's clock."""
        if written is None:
            return 0.0
        return max(0.0, self._wall() - datetime.fromisoformat(written).timestamp())
