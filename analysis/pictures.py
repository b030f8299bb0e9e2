"""The report's figures as PNGs, drawn by matplotlib from the same dicts that the page draws.

matplotlib is loaded here only, and draws without a display. The same figure gives the same bytes.
"""

import importlib
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from analysis import words
from analysis.cells import Ranking
from analysis.figures import COLOURED, MUTED, PALETTE, tones
from analysis.findings import short_name

__all__ = ["cells_picture", "picture"]

_DPI = 110
_INK, _GRID = "#3a3f47", "#e6e4df"
_CELLS = 40
_MOST = 1e200
_LABEL = 44


def _canvas(width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes, without pyplot and its global state."""
    figure_module: Any = importlib.import_module("matplotlib.figure")
    figure = figure_module.Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.grid(visible=True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, length=0, labelsize=9)
    return figure, axes


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        # Of signs that its font has not, and of labels that leave the plot no room.
        warnings.simplefilter("ignore")
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _safe(text: str) -> str:
    """Text as it stands: matplotlib reads what is between two dollar signs as mathematics."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text)
    shown = shown if len(shown) <= _LABEL else f"{shown[: _LABEL - 1]}…"
    return shown.replace("\\", "\\\\").replace("$", r"\$") if "$" in shown else shown


def _unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def picture(figure: Mapping[str, Any], title: str) -> bytes:
    """One of `analysis.figures` or `analysis.charts`."""
    layout = figure["layout"]
    canvas, axes = _canvas(8.2, 3.9 if layout["height"] > 300 else 3.0)
    axes.set_title(_safe(title), fontsize=11, color=_INK, loc="left")
    for trace in figure["data"]:
        _draw(axes, trace)
    for name, own in (("x", layout["xaxis"]), ("y", layout["yaxis"])):
        _scale(axes, name, own)
    if "showticklabels" in layout["yaxis"]:
        axes.set_yticklabels([])
    for note in layout.get("annotations", ()):
        axes.annotate(
            _safe(_unescaped(note["text"])),
            (note["x"], note["y"]),
            (5, 0),
            textcoords="offset points",
            fontsize=8,
            color=_INK,
            va="center",
        )
    return _png(canvas)


def _scale(axes: Any, name: str, own: Mapping[str, Any]) -> None:
    label = own.get("title", {}).get("text", "")
    getattr(axes, f"set_{name}label")(_safe(_unescaped(label)), fontsize=9, color=_INK)
    if own.get("type") == "log":
        getattr(axes, f"set_{name}scale")("log")
    if "tickvals" in own:
        ticks = getattr(axes, f"set_{name}ticks")
        ticks(own["tickvals"], [_safe(_unescaped(text)) for text in own["ticktext"]])
        getattr(axes, f"{name}axis").minorticks_off()
    if "range" in own:
        getattr(axes, f"set_{name}lim")(*own["range"])
    if own.get("tickformat") == ".0%":
        ticker: Any = importlib.import_module("matplotlib.ticker")
        getattr(axes, f"{name}axis").set_major_formatter(ticker.PercentFormatter(1.0))


def _numbers(values: Sequence[Any]) -> list[Any]:
    """What matplotlib can find ticks for: it counts in differences, which must be finite."""
    return [float("nan") if value is None or abs(value) > _MOST else value for value in values]


def _draw(axes: Any, trace: Mapping[str, Any]) -> None:
    x, y = trace["x"], _numbers(trace["y"])
    if not all(isinstance(value, str) for value in x):
        x = _numbers(x)
    else:
        x = [_safe(_unescaped(value)) for value in x]
    line: Mapping[str, Any] = trace.get("line", {})
    marker: Mapping[str, Any] = trace.get("marker", {})
    colour = line.get("color") or marker.get("color") or PALETTE[0]
    alpha = trace.get("opacity", 1)
    if trace.get("fill"):
        axes.fill(x, y, color=trace["fillcolor"], alpha=alpha, linewidth=0)
        return
    error = trace.get("error_y")
    if error:
        bounds = [_numbers(error["arrayminus"]), _numbers(error["array"])]
        axes.errorbar(x, y, yerr=bounds, fmt="none", ecolor=colour, capsize=3, linewidth=1.2)
    dashes = {"dot": ":", "dash": "--"}
    symbol = {"x": "x", "circle-open": "o"}.get(marker.get("symbol", ""), "o")
    marked = "markers" in trace["mode"]
    axes.plot(
        x,
        y,
        color=colour,
        alpha=alpha,
        linewidth=line.get("width", 1.5) * 0.8,
        linestyle=dashes.get(line.get("dash", ""), "-") if "lines" in trace["mode"] else "none",
        drawstyle="steps-mid" if line.get("shape") == "hvh" else "default",
        marker=symbol if marked else None,
        markersize=marker.get("size", 6) * 0.7,
        markerfacecolor="none" if marker.get("symbol") == "circle-open" else colour,
    )


def cells_picture(ranking: Ranking, metric: str) -> bytes | None:
    """Means with their intervals and the single runs, a row a cell; None when nothing was
    measured."""
    cells = [cell for cell in ranking.measured if not cell.diverged][:_CELLS]
    if not cells:
        return None
    figure, axes = _canvas(8.2, 1.1 + 0.27 * len(cells))
    colours = tones(ranking)
    for row, cell in enumerate(cells):
        tone = colours[cell.name]
        colour = PALETTE[tone] if 0 <= tone < COLOURED else MUTED
        summary = cell.summary
        if summary.low is not None and summary.high is not None:
            axes.plot(
                _numbers([summary.low, summary.high]),
                [row, row],
                color=colour,
                alpha=0.35,
                linewidth=5,
            )
        axes.plot(
            _numbers(cell.values), [row] * summary.n, color=colour, marker="|", linestyle="none"
        )
        axes.plot(_numbers([summary.mean]), [row], color=colour, marker="o", markersize=6)
    axes.set_yticks(range(len(cells)), [_safe(short_name(cell)) for cell in cells])
    axes.invert_yaxis()
    values = [value for cell in cells for value in cell.values]
    wide = min(values) > 0 and max(values) / min(values) > 30
    if wide or ranking.scale == "log":
        axes.set_xscale("log")
    axes.set_xlabel(_safe(metric), fontsize=9, color=_INK)
    title = f"{words.counted(len(cells), 'cell')}, best first: runs, mean, 95 % interval"
    axes.set_title(title, fontsize=11, color=_INK, loc="left")
    return _png(figure)
