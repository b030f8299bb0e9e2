"""Makes the rows of the tables of cells, and their small plots. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.figures.layouts import is_wide, row_tones
from sweeper.analysis.findings.finding import short_name
from sweeper.analysis.statistics.seeds import Comparison
from sweeper.metrics.rows import as_float
from sweeper.results.cells import Scale

CELLS = 1000
"""The largest number of rows in the table of cells."""

FIRST_CELLS = 20
"""Of a longer table, this many rows are shown until the reader asks for all."""

AS_GOOD = "“May be as good”: noise can explain the difference. More seeds may still show one."
"""The note under tables that contain the words "May be as good"."""

_VALUES = 24
_STRIP = 160.0


def cell_table(ranking: Ranking) -> dict[str, Any]:
    """Return the table of results: rows with texts and sort keys."""
    long = len(ranking.cells) > FIRST_CELLS
    scale = _Scale(ranking.measured[: FIRST_CELLS if long else None], ranking.scale)
    colours = row_tones(ranking)
    places = _decimals(ranking)
    columns = {key: setting_column(ranking.cells, key) for key in ranking.keys}
    rows = [
        {
            "cell": cell,
            "rank": position + 1 if cell.summary.n and not cell.diverged else None,
            "tone": colours[cell.name],
            "name": short_name(cell),
            "settings": [columns[key][position] for key in ranking.keys],
            "pairs": filter_pairs(cell.name, cell.settings),
            "position": position,
            **cell_figures(cell, places),
            "standing": _standing(cell, ranking),
            "strip": scale.strip(cell) if scale.holds(cell) else None,
        }
        for position, cell in enumerate(ranking.cells[:CELLS])
    ]
    best = None if ranking.best is None else scale.at(ranking.best.summary.mean)
    return {"axes": list(ranking.keys), "rows": rows, "scale": scale, "best": best}


def first_cells(ranking: Ranking, count: int) -> dict[str, Any]:
    """Return the table of the first `count` measured cells. The scale of its small plots fits these
    cells."""
    cells = ranking.measured[:count]
    scale = _Scale(cells, ranking.scale)
    colours = row_tones(ranking)
    places = _decimals(ranking)
    rows = [
        {
            "tone": colours[cell.name],
            "name": short_name(cell),
            "mean": cell_figures(cell, places)["mean"],
            "strip": scale.strip(cell),
        }
        for cell in cells
    ]
    best = None if ranking.best is None else scale.at(ranking.best.summary.mean)
    intervals = any(cell.summary.low is not None for cell in cells)
    return {"rows": rows, "best": best, "log": scale.log, "intervals": intervals}


def groups(ranking: Ranking) -> list[dict[str, Any]]:
    """Return the settings by which a reader can colour cells. `values` lists the values of a
    setting, numbers first and ascending; `of` lists the position in `values` of each cell's value.
    A missing value is a dash. Settings with many different strings are left out."""
    rows: list[dict[str, Any]] = []
    for key in ranking.keys:
        values = [cell.settings.get(key, labels.NONE) for cell in ranking.cells]
        numbers = {labels.brief(value): as_float(value) for value in values}
        ordered = sorted(numbers, key=lambda text: (numbers[text] is None, numbers[text] or 0.0))
        texts = sum(number is None for number in numbers.values())
        if len(ordered) > 1 and texts <= _VALUES:
            places = {text: place for place, text in enumerate(ordered)}
            rows.append(
                {"key": key, "values": ordered, "of": [places[labels.brief(v)] for v in values]}
            )
    return rows


def strip_of_all(ranking: Ranking) -> dict[str, Any] | None:
    """Return a strip with the means of all measured cells that have no diverged run. `marks` has a
    tuple `(place, standing, name)` for each cell, the best last; `place` is in percent of the
    strip's length. None if the table shows all cells without a click, or if fewer than two cells
    have a mean."""
    cells = [cell for cell in ranking.measured if not cell.diverged]
    if len(ranking.cells) <= FIRST_CELLS or len(cells) < 2:
        return None
    scale = _Scale(cells, ranking.scale)
    marks = [
        (
            round(100 * scale.at(cell.summary.mean) / _STRIP, 2),
            _standing(cell, ranking)[0],
            f"{short_name(cell)}: {labels.number(cell.summary.mean)}",
        )
        for cell in reversed(cells)
    ]
    tied, apart = (sum(mark[1] == kind for mark in marks) for kind in ("tied", "apart"))
    bests = len(set(ranking.leaders.values()))
    caption = f"the best, {tied} that may be as good, {apart} unlikely to be the best"
    if bests:
        caption = (
            f"the best of {bests} blocks, {tied} that may be as good as the best of their block, "
            f"{apart} unlikely to be the best"
        )
    return {
        "marks": marks,
        "ends": scale.ends,
        "log": scale.log,
        "told": caption if tied or apart else "not compared, as the noise is unknown",
    }


def _decimals(ranking: Ranking) -> int | None:
    """Return the number of decimals for cells without an interval. None if it is not known."""
    top = ranking.cells[0].summary if ranking.cells else None
    return None if top is None else labels.decimals(top.mean, top.low, top.high)


def cell_figures(cell: Cell, usual: int | None) -> dict[str, str]:
    """Return the mean, interval and range of a cell as texts. `usual` is the number of decimals for
    a cell without an interval."""
    summary = cell.summary
    decimals = labels.deserved(summary.mean, summary.low, summary.high)
    places = usual if decimals is None else decimals
    return {
        "mean": labels.fixed(summary.mean, places),
        "interval": _span(summary.low, summary.high, places),
        "range": _span(summary.minimum, summary.maximum, places),
    }


def setting_text(cell: Cell, key: str) -> tuple[str, str]:
    """Return the text of a cell's setting, with its sort key."""
    if key not in cell.settings:
        return labels.NONE, ""
    return cell.texts[key], sortable(cell.settings[key])


