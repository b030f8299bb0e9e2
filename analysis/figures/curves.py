"""Prepares curves for a screen: aligns the runs of a cell, and thins curves without losing
spikes. Pure."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeper.analysis.reading.series import Floats, Series

POINTS = 240
"""The largest number of points of a drawn curve. A plot is about 900 pixels wide, and two points
are drawn for each bucket of steps."""


class Band(NamedTuple):
    """The mean, the lowest and the highest value of several runs at the steps that all of them
    recorded. `at` has the positions of these steps in each run's series."""

    steps: Floats
    mean: Floats
    low: Floats
    high: Floats
    at: tuple[NDArray[np.intp], ...]


_NONE = np.empty(0)


def band(runs: Sequence[Series]) -> Band:
    """Return the band of a cell's runs, over the steps at which all runs have a finite value, so
    that the mean does not jump when a run ends early. The band is empty if no step is shared."""
    if not runs:
        return Band(_NONE, _NONE, _NONE, _NONE, ())
    rows = _at_once(runs)
    if rows is None:
        finite = [np.flatnonzero(np.isfinite(points.values)) for points in runs]
        steps = [points.steps[index] for points, index in zip(runs, finite, strict=True)]
        shared = functools.reduce(np.intersect1d, steps)
        at = tuple(
            index[np.searchsorted(rows, shared)] for index, rows in zip(finite, steps, strict=True)
        )
        table = np.stack([points.values[index] for points, index in zip(runs, at, strict=True)])
    else:
        shared, table = runs[0].steps, rows
        at = (np.arange(len(shared)),) * len(runs)
    # Divide first, since the sum of finite values may be infinite.
    mean = (table / len(table)).sum(axis=0)
    return Band(shared, mean, table.min(axis=0), table.max(axis=0), at)


def _at_once(runs: Sequence[Series]) -> NDArray[np.float64] | None:
    """Return the values as an array with a row for each run. None if the runs have different steps,
    or if a value is not finite."""
    if any(points.steps is not runs[0].steps for points in runs):
        return None
    table = np.stack([points.values for points in runs])
    return table if np.isfinite(table).all() else None


def smooth(points: Series, window: float) -> Series:
    """Return a moving mean of the finite values over `window` steps. Near both ends of the curve
    the window is smaller, so that the first and the last value do not change."""
    finite = np.isfinite(points.values)
    steps, values = points.steps[finite], points.values[finite]
    if not len(steps) or not window > 0:
        return points
    half: Floats = np.minimum(window / 2, np.minimum(steps - steps[0], steps[-1] - steps))
    first: NDArray[np.intp] = np.searchsorted(steps, steps - half, "left")
    after: NDArray[np.intp] = np.searchsorted(steps, steps + half, "right")
    with np.errstate(over="ignore", invalid="ignore"):
        middle = float(values.mean())  # sums of differences from the mean lose fewer digits
        middle = middle if math.isfinite(middle) else 0.0
        sums = np.concatenate(([0.0], np.cumsum(values - middle)))
        means: Floats = (sums[after] - sums[first]) / (after - first) + middle
    alone = (after - first == 1) | ~np.isfinite(means)
    smoothed = points.values.copy()
    smoothed[finite] = np.where(alone, values, means)
    return points._replace(values=smoothed)


def thin(values: Floats, points: int = POINTS) -> NDArray[np.intp]:
    """Return the positions of at most `points` values to draw, in ascending order. The first and
    the last value are drawn. The others are divided into buckets, and the lowest and the
    highest value of each bucket are drawn (the MinMax method), which keeps spikes."""
    return thin_rows(values[np.newaxis], points)[0]


def thin_rows(table: NDArray[np.float64], points: int = POINTS) -> list[NDArray[np.intp]]:
    """Return the positions that `thin` chooses, for each row of a table."""
    rows, count = table.shape
    if count <= points:
        return [np.arange(count)] * rows
    stretches = max(1, (points - 2) // 2)
    size = -(-(count - 2) // stretches)
    starts = 1 + size * np.arange(stretches)
    mask = np.zeros((rows, count), dtype=bool)
    mask[:, [0, -1]] = True
    padded = np.empty((rows, stretches * size))
    padded[:, : count - 2] = table[:, 1:-1]
    for worst, choose in ((np.inf, np.argmin), (-np.inf, np.argmax)):
        padded[:, count - 2 :] = worst
        chosen = starts + choose(padded.reshape(rows, stretches, size), axis=2)
        mask[np.arange(rows)[:, np.newaxis], np.minimum(chosen, count - 1)] = True
    return [np.flatnonzero(row) for row in mask]
