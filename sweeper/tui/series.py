"""What has been seen of a run's metrics: how far it is, and one metric's curve, thinned out. Pure.

All points of a thousand long runs would be gigabytes. A curve keeps at most `_MOST` of them: when
there are more, every second one goes, and from then on only each second, fourth, ... is kept.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sweeper.metrics import Point, as_float

__all__ = ["Series"]

_MOST = 512


class Series:
    """One metric of one run, and the last row of all. `name` may be None: then only the last row is
    kept. `version` grows with what is known."""

    def __init__(self, name: str | None, goal: str = "minimize", at: str = "last") -> None:
        self._name, self._at = name, at
        self._sign = -1.0 if goal == "maximize" else 1.0
        self._kept: list[tuple[float, float]] = []
        self._stride = 1
        self._count = 0
        self._last: tuple[float, float] | None = None
        self._best: float | None = None
        self._curve: tuple[float, ...] | None = None
        self.version = 0
        self.step: float | None = None
        self.done: float | None = None

    def load(self, points: Iterable[Point], last: Mapping[str, Any]) -> None:
        """All there is of the metric, and the last row of the file."""
        self.version += 1
        for point in points:
            self._add(self._count if point.step is None else point.step, point.value)
        self._note(last)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows that were written since."""
        self.version += 1
        for row in rows:
            self._note(row)
            number = as_float(row.get(self._name)) if self._name is not None else None
            if number is not None:
                step = as_float(row.get("step"))
                self._add(self._count if step is None else step, number)

    def _note(self, row: Mapping[str, Any]) -> None:
        step = as_float(row.get("step"))
        if step is not None and math.isfinite(step):
            self.step = step
        done = as_float(row.get("progress/done_frac"))
        if done is not None and 0.0 <= done <= 1.0:
            self.done = done

    def _add(self, step: float, number: float) -> None:
        self._curve = None
        if self._last is not None and step < self._last[0]:
            return  # written again by an attempt that resumed
        if self._last is not None and step == self._last[0] and self._kept[-1:] == [self._last]:
            self._kept.pop()
            self._count -= 1
        self._last = (step, number)
        if math.isfinite(number) and (
            self._best is None or self._sign * number < self._sign * self._best
        ):
            self._best = number
        if self._count % self._stride == 0:
            self._kept.append(self._last)
            if len(self._kept) > _MOST:
                self._kept = self._kept[::2]
                self._stride *= 2
        self._count += 1

    @property
    def points(self) -> list[tuple[float, float]]:
        """Steps and values, thinned out; the last one is always there."""
        if self._last is None or self._kept[-1:] == [self._last]:
            return list(self._kept)
        return [*self._kept, self._last]

    @property
    def curve(self) -> tuple[float, ...]:
        """The values of `points`: the same object until there are others."""
        if self._curve is None:
            self._curve = tuple(number for _, number in self.points)
        return self._curve

    @property
    def value(self) -> float | None:
        """What the run is judged by: the last value, or the best finite one."""
        if self._at == "best" and self._best is not None:
            return self._best
        return None if self._last is None else self._last[1]
