"""Reads what the poller needs cheaply: the states of runs (a folder whose stamp has not changed is
not read again), and the points of a metric from before the view was opened."""

import functools
import math
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from sweeper.errors import StoreError
from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.rows import Point, numbers
from sweeper.results.sweeps import SweepRun
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event, RunState, fold, parse_name, retry_asked, wants_attempt

if TYPE_CHECKING:
    from sweeper.results.metrics_reader import Tabulator

_LARGE = 100_000
"""Above this many bytes the faster reader, which also keeps a cache, is worth loading."""
_SETTLED = 2
"""The number of polls with the same timestamp after which it is trusted: two changes within a tick
of the kernel's clock have the same timestamp."""


class States:
    """The states of a sweep's runs. `retries` returns how often a run may fail. `again` has the
    runs that a user has asked to start again and that have not started yet."""

    def __init__(self, folder: SweepFolder, retries: Callable[[str], int] = lambda _: 0) -> None:
        self._store, self._folder, self._retries = folder.store, folder, retries
        self._top = folder.store.local_path(folder.state)
        self._stamps: dict[str, tuple[int, int]] = {}
        self._folded: dict[frozenset[tuple[int, Event]], RunState] = {}
        self.events: dict[str, frozenset[tuple[int, Event]]] = {}
        self.known: dict[str, RunState] = {}
        self.again: set[str] = set()
        self._settled: set[str] = set()

    def wants(self, run: str) -> bool:
        """Return whether a run is to be started or started again, or may be about to be."""
        return run not in self._settled

    def look(self, runs: Iterable[str]) -> list[str]:
        """Poll the runs. Returns those that have had events since the last poll."""
        if self._top is None:
            events = self._folder.read_events()
            return [run for run in runs if self._see(run, events.get(run, ()))]
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
        wants = wants_attempt(events, self._retries(run)) or self.known[run].unacknowledged
        (self._settled.discard if wants else self._settled.add)(run)
        return True


def past_points(run: SweepRun, key: str, memory: Folder) -> Iterable[Point]:
    """Return the values of `key` in all attempts, by step."""
    sources = [run.files.source(path) for path in run.metrics_paths()]
    size = sum(source.stamp.size for source in sources if source is not None)
    if not size:
        return []
    if size < _LARGE and not run.store.is_remote:
        return numbers(run.history.rows, key)
    steps, values = _tables(run.root, memory).curve(run, key)
    return (
        Point(None if math.isnan(step) else step, value)
        for step, value in zip(steps.tolist(), values.tolist(), strict=True)
    )


@functools.lru_cache(maxsize=2)
def _tables(root: str, memory: Folder) -> "Tabulator":
    """Return the reader of a root, which opens its cache once for all runs."""
    from sweeper.results.metrics_reader import Tabulator
    from sweeper.results.problems import Problems

    return Tabulator({root: memory}, Problems())
