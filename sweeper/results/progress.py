"""Determines the progress of a run from the last rows of its newest attempt."""

from collections.abc import Mapping
from typing import NamedTuple

from sweeper.errors import NotFound
from sweeper.metrics.files import MetricsFile
from sweeper.metrics.rows import Row, as_float, as_step
from sweeper.results.runs import RecordedRun

_TAIL = 8192


class Reached(NamedTuple):
    """The progress of an attempt. `step` is the last recorded step, and `done` the last recorded
    fraction (`progress/done_frac`). A value that was not recorded is None."""

    step: float | None = None
    done: float | None = None

    def after(self, row: Mapping[str, object]) -> "Reached":
        """Return the progress after one more row."""
        step, done = as_step(row.get("step")), as_float(row.get("progress/done_frac"))
        return Reached(
            self.step if step is None else step,
            done if done is not None and 0.0 <= done <= 1.0 else self.done,
        )


def reached(run: RecordedRun) -> Reached:
    """Return the progress of the newest attempt that recorded anything. Raises `StoreError`."""
    progress = Reached()
    for row in _last_rows(run):
        progress = progress.after(row)
    return progress


def _last_rows(run: RecordedRun) -> list[Row]:
    """Return the rows in the last 8 KiB of the newest metrics file. If none of them has a step,
    return the rows in the last 512 KiB."""
    for path in reversed(run.metrics_paths()):
        source = run.files.source(path)
        if source is None or not source.stamp.size:
            continue
        for back in (_TAIL, 64 * _TAIL):
            start = max(0, source.stamp.size - back)
            try:
                data = source.read(start)[1]
            except NotFound:
                return []
            begin = data.find(b"\n") + 1 if start else 0
            rows = MetricsFile(path).parse(data[begin:], start + begin, run.files.source).rows
            if not start or any(as_step(row.get("step")) is not None for row in rows):
                return rows
        return rows
    return []
