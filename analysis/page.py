"""The report as one HTML file that needs nothing else and lets nothing in a value run.

Names, values and logs are text from elsewhere: jinja2 escapes all of it, figures are embedded as
JSON without `<`, and the page's policy allows only the two scripts that it was written with, by
their hashes (styles may be inline: plotly sets them, and a style cannot run anything).
"""

import base64
import functools
import hashlib
import importlib
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from analysis import words
from analysis.cells import Cell, Ranking
from analysis.figures import MUTED, PALETTE, tones
from analysis.findings import Finding, method, short_name
from analysis.frames import RunData, SweepData
from analysis.verdict import Verdict
from sweeper.metrics import as_float

__all__ = ["render"]

DARK = ("#4ba6dd", "#ef8a4a", "#2fbf95", "#d68ad0", "#d9b340", "#9ad7ff", "#dd6f9f", "#98a4f2")
"""`PALETTE` for a dark screen."""

DARK_MUTED = "#737a85"
_FAILURES = 25
_LEGEND = 8
_STATES = (
    *("succeeded", "running", "submitted", "planned", "lost", "preempted"),
    *("cancelled", "failed"),
)
_STRIP = 160.0


def render(
    data: SweepData,
    ranking: Ranking,
    findings: Sequence[Finding],
    verdict: Verdict,
    figures: Mapping[str, dict[str, Any]],
) -> str:
    """The whole page."""
    from markupsafe import Markup

    library = _plotly() if figures else ""
    script = _asset("report.js")
    embedded = {
        "figures": list(figures.values()),
        "light": {"tones": [*PALETTE, MUTED], "text": "#4b515b", "grid": "#e6e4df"},
        "dark": {"tones": [*DARK, DARK_MUTED], "text": "#b4bac4", "grid": "#2c313a"},
    }
    return _template().render(
        policy=_policy([library, script] if figures else [script]),
        css=Markup(_asset("report.css")),  # noqa: S704 - a file of ours
        script=Markup(script),  # noqa: S704 - a file of ours
        library=Markup(library),  # noqa: S704 - plotly's own file
        embedded=Markup(_json(embedded)),  # noqa: S704 - no `<` in it, see _json
        light=[*PALETTE, MUTED],
        dark=[*DARK, DARK_MUTED],
        data=data,
        ranking=ranking,
        best=ranking.best,
        findings=findings,
        verdict=verdict,
        figure_names=list(figures),
        legend=_legend(ranking, figures),
        states=[(s, n) for s in _STATES if (n := sum(run.state == s for run in data.runs))],
        failures=[_failure(run) for run in data.runs if run.state == "failed"][:_FAILURES],
        failed=sum(run.state == "failed" for run in data.runs),
        table=_table(ranking),
        method=method(ranking.scale),
        commands=_commands(data),
        provenance=list(_flat(data.document.get("provenance") or {})),
        words=words,
    )


