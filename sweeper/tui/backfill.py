"""Reads the points of a metric that a run recorded before the view was opened."""

import math
from collections.abc import Iterable

from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.rows import Point, numbers
from sweeper.results.sweeps import SweepRun

_LARGE = 100_000
"""Above this many bytes the faster reader, which also keeps a cache, is worth loading."""


def past_points(run: SweepRun, key: str, memory: Folder) -> Iterable[Point]:
    """Return the values of `key` in all attempts, by step."""
    sources = [run.files.source(path) for path in run.metrics_paths()]
    size = sum(source.stamp.size for source in sources if source is not None)
    if not size:
        return []
    if size < _LARGE and not run.store.is_remote:
        return numbers(run.history.rows, key)
    from sweeper.results.metrics_reader import Tabulator
    from sweeper.results.problems import Problems

    steps, values = Tabulator({run.root: memory}, Problems()).curve(run, key)
    return (
        Point(None if math.isnan(step) else step, value)
        for step, value in zip(steps.tolist(), values.tolist(), strict=True)
    )
