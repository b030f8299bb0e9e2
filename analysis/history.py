"""What the runs of a sweep recorded, in columns: one read through the registry for all of them.

The registry's DataFrames have NaN both for a value that is not there and for one that is NaN, so
that a key with a NaN is asked for by itself: then only rows that have it come back.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.series import EMPTY, Floats, Series, floats
from sweeper.registry import RecordedRun, Registry

__all__ = ["Histories", "History"]

_OURS = ("run", "sweep", "step")


class Histories:
    """The histories of some runs of one sweep. `keys` counts the runs that recorded numbers under
    each key."""

    def __init__(self, registry: Registry, runs: Sequence[RecordedRun], metric: str | None) -> None:
        self._registry, self._runs = registry, list(runs)
        self._one: dict[str, dict[str, tuple[Floats, Floats]]] = {}
        before = len(registry.problems)
        frame: Any = registry.metrics(self._runs)
        problems = registry.problems[before:]
        self._places = _places(frame)
        self.steps = floats(frame["step"].to_numpy())[0]
        columns = {_key(name): name for name in frame.columns if name not in _OURS}
        found = {key: floats(frame[name].to_numpy()) for key, name in columns.items()}
        self.columns = {key: part for key, part in found.items() if part[1].any()}
        self.malformed = {
            run.id: run.history.malformed
            for run in self._runs
            if any(line.startswith(f"{run.sweep}/{run.name}: metrics") for line in problems)
        }
        self.keys: Counter[str] = Counter()
        self._present: dict[str, set[str]] = {run.id: set() for run in self._runs}
        for key, (_, there) in self.columns.items():
            self._mark(key, {run for run, (a, b) in self._places.items() if there[a:b].any()})
        if metric is not None and len(self._present) > self.keys[metric]:  # its values may be NaN
            self._mark(metric, {run for run, (steps, _) in self._of(metric).items() if len(steps)})

    def _mark(self, key: str, runs: set[str]) -> None:
        if runs:
            self.keys[key] = len(runs)
        for run in runs:
            self._present[run].add(key)

    def of(self, run: str) -> "History":
        """That of a run, by its id."""
        return History(self, run, self._places.get(run, (0, 0)), self._present[run])

    def series(self, run: str, key: str) -> tuple[Floats, Floats] | None:
        """Steps (NaN: none) and values of the rows of a run that have a number under `key`."""
        if key in self.columns:
            values, there = self.columns[key]
            a, b = self._places[run]
            if there[a:b].all():  # nothing in it is NaN: no question what that would mean
                return self.steps[a:b], values[a:b]
        return self._of(key).get(run)

    def _of(self, key: str) -> dict[str, tuple[Floats, Floats]]:
        if key not in self._one:
            problems = list(self._registry.problems)
            frame: Any = self._registry.metrics(self._runs, keys=[key])
            self._registry.problems[:] = problems  # said once is enough
            name = next((n for n in frame.columns if n not in _OURS and _key(n) == key), None)
            found: dict[str, tuple[Floats, Floats]] = {}
            if name is not None and len(frame):
                steps = floats(frame["step"].to_numpy())[0]
                values, there = floats(frame[name].to_numpy(), nan=True)
                for run, (a, b) in _places(frame).items():
                    kept = there[a:b]
                    found[run] = (steps[a:b][kept], values[a:b][kept])
            self._one[key] = found
        return self._one[key]


class History:
    """One run's. `keys` are those under which it recorded numbers, `steps` those of its rows."""

    def __init__(self, parent: Histories, run: str, place: tuple[int, int], keys: set[str]) -> None:
        self._parent, self._run, self._place, self.keys = parent, run, place, keys
        self.steps = parent.steps[place[0] : place[1]]
        self.malformed = parent.malformed.get(run, 0)

    def column(self, key: str) -> tuple[Floats, Any]:
        """Values by row, and where there is one that is not NaN."""
        if key not in self._parent.columns:  # a metric that is NaN throughout
            nothing = np.full(len(self.steps), np.nan)
            return nothing, np.zeros(len(nothing), dtype=bool)
        values, there = self._parent.columns[key]
        return values[self._place[0] : self._place[1]], there[self._place[0] : self._place[1]]

    def series(self, key: str) -> Series:
        """The points of a key. Rows without a step count only where no row has one: then their
        position is their step."""
        found = self._parent.series(self._run, key)
        if found is None or not len(found[0]):
            return EMPTY
        steps, values = found
        stepped = np.isfinite(steps)
        if not stepped.any():
            positions = np.arange(len(steps))
            return Series(positions.astype(float), values, positions)
        # Rows with a step come first and ascend, so that a step says which row it is.
        rows = np.searchsorted(self.steps[np.isfinite(self.steps)], steps[stepped])
        return Series(steps[stepped], values[stepped], rows)


def _places(frame: Any) -> dict[str, tuple[int, int]]:
    """Run -> its first row and the one after its last: the rows of a run stand together."""
    if not len(frame):
        return {}
    runs = frame["run"].astype("category")
    codes = runs.cat.codes.to_numpy()
    starts = np.concatenate(([0], np.flatnonzero(np.diff(codes)) + 1, [len(codes)]))
    names = runs.cat.categories
    return {str(names[codes[a]]): (int(a), int(b)) for a, b in itertools.pairwise(starts)}


def _key(column: str) -> str:
    """The key of a column: one that is called like a column of ours stands behind `metric.`."""
    key = column.removeprefix("metric.")
    return key if key in _OURS else column
