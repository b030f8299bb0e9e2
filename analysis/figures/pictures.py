"""Draws the report's figures as PNGs, from the same dicts that the page uses. The same figure
gives the same bytes."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.figures.canvas import GRID, Canvas, Point, text_width
from sweeper.analysis.figures.layouts import is_wide
from sweeper.analysis.figures.learning_curves import PALETTE, colour_of, tones
from sweeper.analysis.figures.ticks import linear_ticks, log_ticks, tick_text
from sweeper.analysis.findings.finding import names_of
from sweeper.analysis.statistics.seeds import Summary
from sweeper.sweep.labels import plural

_WIDTH, _HIGH, _LOW = 900, 430, 330
_CELLS = 40
_MOST = 1e200
"""Values beyond this are left out: positions are computed from differences, which must be finite.
"""

_ORDER = {"band": 0, "area": 0, "run": 1, "front": 1}
"""The drawing order by the role of a trace: areas first, then single runs, then the rest."""


def _unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and abs(value) <= _MOST
    return float(value) if known else None


class _Axis:
    """One axis of a figure: it converts values to positions between 0 and 1."""

    def __init__(self, own: Mapping[str, Any], values: Sequence[Any]) -> None:
        self.title = _unescaped(own.get("title", {}).get("text", ""))
        texts = list(dict.fromkeys(value for value in values if isinstance(value, str)))
        self._texts = {text: place for place, text in enumerate(texts)}
        self.log = own.get("type") == "log" and not texts
        numbers = [n for value in values if (n := self._of(value)) is not None]
        numbers = [*numbers, *(map(float, own.get("range", ())))] or [0.0, 1.0]
        low, high = min(numbers), max(numbers)
        if own.get("rangemode") == "tozero" and not (self.log or texts):
            low, high = min(low, 0.0), max(high, 0.0)
        room = 0.0 if "range" in own else 0.05 * (high - low) or 0.5 * abs(low) or 1.0
        room = 0.5 if texts else room
        below = 0.0 if low == 0 and own.get("rangemode") == "tozero" else room
        self._low, self._high = low - below, high + room
        self.ticks = [] if own.get("showticklabels") is False else self._ticks(own, low, high)

    def _of(self, value: Any) -> float | None:
        """Return a value on the scale of the axis."""
        if isinstance(value, str):
            place = self._texts.get(value)
            return None if place is None else float(place)
        number = _number(value)
        if number is None or (self.log and number <= 0):
            return None
        return math.log10(number) if self.log else number

    def _ticks(self, own: Mapping[str, Any], low: float, high: float) -> list[tuple[float, str]]:
        if "tickvals" in own:
            both = zip(own["tickvals"], own["ticktext"], strict=True)
            ticks = [(self._of(value), _unescaped(text)) for value, text in both]
            return [(value, text) for value, text in ticks if value is not None]
        if self._texts:
            return [(float(place), _unescaped(text)) for text, place in self._texts.items()]
        values = log_ticks(10**low, 10**high) if self.log else linear_ticks(low, high)
        percent = own.get("tickformat") == ".0%"
        texts = [labels.percent(value) if percent else tick_text(value) for value in values]
        places = [math.log10(value) if self.log else value for value in values]
        return list(zip(places, texts, strict=True))

    def share(self, place: float) -> float:
        """Return the position of a value (already on the axis's scale) between the ends."""
        return (place - self._low) / (self._high - self._low)

    def at(self, value: Any) -> float | None:
        """Return the position of a value; None if it has none."""
        place = self._of(value)
        return None if place is None else self.share(place)


class _Plot:
    """A canvas with two axes."""

    def __init__(self, height: int, title: str, x: _Axis, y: _Axis) -> None:
        self._canvas, self._x, self._y = Canvas(_WIDTH, height), x, y
        widest = max((text_width(text, 12) for _, text in y.ticks), default=0.0)
        self._left = 18 + widest + (22 if y.title else 0)
        self._right, self._top, self._bottom = _WIDTH - 22.0, 40.0, height - 34.0
        self._bottom -= 20 if x.title else 0
        self._canvas.text((self._left, 18), title, 14, "left")
        self._frame()

    def _frame(self) -> None:
        canvas = self._canvas
        for place, text in self._x.ticks:
            x = self._across(self._x.share(place))
            canvas.line([(x, self._top), (x, self._bottom)], GRID)
            canvas.text((x, self._bottom + 14), text)
        for place, text in self._y.ticks:
            y = self._down(self._y.share(place))
            canvas.line([(self._left, y), (self._right, y)], GRID)
            canvas.text((self._left - 8, y), text, side="right")
        middle = (self._left + self._right) / 2
        canvas.text((middle, self._bottom + 38), self._x.title)
        canvas.text((14, (self._top + self._bottom) / 2), self._y.title, upright=True)

    def _across(self, share: float) -> float:
        return self._left + share * (self._right - self._left)

    def _down(self, share: float) -> float:
        return self._bottom - share * (self._bottom - self._top)

    def point(self, x: Any, y: Any) -> Point | None:
        """Return the position of a pair of values."""
        across, down = self._x.at(x), self._y.at(y)
        return None if across is None or down is None else (self._across(across), self._down(down))

    def trace(self, trace: Mapping[str, Any]) -> None:
        """Draw a line with or without marks, marks alone, or an area."""
        line: Mapping[str, Any] = trace.get("line", {})
        marker: Mapping[str, Any] = trace.get("marker", {})
        colour: str = line.get("color") or marker.get("color") or PALETTE[0]
        opacity: float = trace.get("opacity", 1)
        points = [self.point(x, y) for x, y in zip(trace["x"], trace["y"], strict=True)]
        if trace.get("fill"):
            self._canvas.area([p for p in points if p is not None], colour, opacity)
            return
        self._errors(trace, colour)
        if "lines" in trace["mode"]:
            width = max(0.8, line.get("width", 1.5) * 0.9)
            for own in _pieces(points):
                shown = _steps(own) if line.get("shape") == "hvh" else own
                dash = line.get("dash", "")
                self._canvas.line(shown, colour, width, opacity=opacity, dash=dash)
        if "markers" in trace["mode"]:
            for own in points:
                if own is not None:
                    self._canvas.mark(own, colour, marker.get("size", 6), marker.get("symbol", ""))

    def _errors(self, trace: Mapping[str, Any], colour: str) -> None:
        error: Mapping[str, Any] | None = trace.get("error_y")
        if error is None:
            return
        bars = zip(trace["x"], trace["y"], error["arrayminus"], error["array"], strict=True)
        for x, y, minus, plus in bars:
            if not any(_number(value) is None for value in (y, minus, plus)) and minus + plus:
                low, high = self.point(x, y - minus), self.point(x, y + plus)
                if low is not None and high is not None:
                    self._canvas.line([low, high], colour, 1.4)
                    for across, down in (low, high):
                        self._canvas.line([(across - 4, down), (across + 4, down)], colour, 1.4)

    def note(self, note: Mapping[str, Any]) -> None:
        """Write a few words beside a point."""
        at = self.point(note["x"], note["y"])
        if at is not None:
            self._canvas.text((at[0], at[1] - note.get("yshift", 0)), _unescaped(note["text"]), 11)

    def row(self, row: float, summary: Summary, values: Sequence[float], colour: str) -> None:
        """Draw a cell: its interval as a bar, its runs as ticks, its mean as a dot."""
        ends = [self.point(value, row) for value in (summary.low, summary.high)]
        self._canvas.line([end for end in ends if end is not None], colour, 5, opacity=0.35)
        for value in values:
            if (at := self.point(value, row)) is not None:
                self._canvas.line([(at[0], at[1] - 6), (at[0], at[1] + 6)], colour, 1.3)
        if (at := self.point(summary.mean, row)) is not None:
            self._canvas.mark(at, colour, 9)

    def png(self) -> bytes:
        """Return the picture as a PNG."""
        return self._canvas.png()


def _pieces(points: Sequence[Point | None]) -> list[list[Point]]:
    """Return the pieces of a line with gaps."""
    groups = itertools.groupby(points, lambda point: point is not None)
    return [[point for point in own if point is not None] for there, own in groups if there]


def _steps(points: Sequence[Point]) -> list[Point]:
    """Return a step line: level at each point, vertical halfway to the next."""
    stepped = list(points[:1])
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        middle = (x0 + x1) / 2
        stepped += [(middle, y0), (middle, y1)]
    return [*stepped, *points[-1:]]


def picture(figure: Mapping[str, Any], title: str) -> bytes:
    """Draw a figure of `learning_curves` or `charts`."""
    layout: Mapping[str, Any] = figure["layout"]
    traces = sorted(figure["data"], key=lambda trace: _ORDER.get(trace["meta"]["role"], 2))
    ys = [value for trace in traces for value in (*trace["y"], *_bounds(trace))]
    xs = [value for trace in traces for value in trace["x"]]
    high = _HIGH if layout["height"] > 300 else _LOW
    plot = _Plot(high, title, _Axis(layout["xaxis"], xs), _Axis(layout["yaxis"], ys))
    for trace in traces:
        plot.trace(trace)
    for note in layout.get("annotations", ()):
        plot.note(note)
    return plot.png()


def _bounds(trace: Mapping[str, Any]) -> list[float]:
    """Return the ends of a trace's error bars."""
    error: Mapping[str, Any] = trace.get("error_y", {"arrayminus": (), "array": ()})
    both = zip(trace["y"], error["arrayminus"], error["array"], strict=False)
    known = [row for row in both if not any(_number(value) is None for value in row)]
    return [bound for y, minus, plus in known for bound in (y - minus, y + plus)]


def cells_picture(ranking: Ranking, metric: str) -> bytes | None:
    """Mean with their intervals and the single runs, one row per cell; None if nothing was
    measured."""
    cells = [cell for cell in ranking.measured if not cell.diverged][:_CELLS]
    if not cells:
        return None
    values = [value for cell in cells for value in cell.values]
    bounds = [bound for cell in cells for bound in (cell.summary.low, cell.summary.high)]
    log = ranking.scale == "log" or is_wide(min(values), max(values))
    across = _Axis(
        {"type": "log" if log else "linear", "title": {"text": metric}}, [*values, *bounds]
    )
    rows = [float(-row) for row in range(len(cells))]
    down = _Axis({"tickvals": rows, "ticktext": names_of(cells)}, rows)
    title = f"{plural(len(cells), 'cell')}, best first: runs, mean, 95 % interval"
    plot = _Plot(110 + 28 * len(cells), title, across, down)
    colours = tones(ranking)
    for row, cell in zip(rows, cells, strict=True):
        plot.row(row, cell.summary, cell.values, colour_of(colours[cell.name]))
    return plot.png()
