"""What one key of one run recorded, as arrays. Pure."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "EMPTY",
    "Floats",
    "Series",
    "best",
    "last",
    "smoothed",
]

Floats = NDArray[np.float64]

SMOOTH = 0.1
"""The share of a curve's points, at its end, whose mean is its smoothed value."""


class Series(NamedTuple):
    """One key of one run: values that are numbers (NaN and infinities among them) at steps that
    are finite, ascending, each once. `rows` are the positions of its points in the history."""

    steps: Floats
    values: Floats
    rows: NDArray[np.intp]

    @property
    def finite(self) -> "Series":
        """Without the values that are not finite."""
        kept = np.isfinite(self.values)
        return self if kept.all() else Series(*(part[kept] for part in self))  # pyright: ignore[reportArgumentType]

    def __bool__(self) -> bool:
        return len(self.steps) > 0


_NO = np.empty(0)
EMPTY = Series(_NO, _NO, np.empty(0, dtype=np.intp))


def last(points: Series) -> tuple[float, float] | None:
    """Step and value of the last point, NaN included."""
    return (float(points.steps[-1]), float(points.values[-1])) if points else None


def best(points: Series, sign: float) -> tuple[float, float] | None:
    """Step and value of the best finite point (`sign` 1: the least; the first of equals), the last
    point when none is finite."""
    finite = points.finite
    if not finite:
        return last(points)
    at = int(np.argmin(sign * finite.values))
    return float(finite.steps[at]), float(finite.values[at])


def smoothed(points: Series) -> float | None:
    """The mean over the last tenth of the points, at least one; None when one is not finite."""
    if not points:
        return None
    tail = points.values[-max(1, round(SMOOTH * len(points.values))) :]
    found = float(np.mean(tail / 2.0)) * 2.0 if np.isfinite(tail).all() else math.nan
    return found if math.isfinite(found) else None
