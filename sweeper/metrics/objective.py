"""Chooses the value by which a run is judged: `judged` chooses from points, `counting_rows` and
`reduced` from columns, and `Judge` from points that come one by one. docs/registry.md has the
rules. numpy is imported on demand."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sweeper.metrics.rows import Point, Row, are_missing, as_number
from sweeper.sweep.metric import mean_of_last

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

SMOOTH = 0.1
"""The smoothed value is the mean of this fraction of a curve's points, at the curve's end."""


class Judged(NamedTuple):
    """The value by which a run is judged, and its step. `missing` is the number of rows at the end
    of the run that should have a number for the metric but have none (see `missing_rows`)."""

    step: float | None
    value: float
    missing: int = 0


def sign_of(goal: str) -> float:
    """Return the factor by which values are multiplied so that smaller is better."""
    return -1.0 if goal == "maximize" else 1.0


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values. If the last value is not finite, return the last
    value."""
    if not math.isfinite(values[-1]):
        return values[-1]
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(value / len(finite) for value in finite)


def judged(points: Sequence[Point], goal: str, at: str) -> Point | None:
    """Return the point of a merged history (`rows.merge`) by which a run is judged; None if
    there are no points."""
    counting = [point for point in points if point.step is not None] or list(points)
    if not counting:
        return None
    of = mean_of_last(at)
    if of is not None:
        return counting[-1]._replace(value=_mean([point.value for point in counting[-of:]]))
    finite = [point for point in counting if math.isfinite(point.value)]
    if at != "best" or not finite:
        return counting[-1]
    sign = sign_of(goal)
    return min(finite, key=lambda point: sign * point.value)


def last_values(rows: Iterable[Row]) -> dict[str, dict[str, object]]:
    """Return {key: {"step": ..., "value": ...}}, with the last value of each key in a merged
    history. A value may have any type. A value from a row without a step is used only if no row
    with a step has the key."""
    values: dict[str, dict[str, object]] = {}
    for row in rows:
        step = row.get("step")
        for key, value in row.items():
            if key != "step" and (step is not None or values.get(key, _NONE)["step"] is None):
                values[key] = {"step": step, "value": value}
    return values


_NONE: dict[str, object] = {"step": None}


def _missing(numbered: Sequence[int], rows: int, is_named: Callable[[int], bool]) -> int:
    """Return the number of rows after the last row with a number; 0 if `are_missing` returns False
    for these rows. `numbered` has the indices of the rows with a number, `rows` is the number of
    all rows, and `is_named` tells whether the row at an index has the metric's key."""
    after = rows - 1 - numbered[-1]
    if after == 0:
        return 0
    gap = max(later - before - 1 for before, later in pairwise((-1, *numbered)))
    named = any(is_named(row) for row in range(rows - after, rows))
    return after if are_missing(after, gap, named=named) else 0


def missing_in(rows: Sequence[Row], key: str) -> int:
    """Return how many rows at the end of a merged history should have a number for `key` but have
    none (see `are_missing`). Return 0 if no row at all has a number for `key`."""
    numbered = [n for n, row in enumerate(rows) if as_number(row.get(key)) is not None]
    if not numbered:
        return 0
    stepped = rows[numbered[0]].get("step") is not None  # rows without a step come first
    first = next((n for n, row in enumerate(rows) if row.get("step") is None), len(rows))
    start, end = (0, first) if stepped else (first, len(rows))
    places = [n - start for n in numbered if start <= n < end]
    return _missing(places, end - start, lambda row: key in rows[start + row])


def missing_rows(has_number: "Flags", named: "Flags", stepped: "Flags") -> int:
    """Return the result of `missing_in`, from three masks of the rows: rows with a number for
    the metric (`has_number`), rows with the metric's key (`named`), and rows with a step
    (`stepped`)."""
    import numpy as np

    [numbered] = np.nonzero(has_number)
    if not len(numbered):
        return 0
    counting = np.flatnonzero(stepped if stepped[numbered].any() else ~stepped)
    if numbered[-1] == counting[-1]:
        return 0
    places = np.flatnonzero(has_number[counting]).tolist()
    return _missing(places, len(counting), lambda row: bool(named[counting[row]]))


