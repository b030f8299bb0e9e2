"""Warns about a metric that earlier runs of the same recipe did not record. It is probably
misspelt, and a sweep without its metric has no report."""

import os
from collections.abc import Iterator

from sweeper.errors import NotFound, StoreError
from sweeper.metrics.files import MetricsFile, metrics_path
from sweeper.store.base import Store
from sweeper.sweep.folder import SweepFolder, find_sweeps
from sweeper.sweep.labels import first_of
from sweeper.sweep.plan import Plan
from sweeper.sweep.states import State, fold

_SWEEPS = 5
_BYTES = 65_536
_SHOWN = 6


def unrecorded_metric(planned: Plan, store: Store) -> str | None:
    """Make a warning if a recent succeeded run of the same recipe in this store did not record the
    plan's metric. None if it did, if there is no such run, or if the store is remote, where the
    search would take too long."""
    if planned.stages:
        told = (unrecorded_metric(part, store) for part in planned.parts)
        return next(filter(None, told), None)
    if planned.metric is None or store.is_remote:
        return None
    wanted = planned.metric.name
    for sweep in newest_sweeps(store):
        try:
            found = _recorded(SweepFolder(store, sweep), planned.recipe.reference)
        except (NotFound, StoreError):
            continue  # other verbs report it
        if found is None:
            continue
        if wanted in found:
            return None
        from difflib import get_close_matches

        near = get_close_matches(wanted, found, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        keys = sorted(found - {"step"})
        listed = first_of(keys, _SHOWN) if keys else "nothing"
        return f"metric: runs of {sweep} did not record {wanted!r}{hint}; they recorded {listed}"
    return None


def newest_sweeps(store: Store) -> Iterator[str]:
    """The most recently launched sweeps, newest first."""

    def launched(sweep: str) -> float:
        path = store.local_path(SweepFolder(store, sweep).plan)
        try:
            return os.stat(path or "").st_mtime
        except OSError:
            return 0.0

    yield from sorted(find_sweeps(store), key=launched, reverse=True)[:_SWEEPS]


def _recorded(folder: SweepFolder, recipe: str) -> set[str] | None:
    """The keys that a succeeded run of the sweep recorded; None if the sweep has no such run or
    another recipe. Only the beginning and the end of a long file are read; the end, because some
    keys appear late."""
    plan = folder.read_plan()
    if plan.stages or plan.recipe.reference != recipe:
        return None
    for run, events in folder.read_events().items():
        state = fold(events)
        if state.state is not State.SUCCEEDED:
            continue
        path = metrics_path(folder.store, folder.recorded(run, state.attempt))
        try:
            head = folder.store.read_range(path, 0, _BYTES)
            size = os.stat(folder.store.local_path(path) or "").st_size
            tail = folder.store.read_range(path, size - _BYTES, size) if size > _BYTES else b""
        except (NotFound, OSError):
            return set()
        file = MetricsFile(path)  # the tail begins within a line
        parsed = (file.parse(head), file.parse(tail, max(size - _BYTES, 1)))
        return {key for part in parsed for row in part.rows for key in row}
    return None
