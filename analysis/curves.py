"""Curves as a screen can show them: seeds aligned, thinned without losing a spike. Pure."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.series import Floats, Series

__all__ = ["POINTS", "Band", "band", "thin"]

POINTS = 240
"""Points drawn a curve. A plot is some 900 pixels wide, and a bucket of steps keeps two."""


class Band(NamedTuple):
    """Mean, lowest and highest of several runs at the steps that all of them recorded. `at` are,
    for each run, the positions of these steps in its series."""

    steps: Floats
    mean: Floats
    low: Floats
    high: Floats
    at: tuple[NDArray[np.intp], ...]


_NONE = np.empty(0)


def band(runs: Sequence[Series]) -> Band:
    """The runs of one cell at the steps that all of them have a finite value for, so that a mean
    never changes because a run drops out. Empty when they share none."""
    finite = [np.flatnonzero(np.isfinite(points.values)) for points in runs]
    steps = [points.steps[own] for points, own in zip(runs, finite, strict=True)]
    if not steps:
        return Band(_NONE, _NONE, _NONE, _NONE, ())
    if all(np.array_equal(own, steps[0]) for own in steps[1:]):
        shared = steps[0]
    else:
        shared = functools.reduce(np.intersect1d, steps)
    at = tuple(
        own[np.searchsorted(found, shared)] for own, found in zip(finite, steps, strict=True)
    )
    table = np.stack([points.values[own] for points, own in zip(runs, at, strict=True)])
    # Divided first: the sum of finite values need not be finite.
    mean = (table / len(table)).sum(axis=0)
    return Band(shared, mean, table.min(axis=0), table.max(axis=0), at)


def thin(values: Floats, points: int = POINTS) -> NDArray[np.intp]:
    """Positions of at most `points` values to draw, ascending: the first, the last, and of each of
    equally long stretches between them where the value is lowest and where it is highest (the
    method known as MinMax; a spike survives, a mean over the stretch would hide it)."""
    count = len(values)
    if count <= points:
        return np.arange(count)
    stretches = max(1, (points - 2) // 2)
    size = -(-(count - 2) // stretches)
    starts = 1 + size * np.arange(stretches)
    kept = [np.array([0, count - 1])]
    for worst, choose in ((np.inf, np.argmin), (-np.inf, np.argmax)):
        padded = np.full(stretches * size, worst)
        padded[: count - 2] = values[1:-1]
        kept.append(starts + choose(padded.reshape(stretches, size), axis=1))
    found = np.unique(np.concatenate(kept))
    return found[found < count]
