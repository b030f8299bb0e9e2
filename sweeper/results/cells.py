"""Judges cells by the arithmetic or geometric mean of their succeeded runs with finite values.
The data determine which mean is used. Does no I/O and needs no numpy, so that the live view can
use it."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from sweeper.metrics.objective import sign_of

Scale = Literal["linear", "log"]

SPAN = 10.0
"""A log scale is considered if the largest mean of a cell is more than this many times the
smallest."""


def counts(state: str, value: float | None, diverged: bool) -> bool:
    """Return whether a run is included in its cell's mean and in comparisons: it has succeeded, has
    a finite value, and has not diverged. `diverged` means that the last value was not finite."""
    return state == "succeeded" and value is not None and math.isfinite(value) and not diverged


def merit(mean: float, goal: str, *, diverged: bool) -> tuple[bool, float]:
    """Return a sort key for cells that puts the best first. Cells with a diverged run come last,
    since the mean does not include that run."""
    return diverged, sign_of(goal) * mean


def choose_scale(groups: Iterable[Sequence[float]]) -> Scale:
    """Return the scale on which cells are compared. The scale is logarithmic if all values are
    positive, the largest mean is more than `SPAN` times the smallest, and the noise grows with the
    mean.

    The noise grows with the mean if the least-squares slope of log(sd) on log(mean) over the cells
    exceeds 1/2. At slope 1 the logarithm equalizes the variances; at slope 0 no transformation is
    needed (Bartlett, Biometrics 3(1), 1947, 39-52). The rule does not depend on which cell is best.
    """
    nonempty = [list(values) for values in groups if values]
    if not nonempty or min(map(min, nonempty)) <= 0:
        return "linear"
    points: list[tuple[float, float]] = []
    levels: list[float] = []
    unit = unit_of(value for values in nonempty for value in values)
    for values in nonempty:
        scaled = [value / unit for value in values]
        mean = math.fsum(scaled) / len(scaled)
        if mean <= 0:  # too small to be a float in this unit
            return "linear"
        levels.append(mean)
        squares = math.fsum((value - mean) ** 2 for value in scaled)
        if comparable(scaled) and squares > 0:
            points.append((math.log(mean), 0.5 * math.log(squares / (len(scaled) - 1))))
    steep = _slope(points) > 0.5
    return "log" if steep and max(levels) > SPAN * min(levels) else "linear"


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line; 0 if the points do not determine a line."""
    if len(points) < 2:
        return 0.0
    x_mean = math.fsum(x for x, _ in points) / len(points)
    y_mean = math.fsum(y for _, y in points) / len(points)
    across = math.fsum((x - x_mean) ** 2 for x, _ in points)
    together = math.fsum((x - x_mean) * (y - y_mean) for x, y in points)
    return together / across if across > 0 else 0.0


def mean(values: Sequence[float], scale: Scale = "linear") -> float:
    """Return the mean of one or more finite values. On the log scale, this is the geometric mean,
    and all values must be positive."""
    scaled = on_scale(values, scale)
    if min(scaled) == max(scaled):
        return float(values[0])
    return exp(center(scaled)) if scale == "log" else center(scaled)


def center(values: Sequence[float]) -> float:
    """Return the arithmetic mean, even of values so large that their sum is not finite."""
    unit = unit_of(values)
    return math.fsum(value / unit for value in values) / len(values) * unit


def on_scale(values: Sequence[float], scale: Scale) -> list[float]:
    """Return the values on the linear scale, or their logarithms on the log scale."""
    return [math.log(value) for value in values] if scale == "log" else list(values)


def off_scale(value: float, scale: Scale) -> float:
    """Convert a value on a scale back to a value of the metric."""
    return exp(value) if scale == "log" else value


def unit_of(values: Iterable[float]) -> float:
    """Return a power of two near the largest absolute value. After a division by this unit, squares
    and sums of finite values do not overflow."""
    return 2.0 ** (math.frexp(max(map(abs, values)))[1] - 1)


def exp(value: float) -> float:
    """Convert a value on the log scale back to a value of the metric."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def comparable(values: Sequence[float]) -> bool:
    """Return whether a cell has at least two different values. Otherwise its noise is unknown."""
    return len(values) > 1 and min(values) != max(values)
