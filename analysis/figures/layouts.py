"""The common parts of all figures of a report: colours, layouts as plain dicts for plotly, and
numbers rounded to what a plot can show. Pure."""

import html
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.figures.ticks import log_ticks, tick_text
from sweeper.analysis.findings.finding import short_name
from sweeper.analysis.reading.series import Floats
from sweeper.results.cells import Scale

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#b58900", "#56b4e9", "#882255", "#5c6bc0")
"""The colours of Okabe and Ito (jfly.uni-koeln.de/color), with a darker yellow for a white page,
and colours of Paul Tol's muted set. All these colours can be told apart with the common
colour-vision deficiencies."""
MUTED = "#8a8f98"
COLOURED = len(PALETTE)
Section = Literal["cells", "tasks", "curves", "axes", "planes", "parallel", "trade", "rollouts"]
SECTIONS: tuple[Section, ...] = get_args(Section)
"""The sections of a report that have figures: `tasks` (several tasks), `curves`, `axes` (the
values of an axis), `planes` (two axes), `parallel` (all axes), `trade` (costs), `rollouts`. A
section without figures is left out."""
_DIGITS = 5
_POWERS = 10.0 ** np.arange(309)


class Panel(NamedTuple):
    """A figure in a `section` of the report, with a unique `name`. `description` is for readers who
    cannot see it. Each trace of the figure has a dict `meta`: `role` is the kind of trace, such as
    "mean" or "band"; `cell` is the position of the trace's cell in the ranking (-1: not a single
    cell); `tone` is an index into `PALETTE`, or -1 for grey."""

    section: Section
    name: str
    figure: dict[str, Any]
    description: str
    on_page: bool = True


def rounded(values: Floats | Sequence[float]) -> list[float | None]:
    """Round values to as many digits as a plot can show, so that JSON writes few digits. A value
    that is not finite, before or after rounding, becomes None."""
    raw = np.asarray(values, dtype=float)
    size = np.abs(raw)
    plain = (size > 0) & (size < np.inf)
    places = _DIGITS - 1 - np.floor(np.log10(np.where(plain, size, 1.0))).astype(np.intp)
    power = _POWERS[np.minimum(np.abs(places), 308)]
    with np.errstate(all="ignore"):
        result = np.where(places < 0, np.rint(raw / power) * power, np.rint(raw * power) / power)
    return _without(result, ~np.isfinite(result))


def _without(values: NDArray[Any], gaps: NDArray[np.bool_]) -> list[Any]:
    """Return the values as a list, with None at each gap."""
    items: list[Any] = values.tolist()
    for at in np.flatnonzero(gaps).tolist():
        items[at] = None
    return items


_TEXTS, _SIGNS = 18, 16
"""The largest number of labels on an axis of strings, and of characters in each label."""


