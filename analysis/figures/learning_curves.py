"""Learning curves as figures for plotly. Figures are plain dicts, because plotly's trace objects
are slow. `plotly.graph_objects.Figure(figure)` shows a figure in a notebook."""

# The `meta` of each trace (see `Panel`) has a role: "run", "band", "mean", "end" or "best". The
# page chooses colours for light and dark screens by `meta`, and shows and hides cells. The lines
# of a cell's runs are one trace with gaps, and `meta.runs` has their runs. `meta.x` has
# alternatives to the step for the x axis; `meta.smooth` has moving means, one for each of
# `WINDOWS` that changes anything. If there are many cells, those without a colour of their own
# are one trace, in which `meta.cells` has their positions in the order of `meta.runs`.

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.figures.curves import POINTS, Band, band, smooth, thin, thin_rows
from sweeper.analysis.figures.layouts import (
    MUTED,
    Panel,
    colour_of,
    integers,
    layout,
    on_scale,
    plain,
    rounded,
    tones,
)
from sweeper.analysis.findings.finding import cell_text
from sweeper.analysis.findings.study import Study
from sweeper.analysis.reading.frames import RunData
from sweeper.analysis.reading.keys import suite_scores
from sweeper.analysis.reading.series import Floats, Series

_BUDGET = 40_000
"""The largest number of points in all thin lines of a figure together."""
_MEANS = 16_000
"""The largest number of points in all means of a figure together."""
WINDOWS = (0.02, 0.05, 0.15)
"""The windows of smoothed curves, as fractions of a figure's steps."""
_SEPARATE = 24
"""With more cells than this, the grey cells form a single trace, without bands and without
single runs."""
_CROSSES = 100
_MANY = 300
"""With more runs than this, only the metric and the training curve show single runs."""


def panels(study: Study) -> Iterator[Panel]:
    """Yield the curves of the chosen metrics."""
    data = study.data
    even = {data.roles.get("reward"), data.roles.get("accuracy"), *suite_scores(data.keys)}
    if data.metric is not None and data.metric.goal == "maximize":
        even |= {data.metric.name, data.train_key}
    first = {data.metric_name, data.train_key}
    for key in data.drawn:
        figure = curves(study.ranking, key, main=key in first, even=key in even)
        if figure is not None:
            yield Panel("curves", key, figure, f"{key} by step, one line per cell")


