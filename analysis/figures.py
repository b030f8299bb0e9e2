"""Learning curves as plotly figures, built as plain dicts: plotly's own trace objects cost more
than all the rest. `plotly.graph_objects.Figure(figure)` shows one in a notebook.

Each trace has `meta`: `cell` (its position in the ranking), `tone` (an index into `PALETTE`, or -1
for the muted colour) and `role` ("run", "band", "mean" or "end"), by which the page picks colours
for a light or a dark screen and switches cells on and off.
"""

import math
from collections.abc import Sequence
from typing import Any

from analysis.cells import Cell, Ranking
from analysis.curves import POINTS, Band, band, thin
from analysis.findings import cell_text
from analysis.frames import RunData
from sweeper.metrics import Point

__all__ = ["COLOURED", "MUTED", "PALETTE", "curves", "tones"]

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#b58900", "#56b4e9", "#882255", "#5c6bc0")
"""Okabe and Ito's colours (jfly.uni-koeln.de/color), yellow darkened for a white page, filled up
from Paul Tol's muted set; told apart with the common colour-vision deficiencies."""

MUTED = "#8a8f98"
COLOURED = len(PALETTE)
_DIGITS = 5
_BUDGET = 40_000
"""Points of all thin lines of a figure together: with a thousand runs each is a hair."""


def tones(ranking: Ranking) -> dict[str, int]:
    """Cell -> its colour: the first cells of the ranking have one each, the rest share grey."""
    return {
        cell.name: position if position < COLOURED else -1
        for position, cell in enumerate(ranking.cells)
    }


