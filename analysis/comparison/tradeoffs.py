"""Finds the cells on the Pareto front of the metric and another quantity, such as cost. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.reading.costs import dollars
from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.analysis.reading.series import last
from sweeper.analysis.statistics.seeds import finite_mean

_LESS = {"seconds", "tokens", "steps", "dollars", "kl", "length"}
_NAMES = {"seconds": "time per run (s)", "tokens": "tokens per run", "dollars": "dollars per run"}


@dataclass(frozen=True)
class Tradeoff:
    """The metric (`y`) of each cell against another quantity (`x`). Both are means over the cell's
    runs that count. `front` has the cells on the Pareto front. `front` is None if a smaller `x` is
    not better, for example if `x` is the reward."""

    name: str
    kind: str
    cells: tuple[str, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    front: tuple[str, ...] | None


def front(x: Sequence[float], y: Sequence[float]) -> list[int]:
    """Return the indexes of the points on the Pareto front, where smaller `x` and smaller `y` are
    better."""
    order = sorted(range(len(x)), key=lambda i: (x[i], y[i]))
    indices: list[int] = []
    best = math.inf
    for i in order:
        if y[i] < best:
            best = y[i]
            indices.append(i)
        elif indices and y[i] == y[indices[-1]] and x[i] == x[indices[-1]]:
            indices.append(i)
    return sorted(indices)


def find_tradeoffs(
    data: SweepData, ranking: Ranking, prices: Mapping[str, float]
) -> list[Tradeoff]:
    """Return the metric against dollars, time, tokens, KL divergence, entropy, length, accuracy and
    reward. Quantities that fewer than two cells recorded, or that do not vary, are left out."""
    if data.metric is None or len(ranking.measured) < 2:
        return []
    name = data.metric.name
    wanted: dict[str, Callable[[RunData], float | None]] = {
        "dollars": lambda run: dollars(run.cost, prices),
        "seconds": lambda run: run.wall_s,
        "tokens": lambda run: run.cost.total,
    }
    titles = dict(_NAMES)
    for role in ("kl", "entropy", "length", "accuracy", "reward"):
        key = data.roles.get(role)
        if key is not None and key != name:
            wanted[role] = lambda run, key=key: _end(run, key)
            titles[role] = key
    tradeoffs = [
        _tradeoff(titles[kind], kind, ranking, get, data.metric.sign)
        for kind, get in wanted.items()
    ]
    return [entry for entry in tradeoffs if entry is not None]


def _end(run: RunData, key: str) -> float | None:
    points = run.curves.get(key)
    end = last(points.finite) if points is not None else None
    return None if end is None else end[1]


def _mean(cell: Cell, get: Callable[[RunData], float | None]) -> float | None:
    return finite_mean(v for run in cell.runs if run.counts and (v := get(run)) is not None)


def _tradeoff(
    title: str, kind: str, ranking: Ranking, get: Callable[[RunData], float | None], sign: float
) -> Tradeoff | None:
    points = [
        (cell.name, x, cell.summary.mean)
        for cell in ranking.measured
        if not cell.diverged and (x := _mean(cell, get)) is not None
    ]
    points = [(name, x, y) for name, x, y in points if y is not None]
    if len(points) < 2 or len({x for _, x, _ in points}) < 2:
        return None
    names, xs, ys = zip(*points, strict=True)
    chosen = None
    if kind in _LESS:
        chosen = tuple(names[i] for i in front(xs, [sign * y for y in ys]))
    return Tradeoff(title, kind, names, xs, ys, chosen)
