"""One key of one run, as arrays. Pure."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeper.metrics.objective import reduced

Floats = NDArray[np.float64]


class Series(NamedTuple):
    """One key of one run: numeric values (including NaN and infinities) at finite steps, ascending
    and unique. `rows` are the positions of its points in the history."""

    steps: Floats
    values: Floats
    rows: NDArray[np.intp]

    @property
    def finite(self) -> "Series":
        """The series without its NaN and infinite values."""
        mask = np.isfinite(self.values)
        return self if mask.all() else Series(*(part[mask] for part in self))  # pyright: ignore[reportArgumentType]

    def __bool__(self) -> bool:
        return len(self.steps) > 0


class Ends(NamedTuple):
    """Statistics of the last values of runs. `scatter` is the standard deviation of single values
    around a run's trend. `between` is the standard deviation between runs of a cell. `moved` is the
    change of the mean from the first to the second half of these values (RMS over runs)."""

    scatter: float
    between: float
    moved: float

    @property
    def noisy(self) -> bool:
        """Whether a mean of the last few values is better than the last value: the values have no
        trend, and their variance is at least half of the variance between runs."""
        # Squares may overflow, so standard deviations are compared.
        return 0 < self.scatter >= self.moved and self.scatter >= self.between / math.sqrt(2)


_NO = np.empty(0)
EMPTY = Series(_NO, _NO, np.empty(0, dtype=np.intp))


def last(points: Series) -> tuple[float, float] | None:
    """Return the step and value of the last point, NaN included; None without points."""
    return judged(points, "minimize", "last")


def best(points: Series, goal: str) -> tuple[float, float] | None:
    """Return the step and value of the best finite point (the first of equal ones), or of the last
    point if none is finite. None without points."""
    return judged(points, goal, "best")


def judged(points: Series, goal: str, at: str) -> tuple[float, float] | None:
    """Return the step and value by which a run is judged (see `objective.reduced`); None without
    points."""
    if not points:
        return None
    row, value = reduced(points.values, goal, at)
    return float(points.steps[row]), value
