"""Draws the report's figures as PNGs with matplotlib, from the dicts that the page uses. Imported
only for `report.md`, because matplotlib is slow to load."""

import html
import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator

from sweeper.analysis import labels
from sweeper.analysis.figures.ticks import linear_ticks, log_ticks, tick_text
from sweeper.common.sanitize import sanitize

_WIDTH = 900
"""The width of a picture in pixels. At 72 dots per inch, a pixel is a point, matplotlib's unit
for lines, marks and text."""

_LABEL, _UPRIGHT = 60, 36
"""The largest number of characters of a text, and of the title of a vertical axis."""

_ROOM = 110
"""The largest total number of characters of labels side by side below an axis."""

_LEAST, _MOST = 1e-200, 1e200
"""Values beyond `_MOST` (and below `_LEAST`, on a log axis) are left out, so that positions and
margins are finite."""

_ORDER = {"band": 0, "area": 0, "run": 1, "front": 1}
"""The order of drawing for each role of traces: areas first, then single runs and Pareto fronts,
then all others."""

_SYMBOLS = {"x": "x", "line-ns": "|"}
_DASHES = {"dot": ":", "dash": "--"}
_SHAPES = {"hv": "steps-post", "hvh": "steps-mid"}

_INK = "#3a3f47"
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": _INK,
    "axes.labelpad": 8,
    "axes.titlelocation": "left",
    "axes.titlepad": 14,
    "axes.titlesize": 14,
    "figure.constrained_layout.h_pad": 10 / 72,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 10 / 72,
    "figure.dpi": 72,
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "grid.color": "#e6e4df",
    "lines.solid_capstyle": "butt",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": "none",
    "xtick.labelcolor": _INK,
    "ytick.color": "none",
    "ytick.labelcolor": _INK,
}


def picture(figure: Mapping[str, Any], title: str) -> bytes:
    """Return a PNG of a figure. The same figure gives the same bytes."""
    out = io.BytesIO()
    # matplotlib warns of characters that its font lacks.
    with style.context(_STYLE, after_reset=True), warnings.catch_warnings(action="ignore"):
        drawing(figure, title).savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def drawing(figure: Mapping[str, Any], title: str) -> Any:
    """Convert a figure for plotly into a figure of matplotlib."""
    layout: Mapping[str, Any] = figure["layout"]
    drawn: Any = Figure(figsize=(_WIDTH / 72, (layout["height"] + 40) / 72))
    axes = drawn.add_subplot(title=_text(title))
    traces = sorted(figure["data"], key=lambda trace: _ORDER.get(trace["meta"]["role"], 2))
    texts = [x for trace in traces for x in trace["x"] if isinstance(x, str)]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    log_x, log_y = (layout[name]["type"] == "log" for name in ("xaxis", "yaxis"))
    axes.set(xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    for trace in traces:
        xs = [_number(places.get(x, x), log=log_x) for x in trace["x"]]
        _draw(axes, trace, xs, [_number(y, log=log_y) for y in trace["y"]])
    for note in layout.get("annotations", ()):
        at, above = (note["x"], note["y"]), (0, note["yshift"])
        aligned = {"ha": "center", "va": "center", "fontsize": note["font"]["size"]}
        axes.annotate(_text(note["text"]), at, above, textcoords="offset points", **aligned)
    _finish(axes, "x", layout["xaxis"], places)
    _finish(axes, "y", layout["yaxis"], {})
    return drawn


def _draw(axes: Any, trace: Mapping[str, Any], xs: Sequence[float], ys: Sequence[float]) -> None:
    """Draw a trace: an area, a line with optional markers and error bars, or only markers."""
    line: Mapping[str, Any] = trace.get("line", {})
    marker: Mapping[str, Any] = trace.get("marker", {})
    colour: str = line.get("color") or marker["color"]
    if trace.get("fill"):
        outline = [point for point in zip(xs, ys, strict=True) if not any(map(math.isnan, point))]
        axes.fill(*zip(*outline, strict=True), color=colour, alpha=trace["opacity"], linewidth=0)
        return
    symbol, marked = marker.get("symbol", ""), "markers" in trace["mode"]
    axes.plot(
        xs,
        ys,
        color=colour,
        alpha=trace.get("opacity"),
        linestyle=_DASHES.get(line.get("dash", ""), "-") if "lines" in trace["mode"] else "none",
        linewidth=line.get("width"),
        drawstyle=_SHAPES.get(line.get("shape", ""), "default"),
        marker=_SYMBOLS.get(symbol, "o") if marked else "none",
        markersize=marker.get("size", 6),
        markerfacecolor="none" if symbol == "circle-open" else colour,
        markeredgewidth=0 if symbol in ("", "circle") else 1.5,
        clip_on=False,
    )
    if "error_y" in trace:
        error: Mapping[str, Any] = trace["error_y"]
        lengths = [[abs(_number(e)) for e in error[name]] for name in ("arrayminus", "array")]
        bar = {"elinewidth": error["thickness"], "capsize": error["width"]}
        axes.errorbar(xs, ys, lengths, fmt="none", ecolor=colour, capthick=1.4, **bar)


def _finish(axes: Any, name: str, options: Mapping[str, Any], places: Mapping[str, float]) -> None:
    """Set the limits, the title and the ticks of an axis. For an axis of strings, `places` maps
    each string to its position."""
    axis = axes.xaxis if name == "x" else axes.yaxis
    low, high = options.get("range", axis.get_view_interval())
    if options.get("rangemode") == "tozero" and options["type"] == "linear":
        low = 0.0 if axis.get_data_interval()[0] >= 0 else low
    if places:
        low, high = -0.5, len(places) - 0.5
    label = _text(options.get("title", {}).get("text", ""), _LABEL if name == "x" else _UPRIGHT)
    axes.set(**{f"{name}lim": (low, high), f"{name}label": label})
    ticks = list(_ticks(options, places, low, high))
    axis.set_major_locator(FixedLocator([at for at, _ in ticks]))
    axis.set_major_formatter(FixedFormatter([text for _, text in ticks]))
    axis.minorticks_off()
    if name == "x" and sum(len(text) + 2 for _, text in ticks) > _ROOM:
        for text in axis.get_ticklabels():
            text.set(rotation=30, rotation_mode="anchor", ha="right")


def _ticks(
    options: Mapping[str, Any], places: Mapping[str, float], low: float, high: float
) -> Iterator[tuple[float, str]]:
    """Yield the positions and texts of the tick marks."""
    if options.get("showticklabels") is False:
        return
    if "tickvals" in options:
        for value, text in zip(options["tickvals"], options["ticktext"], strict=True):
            yield places.get(value, value), _text(text)
    elif places:
        yield from ((at, _text(text)) for text, at in places.items())
    else:
        values = log_ticks(low, high) if options["type"] == "log" else linear_ticks(low, high)
        written = labels.percent if options.get("tickformat") == ".0%" else tick_text
        yield from ((value, written(value)) for value in values)


def _text(text: str, most: int = _LABEL) -> str:
    """Convert a label for plotly to plain text of at most `most` characters."""
    shown = sanitize(html.unescape(text))
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _number(value: Any, *, log: bool = False) -> float:
    """Return `value` as a float; NaN if `value` cannot be drawn."""
    drawable = isinstance(value, int | float) and (_LEAST if log else -_MOST) <= value <= _MOST
    return float(value) if drawable else math.nan
