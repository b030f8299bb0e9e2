"""Rows of the report's tables: texts, and what to sort by. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.axes import Grid2
from sweeper.analysis.behaviour import examples
from sweeper.analysis.cells import Cell, Ranking
from sweeper.analysis.checkpoints import choose_checkpoint
from sweeper.analysis.commands import run_to_log
from sweeper.analysis.costs import dollars
from sweeper.analysis.figures import row_tones
from sweeper.analysis.findings import short_name
from sweeper.analysis.frames import RunData
from sweeper.analysis.layouts import is_wide
from sweeper.analysis.stability import Rate
from sweeper.analysis.statistics import Comparison
from sweeper.analysis.study import Study
from sweeper.analysis.surface import Surface
from sweeper.metrics import as_float
from sweeper.results.cells import Scale, exp
from sweeper.storage.documents import dotted

__all__ = [
    "CELLS",
    "FIRST_CELLS",
    "RUNS",
    "block_rows",
    "cell_table",
    "common",
    "details",
    "first_cells",
    "groups",
    "heat",
    "paired_rows",
    "rate_rows",
    "run_rows",
    "strip_of_all",
    "surface_rows",
]

CELLS = 1000
"""Rows of the table of cells, at most."""

FIRST_CELLS = 20
"""Rows that are shown of a longer table of cells, until it is asked for all."""

RUNS = 2000
"""Rows of the table of runs, at most."""

_TOLD = 400
_VALUES = 24
_TEXT = 1200
_STRIP = 160.0


def cell_table(ranking: Ranking) -> dict[str, Any]:
    """Rows of the results table, with texts and what to sort by."""
    long = len(ranking.cells) > FIRST_CELLS
    scale = _Scale(ranking.measured[: FIRST_CELLS if long else None], ranking.scale)
    colours = row_tones(ranking)
    places = _decimals(ranking)
    rows = [
        {
            "cell": cell,
            "rank": position + 1 if cell.summary.n and not cell.diverged else None,
            "tone": colours[cell.name],
            "name": short_name(cell),
            "settings": [_setting(cell, key) for key in ranking.keys],
            "pairs": _pairs(cell.name, cell.settings),
            "position": position,
            **_figures(cell, places),
            "standing": _standing(cell, ranking),
            "strip": scale.strip(cell) if scale.holds(cell) else None,
        }
        for position, cell in enumerate(ranking.cells[:CELLS])
    ]
    best = None if ranking.best is None else scale.at(ranking.best.summary.mean)
    return {"axes": list(ranking.keys), "rows": rows, "scale": scale, "best": best}


def first_cells(ranking: Ranking, count: int) -> dict[str, Any]:
    """The first measured cells by themselves, on a scale of their own."""
    cells = ranking.measured[:count]
    scale = _Scale(cells, ranking.scale)
    colours = row_tones(ranking)
    places = _decimals(ranking)
    rows = [
        {
            "tone": colours[cell.name],
            "name": short_name(cell),
            "mean": _figures(cell, places)["mean"],
            "strip": scale.strip(cell),
        }
        for cell in cells
    ]
    best = None if ranking.best is None else scale.at(ranking.best.summary.mean)
    intervals = any(cell.summary.low is not None for cell in cells)
    return {"rows": rows, "best": best, "log": scale.log, "intervals": intervals}


def groups(ranking: Ranking) -> list[dict[str, Any]]:
    """By which settings cells may be told apart by colour: for each its values, in order, and of
    each cell the position of its own (-1: it has none). Of texts no more than can be told apart."""
    found: list[dict[str, Any]] = []
    for key in ranking.keys:
        own = [cell.settings.get(key, labels.NONE) for cell in ranking.cells]
        numbers = {labels.brief(value): as_float(value) for value in own}
        ordered = sorted(numbers, key=lambda text: (numbers[text] is None, numbers[text] or 0.0))
        texts = sum(number is None for number in numbers.values())
        if len(ordered) > 1 and texts <= _VALUES:
            places = {text: place for place, text in enumerate(ordered)}
            found.append(
                {"key": key, "values": ordered, "of": [places[labels.brief(v)] for v in own]}
            )
    return found


def strip_of_all(ranking: Ranking) -> dict[str, Any] | None:
    """Where the means of all cells stand, in shares of a line: `(place, standing, name)` each, the
    best last; None where they are too few to need one."""
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
    told = f"the best, {tied} not told apart from it, {apart} worse"
    if bests:
        told = (
            f"the best of {bests} blocks, {tied} not told apart from that of theirs, {apart} worse"
        )
    return {
        "marks": marks,
        "ends": scale.ends,
        "log": scale.log,
        "told": told if tied or apart else "nothing tells them apart",
    }


def _decimals(ranking: Ranking) -> int | None:
    """As many as the first cell needs."""
    top = ranking.cells[0].summary if ranking.cells else None
    return None if top is None else labels.decimals(top.mean, top.low, top.high)


def _figures(cell: Cell, usual: int | None) -> dict[str, str]:
    """A cell's mean, interval and range, with the digits that its interval deserves; as many as
    `usual` where it has none."""
    found = cell.summary
    own = labels.deserved(found.mean, found.low, found.high)
    places = usual if own is None else own
    return {
        "mean": labels.fixed(found.mean, places),
        "interval": _span(found.low, found.high, places),
        "range": _span(found.minimum, found.maximum, places),
    }


def _setting(cell: Cell, key: str) -> tuple[str, str]:
    """A value and what to sort by."""
    if key not in cell.settings:
        return labels.NONE, ""
    return labels.brief(cell.settings[key]), _sortable(cell.settings[key])


def _sortable(value: Any) -> str:
    number = as_float(value)
    if number is not None:
        return "" if math.isnan(number) else repr(number).replace("inf", "Infinity")  # JavaScript's
    return "" if value is None else str(value)


def _span(low: float | None, high: float | None, places: int | None) -> str:
    if low is None or high is None or low == high:
        return labels.NONE
    return f"{labels.fixed(low, places)} to {labels.fixed(high, places)}"


def _standing(cell: Cell, ranking: Ranking) -> tuple[str, str, str]:
    """How a cell stands to the best: a key for its look, a few words, and the figures."""
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
        return "apart", "worse", f"{change}, {p}"
    return "tied", "not told apart", f"{change}, {p}"


def _change(found: Comparison) -> str:
    """A difference with the digits that its error leaves it."""
    reach = 2 * found.error
    ends = found.difference - reach, found.difference + reach
    shown = labels.within(found.difference, *ends)[0]
    return shown if shown.startswith(labels.MINUS) else f"+{shown}"


class _Scale:
    """The common scale of the little interval plots: all values with a margin, logarithmic where
    the cells are compared so, or where they are positive and span more than a factor of 30.
    Intervals that reach beyond are cut."""

    def __init__(self, cells: Sequence[Cell], compared: Scale) -> None:
        found = [value for cell in cells for value in cell.values]
        wide = bool(found) and is_wide(min(found), max(found))
        self.log = wide or compared == "log"
        self._unit = max(map(abs, found), default=0.0) or 1.0
        points = [self._map(value) for value in found] or [0.0]
        margin = 0.12 * (max(points) - min(points)) or 1.0
        self._low, self._high = min(points) - margin, max(points) + margin
        self.ends = labels.together(min(found), max(found)) if len(set(found)) > 1 else []

    def _map(self, value: float) -> float:
        if self.log:
            return math.log(value) if value > 0 else -math.inf
        return value / self._unit  # so that no difference is too large for a float

    def at(self, value: float | None) -> float:
        """Position in pixels, cut to the plot."""
        place = (self._map(value or 0.0) - self._low) / (self._high - self._low) * _STRIP
        return round(min(max(place, 0.0), _STRIP), 1)

    def holds(self, cell: Cell) -> bool:
        """Whether its mean lies within the plot: what is beyond is not drawn at its edge."""
        return cell.summary.mean is not None and (
            self._low <= self._map(cell.summary.mean) <= self._high
        )

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


def _pairs(name: str, settings: Mapping[str, Any]) -> str:
    """What a filter may ask for as `key=value`, a line each: settings by their keys, and by the
    short forms that names have."""
    short = [part for part in name.split(",") if "=" in part]
    return "\n".join([*short, *(f"{key}={labels.setting(own)}" for key, own in settings.items())])


def common(study: Study) -> str:
    """The same of what all runs have in common."""
    configs = [dict(dotted(run.config)) for run in study.data.runs[:RUNS]]
    first = configs[0] if configs else {}
    alike = {
        key: value
        for key, value in first.items()
        if key not in study.ranking.keys and all(own.get(key, own) == value for own in configs)
    }
    return _pairs("", alike)


def run_rows(study: Study) -> list[dict[str, Any]]:
    """A row a run, in the order of the ranking."""
    positions = {cell.name: i for i, cell in enumerate(study.ranking.cells)}
    colours = row_tones(study.ranking)
    cells = {cell.name: cell for cell in study.ranking.cells}
    runs = [run for cell in study.ranking.cells for run in cell.runs][:RUNS]
    return [
        {
            "run": run,
            "settings": [_setting(cells[run.cell], key) for key in study.ranking.keys],
            "pairs": _pairs(run.name, {**cells[run.cell].settings, "seed": run.seed}),
            "rank": positions[run.cell] + 1,
            "cell": positions[run.cell],
            "tone": colours[run.cell],
            "state": "diverged" if run.diverged else run.state,
            "values": [
                (labels.number(value), _sortable(value))
                for value in (run.last, run.best, run.smoothed)
            ],
            "steps": run.cost.steps,
            "tokens": run.cost.total,
            "dollars": dollars(run.cost, study.prices),
        }
        for run in runs
    ]


def details(study: Study) -> dict[str, dict[str, Any]]:
    """What opens when a run is clicked, by its id: plain texts, put into the page as such."""
    found: dict[str, dict[str, Any]] = {}
    split = study.behaviour.split if study.behaviour is not None else "train"
    runs = [run for cell in study.ranking.cells for run in cell.runs][:RUNS]
    for position, run in enumerate(runs):
        shown = examples(run, split, 2) if position < _TOLD else []
        found[run.id] = {
            "name": run.name or run.id,
            "link": run.link,
            "facts": _facts(run),
            "config": [[key, labels.setting(value)[:_TEXT]] for key, value in dotted(run.config)],
            "log": list(run.log),
            "quoted": run_to_log(study.data, run),
            "rollouts": [
                {
                    "title": f"{one.why}: reward {labels.number(one.rollout.reward, 3)}, "
                    f"{labels.plural(one.rollout.length, 'token')}, "
                    f"iteration {one.rollout.iteration}",
                    "prompt": one.rollout.prompt[:_TEXT],
                    "response": one.rollout.response[:_TEXT],
                    "reference": one.rollout.reference[:_TEXT],
                }
                for one in shown
            ],
        }
    return found


_CHECKPOINTS = {"sampler_path": "to sample from", "state_path": "to train on from", "path": ""}


def _facts(run: RunData) -> list[list[str]]:
    found = [
        ["state", run.state + (", diverged" if run.diverged else "")],
        ["id", run.id],
        ["seed", labels.NONE if run.seed is None else str(run.seed)],
        ["attempts", str(run.attempts)],
        ["why", run.why],
        ["last value", labels.number(run.last)],
        ["best value", labels.number(run.best)],
        ["smoothed", labels.number(run.smoothed)],
        ["time", labels.duration(run.wall_s)],
        ["tokens", labels.amount(run.cost.total)],
        ["alarms", "; ".join(alarm.message or alarm.rule for alarm in run.alarms)],
    ]
    paths = [
        [f"checkpoint {what}".strip(), str(record[key])]
        for record in run.checkpoints[-1:]
        for key, what in _CHECKPOINTS.items()
        if record.get(key)
    ]
    return [pair for pair in [*found, *paths] if pair[1]]


def heat(pair: Grid2, sign: float) -> list[dict[str, Any]]:
    """Rows of a heat table: a text and a share from 0 (worst) to 1 (best) a place, None for a
    hole."""
    means = [mean for row in pair.means for mean in row if mean is not None]
    places = labels.decimals(*means)
    least = min((abs(mean) for mean in means if mean), default=1.0)
    if places is not None and 1e-3 <= least < 1:  # two digits of the smallest too
        places = max(places, 1 - math.floor(math.log10(least)))
    ranked = sorted({sign * mean for mean in means}, reverse=True)
    last = max(len(ranked) - 1, 1)
    shade = {value: position / last for position, value in enumerate(ranked)}
    return [
        {
            "name": name,
            "places": [
                (
                    labels.fixed(mean, places),
                    None if mean is None else shade[sign * mean],
                    i == best,
                )
                for i, mean in enumerate(row)
            ],
        }
        for name, row, best in zip(pair.ys, pair.means, pair.best_x, strict=True)
    ]


def block_rows(study: Study) -> list[dict[str, Any]]:
    """Rows of the table of blocks."""
    found = study.blocks
    if found is None:
        return []
    keys = [key for key in study.ranking.keys if key != found.by]
    rows: list[dict[str, Any]] = []
    for block in found.blocks:
        best = block.best
        ends = [
            f"{e.axis} ({e.side}{', further out it diverged' if e.stopped else ''}"
            f"{'' if e.told else ', within the noise'})"
            for e in block.edges
        ]
        rows.append(
            {
                "name": block.value,
                "settings": ["" if best is None else _setting(best, key)[0] for key in keys],
                "mean": "no result" if best is None else _figures(best, None)["mean"],
                "interval": "" if best is None else _figures(best, None)["interval"],
                "checkpoint": None if best is None else _checkpoint(best, study),
                "tied": len(block.tied) if block.compared else None,
                "compared": block.compared,
                "ends": labels.listed(ends) if ends else labels.NONE,
                "diverged": block.diverged,
                "cells": block.cells,
                "holes": [", ".join(f"{k} {v}" for k, v in row) for row in block.holes],
            }
        )
    return rows


def _checkpoint(cell: Cell, study: Study) -> str | None:
    """Where the weights of a cell's best run are."""
    metric = study.data.metric
    run = None if metric is None else cell.best_run(metric.sign)
    found = None if metric is None or run is None else choose_checkpoint(run, metric.at)
    return None if found is None else found.path