def counting_rows(has_number: "Flags", stepped: "Flags") -> "Flags":
    """Return a mask of those rows of a merged history by which a run is judged. These are the rows
    that have both a number (`has_number`) and a step (`stepped`), or all rows with a number if no
    row has both."""
    both = has_number & stepped
    return both if both.any() else has_number


def reduced(values: "Floats", goal: str, at: str) -> tuple[int, float]:
    """Reduce the values of `counting_rows` (at least one, steps ascending) to the value by which a
    run is judged. Return the index of the row whose step is reported, and the value."""
    end, of = len(values) - 1, mean_of_last(at)
    if of is not None:
        return end, _mean(values[-of:].tolist())
    if at != "best":
        return end, float(values[end])
    import numpy as np

    [finite] = np.nonzero(np.isfinite(values))
    if len(finite):
        end = int(finite[np.argmin(sign_of(goal) * values[finite])])
    return end, float(values[end])


def smoothed(values: "Floats") -> float | None:
    """Return the mean of the last tenth of the values, or at least the last value. Return None if
    there are no values, or if a value in the last tenth is not finite."""
    import numpy as np

    tail = values[-max(1, round(SMOOTH * len(values))) :]
    if not len(tail) or not np.isfinite(tail).all():
        return None
    mean = float(np.mean(tail / 2.0)) * 2.0  # the sum of two finite numbers may overflow
    return mean if math.isfinite(mean) else None


class Judge:
    """The value by which a run is judged, updated with each new point."""

    def __init__(self, goal: str = "minimize", at: str = "last") -> None:
        self._sign, self._at = sign_of(goal), at
        of = mean_of_last(at)
        self._before_last: deque[Point] | None = None if of is None else deque(maxlen=of - 1)
        """The points that the mean includes, without the last point; None if `at` is not a mean."""
        self._before: float | None = None
        """The best finite value before the last point. (A later row may still replace the last
        point.)"""
        self.last: Point | None = None
        """The point with the highest step; without steps, the latest point."""

    @property
    def value(self) -> float | None:
        """The value by which the run is judged, from the points added until now."""
        if self.last is None:
            return None
        if self._before_last is not None:
            return _mean([*(point.value for point in self._before_last), self.last.value])
        best = self._better(self._before, self.last.value) if self._at == "best" else None
        return self.last.value if best is None else best

    @property
    def diverged(self) -> bool:
        """Whether the last value is not finite."""
        return self.last is not None and not math.isfinite(self.last.value)

    def add(self, point: Point) -> bool:
        """Add the next point. Return False if the point has a lower step than the last point and
        `at` is not `last`: the value must then be computed again from the whole history."""
        last = self.last
        if last is None:
            self.last = point
            return True
        if point.step is None and last.step is not None:
            return True  # points without a step do not count if others have one
        if last.step is None and point.step is not None:
            self._before = None  # earlier points without a step no longer count
            if self._before_last is not None:
                self._before_last.clear()
        elif point.step is None or last.step is None or point.step > last.step:
            self._before = self._better(self._before, last.value)
            if self._before_last is not None:
                self._before_last.append(last)
        elif point.step < last.step:
            return self._at == "last"
        self.last = point
        return True

    def takes_back(self, step: float | None) -> bool:
        """Return whether `value` becomes wrong if a new row at this step has the metric's key but
        no number. Such a row may replace a point that was added before."""
        if self.last is None or self.last.step is None or step is None:
            return False
        return step == self.last.step or (step < self.last.step and self._at != "last")

    def _better(self, best: float | None, other: float) -> float | None:
        if not math.isfinite(other):
            return best
        return other if best is None or self._sign * other < self._sign * best else best
