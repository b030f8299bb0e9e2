"""What the runs of a sweep recorded, in columns: one read through the registry for all of them.

The registry's DataFrames have NaN both for a value that is not there and for one that is NaN, so
that a key with a NaN is asked for by itself: then only rows that have it come back.

Most runs of a sweep record the same keys at the same steps. What is the same is one object here,
so that whoever compares runs can tell by identity, and need not look at every number.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.series import EMPTY, Floats, Series, floats
from sweeper.registry import RecordedRun, Registry

__all__ = ["Histories", "History"]

_OURS = ("run", "sweep", "step")

Flags = NDArray[np.bool_]


class _Column(NamedTuple):
    """Values of all rows, and where there is one that is not NaN (None: everywhere). `some` and
    `whole` say by run whether any row and whether every row has one."""

    values: Floats
    there: Flags | None
    some: Flags
    whole: Flags


class Histories:
    """The histories of some runs of one sweep. `keys` counts the runs that recorded numbers under
    each key."""

    def __init__(self, registry: Registry, runs: Sequence[RecordedRun], metric: str | None) -> None:
        self._registry, self._runs = registry, list(runs)
        self._one: dict[str, dict[str, tuple[Floats, Floats]]] = {}
        before = len(registry.problems)
        frame: Any = registry.metrics(self._runs)
        problems = registry.problems[before:]
        places = _places(frame)
        self._numbers = {run: number for number, run in enumerate(places)}
        self._places = list(places.values())
        self._starts = np.array([a for a, _ in self._places], dtype=np.intp)
        self._steps = self._shared_steps(floats(frame["step"].to_numpy())[0])
        names = {_key(name): name for name in frame.columns if name not in _OURS}
        found = {key: self._column(frame[name].to_numpy()) for key, name in names.items()}
        self.columns = {key: column for key, column in found.items() if column.some.any()}
        self.malformed = {
            run.id: run.history.malformed
            for run in self._runs
            if any(line.startswith(f"{run.sweep}/{run.name}: metrics") for line in problems)
        }
        self.keys: Counter[str] = Counter()
        self._everywhere = frozenset(k for k, found in self.columns.items() if found.some.all())
        self._present: dict[str, set[str]] = {}
        self._count(metric)

    def _column(self, recorded: NDArray[Any]) -> _Column:
        values, there = floats(recorded)
        everywhere = np.ones(len(self._places), dtype=bool)
        if there.all():
            return _Column(values, None, everywhere, everywhere)
        some, whole = (how.reduceat(there, self._starts) for how in (np.logical_or, np.logical_and))
        return _Column(values, there, some, whole)

    def _shared_steps(self, steps: Floats) -> list[Floats]:
        """Each run's steps; those that are as the run's before are the same object."""
        found: list[Floats] = [np.empty(0)]
        for a, b in self._places:
            found.append(_shared(found[-1], steps[a:b]))
        return found[1:]

    def _count(self, metric: str | None) -> None:
        for key, column in self.columns.items():
            if key in self._everywhere:
                self.keys[key] = len(self._places)
            else:
                own = column.some.tolist()
                self._mark(key, {run for run, i in self._numbers.items() if own[i]})
        if metric is not None and len(self._runs) > self.keys[metric]:  # its values may be NaN
            self._mark(metric, {run for run, (steps, _) in self._of(metric).items() if len(steps)})

    def _mark(self, key: str, runs: set[str]) -> None:
        if runs:
            self.keys[key] = len(runs)
        for run in runs:
            self._present.setdefault(run, set()).add(key)

    def of(self, run: str) -> "History":
        """That of a run, by its id."""
        number = self._numbers.get(run)
        own = self._present.get(run)
        if number is None:
            return History(self, run, None, frozenset(own or ()))
        return History(self, run, number, self._everywhere | own if own else self._everywhere)

    def place(self, number: int | None) -> slice:
        """The rows of a run, by its number."""
        return slice(0, 0) if number is None else slice(*self._places[number])

    def steps(self, number: int | None) -> Floats:
        """Its steps, NaN where a row has none."""
        return np.empty(0) if number is None else self._steps[number]

    def series(self, run: str, number: int | None, key: str) -> tuple[Floats, Floats] | None:
        """Steps (NaN: none) and values of the rows of a run that have a number under `key`."""
        column = self.columns.get(key)
        if column is not None and number is not None and column.whole[number]:
            # Nothing in it is NaN: no question what that would mean.
            return self._steps[number], column.values[self.place(number)]
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
                before = np.empty(0)
                for run, (a, b) in _places(frame).items():
                    kept = there[a:b]
                    before = _shared(before, steps[a:b][kept])
                    found[run] = (before, values[a:b][kept])
            self._one[key] = found
        return self._one[key]


class History:
    """One run's. `keys` are those under which it recorded numbers, `steps` those of its rows."""

    def __init__(
        self, parent: Histories, run: str, number: int | None, keys: frozenset[str]
    ) -> None:
        self._parent, self._run, self._number, self.keys = parent, run, number, keys
        self.steps = parent.steps(number)
        self.malformed = parent.malformed.get(run, 0)

    def column(self, key: str) -> tuple[Floats, Flags]:
        """Values by row, and where there is one that is not NaN."""
        found = self._parent.columns.get(key)
        if found is None:  # a metric that is NaN throughout
            nothing = np.full(len(self.steps), np.nan)
            return nothing, np.zeros(len(nothing), dtype=bool)
        own = self._parent.place(self._number)
        values = found.values[own]
        return values, np.ones(len(values), bool) if found.there is None else found.there[own]

    def series(self, key: str) -> Series:
        """The points of a key. Rows without a step count only where no row has one: then their
        position is their step."""
        found = self._parent.series(self._run, self._number, key)
        if found is None or not len(found[0]):
            return EMPTY
        steps, values = found
        stepped = np.isfinite(steps)
        if not stepped.any():
            return Series(_positions(len(steps)).astype(float), values, _positions(len(steps)))
        if not stepped.all():
            steps, values = steps[stepped], values[stepped]
        if steps is self.steps:
            return Series(steps, values, _positions(len(steps)))
        # Rows with a step come first and ascend, so that a step says which row it is.
        rows = np.searchsorted(self.steps[np.isfinite(self.steps)], steps)
        return Series(steps, values, rows)


def _shared(before: Floats, own: Floats) -> Floats:
    return before if np.array_equal(before, own) else own


@functools.lru_cache(maxsize=64)
def _positions(count: int) -> NDArray[np.intp]:
    found = np.arange(count)
    found.flags.writeable = False
    return found


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
