"""What a run recorded before one looked: its metric's points, and its last row."""

import math
from collections.abc import Iterable
from typing import Any

from sweeper.errors import NotFound
from sweeper.metrics import Point, numbers, parse
from sweeper.records.runs import SweepRun
from sweeper.tables.keeping import Folder

__all__ = ["last_row", "past_points"]

_LARGE = 100_000
"""Bytes of metrics from which on it pays to load what reads them quicker, and remembers them."""
_TAIL = 8192


def past_points(run: SweepRun, key: str, memory: Folder) -> Iterable[Point]:
    """The values of `key` in all attempts, by step."""
    sources = [run.files.source(path) for path in run.metrics_paths()]
    size = sum(source.stamp.size for source in sources if source is not None)
    if not size:
        return []
    if size < _LARGE and not run.store.is_remote:
        return numbers(run.history.rows, key)
    from sweeper.records.problems import Problems
    from sweeper.records.tabulating import Tabulator

    steps, values = Tabulator({run.root: memory}, Problems()).curve(run, key)
    return (
        Point(None if math.isnan(step) else step, value)
        for step, value in zip(steps.tolist(), values.tolist(), strict=True)
    )


def last_row(run: SweepRun) -> dict[str, Any]:
    """The last whole row of the newest metrics; empty without."""
    for path in reversed(run.metrics_paths()):
        source = run.files.source(path)
        if source is None or not source.stamp.size:
            continue
        for back in (_TAIL, 64 * _TAIL):
            start = max(0, source.stamp.size - back)
            try:
                data = source.read(start)[1]
            except NotFound:
                return {}
            rows = parse(data[data.find(b"\n") + 1 if start else 0 :]).rows
            if rows or not start:
                return rows[-1] if rows else {}
    return {}
