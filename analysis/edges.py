"""Is the best cell at the edge of what was tried? Pure."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.metrics import as_float

__all__ = ["Edge", "by_ratios", "find_edges", "ordered"]


@dataclass(frozen=True)
class Edge:
    """The best cell has the `side` ("smallest" or "largest") of the values tried of an ordered
    setting, `axis`. `suggestion` is the next value outwards on its own spacing, None when there is
    no sensible one: nothing says that it is a valid value."""

    axis: str
    value: float
    side: str
    suggestion: float | None


def find_edges(
    best: Mapping[str, Any],
    tried: Sequence[Mapping[str, Any]],
    planned: Sequence[Mapping[str, Any]] = (),
) -> list[Edge]:
    """Settings of which the best cell has the first or the last of three numbers or more.

    `tried` are the settings of the cells that have a result, the best among them. A value that
    only cells in `planned` have was not tried, and there is no edge where one lies further out:
    what is missing is its result. Two values are both ends, and their order is no trend: such
    settings are passed over."""
    edges: list[Edge] = []
    for axis, value in best.items():
        values = ordered(axis, tried)
        if len(values) < 3 or value not in (values[0], values[-1]):
            continue
        everything = ordered(axis, [*tried, *planned])
        if value not in (*everything[:1], *everything[-1:]):
            continue
        outward = values if value == values[-1] else values[::-1]
        side = "largest" if value == values[-1] else "smallest"
        edges.append(Edge(axis, value, side, _next(outward[-2], outward[-1], values)))
    return edges


def ordered(axis: str, cells: Sequence[Mapping[str, Any]]) -> list[float]:
    """The distinct values of a setting, ascending; none when one of them is no finite number."""
    found = [cell[axis] for cell in cells if axis in cell]
    numbers = [as_float(value) for value in found]
    if any(number is None or not math.isfinite(number) for number in numbers):
        return []
    return sorted(set(found))


def _next(inner: float, edge: float, values: Sequence[float]) -> float | None:
    """One step beyond `edge`: by the ratio of its last two values where the axis is spaced by
    ratios, else by their difference. Rounded to as few digits as keep it beyond."""
    if by_ratios(values):
        beyond = edge * (edge / inner)
    else:
        beyond = edge + (edge - inner)
        if beyond <= 0 <= min(values):
            return None  # below zero, or at it: most likely no value of this setting
    if not math.isfinite(beyond):
        return None
    if all(float(v).is_integer() for v in values):
        return round(beyond) if round(beyond) not in (edge, 0) else None
    for digits in range(2, 18):
        rounded = float(f"{beyond:.{digits}g}")
        if math.isfinite(rounded) and (rounded > edge if edge > inner else rounded < edge):
            return rounded
    return None


def by_ratios(values: Sequence[float]) -> bool:
    """Whether neighbours of ascending values differ more evenly by ratio than by difference."""
    if len(values) < 2 or values[0] <= 0:
        return False
    pairs = list(itertools.pairwise(values))
    ratios = [math.log(b) - math.log(a) for a, b in pairs]
    steps = [b - a for a, b in pairs]
    return min(ratios) > 0 and max(ratios) / min(ratios) <= max(steps) / min(steps)
