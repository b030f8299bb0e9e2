"""Is the best cell at the edge of what was tried? Pure."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Edge", "find_edges"]


@dataclass(frozen=True)
class Edge:
    """The best cell has the `side` ("smallest" or "largest") of the values tried on an ordered
    axis. `suggestion` is the next value outwards on the axis' own spacing, None when there is no
    sensible one: nothing says that it is a valid value."""

    axis: str
    value: float
    side: str
    suggestion: float | None


def find_edges(axes: Mapping[str, Sequence[Any]], settings: Mapping[str, Any]) -> list[Edge]:
    """Axes of three numbers or more of which the cell with `settings` has the first or the last.
    Two values are both ends, and their order is no trend: such axes are passed over."""
    edges: list[Edge] = []
    for axis, declared in axes.items():
        values = _ordered(declared)
        value = settings.get(axis)
        if len(values) < 3 or value not in (values[0], values[-1]):
            continue
        outward = values if value == values[-1] else values[::-1]
        side = "largest" if value == values[-1] else "smallest"
        edges.append(Edge(axis, value, side, _next(outward[-2], outward[-1], values)))
    return edges


def _ordered(declared: Sequence[Any]) -> list[float]:
    """The distinct values, ascending; none when one of them is no number."""
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in declared):
        return []
    return sorted({v for v in declared if math.isfinite(v)})


def _next(inner: float, edge: float, values: Sequence[float]) -> float | None:
    """One step beyond `edge`: by the ratio of its last two values where the axis is spaced by
    ratios, else by their difference."""
    if values[0] > 0 and _by_ratios(values):
        beyond = edge * edge / inner
    else:
        beyond = 2 * edge - inner
        if beyond <= 0 <= min(values):
            return None  # below zero, or at it: most likely no value of this setting
    if all(float(v).is_integer() for v in values):
        return round(beyond) if round(beyond) not in (edge, 0) else None
    return float(f"{beyond:.2g}")


def _by_ratios(values: Sequence[float]) -> bool:
    """Whether neighbours differ more evenly by ratio than by difference."""
    pairs = list(itertools.pairwise(values))
    ratios = [math.log(b / a) for a, b in pairs]
    steps = [b - a for a, b in pairs]
    return max(ratios) / min(ratios) <= max(steps) / min(steps)
