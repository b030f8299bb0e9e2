"""Finds runs whose records are equal to the last bit, and probably not by chance. Pure."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.analysis.reading.keys import train_candidates

_DISTINCT = 4
"""The smallest number of different values of a curve. Curves of a coarse metric may be equal by
chance: two runs may both have an accuracy of 1.0 at the end."""


def curve_digest(run: RunData, metric: str | None) -> str | None:
    """Return a digest of the steps and values of the metric and of the training curves. Runs with
    the same steps and values have equal digests, even if their durations differ. None if each of
    these curves has fewer than `_DISTINCT` different values."""
    digest = hashlib.blake2b(digest_size=12)
    most = 0
    for key in (metric, *train_candidates(metric)):
        if key is not None and key in run.curves:
            points = run.curves[key]
            digest.update(repr(key).encode("utf-8", "surrogatepass"))
            digest.update(points.steps.tobytes() + points.values.tobytes())
            most = max(most, len(np.unique(points.finite.values)))
    return digest.hexdigest() if most >= _DISTINCT else None


def same_curves(runs: Sequence[RunData], metric: str | None) -> bool:
    """Return whether `runs` has at least two runs with equal digests (see `curve_digest`)."""
    digests = {curve_digest(run, metric) for run in runs}
    return len(runs) > 1 and len(digests) == 1 and None not in digests


def across_cells(data: SweepData) -> list[list[RunData]]:
    """Return groups of runs with equal curves. Each group has runs of two or more cells."""
    # Comparing curves takes long, so compare only those of runs that end with the same values.
    ends = _groups(data.runs, lambda run: repr((run.last, run.best, run.smoothed)))
    return [
        runs
        for group in ends
        for runs in _groups(group, lambda run: curve_digest(run, data.metric_name))
    ]


def _groups(runs: Sequence[RunData], key: Callable[[RunData], str | None]) -> list[list[RunData]]:
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        seen = key(run)
        if seen is not None:
            groups.setdefault(seen, []).append(run)
    return [group for group in groups.values() if len({run.cell for run in group}) > 1]
