"""The figures of axes: the mean of each value, cells with the model of all axes, contour lines
over two axes, parallel coordinates. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sweeper.analysis import labels
from sweeper.analysis.comparison.axes import Axis
from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.comparison.contrasts import usable
from sweeper.analysis.comparison.surface import AxisEffect, PairEffect, varying
from sweeper.analysis.figures.layouts import (
    MUTED,
    PALETTE,
    Panel,
    categories,
    colour_of,
    error_bars,
    layout,
    layout_of_axis,
    marks,
    plain,
    rounded,
    tones,
)
from sweeper.analysis.findings.finding import cell_text
from sweeper.analysis.findings.study import Study
from sweeper.analysis.reading.settings import level, ordered
from sweeper.analysis.statistics.regression import log_spread
from sweeper.results.cells import Scale

PARALLEL = 7
"""The largest number of settings in parallel coordinates."""
_AXES = 12
"""The largest number of settings that get their own figure."""
_LEVELS = 7
_TRIED = 9
"""If a setting has at most this many numbers, each of them gets a tick mark."""
_MOST = 60
"""The largest number of strings on an axis of a figure."""
_CELLS = 300
"""The largest number of cells in parallel coordinates."""
_LABEL = 6
_MARKS = 10
"""The largest number of values that fit on an axis."""


def panels(study: Study) -> Iterator[Panel]:
    """Yield the figures of the sweep's axes: single axes, the most important first, then pairs of
    axes, then all axes together."""
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
    """Return the settings that vary. The settings in `study.surface` (the model of several axes)
    come first, in its order. The axes whose `matched` is set follow, then all others. Axes outside
    the model are sorted by the size of their effect."""
    model = study.surface.axes if study.surface is not None else ()
    keys = [axis.key for axis in (*model, *(a for a in study.axes if a.matched), *study.axes)]
    return list(dict.fromkeys([*keys, *varying(study.ranking)]))


def _axis(study: Study, key: str, metric: str) -> Panel | None:
    """Draw the metric against a setting. None for a setting with too many different strings."""
    axis = next((axis for axis in study.axes if axis.key == key), None)
    effect = study.surface.of(key) if study.surface is not None else None
    if axis is not None and (axis.matched or (effect is None and axis.levels[0].number is None)):
        figure = axis_figure(axis, metric, study.ranking.scale)
        caption = ", ".join(f"{entry.shown}: {entry.mean:.4g}" for entry in axis.levels)
        return Panel("axes", key, figure, f"{metric} by {key}: {caption}")
    drawn = scatter_figure(key, effect, study.ranking, metric)
    if drawn is None:
        return None
    return Panel("axes", key, drawn, f"{metric} of each cell by {key}")


def undrawn(study: Study, panels: Sequence[Panel]) -> list[str]:
    """Return the settings that vary but have no figure."""
    drawn = {panel.name for panel in panels if panel.section == "axes"}
    return [key for key in telling(study) if key not in drawn]


def axis_figure(axis: Axis, metric: str, scale: Scale) -> dict[str, Any]:
    """Draw the marginal mean of each value, with its 95 % interval."""
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
        stride = -(-len(x) // _MARKS)
        shown = [plain(entry.shown) for entry in axis.levels]
        figure_layout["xaxis"].update({"tickvals": x[::stride], "ticktext": shown[::stride]})
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


def scatter_figure(
    key: str, effect: AxisEffect | None, ranking: Ranking, metric: str
) -> dict[str, Any] | None:
    """Draw the means of the cells against a setting, with the curve of the model if `effect` is
    given. None for a setting with more than `_MOST` different strings."""
    cells = [cell for cell in usable(ranking) if cell.summary.mean is not None]
    numbers = ordered(key, [cell.settings for cell in cells if key in cell.settings])
    numeric = bool(numbers) and all(key in cell.settings for cell in cells)
    if not numeric and len({level(cell.settings, key) for cell in cells}) > _MOST:
        return None
    traces = [] if effect is None else list(_curve(effect, numeric=numeric))
    points = [(_x(cell, key, numeric=numeric), cell.summary.mean or 0.0, cell) for cell in cells]
    rest = [point for point in points if point[2] is not ranking.best]
    best = [point for point in points if point[2] is ranking.best]
    traces += [_marks(group, tone) for group, tone in ((rest, -1), (best, 0)) if group]
    ys = [y for _, y, _ in points] + ([] if effect is None else [*effect.low, *effect.high])
    finite = [y for y in ys if math.isfinite(y)]
    figure_layout = layout_of_axis(key, finite, metric, ranking.scale)
    if not numeric:
        categories(figure_layout, list(dict.fromkeys(x for trace in traces for x in trace["x"])))
    if numeric and log_spread(numbers):
        figure_layout["xaxis"].update({"type": "log", **_marked(numbers[0], numbers[-1])})
    if numeric and len(numbers) <= _TRIED:
        shown = [labels.place(number) for number in numbers]
        figure_layout["xaxis"].update({"tickvals": numbers, "ticktext": shown})
    return {"data": traces, "layout": figure_layout}


def _marked(low: float, high: float) -> dict[str, Any]:
    """Return the tick marks of a log axis, with numbers as in the report: 3e-4, not 0.0003."""
    ticks = marks(low, high)
    return {**ticks, "ticktext": [labels.place(float(value)) for value in ticks["tickvals"]]}


def _x(cell: Cell, key: str, *, numeric: bool) -> Any:
    return float(cell.settings[key]) if numeric else plain(level(cell.settings, key))


def _curve(effect: AxisEffect, *, numeric: bool) -> Iterator[dict[str, Any]]:
    """Yield plotly traces of the model's means. Numbers give a curve with a band, and strings give
    points with error bars."""
    meta = {"cell": -1, "tone": 0 if effect.certain else -1}
    colour = PALETTE[0] if effect.certain else MUTED
    if not numeric:
        above = [high - mean for mean, high in zip(effect.means, effect.high, strict=True)]
        below = [mean - low for mean, low in zip(effect.means, effect.low, strict=True)]
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": "model",
            "x": [plain(str(x)) for x in effect.xs],
            "y": rounded(effect.means),
            "error_y": error_bars(above, below, colour, thickness=1.6, width=5),
            "marker": {"size": 9, "color": colour},
            "hovertemplate": "%{x}: %{y} in the model",
            "meta": {**meta, "role": "level"},
        }
        return
    xs = rounded([float(x) for x in effect.xs])
    yield {
        "type": "scatter",
        "mode": "lines",
        "x": xs + xs[::-1],
        "y": rounded(effect.high) + rounded(effect.low[::-1]),
        "fill": "toself",
        "fillcolor": colour,
        "opacity": 0.16,
        "line": {"width": 0, "color": colour},
        "hoverinfo": "skip",
        "meta": {**meta, "role": "area"},
    }
    yield {
        "type": "scatter",
        "mode": "lines",
        "name": "model",
        "x": xs,
        "y": rounded(effect.means),
        "line": {"width": 2.2, "color": colour, "dash": "solid" if effect.certain else "dot"},
        "hovertemplate": "%{x}: %{y} in the model",
        "meta": {**meta, "role": "level"},
    }


def _marks(points: Sequence[tuple[Any, float, Cell]], tone: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(cell_text(points[0][2])) if tone >= 0 else "cells",
        "x": [x for x, _, _ in points],
        "y": rounded([y for _, y, _ in points]),
        "marker": {"size": 10 if tone >= 0 else 5, "color": colour_of(tone)},
        "hovertemplate": "%{x}: %{y}",
        "meta": {"cell": -1, "tone": tone, "role": "point"},
    }


def plane_figure(pair: PairEffect, ranking: Ranking, sign: float) -> dict[str, Any]:
    """Draw contour lines of the model over two axes. The lines are darker where the metric is
    better. Each cell is a point."""
    values = np.array(pair.means)
    unit = float(np.max(np.abs(values))) or 1.0
    ends = float(values.min()) / unit, float(values.max()) / unit
    shares = np.linspace(0.08, 0.92, _LEVELS)
    traces: list[dict[str, Any]] = []
    for share in shares.tolist():
        height = (ends[0] + (ends[1] - ends[0]) * share) * unit
        line = _isoline(pair, values, height)
        good = 1 - share if sign > 0 else share
        text = labels.number(height, 3)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": text,
                "x": [None if p is None else p[0] for p in line],
                "y": [None if p is None else p[1] for p in line],
                "line": {"width": round(1 + 2 * good, 2), "color": PALETTE[0]},
                "opacity": round(0.25 + 0.75 * good, 2),
                "hovertemplate": plain(text),
                "meta": {"cell": -1, "tone": 0, "role": "level"},
            }
        )
    traces += _points(pair, ranking)
    figure_layout = layout(pair.x, height=340, y_title=pair.y)
    figure_layout["meta"]["log"] = False
    for axis, numbers in (("xaxis", pair.xs), ("yaxis", pair.ys)):
        figure_layout[axis]["rangemode"] = "normal"
        if log_spread(numbers):
            figure_layout[axis].update({"type": "log", **_marked(min(numbers), max(numbers))})
    return {"data": traces, "layout": figure_layout}


def _points(pair: PairEffect, ranking: Ranking) -> Iterator[dict[str, Any]]:
    for cells, tone in (
        ([cell for cell in usable(ranking) if cell is not ranking.best], -1),
        ([cell for cell in usable(ranking) if cell is ranking.best], 0),
    ):
        if cells:
            yield {
                "type": "scatter",
                "mode": "markers",
                "name": "cells" if tone < 0 else plain(cell_text(cells[0])),
                "x": rounded([float(cell.settings[pair.x]) for cell in cells]),
                "y": rounded([float(cell.settings[pair.y]) for cell in cells]),
                "marker": {"size": 11 if tone >= 0 else 5, "color": colour_of(tone)},
                "text": [labels.number(cell.summary.mean) for cell in cells],
                "hovertemplate": "%{x}, %{y}: %{text}",
                "meta": {"cell": -1, "tone": tone, "role": "point"},
            }


def _isoline(pair: PairEffect, values: Any, height: float) -> list[tuple[float, float] | None]:
    """Return the contour line at `height`, as points. None separates pieces of the line."""
    from contourpy import LineType, contour_generator

    kind = LineType.Separate
    pieces: Any = contour_generator(pair.xs, pair.ys, values, line_type=kind).lines(height)
    line: list[tuple[float, float] | None] = []
    for piece in pieces:
        line += [(float(f"{x:.5g}"), float(f"{y:.5g}")) for x, y in piece.tolist()]
        line.append(None)
    return line


def parallel(
    ranking: Ranking, keys: Sequence[str], metric: str, sign: float
) -> dict[str, Any] | None:
    """Draw parallel coordinates: each cell is a line through its settings to its mean, with the
    best mean at the top. None for fewer than two settings or three cells."""
    cells = [cell for cell in ranking.measured if not cell.diverged][:_CELLS]
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
        # On every second axis, a pair of labels stands higher, so that it does not overlap the
        # pairs of the axes beside it.
        _label(x, place, text, higher=x % 2 == 1 and len(column) == 2)
        for x, column in enumerate(marked)
        for text, place in column
    ]
    return {"data": traces, "layout": figure_layout}


def _few(places: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return all labels if there are few, else only the first and the last."""
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
    """Shorten a number that has more than `_LABEL` characters, such as one that was drawn at
    random. Return any other text unchanged."""
    try:
        return text if len(text) <= _LABEL else labels.place(float(text))
    except ValueError:
        return text


def _places(key: str, settings: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return a dict from each value of a setting to its position between 0 and 1. Numbers are
    placed by size, on a linear or a logarithmic scale. Other values are spaced evenly."""
    numbers = ordered(key, settings)
    texts = list(dict.fromkeys(level(values, key) for values in settings))
    if len(numbers) == len(texts) > 1:
        scaled = [math.log(n) if log_spread(numbers) else n / 2 for n in numbers]
        span = scaled[-1] - scaled[0]
        if math.isfinite(span) and span > 0:
            return {
                level({key: number}, key): (value - scaled[0]) / span
                for number, value in zip(numbers, scaled, strict=True)
            }
    return {text: i / max(len(texts) - 1, 1) for i, text in enumerate(texts)}
