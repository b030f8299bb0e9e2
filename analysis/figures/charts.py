"""Makes the figures other than curves, as plain dicts for plotly: axes, trade-offs, rollouts.
`meta` of a trace is as in `figures.learning_curves`. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.analysis.comparison.axes import Axis
from sweeper.analysis.comparison.behaviour import BINS, Behaviour, CellBehaviour
from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.comparison.tasks import LEVELS, Tasks
from sweeper.analysis.comparison.tradeoffs import Tradeoff
from sweeper.analysis.figures.layouts import (
    categories,
    error_bars,
    is_wide,
    layout,
    layout_of_axis,
    marks,
    plain,
    rounded,
)
from sweeper.analysis.figures.learning_curves import MUTED, PALETTE, colour_of, tones
from sweeper.analysis.findings.finding import cell_text, names_of
from sweeper.analysis.labels import place
from sweeper.analysis.reading.settings import level, ordered
from sweeper.analysis.statistics.regression import log_spread
from sweeper.results.cells import Scale

_ROWS = 40
_LINES = 300
_SHOWN = 6
_PROFILES = 8
_LABEL = 6
_MARKS = 10
"""The most values that an axis has room for."""


def cells_figure(ranking: Ranking, metric: str) -> dict[str, Any] | None:
    """Return the first cells as rows, best first: the mean as a dot, its 95 % interval as a bar,
    the runs as ticks. None if nothing was measured."""
    cells = [cell for cell in ranking.measured if not cell.diverged][:_ROWS]
    if not cells:
        return None
    colours = tones(ranking)
    traces: list[dict[str, Any]] = []
    for row, cell in enumerate(cells):
        tone, summary = colours[cell.name], cell.summary
        parts: list[tuple[str, list[float | None], float, str]] = [
            ("band", [summary.low, summary.high], 0, ""),
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


def axis_figure(axis: Axis, metric: str, scale: Scale) -> dict[str, Any]:
    """Return the marginal mean of each value, with its 95 % interval."""
    means = [entry.mean for entry in axis.levels]
    above = [0.0 if e.high is None else e.high - e.mean for e in axis.levels]
    below = [0.0 if e.low is None else e.mean - e.low for e in axis.levels]
    numbers = [entry.number for entry in axis.levels]
    spaced = all(n is not None and (n > 0 or not axis.log) for n in numbers)
    x: list[Any] = list(numbers) if spaced else [plain(entry.shown) for entry in axis.levels]
    ends = [v for e in axis.levels for v in (e.low, e.mean, e.high) if v is not None]
    figure_layout = layout_of_axis(axis.key, ends, metric, scale)
    if not spaced:
        categories(figure_layout, x)
    else:
        figure_layout["xaxis"].update({"type": "log" if axis.log else "linear"})
        every = -(-len(x) // _MARKS)
        shown = [plain(entry.shown) for entry in axis.levels]
        figure_layout["xaxis"].update({"tickvals": x[::every], "ticktext": shown[::every]})
    trace = {
        "type": "scatter",
        "mode": "lines+markers" if spaced else "markers",
        "name": plain(axis.key),
        "x": x,
        "y": rounded(means),
        "error_y": error_bars(above, below, PALETTE[0], thickness=1.6, width=5),
        "line": {"width": 1.5, "color": PALETTE[0], "dash": "dot"},
        "marker": {"size": 9, "color": PALETTE[0]},
        "hovertemplate": "%{x}: %{y}",
        "meta": {"cell": -1, "tone": 0, "role": "level"},
    }
    return {"data": [trace], "layout": figure_layout}


def parallel(
    ranking: Ranking, keys: Sequence[str], metric: str, sign: float
) -> dict[str, Any] | None:
    """Draw parallel coordinates: each cell is a line through these settings to its mean, with the
    best at the top. None for fewer than two settings or three cells."""
    cells = [cell for cell in ranking.measured if not cell.diverged][:_LINES]
    keys = list(keys)
    if len(keys) < 2 or len(cells) < 3:
        return None
    places = {key: _places(key, [cell.settings for cell in cells]) for key in keys}
    means = [
        sign * ranking_mean for cell in cells if (ranking_mean := cell.summary.mean) is not None
    ]
    unit = max(map(abs, means)) or 1.0
    top, bottom = min(means) / unit, max(means) / unit
    span = (bottom - top) or 1.0
    colours = tones(ranking)
    traces: list[dict[str, Any]] = []
    for position, cell in reversed(list(enumerate(cells))):
        tone = colours[cell.name]
        heights = [places[key][level(cell.settings, key)] for key in keys]
        heights.append(1 - (means[position] / unit - top) / span)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plain(cell_text(cell)),
                "x": list(range(len(keys) + 1)),
                "y": rounded(heights),
                "line": {"width": 3.5 if not position else 1.5, "color": colour_of(tone)},
                "marker": {"size": 6, "color": colour_of(tone)},
                "opacity": 1 if tone >= 0 else 0.35,
                "hovertemplate": f"{plain(f'{cell.summary.mean:.4g}')}",
                "meta": {"cell": position, "tone": tone, "role": "line"},
            }
        )
    figure_layout = layout("", height=340)
    figure_layout["xaxis"].update(
        {
            "tickvals": list(range(len(keys) + 1)),
            "ticktext": [*map(plain, keys), plain(metric)],
            "range": [-0.2, len(keys) + 0.35],
            "showgrid": True,
        }
    )
    figure_layout["yaxis"].update(
        {"showticklabels": False, "showgrid": False, "range": [-0.08, 1.2]}
    )
    marked = [list(_few(places[key])) for key in keys]
    marked.append([(f"{sign * value * unit:.3g}", at) for at, value in ((1.0, top), (0.0, bottom))])
    figure_layout["annotations"] = [
        # Of two marks beside two others each second pair stands higher, so that all can be read.
        _label(x, place, text, higher=x % 2 == 1 and len(own) == 2)
        for x, own in enumerate(marked)
        for text, place in own
    ]
    return {"data": traces, "layout": figure_layout}


def _few(places: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return all labels if there are few, otherwise only the outer ones."""
    by_place = sorted(places.items(), key=lambda item: item[1])
    return by_place if len(by_place) <= 10 else [by_place[0], by_place[-1]]


