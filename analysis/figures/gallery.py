"""Chooses the figures of a report and their order."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sweeper.analysis.comparison.surface import varying
from sweeper.analysis.figures.charts import (
    axis_figure,
    over_iterations,
    parallel,
    passes,
    profiles,
    rewards,
    tradeoff_figure,
)
from sweeper.analysis.figures.learning_curves import curves
from sweeper.analysis.figures.surface_figures import plane_figure, scatter_figure
from sweeper.analysis.findings.study import Study

_AXES = 12
"""The most settings with a figure of their own."""
PARALLEL = 7
"""The most settings in parallel coordinates."""
_TRADES = 6


class Panel(NamedTuple):
    """A figure, the `section` of the page it belongs to, its unique `name`, and a description for
    readers who cannot see it."""

    section: str
    name: str
    figure: dict[str, Any]
    told: str


def gallery(study: Study) -> list[Panel]:
    """Return all figures of the report."""
    if not study.data.runs:
        return []
    return [*_curves(study), *_axes(study), *_tradeoffs(study), *_tasks(study), *_rollouts(study)]


def _curves(study: Study) -> Iterator[Panel]:
    data = study.data
    even = {data.roles.get("reward"), data.roles.get("accuracy")}
    if data.metric is not None and data.metric.goal == "maximize":
        even |= {data.metric.name, data.train_key}
    first = {data.metric_name, data.train_key}
    for key in data.drawn:
        figure = curves(study.ranking, key, main=key in first, even=key in even)
        if figure is not None:
            yield Panel("curves", key, figure, f"{key} against the step, a line a cell")


def _axes(study: Study) -> Iterator[Panel]:
    metric = study.data.metric
    if metric is None:
        return
    keys = telling(study)
    for key in keys[:_AXES]:
        panel = _axis(study, key, metric.name)
        if panel is not None:
            yield panel
    for pair in study.surface.pairs if study.surface is not None else ():
        figure = plane_figure(pair, study.ranking, metric.sign)
        caption = f"Level lines of {metric.name} over {pair.x} and {pair.y} in a model of all axes"
        yield Panel("planes", f"{pair.x} and {pair.y}", figure, caption)
    lines = parallel(study.ranking, keys[:PARALLEL], metric.name, metric.sign)
    if lines is not None:
        caption = "One line per cell, through its settings to its mean (also in the table)"
        yield Panel("parallel", "Settings together", lines, caption)


def telling(study: Study) -> list[str]:
    """Return all settings that vary, the most important first: by the model of all axes if there is
    one, else by the range of their values' means."""
    model = study.surface.axes if study.surface is not None else ()
    keys = [axis.key for axis in (*model, *(a for a in study.axes if a.matched), *study.axes)]
    return list(dict.fromkeys([*keys, *varying(study.ranking)]))


def _axis(study: Study, key: str, metric: str) -> Panel | None:
    """The means by value if there is a grid, else the cells as points with the model."""
    own = next((axis for axis in study.axes if axis.key == key), None)
    effect = study.surface.of(key) if study.surface is not None else None
    if own is not None and (own.matched or (effect is None and own.levels[0].number is None)):
        figure = axis_figure(own, metric, study.ranking.scale)
        caption = ", ".join(f"{entry.shown}: {entry.mean:.4g}" for entry in own.levels)
        return Panel("axes", key, figure, f"{metric} by {key}: {caption}")
    drawn = scatter_figure(key, effect, study.ranking, metric)
    if drawn is None:
        return None
    return Panel("axes", key, drawn, f"{metric} of each cell by {key}")


def undrawn(study: Study, panels: Sequence[Panel]) -> list[str]:
    """Return the settings that vary but have no figure of their own."""
    drawn = {panel.name for panel in panels if panel.section == "axes"}
    return [key for key in telling(study) if key not in drawn]


def _tradeoffs(study: Study) -> Iterator[Panel]:
    metric = study.data.metric
    if metric is None:
        return
    shown = [one for one in study.tradeoffs if one.front is not None or len(one.cells) > 2]
    for tradeoff in shown[:_TRADES]:
        figure = tradeoff_figure(tradeoff, study.ranking, metric.name)
        caption = f"{metric.name} against {tradeoff.name}, one point per cell"
        yield Panel("trade", f"against {tradeoff.name}", figure, caption)


def _tasks(study: Study) -> Iterator[Panel]:
    if study.tasks is not None:
        figure = profiles(study.tasks, study.ranking)
        yield Panel("tasks", "performance profiles", figure, "Share of scores above each level")


def _rollouts(study: Study) -> Iterator[Panel]:
    behaviour, ranking = study.behaviour, study.ranking
    if behaviour is None:
        return
    yield Panel("rollouts", "rewards", rewards(behaviour, ranking), "Histogram of rewards by cell")
    figure = passes(behaviour, ranking)
    if figure is not None:
        yield Panel("rollouts", "pass@k", figure, "pass@k by k, a line a cell")
    over = (
        ("signal", "groups with signal", "groups with signal", True),
        ("length", "length of answers", "tokens written", False),
    )
    for what, name, title, share in over:
        figure = over_iterations(behaviour, ranking, what, title, share=share)
        if figure is not None:
            yield Panel("rollouts", name, figure, f"{title} by iteration, a line a cell")
