"""The figures of cells: their means, what they cost, performance profiles over tasks. Pure."""

from collections.abc import Iterator
from typing import Any

from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.comparison.tasks import LEVELS, Tasks
from sweeper.analysis.comparison.tradeoffs import Tradeoff
from sweeper.analysis.figures.layouts import (
    MUTED,
    Panel,
    colour_of,
    is_wide,
    layout,
    marks,
    plain,
    rounded,
    tones,
)
from sweeper.analysis.findings.finding import cell_text, names_of
from sweeper.analysis.findings.study import Study

_ROWS = 40
_PROFILES = 8
_TRADES = 6


def panels(study: Study) -> Iterator[Panel]:
    """Yield the figures of all cells, of costs and of tasks."""
    metric = study.data.metric
    if metric is not None:
        means = cells_figure(study.ranking, metric.name)
        if means is not None:  # not on the page, whose table draws the same
            name = "cells, best first: runs, mean, 95 % interval"
            yield Panel("cells", name, means, "The cells", on_page=False)
        shown = [
            tradeoff
            for tradeoff in study.tradeoffs
            if tradeoff.front is not None or len(tradeoff.cells) > 2
        ]
        for tradeoff in shown[:_TRADES]:
            figure = tradeoff_figure(tradeoff, study.ranking, metric.name)
            caption = f"{metric.name} against {tradeoff.name}, one point per cell"
            yield Panel("trade", f"against {tradeoff.name}", figure, caption)
    if study.tasks is not None:
        figure = profiles(study.tasks, study.ranking)
        yield Panel("tasks", "performance profiles", figure, "Share of scores above each level")


def cells_figure(ranking: Ranking, metric: str) -> dict[str, Any] | None:
    """Draw a row for each of the first cells, the best first: the mean as a dot, its 95 %
    interval as a bar, the runs as ticks. None if nothing was measured."""
    cells = [cell for cell in ranking.measured if not cell.diverged][:_ROWS]
    if not cells:
        return None
    colours = tones(ranking)
    traces: list[dict[str, Any]] = []
    for row, cell in enumerate(cells):
        tone, summary = colours[cell.name], cell.summary
        parts: list[tuple[str, list[float | None], float, str]] = [
            ("band", [summary.low, summary.high], 0, "circle"),
            ("run", [*cell.values], 12, "line-ns"),
            ("mean", [summary.mean], 9, "circle"),
        ]
        traces += [
            {
                "type": "scatter",
                "mode": "markers" if size else "lines",
                "name": plain(cell_text(cell)),
                "x": values,
                "y": [-row] * len(values),
                "line": {"width": 5, "color": colour_of(tone)},
                "marker": {"size": size, "symbol": symbol, "color": colour_of(tone)},
                "opacity": 1 if size else 0.35,
                "meta": {"cell": row, "tone": tone, "role": role},
            }
            for role, values, size, symbol in parts
        ]
    laid = layout(metric, height=70 + 28 * len(cells))
    laid["xaxis"]["rangemode"] = "normal"
    values = [value for cell in cells for value in cell.values]
    if ranking.scale == "log" or is_wide(min(values), max(values)):
        laid["xaxis"]["type"] = "log"
    names = [plain(name) for name in names_of(cells)]
    rows = [-row for row in range(len(cells))]
    laid["yaxis"].update({"tickvals": rows, "ticktext": names, "range": [rows[-1] - 0.6, 0.6]})
    return {"data": traces, "layout": laid}


def tradeoff_figure(tradeoff: Tradeoff, ranking: Ranking, metric: str) -> dict[str, Any]:
    """Draw the metric against a cost: a point for each cell, and the Pareto front as a line."""
    colours = tones(ranking)
    names = {cell.name: cell for cell in ranking.cells}
    positions = {cell.name: i for i, cell in enumerate(ranking.cells)}
    traces: list[dict[str, Any]] = []
    if tradeoff.front is not None:
        points = sorted(
            (x, y)
            for c, x, y in zip(tradeoff.cells, tradeoff.x, tradeoff.y, strict=True)
            if c in tradeoff.front
        )
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "Pareto front",
                "x": rounded([x for x, _ in points]),
                "y": rounded([y for _, y in points]),
                "line": {"width": 1.5, "dash": "dash", "shape": "linear", "color": MUTED},
                "hoverinfo": "skip",
                "meta": {"cell": -1, "tone": -1, "role": "front"},
            }
        )
    for cell, x, y in reversed(list(zip(tradeoff.cells, tradeoff.x, tradeoff.y, strict=True))):
        tone = colours[cell]
        on = tradeoff.front is not None and cell in tradeoff.front
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(cell_text(names[cell])),
                "x": rounded([x]),
                "y": rounded([y]),
                "marker": {
                    "size": 12 if on else 9,
                    "symbol": "circle" if on or tradeoff.front is None else "circle-open",
                    "color": colour_of(tone),
                },
                "hovertemplate": "%{x}: %{y}",
                "meta": {"cell": positions[cell], "tone": tone, "role": "point"},
            }
        )
    laid = layout(
        tradeoff.name, low=min(tradeoff.y), high=max(tradeoff.y), height=320, y_title=metric
    )
    laid["xaxis"]["rangemode"] = "normal"
    laid["meta"]["log"] = False
    if is_wide(min(tradeoff.x), max(tradeoff.x)):
        laid["xaxis"].update({"type": "log", **marks(min(tradeoff.x), max(tradeoff.x))})
    return {"data": traces, "layout": laid}


def profiles(tasks: Tasks, ranking: Ranking) -> dict[str, Any]:
    """Draw performance profiles of the first cells: for each level, the fraction of a cell's scores
    that are above the level."""
    colours = tones(ranking)
    positions = {cell.name: i for i, cell in enumerate(ranking.cells)}
    names = {cell.name: plain(cell_text(cell)) for cell in ranking.cells}
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": names[cell.cell],
            "x": list(LEVELS),
            "y": rounded(list(cell.profile)),
            "line": {"width": 2, "color": colour_of(colours[cell.cell]), "shape": "hv"},
            "hovertemplate": "above %{x}: %{y:.0%} of scores",
            "meta": {"cell": positions[cell.cell], "tone": colours[cell.cell], "role": "line"},
        }
        for cell in reversed(tasks.cells[:_PROFILES])
    ]
    laid = layout("score", height=320, y_title="share of scores above it")
    laid["xaxis"]["range"] = [0, 1]
    laid["yaxis"].update({"rangemode": "tozero", "tickformat": ".0%"})
    return {"data": traces, "layout": laid}
