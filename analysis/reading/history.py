"""Reads the metrics of a sweep's runs as columns, with a single read through the registry. Equal
columns are the same object, so that code can compare runs by identity."""

import functools
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sweeper.analysis.reading.series import EMPTY, Floats, Series
from sweeper.metrics.objective import counting_rows
from sweeper.metrics.rows import describe
from sweeper.metrics.tables.columns import Columns, present
from sweeper.results.metrics_reader import missing_at_end, points_of
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.results.scores import Point

Flags = NDArray[np.bool_]


class Histories:
    """The histories of some runs of one sweep. `keys` maps each key to the number of runs that
    recorded a number for this key. NaN counts as a number only for the metric."""

    def __init__(self, registry: Registry, runs: Sequence[RecordedRun], metric: str | None) -> None:
        self._by_run: dict[str, History] = {}
        self._steps: dict[str, Floats] = {}
        before = np.empty(0)
        for part in registry.columns(list(runs)):
            before = _shared(before, part.columns.numbers("step"))
            made = History(self, part.columns, before, metric, part.notes)
            self._by_run[part.common["run"]] = made
        self.keys: Counter[str] = Counter()
        for history in self._by_run.values():
            self.keys.update(history.keys)

    def of(self, run: str) -> "History":
        """Return the history of the run with the id `run`; empty if it recorded nothing."""
        return self._by_run.get(run) or History(self, Columns(), np.empty(0), None)

    def shared(self, key: str, steps: Floats) -> Floats:
        """Return `steps`, or the equal array of the previous run (see the module's docstring)."""
        self._steps[key] = _shared(self._steps.get(key, steps), steps)
        return self._steps[key]


class History:
    """The history of a run. `keys` are the keys with numbers, `steps` are the steps of its rows
    (NaN for a row without a step), and `malformed` counts unreadable lines. `notes` describe
    other oddities of the metrics files. `not_numbers` maps each key without numbers to a
    description of its first value."""

    def __init__(
        self,
        parent: Histories,
        columns: Columns,
        steps: Floats,
        metric: str | None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._parent, self._columns, self.steps = parent, columns, steps
        self.malformed, self.notes = columns.malformed, notes
        self._values: dict[str, Floats] = {}
        recorded = dict.fromkeys((*columns.values, *columns.odd))
        self.keys = frozenset(
            key
            for key in recorded
            if key != "step"
            and (self.column(key)[1].any() or (key == metric and present(self._numbers(key)).any()))
        )
        self.not_numbers = {
            key: describe(next(iter(odd.values())))
            for key, odd in columns.odd.items()
            if key != "step" and key not in self.keys
        }

    def _numbers(self, key: str) -> Floats:
        if key not in self._values:
            self._values[key] = self._columns.numbers(key)
        return self._values[key]

    def column(self, key: str) -> tuple[Floats, Flags]:
        """Return the value of a key in each row, and a mask of the rows that have a value other
        than NaN."""
        values = self._numbers(key)
        return values, ~np.isnan(values)

    def points(self) -> list[Point]:
        """Return the recorded scores on suites."""
        return points_of(self._columns)

    def missing(self, key: str) -> int:
        """Return how many of the last rows lack a number for `key`, though they should have one."""
        return missing_at_end(self._columns, key)

    def series(self, key: str) -> Series:
        """Return the points of a key, NaN included, in the rows that `objective.counting_rows`
        selects. If no row has a step, positions of rows serve as steps."""
        values = self._numbers(key)
        stepped = np.isfinite(self.steps)
        rows = counting_rows(present(values), stepped)
        if not rows.any():
            return EMPTY
        steps = self.steps
        if not rows.all():
            steps, values = self._parent.shared(key, steps[rows]), values[rows]
        if not (rows & stepped).any():
            return Series(_positions(len(values)).astype(float), values, np.flatnonzero(rows))
        if steps is self.steps:
            return Series(steps, values, _positions(len(steps)))
        # Rows with a step come first, ascending, so a step determines its row.
        rows = np.searchsorted(self.steps[np.isfinite(self.steps)], steps)
        return Series(steps, values, rows)


def _shared(before: Floats, steps: Floats) -> Floats:
    return before if np.array_equal(before, steps) else steps


@functools.lru_cache(maxsize=64)
def _positions(count: int) -> NDArray[np.intp]:
    positions = np.arange(count)
    positions.flags.writeable = False
    return positions
