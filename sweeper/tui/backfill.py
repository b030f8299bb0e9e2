"""Reads the points of a metric that a run recorded before the view was opened."""

import functools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.rows import Point, numbers
from sweeper.results.sweeps import SweepRun

if TYPE_CHECKING:
    from sweeper.results.metrics_reader import Tabulator

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
    steps, values = _tables(run.root, memory).curve(run, key)
    return (
        Point(None if math.isnan(step) else step, value)
        for step, value in zip(steps.tolist(), values.tolist(), strict=True)
    )


@functools.lru_cache(maxsize=2)
def _tables(root: str, memory: Folder) -> "Tabulator":
    """Return the reader of a root, which opens its cache once for all runs."""
    from sweeper.results.metrics_reader import Tabulator
    from sweeper.results.problems import Problems

    return Tabulator({root: memory}, Problems())
