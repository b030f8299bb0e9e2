"""Runs that recorded the same to the last bit, where chance does not do that. Pure."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from sweeper.analysis.frames import RunData, SweepData
from sweeper.analysis.keys import train_candidates

__all__ = ["across_cells", "curve_digest", "same_curves"]

_DISTINCT = 4
"""So many different values are no accident of a coarse metric: that an accuracy is 1.0 to the end
in two runs says nothing of their seeds."""


def curve_digest(run: RunData, metric: str | None) -> str | None:
    """The same for runs that recorded the same of the metric and of the training: what a run
    learned, not how long it took. None where what it recorded has too few values to tell."""
    found = hashlib.blake2b(digest_size=12)
    most = 0
    for key in (metric, *train_candidates(metric)):
        if key is not None and key in run.curves:
            points = run.curves[key]
            found.update(repr(key).encode("utf-8", "surrogatepass"))
            found.update(points.steps.tobytes() + points.values.tobytes())
            most = max(most, len(np.unique(points.finite.values)))
    return found.hexdigest() if most >= _DISTINCT else None


def same_curves(runs: Sequence[RunData], metric: str | None) -> bool:
    """Whether these runs, two or more, recorded one and the same."""
    found = {curve_digest(run, metric) for run in runs}
    return len(runs) > 1 and len(found) == 1 and None not in found


def across_cells(data: SweepData) -> list[list[RunData]]:
    """Groups of runs of more than one cell with the same curves."""
    # Few runs end alike: only theirs are compared number by number.
    ends = _groups(data.runs, lambda run: repr((run.last, run.best, run.smoothed)))
    return [
        own
        for group in ends
        for own in _groups(group, lambda run: curve_digest(run, data.metric_name))
    ]


def _groups(runs: Sequence[RunData], look: Callable[[RunData], str | None]) -> list[list[RunData]]:
    found: dict[str, list[RunData]] = {}
    for run in runs:
        seen = look(run)
        if seen is not None:
            found.setdefault(seen, []).append(run)
    return [group for group in found.values() if len({run.cell for run in group}) > 1]
