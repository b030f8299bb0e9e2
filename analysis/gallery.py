"""Which figures a report has, in their order."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from sweeper.analysis.charts import (
    axis_figure,
    over_iterations,
    parallel,
    passes,
    rewards,
    tradeoff_figure,
)
from sweeper.analysis.figures import curves
from sweeper.analysis.study import Study

__all__ = ["Panel", "gallery"]

_AXES = 6
_TRADES = 6


class Panel(NamedTuple):
    """A figure, the `section` of the page that it stands in, its `name` (unique) and what a reader
    who cannot see it is told."""

    section: str
    name: str
    figure: dict[str, Any]
    told: str


def gallery(study: Study) -> list[Panel]:
    """All figures of the report."""
    if not study.data.runs:
        return []
    return [*_curves(study), *_axes(study), *_tradeoffs(study), *_rollouts(study)]


def _curves(study: Study) -> Iterator[Panel]:
    data = study.data
    even = {data.roles.get("reward"), data.roles.get("accuracy")}
    if data.metric is not None and data.metric.goal == "maximize":
        even |= {data.metric.name, data.train_key}
    first = {data.metric.name if data.metric is not None else None, data.train_key}
    for key in data.drawn:
        figure = curves(study.ranking, key, main=key in first, even=key in even)
        if figure is not None:
            yield Panel("curves", key, figure, f"{key} against the step, a line a cell")


def _axes(study: Study) -> Iterator[Panel]:
    metric = study.data.metric
    if metric is None:
        return
    log = study.ranking.scale == "log"
    for axis in study.axes[:_AXES]:
        figure = axis_figure(axis, metric.name, log=log)
        told = ", ".join(f"{entry.value}: {entry.mean:.4g}" for entry in axis.levels)
        yield Panel("axes", axis.key, figure, f"{metric.name} by {axis.key}: {told}")
    lines = parallel(study.ranking, metric.name, metric.sign)
    if lines is not None:
        told = "A line a cell through its settings to its mean; the table has the same"
        yield Panel("parallel", "All settings at once", lines, told)


def _tradeoffs(study: Study) -> Iterator[Panel]:
    metric = study.data.metric
    if metric is None:
        return
    shown = [one for one in study.tradeoffs if one.front is not None or len(one.cells) > 2]
    for found in shown[:_TRADES]:
        figure = tradeoff_figure(found, study.ranking, metric.name)
        told = f"{metric.name} against {found.name}, a point a cell"
        yield Panel("trade", f"against {found.name}", figure, told)


def _rollouts(study: Study) -> Iterator[Panel]:
    found, ranking = study.behaviour, study.ranking
    if found is None:
        return
    yield Panel("rollouts", "rewards", rewards(found, ranking), "Histogram of rewards by cell")
    figure = passes(found, ranking)
    if figure is not None:
        yield Panel("rollouts", "pass@k", figure, "pass@k by k, a line a cell")
    over = (
        ("signal", "groups with signal", "groups with signal", True),
        ("length", "length of answers", "tokens written", False),
    )
    for what, name, title, share in over:
        figure = over_iterations(found, ranking, what, title, share=share)
        if figure is not None:
            yield Panel("rollouts", name, figure, f"{title} by iteration, a line a cell")
