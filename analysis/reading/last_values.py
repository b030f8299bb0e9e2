"""Decides whether runs are judged by their last value or by a mean of their last values, if the
grid leaves this open (`at: auto`). Pure."""

# An evaluation is noisy. If its noise dominates the differences between a cell's runs, a mean of
# the last few values distinguishes cells better. But while runs still learn, a mean includes
# outdated values. So the last `OF` values of all runs are averaged if, over the last two times `OF`
# values,
#
# - single values scatter: their variance (from second differences, which are 0 for a straight
#   trend) is at least half of the variance between the last values of the runs of a cell (of all
#   runs if no cell was repeated), and
# - curves are flat: the means of the later and the earlier half differ by less than the scatter of
#   single values (root mean square over the runs).
#
# A few outliers must not decide: the scatter comes from the median of the squared differences, and
# in the other figures values are clipped to `_FAR` times the scatter from the median of their run.
# Both tests use all runs that count and no ranking of cells, so the choice favours no cell.

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sweeper.analysis.reading.frames import RunData, SweepData, judged_by
from sweeper.analysis.reading.metric import Metric
from sweeper.analysis.reading.series import Ends, Floats

OF = 5
"""The number of last values that are averaged."""


_FAR = 3.0
_CHI = 0.454936
"""The median of the square of a standard normal value."""


def settle(*sweeps: SweepData) -> tuple[SweepData, ...]:
    """Replace `at: auto` by the same choice in all sweeps that are judged together. Return the
    sweeps unchanged if one of them has another `at`, or no metric. If one of the sweeps is a race
    (better cells get more seeds), choose the last value, as the race does."""
    metrics = [data.metric for data in sweeps if data.metric is not None]
    if len(metrics) < len(sweeps) or any(metric.at != "auto" for metric in metrics):
        return sweeps
    raced = any(data.plan is not None and data.plan.race is not None for data in sweeps)
    ends = None if raced else _ends(sweeps)
    at = f"mean_of_last={OF}" if ends is not None and ends.noisy else "last"
    both = zip(sweeps, metrics, strict=True)
    return tuple(_judged(data, replace(metric, at=at), ends) for data, metric in both)


def _judged(data: SweepData, metric: Metric, ends: Ends | None) -> SweepData:
    runs = tuple(replace(run, **judged_by(run.curves, metric)) for run in data.runs)
    return replace(data, metric=metric, runs=runs, ends=ends if metric.at != "last" else None)


def _ends(sweeps: Sequence[SweepData]) -> Ends | None:
    tails: list[Floats] = []
    cells: dict[tuple[int, str], list[int]] = {}
    for number, data in enumerate(sweeps):
        for run in data.runs:
            if run.counts and data.metric is not None:
                tail = _tail(run, data.metric)
                if tail is None:
                    return None
                cells.setdefault((number, run.cell), []).append(len(tails))
                tails.append(tail)
    if len(tails) < 2:
        return None
    table = np.array(tails)
    unit = float(np.abs(table).max()) or 1.0
    table = table / unit
    second = np.diff(table, n=2, axis=1)
    scatter = math.sqrt(float(np.median(second**2)) / (6 * _CHI))
    middle = np.median(table, axis=1, keepdims=True)
    table = np.clip(table, middle - _FAR * scatter, middle + _FAR * scatter)
    moved = table[:, OF:].mean(axis=1) - table[:, :OF].mean(axis=1)
    return Ends(
        scatter=scatter * unit,
        between=_between([table[rows, -1] for rows in cells.values()]) * unit,
        moved=float(np.sqrt((moved**2).mean())) * unit,
    )


def _tail(run: RunData, metric: Metric) -> Floats | None:
    curve = run.curves.get(metric.name)
    values = None if curve is None else curve.values[-2 * OF :]
    if values is None or len(values) < 2 * OF or not np.isfinite(values).all():
        return None
    return values


def _between(cells: Sequence[Floats]) -> float:
    groups = [values for values in cells if len(values) > 1] or [np.concatenate(cells)]
    # Subtract the first value, because otherwise the mean of equal values may differ from them by a
    # rounding error.
    shifted = [values - values[0] for values in groups]
    squares = math.fsum(float(((values - values.mean()) ** 2).sum()) for values in shifted)
    return math.sqrt(squares / sum(len(values) - 1 for values in groups))
