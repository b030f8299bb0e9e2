"""The progress of a run and the curve of one metric. A curve has at most `_MOST` points:
whenever there are more, every second point is dropped. Pure."""

from collections.abc import Iterable, Mapping

from sweeper.metrics.objective import Judge
from sweeper.metrics.rows import Point, as_number, as_step
from sweeper.results.progress import Reached

_MOST = 512
_START = Reached()


class Series:
    """The metric `name` of a run, and the run's progress. If `name` is None, only the progress is
    stored. `version` grows with each change. `stale`: rows were overwritten, so the whole history
    must be loaded into a new series."""

    def __init__(self, name: str | None, goal: str = "minimize", at: str = "last") -> None:
        self._name = name
        self._judge = Judge(goal, at)
        self._points: list[tuple[float, float]] = []
        self._stride = 1
        self._count = 0
        self._last: tuple[float, float] | None = None
        self._curve: tuple[float, ...] | None = None
        self.version = 0
        self.stale = False
        self.reached = _START

    def load(self, points: Iterable[Point], reached: Reached = _START) -> None:
        """Add the history of the metric, and set the run's progress."""
        self.version += 1
        for point in points:
            self._add(point)
        self.reached = reached

    def add(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add new rows of the run's metrics file."""
        self.version += 1
        for row in rows:
            self.reached = self.reached.after(row)
            if self._name is None or self._name not in row:
                continue
            step, number = as_step(row.get("step")), as_number(row[self._name])
            if number is not None:
                self._add(Point(step, number))
            else:
                self.stale |= self._judge.takes_back(step)

    def _add(self, point: Point) -> None:
        self._curve = None
        before = self._judge.last
        self.stale |= not self._judge.add(point)
        if self._judge.last is not point:
            return  # a resumed attempt has rewritten an earlier step, or the point does not count
        if before is not None and before.step is None and point.step is not None:
            self._points, self._count, self._stride = [], 0, 1  # these points no longer count
        step = float(self._count) if point.step is None else float(point.step)
        again = before is not None and point.step is not None and before.step == point.step
        if again and self._points[-1:] == [self._last]:
            self._points.pop()
            self._count -= 1
        self._last = (step, point.value)
        if self._count % self._stride == 0:
            self._points.append(self._last)
            if len(self._points) > _MOST:
                self._points = self._points[::2]
                self._stride *= 2
        self._count += 1

    @property
    def step(self) -> float | None:
        """The last recorded step, or None."""
        return self.reached.step

    @property
    def done(self) -> float | None:
        """The completed fraction of the run, or None if the program does not record one."""
        return self.reached.done

    @property
    def points(self) -> list[tuple[float, float]]:
        """The (step, value) points, thinned out. The last point is always kept."""
        if self._last is None or self._points[-1:] == [self._last]:
            return list(self._points)
        return [*self._points, self._last]

    @property
    def curve(self) -> tuple[float, ...]:
        """The values of `points`. The object stays the same until the points change."""
        if self._curve is None:
            self._curve = tuple(number for _, number in self.points)
        return self._curve

    @property
    def value(self) -> float | None:
        """The value by which the run is compared with other runs, or None."""
        return self._judge.value

    @property
    def diverged(self) -> bool:
        """Whether the last value is not finite."""
        return self._judge.diverged
