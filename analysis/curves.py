"""Curves as a screen can show them: seeds aligned, thinned without losing a spike. Pure."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sweeper.metrics import Point

__all__ = ["POINTS", "Band", "band", "thin"]

POINTS = 240
"""Points drawn a curve. A plot is some 900 pixels wide, and a bucket of steps keeps two."""


class Band(NamedTuple):
    """Mean, lowest and highest of several runs at the steps that all of them recorded."""

    steps: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def _finite(points: Sequence[Point]) -> dict[float, float]:
    return {p.step: p.value for p in points if p.step is not None and math.isfinite(p.value)}


def band(runs: Sequence[Sequence[Point]]) -> Band:
    """The runs of one cell at the steps that all of them have a finite value for, so that a mean
    never changes because a run drops out. Empty when they share none."""
    series = [_finite(points) for points in runs]
    if not series:
        return Band([], [], [], [])
    shared = set(series[0]).intersection(*series[1:])
    steps = sorted(shared)
    columns = [[values[step] for values in series] for step in steps]
    return Band(
        steps,
        # Divided first: the sum of finite values need not be finite.
        [math.fsum(value / len(column) for value in column) for column in columns],
        [min(column) for column in columns],
        [max(column) for column in columns],
    )


def thin(steps: Sequence[float], values: Sequence[float], points: int = POINTS) -> list[int]:
    """Indices of at most `points` positions to draw, ascending: the first, the last, and of each
    of equally long stretches between them where the value is lowest and where it is highest (the
    method known as MinMax; a spike survives, a mean over the stretch would hide it)."""
    count = len(steps)
    if count <= points:
        return list(range(count))
    stretches = max(1, (points - 2) // 2)
    kept = {0, count - 1}
    for stretch in range(stretches):
        start = 1 + (count - 2) * stretch // stretches
        end = 1 + (count - 2) * (stretch + 1) // stretches
        inside = range(start, end)
        if inside:
            kept.add(min(inside, key=values.__getitem__))
            kept.add(max(inside, key=values.__getitem__))
    return sorted(kept)