def surface_rows(found: Surface | None) -> list[dict[str, str]]:
    """Rows of the table of what a model of all axes tells of each."""
    return [
        {
            "axis": axis.key,
            "share": labels.percent(axis.importance.value),
            "interval": f"{labels.percent(axis.importance.low)} to "
            f"{labels.percent(axis.importance.high)}",
            "permuted": labels.percent(max(axis.permuted.value, 0.0)),
            "spread": " to ".join(
                labels.percent(max(bound, 0.0)) for bound in (axis.permuted.low, axis.permuted.high)
            ),
            "p": labels.p_value(axis.p),
            "best": labels.place(axis.best) if axis.told else labels.NONE,
            "between": " to ".join(dict.fromkeys(map(labels.place, axis.between)))
            if axis.told
            else "",
        }
        for axis in (found.axes if found is not None else ())
    ]


def rate_rows(rates: Sequence[Rate]) -> list[dict[str, Any]]:
    """Rows of the table of runs that went wrong by value of an axis."""
    return [
        {
            "axis": rate.axis,
            "value": rate.value,
            "count": rate.count,
            "trials": rate.trials,
            "share": labels.percent(rate.count / rate.trials),
            "interval": f"{labels.percent(rate.low)} to {labels.percent(rate.high)}",
            "from": round(100 * rate.low, 1),
            "to": round(100 * rate.high, 1),
            "at": round(100 * rate.count / rate.trials, 1),
        }
        for rate in rates
    ]


def paired_rows(study: Study) -> list[dict[str, Any]]:
    """Rows of the table of differences from the best over shared seeds."""
    log = study.ranking.scale == "log"
    found: list[dict[str, Any]] = []
    for cell in study.ranking.others:
        estimate = study.paired.get(cell.name)
        if estimate is None or estimate.low is None or estimate.high is None:
            continue
        shown = [estimate.value, estimate.low, estimate.high]
        texts = [labels.ratio(exp(v)) if log else labels.difference(v) for v in shown]
        found.append(
            {
                "name": short_name(cell),
                "value": texts[0],
                "interval": f"{texts[1]} to {texts[2]}",
                "p": labels.p_value(estimate.p),
            }
        )
    return found