def categories(figure_layout: dict[str, Any], texts: Sequence[str]) -> None:
    """Set the labels of an x axis of strings. Long labels are cut in the middle. If there are many
    labels, only some are shown. The figure becomes taller if plotly has to rotate the labels."""
    stride = -(-len(texts) // _TEXTS)
    marked = list(texts)[::stride]
    short = [_shortened(html.unescape(text)) for text in marked]
    shown = {"tickvals": marked, "ticktext": [plain(text) for text in short]}
    figure_layout["xaxis"].update({"type": "category", **shown})
    if sum(map(len, short)) > 40:
        figure_layout["height"] += 6 * max(map(len, short))


def _shortened(text: str) -> str:
    half = _SIGNS // 2
    return text if len(text) <= _SIGNS else f"{text[: half - 1]}…{text[-half:]}"


def integers(values: Floats) -> list[float | None]:
    """Return the values as integers if all are integers, else rounded. NaN becomes None."""
    gaps = np.isnan(values)
    filled = np.where(gaps, 0.0, values)
    if (np.rint(filled) == filled).all() and (np.abs(filled) < 2**53).all():
        return _without(filled.astype(np.int64), gaps)
    return rounded(values)


def layout(
    x_title: str, *, low: float = 0.0, high: float = 0.0, height: int = 420, y_title: str = ""
) -> dict[str, Any]:
    """Return the layout of a figure. The y axis is logarithmic if `is_wide(low, high)`."""
    axis = {"automargin": True, "zeroline": False, "showline": False, "ticks": ""}
    y: dict[str, Any] = {**axis, "type": "linear"}
    y |= {"exponentformat": "e", "minexponent": 5}  # a KL of 2e-9 should not appear as 2n
    if y_title:
        y["title"] = {"text": plain(y_title), "standoff": 8}
    title = {"text": plain(x_title), "standoff": 10}
    result: dict[str, Any] = {
        "autosize": True,
        "height": height,
        "margin": {"l": 48, "r": 12, "t": 30, "b": 44},
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": "zoom",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {**axis, "title": title, "rangemode": "tozero", "type": "linear"},
        "yaxis": y,
        "hoverlabel": {"namelength": -1, "align": "left"},
        "meta": {"log": low > 0, "ticks": marks(low, high), "clocks": []},
    }
    if is_wide(low, high):
        on_scale(result, "log")
    return result


def is_wide(low: float, high: float) -> bool:
    """Return whether values from `low` to `high` are easier to read on a log axis: they are
    positive and span more than a factor of 30."""
    return low > 0 and high / low > 30


def marks(low: float, high: float) -> dict[str, Any]:
    """Return the tick marks of a log axis. (Between powers of ten, plotly itself would write only
    the first digit: 2 for 0.02.)"""
    values = log_ticks(low, high)
    return {"tickvals": values, "ticktext": [tick_text(value) for value in values]}


def layout_of_axis(key: str, values: Sequence[float], metric: str, scale: Scale) -> dict[str, Any]:
    """Return the layout of a small figure with the setting `key` on the x axis and the metric on
    the y axis. `values` are values of the metric."""
    result = layout(key, low=min(values), high=max(values), height=260, y_title=metric)
    result["xaxis"]["rangemode"] = "normal"
    result["margin"] = {"l": 48, "r": 16, "t": 12, "b": 40}
    result["meta"]["log"] = False
    on_scale(result, scale)
    return result


def error_bars(
    above: Sequence[float], below: Sequence[float], colour: str, thickness: float, width: int
) -> dict[str, Any]:
    """Return error bars that extend from each point down by `below` and up by `above`."""
    return {
        "type": "data",
        "array": rounded(above),
        "arrayminus": rounded(below),
        "color": colour,
        "thickness": thickness,
        "width": width,
    }


def on_scale(layout: dict[str, Any], scale: str) -> None:
    """Set the value axis of a layout to "linear" or "log"."""
    bare = {k: v for k, v in layout["yaxis"].items() if k not in ("tickvals", "ticktext")}
    layout["yaxis"] = {**bare, "type": scale, **(layout["meta"]["ticks"] if scale == "log" else {})}


def plain(text: str) -> str:
    """Escape text for plotly, which interprets some HTML in titles and names."""
    return html.escape(text, quote=False)


def tones(ranking: Ranking) -> dict[str, int]:
    """Return a dict from the name of each cell to its tone: an index into `PALETTE` for the first
    cells of the ranking, -1 (grey) for the others."""
    return {
        cell.name: position if position < COLOURED else -1
        for position, cell in enumerate(ranking.cells)
    }


def row_tones(ranking: Ranking) -> dict[str, int]:
    """Return the tones of cells for tables, where grey has the tone `COLOURED` instead of -1."""
    return {cell: tone if tone >= 0 else COLOURED for cell, tone in tones(ranking).items()}


def named_rows(ranking: Ranking) -> dict[str, dict[str, Any]]:
    """Return a dict from cell to a dict with the `name` and the `tone` of its table row."""
    colours = row_tones(ranking)
    return {
        cell.name: {"name": short_name(cell), "tone": colours[cell.name]} for cell in ranking.cells
    }


def colour_of(tone: int) -> str:
    """Return the colour of a tone."""
    return PALETTE[tone] if tone >= 0 else MUTED
