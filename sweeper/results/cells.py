"""Judges cells: by the mean of their runs, on a scale that the data choose. Pure, and without
numpy: the terminal view tells the same figures as the report.

A run counts once it has succeeded with a finite value, and ended in one. Runs that failed, or ended
in NaN, take no part. The scale is the values as they are, or their logarithms: then means become
geometric means.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from sweeper.metrics.objective import sign_of

Scale = Literal["linear", "log"]

SPAN = 10.0
"""How far apart the cells' means must be, as a ratio, before a log scale is considered."""


def counts(state: str, value: float | None, diverged: bool) -> bool:
    """Return whether a run takes part in its cell's mean, and in comparisons: by its `state`, the
    `value` it is judged by, and whether its last value was not finite (`diverged`)."""
    return state == "succeeded" and value is not None and math.isfinite(value) and not diverged


def merit(mean: float, goal: str, *, diverged: bool) -> tuple[bool, float]:
    """Return the key by which cells with a value are ordered, best first: their mean; and after all
    others the cells of which a run has diverged, since the mean leaves it out."""
    return diverged, sign_of(goal) * mean


def choose_scale(groups: Iterable[Sequence[float]]) -> Scale:
    """Choose the scale on which cells are compared: logarithms when all values are positive, the
    means of the cells span more than a factor of `SPAN`, and their noise grows with the mean,
    nearer to in proportion than not at all: the least-squares slope of log(sd) on log(mean) over
    the cells exceeds 1/2 (Bartlett, Biometrics 3(1), 1947, 39-52: at slope 1 the logarithm evens
    out the variances, at slope 0 no transformation is called for). The rule does not ask which cell
    is best or by how much."""
    nonempty = [list(values) for values in groups if values]
    if not nonempty or min(map(min, nonempty)) <= 0:
        return "linear"
    points: list[tuple[float, float]] = []
    levels: list[float] = []
    unit = unit_of(value for values in nonempty for value in values)
    for values in nonempty:
        scaled = [value / unit for value in values]
        mean = math.fsum(scaled) / len(scaled)
        if mean <= 0:  # so small beside the others that nothing is left of it
            return "linear"
        levels.append(mean)
        squares = math.fsum((value - mean) ** 2 for value in scaled)
        if comparable(scaled) and squares > 0:
            points.append((math.log(mean), 0.5 * math.log(squares / (len(scaled) - 1))))
    steep = _slope(points) > 0.5
    return "log" if steep and max(levels) > SPAN * min(levels) else "linear"


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the least-squares slope; 0 when the points do not determine it."""
    if len(points) < 2:
        return 0.0
    x_mean = math.fsum(x for x, _ in points) / len(points)
    y_mean = math.fsum(y for _, y in points) / len(points)
    across = math.fsum((x - x_mean) ** 2 for x, _ in points)
    together = math.fsum((x - x_mean) * (y - y_mean) for x, y in points)
    return together / across if across > 0 else 0.0


def mean(values: Sequence[float], scale: Scale = "linear") -> float:
    """Return the mean of finite values, one at least; the geometric mean on the log scale, where
    all must be positive."""
    scaled = on_scale(values, scale)
    if min(scaled) == max(scaled):
        return float(values[0])
    return exp(center(scaled)) if scale == "log" else center(scaled)


def center(values: Sequence[float]) -> float:
    """Return the arithmetic mean, even of values so large that their sum is not finite."""
    unit = unit_of(values)
    return math.fsum(value / unit for value in values) / len(values) * unit


def on_scale(values: Sequence[float], scale: Scale) -> list[float]:
    """Return the values, or their logarithms."""
    return [math.log(value) for value in values] if scale == "log" else list(values)


def off_scale(value: float, scale: Scale) -> float:
    """Convert a value back from the scale of the comparison."""
    return exp(value) if scale == "log" else value


def unit_of(values: Iterable[float]) -> float:
    """Return a power of two near the largest magnitude. In this unit no square and no sum of finite
    values is too large for a float, and dividing by it changes no digit."""
    return 2.0 ** (math.frexp(max(map(abs, values)))[1] - 1)


def exp(value: float) -> float:
    """Convert a value back from the log scale."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def comparable(values: Sequence[float]) -> bool:
    """Return whether a cell can take part in comparisons: it has two different values or more."""
    return len(values) > 1 and min(values) != max(values)
