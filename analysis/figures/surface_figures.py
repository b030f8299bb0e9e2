"""Makes the figures of axes for sweeps without a grid: cells as points, the model's curve, and
contour lines over two axes. They are plain dicts for plotly, with `meta` as in
`sweeper.analysis.figures.learning_curves`. Pure."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.comparison.contrasts import usable
from sweeper.analysis.comparison.surface import AxisEffect, PairEffect
from sweeper.analysis.figures.layouts import (
    categories,
    error_bars,
    layout,
    layout_of_axis,
    marks,
    plain,
    rounded,
)
from sweeper.analysis.figures.learning_curves import MUTED, PALETTE, colour_of
from sweeper.analysis.findings.finding import cell_text
from sweeper.analysis.reading.settings import level, ordered
from sweeper.analysis.statistics.regression import log_spread

_LINES = 7
_TRIED = 9
"""Up to this many numbers get a tick mark each."""
_MOST = 60
"""The most texts that an axis of a figure can show."""


def scatter_figure(
    key: str, effect: AxisEffect | None, ranking: Ranking, metric: str
) -> dict[str, Any] | None:
    """Return the means of the cells against a setting, with the model's curve; None for a setting
    with too many texts."""
    cells = [cell for cell in usable(ranking) if cell.summary.mean is not None]
    numbers = ordered(key, [cell.settings for cell in cells if key in cell.settings])
    numeric = bool(numbers) and all(key in cell.settings for cell in cells)
    if not numeric and len({level(cell.settings, key) for cell in cells}) > _MOST:
        return None
    traces = [] if effect is None else list(_curve(effect, numeric=numeric))
    own = [(_x(cell, key, numeric=numeric), cell.summary.mean or 0.0, cell) for cell in cells]
    others = [one for one in own if one[2] is not ranking.best]
    best = [one for one in own if one[2] is ranking.best]
    traces += [_marks(group, tone) for group, tone in ((others, -1), (best, 0)) if group]
    ys = [y for _, y, _ in own] + ([] if effect is None else [*effect.low, *effect.high])
    known = [y for y in ys if math.isfinite(y)]
    figure_layout = layout_of_axis(key, known, metric, ranking.scale)
    if not numeric:
        categories(figure_layout, list(dict.fromkeys(x for trace in traces for x in trace["x"])))
    if numeric and log_spread(numbers):
        figure_layout["xaxis"].update({"type": "log", **_marked(numbers[0], numbers[-1])})
    if numeric and len(numbers) <= _TRIED:
        shown = [labels.place(number) for number in numbers]
        figure_layout["xaxis"].update({"tickvals": numbers, "ticktext": shown})
    return {"data": traces, "layout": figure_layout}


def _marked(low: float, high: float) -> dict[str, Any]:
    """Return the tick marks of a setting, written as elsewhere: 3e-4, not 0.0003."""
    ticks = marks(low, high)
    return {**ticks, "ticktext": [labels.place(float(value)) for value in ticks["tickvals"]]}


def _x(cell: Cell, key: str, *, numeric: bool) -> Any:
    return float(cell.settings[key]) if numeric else plain(level(cell.settings, key))


def _curve(effect: AxisEffect, *, numeric: bool) -> Iterator[dict[str, Any]]:
    """Yield the model's means with their band, or error bars for values that are no numbers."""
    meta = {"cell": -1, "tone": 0 if effect.told else -1}
    colour = PALETTE[0] if effect.told else MUTED
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
        "line": {"width": 2.2, "color": colour, "dash": "solid" if effect.told else "dot"},
        "hovertemplate": "%{x}: %{y} in the model",
        "meta": {**meta, "role": "level"},
    }


def _marks(own: Sequence[tuple[Any, float, Cell]], tone: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(cell_text(own[0][2])) if tone >= 0 else "cells",
        "x": [x for x, _, _ in own],
        "y": rounded([y for _, y, _ in own]),
        "marker": {"size": 10 if tone >= 0 else 5, "color": colour_of(tone)},
        "hovertemplate": "%{x}: %{y}",
        "meta": {"cell": -1, "tone": tone, "role": "point"},
    }


def plane_figure(pair: PairEffect, ranking: Ranking, sign: float) -> dict[str, Any]:
    """Contour lines of the model over two axes, darker where it is better, with the cells as
    points."""
    values = np.array(pair.means)
    unit = float(np.max(np.abs(values))) or 1.0
    ends = float(values.min()) / unit, float(values.max()) / unit
    shares = np.linspace(0.08, 0.92, _LINES)
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
    traces += _places(pair, ranking)
    figure_layout = layout(pair.x, height=340, y_title=pair.y)
    figure_layout["meta"]["log"] = False
    for axis, own in (("xaxis", pair.xs), ("yaxis", pair.ys)):
        figure_layout[axis]["rangemode"] = "normal"
        if log_spread(own):
            figure_layout[axis].update({"type": "log", **_marked(min(own), max(own))})
    return {"data": traces, "layout": figure_layout}


def _places(pair: PairEffect, ranking: Ranking) -> Iterator[dict[str, Any]]:
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
    """Return the contour of the plane at this height: pieces with gaps between them."""
    from contourpy import LineType, contour_generator

    kind = LineType.Separate
    pieces: Any = contour_generator(pair.xs, pair.ys, values, line_type=kind).lines(height)
    line: list[tuple[float, float] | None] = []
    for piece in pieces:
        line += [(float(f"{x:.5g}"), float(f"{y:.5g}")) for x, y in piece.tolist()]
        line.append(None)
    return line