def curves(ranking: Ranking, key: str) -> dict[str, Any] | None:
    """A figure of `key` against the step: a thin line a run, a strong one for the mean of a cell's
    runs with a band from the lowest to the highest. None when nothing was recorded.

    The mean is over the succeeded runs that have not diverged (all runs while there are none),
    at the steps that all of them recorded. A run that diverged ends in a cross.
    """
    traces: list[dict[str, Any]] = []
    colours = tones(ranking)
    drawn = sum(bool(run.curves.get(key)) for cell in ranking.cells for run in cell.runs)
    points = min(POINTS, max(40, _BUDGET // max(drawn, 1)))
    # The best is drawn last, on top.
    for position, cell in reversed(list(enumerate(ranking.cells))):
        meta = {"cell": position, "tone": colours[cell.name]}
        traces += _cell_traces(cell, key, meta, points)
    if not traces:
        return None
    return {"data": traces, "layout": _layout(*_extent(ranking.cells, key))}


def _cell_traces(cell: Cell, key: str, meta: dict[str, Any], points: int) -> list[dict[str, Any]]:
    drawn = [run for run in cell.runs if run.curves.get(key)]
    whole = [run for run in drawn if run.counts] or drawn
    several = len(whole) > 1
    tone: int = meta["tone"]
    colour = PALETTE[tone] if tone >= 0 else MUTED
    found = band([run.curves[key] for run in whole]) if several else Band([], [], [], [])
    lone = not found.steps  # without a mean the runs' own lines are the strong ones
    traces: list[dict[str, Any]] = []
    if found.steps:
        kept = thin(found.steps, found.mean)
        traces.append(_band_trace(found, kept, colour, meta))
    for run in drawn:
        traces += _run_traces(run, key, colour, meta, points, strong=lone)
    if found.steps:
        traces.append(_mean_trace(found, kept, cell, colour, meta, len(whole)))  # pyright: ignore[reportPossiblyUnboundVariable]
    return traces


def _rounded(values: Sequence[float]) -> list[float | None]:
    # The largest floats round to infinity.
    rounded = [float(f"{v:.{_DIGITS}g}") for v in values]
    return [v if math.isfinite(v) else None for v in rounded]


def _steps(values: Sequence[float]) -> list[float]:
    return [int(v) if float(v).is_integer() else v for v in values]


def _band_trace(found: Band, kept: list[int], colour: str, meta: dict[str, Any]) -> dict[str, Any]:
    steps = _steps([found.steps[i] for i in kept])
    high = _rounded([found.high[i] for i in kept])
    low = _rounded([found.low[i] for i in kept])
    return {
        "type": "scatter",
        "mode": "lines",
        "x": steps + steps[::-1],
        "y": high + low[::-1],
        "fill": "toself",
        "fillcolor": colour,
        "opacity": 0.14,
        "line": {"width": 0, "color": colour},
        "hoverinfo": "skip",
        "meta": {**meta, "role": "band"},
    }


def _run_traces(
    run: RunData, key: str, colour: str, meta: dict[str, Any], limit: int, *, strong: bool
) -> list[dict[str, Any]]:
    points = [Point(p.step, p.value) for p in run.curves[key] if p.step is not None]
    finite = [p for p in points if math.isfinite(p.value)]
    if not finite:
        return []
    shown = finite
    kept = thin([p.step or 0.0 for p in finite], [p.value for p in finite], limit)
    if len(kept) == len(finite):
        shown, kept = points, list(range(len(points)))  # with the gaps where there is no number
    hidden = "" if run.state == "succeeded" else f" ({run.state})"
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if len(finite) == 1 else "lines",
        "name": _plain(run.name) + hidden,
        "x": _steps([shown[i].step or 0.0 for i in kept]),
        "y": _rounded([shown[i].value for i in kept]),
        "line": {"width": 2 if strong else 1, "color": colour},
        "opacity": 0.95 if strong else 0.4,
        "hovertemplate": "step %{x}: %{y}",
        "meta": {**meta, "role": "run"},
    }
    if run.state != "succeeded":
        trace["line"]["dash"] = "dot"
    if not run.diverged or math.isfinite(run.curves[key][-1].value):
        return [trace]
    last = finite[-1]
    end = {
        "type": "scatter",
        "mode": "markers",
        "name": f"{_plain(run.name)} (diverged after this)",
        "x": _steps([last.step or 0.0]),
        "y": _rounded([last.value]),
        "marker": {"symbol": "x", "size": 9, "color": colour},
        "hovertemplate": "step %{x}: %{y}",
        "meta": {**meta, "role": "end"},
    }
    return [trace, end]


def _mean_trace(
    found: Band, kept: list[int], cell: Cell, colour: str, meta: dict[str, Any], runs: int
) -> dict[str, Any]:
    width = 3 if meta["cell"] == 0 else 2 if meta["tone"] >= 0 else 1.2
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(kept) <= 12 else "lines",
        "name": f"{_plain(cell_text(cell))} (mean of {runs})",
        "x": _steps([found.steps[i] for i in kept]),
        "y": _rounded([found.mean[i] for i in kept]),
        "line": {"width": width, "color": colour},
        "opacity": 1 if meta["tone"] >= 0 else 0.55,
        "marker": {"size": 5},
        "hovertemplate": "step %{x}: %{y}",
        "meta": {**meta, "role": "mean"},
    }


def _extent(cells: Sequence[Cell], key: str) -> tuple[float, float]:
    points = [p for c in cells for r in c.runs for p in r.curves.get(key, ())]
    values = [p.value for p in points if math.isfinite(p.value)]
    return min(values, default=0.0), max(values, default=0.0)


def _layout(low: float, high: float) -> dict[str, Any]:
    # Positive values over more than one and a half orders of magnitude read better on a log axis.
    log = low > 0 and high / low > 30
    # 1, 2 and 5 of each decade, or the powers of ten: all nine digits stand on each other.
    dtick = "D2" if low > 0 and high / low < 1e3 else 1
    axis = {"automargin": True, "zeroline": False, "showline": False, "ticks": ""}
    return {
        "autosize": True,
        "height": 420,
        "margin": {"l": 48, "r": 12, "t": 30, "b": 44},
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": "zoom",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {**axis, "title": {"text": "step", "standoff": 10}, "rangemode": "tozero"},
        "yaxis": {
            **axis,
            **({"type": "log", "dtick": dtick} if log else {"type": "linear"}),
        },
        "hoverlabel": {"namelength": -1, "align": "left"},
        "meta": {"log": low > 0, "dtick": dtick},
    }


def _plain(text: str) -> str:
    """Text for plotly, which reads a little HTML in titles and names."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