def curves(
    ranking: Ranking, key: str, *, main: bool = True, even: bool = False
) -> dict[str, Any] | None:
    """Draw `key` by step: a thin line for each run, and a strong line for the mean of each cell
    with several runs, with a band from the lowest to the highest value. The mean is over the runs
    that count (over all runs if none counts), at the steps that all these runs recorded. The curve
    of a diverged run ends in a cross. With `main`, the x axis can also show tokens or time. Without
    `main`, cells with a mean show no single runs if there are more than `_MANY` runs. With `even`,
    the y axis is linear at first: noise near 0 would fill a log axis. None if no run recorded
    `key`."""
    traces: list[dict[str, Any]] = []
    colours = tones(ranking)
    drawn = sum(key in run.curves for cell in ranking.cells for run in cell.runs)
    points = min(POINTS, max(40, _BUDGET // max(drawn, 1)))
    means = min(POINTS, max(40, _MEANS // max(len(ranking.cells), 1)))
    reach = _reach(ranking.cells, key)
    windows = [share * reach for share in WINDOWS]
    single = main or drawn <= _MANY
    pen = _Pen(key, points, means, windows, single=single, clocks=main)
    # The best is drawn last, on top.
    drawn_cells = list(enumerate(ranking.cells))
    if len(drawn_cells) > _SEPARATE:
        traces += pen.together([(i, cell) for i, cell in drawn_cells if colours[cell.name] < 0])
        drawn_cells = [(i, cell) for i, cell in drawn_cells if colours[cell.name] >= 0]
    for position, cell in reversed(drawn_cells):
        meta = {"cell": position, "tone": colours[cell.name]}
        traces += pen.cell(cell, meta)
    if not traces:
        return None
    clocks = sorted({name for trace in traces for name in trace["meta"].get("x", ())})
    low, high = _extent(ranking.cells, key)
    figure_layout = layout("step", low=low, high=high)
    figure_layout["meta"]["clocks"] = clocks
    if even:
        on_scale(figure_layout, "linear")
    return {"data": traces, "layout": figure_layout}


class _Pen:
    def __init__(
        self,
        key: str,
        points: int,
        means: int,
        windows: Sequence[float],
        *,
        single: bool,
        clocks: bool,
    ) -> None:
        self.key, self.points, self.means, self.windows = key, points, means, windows
        self.single, self.clocks = single, clocks

    def cell(self, cell: Cell, meta: dict[str, Any]) -> list[dict[str, Any]]:
        drawn = [run for run in cell.runs if self.key in run.curves]
        whole = [run for run in drawn if run.counts] or drawn
        colour = colour_of(meta["tone"])
        cell_band = band([run.curves[self.key] for run in whole]) if len(whole) > 1 else None
        if cell_band is not None and not len(cell_band.steps):
            cell_band = None
        traces: list[dict[str, Any]] = []
        indices = np.empty(0, dtype=np.intp)
        even: list[Band] = []
        if cell_band is not None:
            indices = thin(cell_band.mean, self.means)
            # Smooth the runs first and then make their band, so that no run leaves its own band.
            series = [run.curves[self.key] for run in whole]
            even = [band([smooth(each, window) for each in series]) for window in self.windows]
            traces.append(_band_trace(cell_band, even, indices, colour, meta))
        if self.single or cell_band is None:
            strong = cell_band is None  # without a mean, the lines of the runs are the strong ones
            for state in (True, False):
                runs = [run for run in drawn if (run.state == "succeeded") is state]
                traces += self._runs(runs, colour, meta, strong=strong, dotted=not state)
        traces += [t for run in drawn for t in _cross(run, self.key, colour, meta)]
        if cell_band is not None:
            name = f"{plain(cell_text(cell))} (mean of {len(whole)})"
            clocks = self._clocks(whole, [places[indices] for places in cell_band.at])
            traces.append(_mean_trace(_Shown(cell_band, even, indices), clocks, name, colour, meta))
        return traces

    def together(self, cells: Sequence[tuple[int, Cell]]) -> list[dict[str, Any]]:
        """Return the traces of all grey cells: one with the mean curves of all cells, then crosses
        for diverged runs. Empty if no cell has a curve."""
        parts = [(i, cell, line) for i, cell in cells if (line := self._typical(cell)) is not None]
        if not parts:
            return []
        shown = [(line, thin(line.values, self.means)) for *_, line in parts]
        y = rounded(_joined([line.values[at] for line, at in shown]))
        runs = [next(run for run in cell.runs if self.key in run.curves) for _, cell, _ in parts]
        names = {name for run in runs for name in run.clocks} if self.clocks else set[str]()
        steps = [line.steps[at] for line, at in shown]
        pairs = list(zip(runs, steps, strict=True))
        clocks = {name: [self._at_steps(run, name, at) for run, at in pairs] for name in names}
        owners = [
            [plain(cell_text(cell)), len(at) + 1, ""]
            for (_, cell, _), (_, at) in zip(parts, shown, strict=True)
        ]
        trace = {
            "type": "scatter",
            "mode": "lines",
            "name": "other cells",
            "x": integers(_joined(steps)),
            "y": y,
            "line": {"width": 1, "color": MUTED},
            "opacity": 0.35,
            "hovertemplate": "%{x}: %{y}",
            "meta": {
                "cell": -1,
                "tone": -1,
                "role": "mean",
                "cells": [position for position, *_ in parts],
                "runs": owners,
                "x": {name: integers(_joined(clocks[name])) for name in sorted(clocks)},
                **_smoothed(y, self._even(shown)),
            },
        }
        crosses = [
            cross
            for position, cell, _ in parts
            for run in cell.runs
            if self.key in run.curves
            for cross in _cross(run, self.key, MUTED, {"cell": position, "tone": -1})
        ]
        return [trace, *crosses[:_CROSSES]]

    def _even(self, shown: Sequence[tuple[Series, Any]]) -> list[list[float | None]]:
        return [
            rounded(_joined([smooth(points, window).values[at] for points, at in shown]))
            for window in self.windows
        ]

    def _at_steps(self, run: RunData, name: str, steps: Floats) -> Floats:
        """Interpolate the clock `name` of a run (its tokens or its time, as in `RunData.clocks`) at
        `steps`."""
        if name not in run.clocks:
            return np.full(len(steps), np.nan)
        points = run.curves[self.key]
        return np.interp(steps, points.steps, run.clocks[name][points.rows])

    def _typical(self, cell: Cell) -> Series | None:
        """Return the mean curve of a cell's runs, or the curve of one run if there is no mean. None
        if no run has a finite value."""
        drawn = [run for run in cell.runs if self.key in run.curves]
        whole = [run.curves[self.key] for run in drawn if run.counts]
        if len(whole) > 1:
            cell_band = band(whole)
            if len(cell_band.steps):
                return Series(cell_band.steps, cell_band.mean, np.arange(len(cell_band.steps)))
        for curve in (*whole, *(run.curves[self.key] for run in drawn)):
            if curve.finite:
                return curve.finite
        return None

    def _clocks(self, runs: Sequence[RunData], at: Sequence[Any]) -> dict[str, Floats]:
        if not self.clocks or not runs:
            return {}
        names = sorted(set(runs[0].clocks).intersection(*(run.clocks for run in runs)))
        pairs = list(zip(runs, at, strict=True))
        clocks = {name: [self._clock(run, name, places) for run, places in pairs] for name in names}
        return {name: np.mean(values, axis=0) for name, values in clocks.items()}

    def _clock(self, run: RunData, name: str, at: Any) -> Floats:
        if name not in run.clocks:
            return np.full(len(at), np.nan)
        return run.clocks[name][run.curves[self.key].rows[at]]

    def _runs(
        self,
        runs: Sequence[RunData],
        colour: str,
        meta: dict[str, Any],
        *,
        strong: bool,
        dotted: bool,
    ) -> list[dict[str, Any]]:
        """Return at most one trace, for all runs, because a trace costs much more than additional
        points."""
        series = [run.curves[self.key] for run in runs]
        thinned = zip(runs, _thinned(series, self.points), strict=True)
        shown = [(run, at) for run, at in thinned if len(at)]
        if not shown:
            return []
        drawn = [(run.curves[self.key], at) for run, at in shown]
        names = {name for run, _ in shown for name in run.clocks} if self.clocks else set[str]()
        clocks = {name: [self._clock(run, name, at) for run, at in shown] for name in names}
        states = {run.id: "" if run.state == "succeeded" else f" ({run.state})" for run in runs}
        owners = [[plain(run.name) + states[run.id], len(at) + 1, run.id] for run, at in shown]
        y = rounded(_joined([points.values[at] for points, at in drawn]))
        line = {"width": 2 if strong else 1, "color": colour} | ({"dash": "dot"} if dotted else {})
        trace = {
            "type": "scatter",
            "mode": "lines+markers" if max(len(at) for _, at in shown) == 1 else "lines",
            "name": owners[0][0] if len(owners) == 1 else "runs",
            "x": integers(_joined([points.steps[at] for points, at in drawn])),
            "y": y,
            "line": line,
            "opacity": 0.95 if strong else 0.4,
            "hovertemplate": "%{x}: %{y}",
            "meta": {
                **meta,
                "role": "run",
                "runs": owners,
                "x": {name: integers(_joined(clocks[name])) for name in sorted(clocks)},
                **_smoothed(y, self._even(drawn)),
            },
        }
        return [trace]


class _Shown(NamedTuple):
    band: Band
    even: Sequence[Band]
    drawn: Any


def _mean_trace(
    shown: _Shown, clocks: Mapping[str, Floats], name: str, colour: str, meta: Mapping[str, Any]
) -> dict[str, Any]:
    width = 3 if meta["cell"] == 0 else 2 if meta["tone"] >= 0 else 1.2
    y = rounded(shown.band.mean[shown.drawn])
    smoother = _smoothed(y, [rounded(shape.mean[shown.drawn]) for shape in shown.even])
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(shown.drawn) <= 12 else "lines",
        "name": name,
        "x": integers(shown.band.steps[shown.drawn]),
        "y": y,
        "line": {"width": width, "color": colour},
        "opacity": 1 if meta["tone"] >= 0 else 0.55,
        "marker": {"size": 5},
        "hovertemplate": "%{x}: %{y}",
        "meta": {
            **meta,
            "role": "mean",
            "x": {k: integers(v) for k, v in clocks.items()},
            **smoother,
        },
    }


def _joined(parts: Sequence[Floats]) -> Floats:
    """Join arrays into one, with a gap (NaN) between them."""
    gap = np.array([np.nan])
    return np.concatenate([piece for part in parts for piece in (gap, part)][1:])


def _thinned(series: Sequence[Series], limit: int) -> list[Any]:
    """Return, for each series, the positions of the points to draw. A series short enough to be
    drawn in full keeps its values that are not finite, which appear as gaps."""
    if len({len(points.values) for points in series}) == 1:
        table = np.stack([points.values for points in series])
        if np.isfinite(table).all():
            return thin_rows(table, limit)
    return [_kept_of(points, limit) for points in series]


def _kept_of(points: Series, limit: int) -> Any:
    finite = np.flatnonzero(np.isfinite(points.values))
    if not len(finite):
        return finite
    at = thin(points.values[finite], limit)
    return np.arange(len(points.values)) if len(at) == len(finite) else finite[at]


def _smoothed(values: list[float | None], even: Sequence[list[float | None]]) -> dict[str, Any]:
    return {"smooth": list(even)} if any(smoothed != values for smoothed in even) else {}


def _band_trace(
    shape: Band, even: Sequence[Band], indices: Any, colour: str, meta: dict[str, Any]
) -> dict[str, Any]:
    steps = integers(shape.steps[indices])
    outline, *smoother = (
        rounded(area.high[indices]) + rounded(area.low[indices][::-1]) for area in (shape, *even)
    )
    return {
        "type": "scatter",
        "mode": "lines",
        "x": steps + steps[::-1],
        "y": outline,
        "fill": "toself",
        "fillcolor": colour,
        "opacity": 0.14,
        "line": {"width": 0, "color": colour},
        "hoverinfo": "skip",
        "meta": {**meta, "role": "band", **_smoothed(outline, smoother)},
    }


def _cross(run: RunData, key: str, colour: str, meta: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a trace with a cross at the last finite point of a run that diverged; no trace for
    other runs."""
    points = run.curves[key]
    finite = points.finite
    if not run.diverged or not finite or math.isfinite(points.values[-1]):
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"{plain(run.name)} (diverged after this)",
            "x": integers(finite.steps[-1:]),
            "y": rounded(finite.values[-1:]),
            "marker": {"symbol": "x", "size": 9, "color": colour},
            "hovertemplate": "%{x}: %{y}",
            "meta": {**meta, "role": "end"},
        }
    ]


def _reach(cells: Sequence[Cell], key: str) -> float:
    """Return the distance from the lowest to the highest step in any run."""
    runs = [run for cell in cells for run in cell.runs if run.curves.get(key)]
    ends = [run.curves[key].steps[[0, -1]] for run in runs]
    return float(np.max(ends) - np.min(ends)) if ends else 0.0


def _extent(cells: Sequence[Cell], key: str) -> tuple[float, float]:
    low, high = math.inf, -math.inf
    for cell in cells:
        arrays = [run.curves[key].values for run in cell.runs if key in run.curves]
        values = np.concatenate(arrays) if arrays else np.empty(0)
        values = values[np.isfinite(values)]
        if len(values):
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    return (low, high) if low <= high else (0.0, 0.0)