def setting_column(cells: Sequence[Cell], key: str) -> list[tuple[str, str, str]]:
    """Return three texts for each cell: the setting (cut for a table), its sort key, and the whole
    setting if it was cut (else "")."""
    whole = [setting_text(cell, key) for cell in cells]
    cut = labels.shortened([text for text, _ in whole])
    return [
        (short, sort, text if short != text else "")
        for short, (text, sort) in zip(cut, whole, strict=True)
    ]


def sortable(value: Any) -> str:
    """Return the sort key of a value."""
    number = as_float(value)
    if number is not None:
        # JavaScript parses `Infinity`, but not Python's `inf`.
        return "" if math.isnan(number) else repr(number).replace("inf", "Infinity")
    return "" if value is None else str(value)


def _span(low: float | None, high: float | None, places: int | None) -> str:
    if low is None or high is None or low == high:
        return labels.NONE
    return f"{labels.fixed(low, places)} to {labels.fixed(high, places)}"


def _standing(cell: Cell, ranking: Ranking) -> tuple[str, str, str]:
    """Return three texts that compare a cell with the best: the name of a style, a few words, and
    the difference with its p value ("" if not compared)."""
    if cell is ranking.best or ranking.leaders.get(cell.name) == cell.name:
        return "best", "best of its block" if ranking.leaders else "best", ""
    if cell.diverged:
        return "bad", f"{cell.diverged} of {len(cell.runs)} diverged", ""
    if not cell.summary.n:
        return "none", "no result", ""
    comparison = ranking.comparisons.get(cell.name)
    if comparison is None:
        return "none", "not compared", ""
    p = labels.p_value(comparison.p)
    ratio = comparison.ratio
    change = _change(comparison) if ratio is None else labels.ratio(ratio)
    if comparison.told_apart:
        # If no cell is tied with the best, all others are worse. Otherwise "worse" needs an
        # interval that holds for all cells at once.
        sure = comparison.beyond or (ranking.best is not None and not ranking.tied)
        return "apart", "worse" if sure else "unlikely the best", f"{change}, {p}"
    return "tied", "may be as good", f"{change}, {p}"


def _change(comparison: Comparison) -> str:
    """Return a difference as text, with the decimals that its standard error justifies."""
    reach = 2 * comparison.error
    ends = comparison.difference - reach, comparison.difference + reach
    shown = labels.within(comparison.difference, *ends)[0]
    return shown if shown.startswith(labels.MINUS) else f"+{shown}"


class _Scale:
    """The common scale of the small plots of intervals: the range of the values of all cells, with
    a margin. The scale is logarithmic if cells are compared by ratios, or if the values are
    positive and span more than a factor of 30. Intervals that reach beyond the plot are cut."""

    def __init__(self, cells: Sequence[Cell], compared: Scale) -> None:
        values = [value for cell in cells for value in cell.values]
        wide = bool(values) and is_wide(min(values), max(values))
        self.log = wide or compared == "log"
        self._unit = max(map(abs, values), default=0.0) or 1.0
        points = [self._map(value) for value in values] or [0.0]
        margin = 0.12 * (max(points) - min(points)) or 1.0
        self._low, self._high = min(points) - margin, max(points) + margin
        self.ends = labels.together(min(values), max(values)) if len(set(values)) > 1 else []

    def _map(self, value: float) -> float:
        if self.log:
            return math.log(value) if value > 0 else -math.inf
        return value / self._unit  # scaled, so that no difference overflows

    def at(self, value: float | None) -> float:
        """Return the position in pixels, limited to the plot."""
        place = (self._map(value or 0.0) - self._low) / (self._high - self._low) * _STRIP
        return round(min(max(place, 0.0), _STRIP), 1)

    def holds(self, cell: Cell) -> bool:
        """Return whether a cell's mean is within the plot. Other means are not drawn."""
        return cell.summary.mean is not None and (
            self._low <= self._map(cell.summary.mean) <= self._high
        )

    def strip(self, cell: Cell) -> dict[str, Any] | None:
        """Return the positions of a cell's values, mean and interval; None for a cell without a
        value."""
        summary = cell.summary
        if not summary.n:
            return None
        strip: dict[str, Any] = {"mean": self.at(summary.mean), "low": None, "high": None}
        strip["values"] = [self.at(value) for value in cell.values]
        if summary.low is not None and summary.high is not None:
            strip["low"], strip["high"] = self.at(summary.low), self.at(summary.high)
        return strip


def filter_pairs(name: str, settings: Mapping[str, Any]) -> str:
    """Return the strings `key=value` by which the page's filter finds a cell, one per line. The
    parts of the cell's name, with short keys, come before the settings, with full keys."""
    short = [part for part in name.split(",") if "=" in part]
    return "\n".join(
        [*short, *(f"{key}={labels.setting(value)}" for key, value in settings.items())]
    )