@functools.cache
def _template() -> Any:
    """Compiled once: that takes longer than all the rest of a page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _asset(name: str) -> str:
    return resources.files("analysis").joinpath("templates", name).read_text("utf-8")


@functools.cache
def _plotly() -> str:
    plotly: Any = importlib.import_module("plotly.offline")  # it has no types
    # A browser reads every line ending as one "\n" before it computes the script's hash.
    return plotly.get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")


def _policy(scripts: Sequence[str]) -> str:
    allowed = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


@functools.cache
def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(value: Any) -> str:
    """JSON that can stand in a script element: without `<`, nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _legend(ranking: Ranking, figures: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What can be switched on and off: the coloured cells that are drawn, and all the others."""
    traces = [trace["meta"] for figure in figures.values() for trace in figure["data"]]
    drawn = {meta["cell"] for meta in traces}
    colours = tones(ranking)
    named: list[dict[str, Any]] = []
    muted: list[int] = []
    for position, cell in enumerate(ranking.cells):
        if position in drawn and colours[cell.name] >= 0:
            tone = colours[cell.name]
            named.append({"tone": tone, "cells": [position], "name": short_name(cell)})
        elif position in drawn:
            muted.append(position)
    if muted:
        name = words.counted(len(muted), "other cell")
        named.append({"tone": len(PALETTE), "cells": muted, "name": name})
    return named


def _failure(run: RunData) -> dict[str, Any]:
    why = [part for part in (run.reason, run.detail) if part]
    return {"run": run, "why": ": ".join(why) or "no reason on record"}


def _table(ranking: Ranking) -> dict[str, Any]:
    """Rows of the results table, with texts and what to sort by."""
    scale = _Scale(ranking)
    colours = tones(ranking)
    top = ranking.cells[0].summary if ranking.cells else None
    places = None if top is None else words.decimals(top.mean, top.low, top.high)
    rows = [
        {
            "cell": cell,
            "rank": position + 1 if cell.summary.n and not cell.diverged else None,
            "tone": colours[cell.name] if colours[cell.name] >= 0 else len(PALETTE),
            "name": short_name(cell),
            "settings": [_setting(cell, key) for key in ranking.keys],
            "mean": words.fixed(cell.summary.mean, places),
            "interval": _span(cell.summary.low, cell.summary.high, places),
            "range": _span(cell.summary.minimum, cell.summary.maximum, places),
            "standing": _standing(cell, ranking),
            "strip": scale.strip(cell),
        }
        for position, cell in enumerate(ranking.cells)
    ]
    best = None if ranking.best is None else scale.at(ranking.best.summary.mean)
    return {"axes": list(ranking.keys), "rows": rows, "scale": scale, "best": best}


def _setting(cell: Cell, key: str) -> tuple[str, str]:
    """A value and what to sort by."""
    if key not in cell.settings:
        return words.NONE, ""
    return words.setting(cell.settings[key]), _sortable(cell.settings[key])


def _sortable(value: Any) -> str:
    number = as_float(value)
    if number is not None:
        return repr(number).replace("inf", "Infinity")  # as JavaScript spells it
    return "" if value is None else str(value)


def _span(low: float | None, high: float | None, places: int | None) -> str:
    if low is None or high is None or low == high:
        return words.NONE
    return f"{words.fixed(low, places)} to {words.fixed(high, places)}"


def _standing(cell: Cell, ranking: Ranking) -> tuple[str, str, str]:
    """How a cell stands to the best: a key for its look, a few words, and the figures."""
    if cell is ranking.best:
        return "best", "best", ""
    if cell.diverged:
        return "bad", f"{cell.diverged} of {len(cell.runs)} diverged", ""
    if not cell.summary.n:
        return "none", "no result", ""
    comparison = ranking.comparisons.get(cell.name)
    if comparison is None:
        return "none", "not compared", ""
    p = "p < 0.001" if comparison.p < 0.001 else f"p = {comparison.p:.3f}"
    ratio = comparison.ratio
    change = words.difference(comparison.difference) if ratio is None else words.ratio(ratio)
    if comparison.told_apart:
        return "apart", "worse", f"{change}, {p}"
    return "tied", "not told apart", f"{change}, {p}"


class _Scale:
    """The common scale of the little interval plots: all values with a margin, logarithmic where
    the cells are compared so, or where they are positive and span more than a factor of 30.
    Intervals that reach beyond are cut."""

    def __init__(self, ranking: Ranking) -> None:
        found = [value for cell in ranking.measured for value in cell.values]
        wide = bool(found) and min(found) > 0 and max(found) / min(found) > 30
        self.log = wide or ranking.scale == "log"
        self._unit = max(map(abs, found), default=0.0) or 1.0
        points = [self._map(value) for value in found] or [0.0]
        margin = 0.12 * (max(points) - min(points)) or 1.0
        self._low, self._high = min(points) - margin, max(points) + margin
        self.ends = words.together(min(found), max(found)) if len(set(found)) > 1 else []

    def _map(self, value: float) -> float:
        if self.log:
            return math.log(value) if value > 0 else -math.inf
        return value / self._unit  # so that no difference is too large for a float

    def at(self, value: float | None) -> float:
        """Position in pixels, cut to the plot."""
        place = (self._map(value or 0.0) - self._low) / (self._high - self._low) * _STRIP
        return round(min(max(place, 0.0), _STRIP), 1)

    def strip(self, cell: Cell) -> dict[str, Any] | None:
        """Positions of a cell's values, mean and interval; None when it has no value."""
        summary = cell.summary
        if not summary.n:
            return None
        found: dict[str, Any] = {"mean": self.at(summary.mean), "low": None, "high": None}
        found["values"] = [self.at(value) for value in cell.values]
        if summary.low is not None and summary.high is not None:
            found["low"], found["high"] = self.at(summary.low), self.at(summary.high)
        return found


def _commands(data: SweepData) -> list[str]:
    document = data.document
    path = document.get("grid_path")
    overrides: list[str] = document.get("overrides") or []
    launch = shlex.join(["sweeper", "launch", str(path or "grid.yaml"), *overrides])
    analyze = ["sweeper", "analyze", data.name]
    own = document.get("metric")
    if data.metric is not None and (not own or own["name"] != data.metric.name):
        analyze += ["--metric", data.metric.name, "--goal", data.metric.goal]
    elif (
        data.metric is not None
        and own is not None
        and own.get("goal", "minimize") != data.metric.goal
    ):
        analyze += ["--goal", data.metric.goal]
    return [launch, shlex.join(analyze)]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key} ")  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, list):
            yield f"{prefix}{key}", shlex.join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]
        elif value is not None:
            yield f"{prefix}{key}", words.setting(value)