def _label(x: int, y: float, text: str, *, higher: bool = False) -> dict[str, Any]:
    text = _brief(text)
    short = text if len(text) <= 18 else f"{text[:17]}…"
    return {
        "x": x,
        "y": round(y, 5),
        "text": plain(short),
        "showarrow": False,
        "yshift": 25 if higher else 13,  # above the lines that meet here
        "font": {"size": 11},
    }


def _brief(text: str) -> str:
    """Return a number with three digits, for values that were drawn at random."""
    try:
        return text if len(text) <= _LABEL else place(float(text))
    except ValueError:
        return text


def _places(key: str, settings: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the positions of the values of a setting between 0 and 1: numbers by size, on a log
    scale if they are spaced by ratios, other values in their order."""
    numbers = ordered(key, settings)
    texts = list(dict.fromkeys(level(own, key) for own in settings))
    if len(numbers) == len(texts) > 1:
        scaled = [math.log(n) if log_spread(numbers) else n / 2 for n in numbers]
        span = scaled[-1] - scaled[0]
        if math.isfinite(span) and span > 0:
            return {
                level({key: number}, key): (value - scaled[0]) / span
                for number, value in zip(numbers, scaled, strict=True)
            }
    return {text: i / max(len(texts) - 1, 1) for i, text in enumerate(texts)}


def tradeoff_figure(tradeoff: Tradeoff, ranking: Ranking, metric: str) -> dict[str, Any]:
    """Return the metric against a cost: one point per cell, and the Pareto front as a line."""
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


def _shown(behaviour: Behaviour, ranking: Ranking) -> list[tuple[CellBehaviour, int, int, str]]:
    """Return the first cells of the ranking that have rollouts, with position, colour and name."""
    colours = tones(ranking)
    own = {cell.cell: cell for cell in behaviour.cells}
    return [
        (own[cell.name], position, colours[cell.name], plain(cell_text(cell)))
        for position, cell in enumerate(ranking.cells)
        if cell.name in own
    ][:_SHOWN]


def rewards(behaviour: Behaviour, ranking: Ranking) -> dict[str, Any]:
    """Make histograms of the rewards of the last iteration."""
    width = (behaviour.high / BINS - behaviour.low / BINS) or 1.0
    centres = rounded([behaviour.low + width * (i + 0.5) for i in range(BINS)])
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": centres,
            "y": list(cell.histogram),
            "line": {
                "width": 2.5 if not position else 1.8,
                "color": colour_of(tone),
                "shape": "hvh",
            },
            "hovertemplate": "reward about %{x}: %{y:.1%} of answers",
            "meta": {"cell": position, "tone": tone, "role": "line"},
        }
        for cell, position, tone, name in reversed(_shown(behaviour, ranking))
    ]
    laid = layout("reward at the last iteration", height=280, y_title="share of answers")
    laid["xaxis"]["rangemode"] = "normal"
    laid["yaxis"].update({"rangemode": "tozero", "tickformat": ".0%"})
    return {"data": traces, "layout": laid}


def over_iterations(
    behaviour: Behaviour, ranking: Ranking, what: str, title: str, *, share: bool
) -> dict[str, Any] | None:
    """Draw `signal`, `length` or `reward` of the cells by iteration. None if it never changes, or
    if only one iteration was read."""
    traces: list[dict[str, Any]] = []
    for cell, position, tone, name in reversed(_shown(behaviour, ranking)):
        values: Mapping[int, float] = getattr(cell, what)
        if len(values) > 1:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": name,
                    "x": list(values),
                    "y": rounded(list(values.values())),
                    "line": {"width": 2.5 if not position else 1.8, "color": colour_of(tone)},
                    "marker": {"size": 6, "color": colour_of(tone)},
                    "hovertemplate": "iteration %{x}: %{y:.0%}"
                    if share
                    else "iteration %{x}: %{y}",
                    "meta": {"cell": position, "tone": tone, "role": "line"},
                }
            )
    if not traces:
        return None
    laid = layout("iteration", height=280, y_title=title)
    laid["yaxis"]["rangemode"] = "tozero"
    if share:
        laid["yaxis"]["tickformat"] = ".0%"
    return {"data": traces, "layout": laid}


def passes(behaviour: Behaviour, ranking: Ranking) -> dict[str, Any] | None:
    """Draw pass@k by k, with intervals over seeds."""
    traces: list[dict[str, Any]] = []
    most = 0
    for cell, position, tone, name in reversed(_shown(behaviour, ranking)):
        if not cell.passes:
            continue
        most = max(most, *cell.passes)
        means = [summary.mean or 0.0 for summary in cell.passes.values()]
        bounds = [(s.low, s.high) for s in cell.passes.values()]
        above = [
            0.0 if high is None else min(high, 1.0) - m
            for (_, high), m in zip(bounds, means, strict=True)
        ]
        below = [
            0.0 if low is None else m - max(low, 0.0)
            for (low, _), m in zip(bounds, means, strict=True)
        ]
        colour = colour_of(tone)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": list(cell.passes),
                "y": rounded(means),
                "error_y": error_bars(above, below, colour, thickness=1.2, width=3),
                "line": {"width": 2.5 if not position else 1.8, "color": colour},
                "marker": {"size": 6, "color": colour},
                "hovertemplate": "pass@%{x}: %{y:.1%}",
                "meta": {"cell": position, "tone": tone, "role": "line"},
            }
        )
    if not traces:
        return None
    laid = layout("k", height=280, y_title="pass@k")
    powers = [2**i for i in range(most.bit_length())]
    laid["xaxis"].update(
        {
            "type": "log",
            "tickvals": powers,
            "ticktext": list(map(str, powers)),
            "rangemode": "normal",
        }
    )
    laid["yaxis"].update({"tickformat": ".0%", "rangemode": "tozero"})
    return {"data": traces, "layout": laid}


def profiles(tasks: Tasks, ranking: Ranking) -> dict[str, Any]:
    """Draw performance profiles of the first cells: the share of their scores above each level."""
    colours = tones(ranking)
    positions = {cell.name: i for i, cell in enumerate(ranking.cells)}
    names = {cell.name: plain(cell_text(cell)) for cell in ranking.cells}
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": names[own.cell],
            "x": list(LEVELS),
            "y": rounded(list(own.profile)),
            "line": {"width": 2, "color": colour_of(colours[own.cell]), "shape": "hv"},
            "hovertemplate": "above %{x}: %{y:.0%} of scores",
            "meta": {"cell": positions[own.cell], "tone": colours[own.cell], "role": "line"},
        }
        for own in reversed(tasks.cells[:_PROFILES])
    ]
    laid = layout("score", height=320, y_title="share of scores above it")
    laid["xaxis"]["range"] = [0, 1]
    laid["yaxis"].update({"rangemode": "tozero", "tickformat": ".0%"})
    return {"data": traces, "layout": laid}
