"""Makes the rows of the report's tables of runs, axes and blocks, with texts and sort keys.
Pure."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.axes import Grid2
from sweeper.analysis.comparison.behaviour import examples
from sweeper.analysis.comparison.cells import Cell
from sweeper.analysis.comparison.stability import Rate
from sweeper.analysis.comparison.surface import Surface
from sweeper.analysis.figures.layouts import row_tones
from sweeper.analysis.findings.finding import names_of, short_name
from sweeper.analysis.findings.study import Study
from sweeper.analysis.page.celltables import (
    cell_figures,
    filter_pairs,
    setting_column,
    setting_text,
    sortable,
)
from sweeper.analysis.reading.checkpoints import choose_checkpoint
from sweeper.analysis.reading.commands import run_to_log
from sweeper.analysis.reading.costs import dollars
from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.analysis.statistics.inference import CONFIDENCE
from sweeper.results.cells import exp
from sweeper.store.documents import dotted
from sweeper.sweep.labels import plural

RUNS = 2000
"""The largest number of rows in the table of runs."""

_WITH_EXAMPLES = 400
_TEXT = 1200


def common(study: Study) -> str:
    """Return the configuration values that all runs have in common, as `key=value` lines."""
    configs = [dict(dotted(run.config)) for run in study.data.runs[:RUNS]]
    first = configs[0] if configs else {}
    shared = {key: value for key, value in first.items() if key not in study.ranking.keys}
    alike = {
        key: value
        for key, value in shared.items()
        if all(config.get(key, config) == value for config in configs)
    }
    return filter_pairs("", alike)


def run_rows(study: Study) -> list[dict[str, Any]]:
    """Return the rows of the table of runs, in the order of the ranking."""
    positions = {cell.name: i for i, cell in enumerate(study.ranking.cells)}
    colours = row_tones(study.ranking)
    cells = {cell.name: cell for cell in study.ranking.cells}
    columns = {key: setting_column(study.ranking.cells, key) for key in study.ranking.keys}
    runs = [run for cell in study.ranking.cells for run in cell.runs][:RUNS]
    return [
        {
            "run": run,
            "settings": [columns[key][positions[run.cell]] for key in study.ranking.keys],
            "pairs": filter_pairs(run.name, {**cells[run.cell].settings, "seed": run.seed}),
            "executed": [each.label(run) or labels.NONE for each in study.unlike],
            "rank": positions[run.cell] + 1,
            "cell": positions[run.cell],
            "tone": colours[run.cell],
            "state": "diverged" if run.diverged else run.state,
            "values": [(labels.number(v), sortable(v)) for v in (run.last, run.best, run.smoothed)],
            "steps": run.cost.steps,
            "tokens": run.cost.total,
            "dollars": dollars(run.cost, study.prices),
        }
        for run in runs
    ]


def executed(study: Study, cell: Cell) -> list[str]:
    """Return a text for each difference in `study.unlike`, such as code or data. Each text names
    the variants that the runs of the cell used."""
    texts: list[str] = []
    for each in study.unlike:
        names = dict.fromkeys(each.label(run) for run in cell.runs)
        texts.append(", ".join(name for name in names if name) or labels.NONE)
    return texts


def details(study: Study) -> dict[str, dict[str, Any]]:
    """Return a dict from run id to the details that the page shows when the run is clicked, as
    plain texts."""
    by_run: dict[str, dict[str, Any]] = {}
    split = study.behaviour.split if study.behaviour is not None else "train"
    runs = [run for cell in study.ranking.cells for run in cell.runs][:RUNS]
    for position, run in enumerate(runs):
        shown = examples(run, split, 2) if position < _WITH_EXAMPLES else []
        by_run[run.id] = {
            "name": run.name or run.id,
            "link": run.link,
            "facts": _facts(run),
            "config": [[key, labels.setting(value)[:_TEXT]] for key, value in dotted(run.config)],
            "log": list(run.log),
            "quoted": run_to_log(study.data, run),
            "rollouts": [
                {
                    "title": f"{example.why}: reward {labels.number(example.rollout.reward, 3)}, "
                    f"{plural(example.rollout.length, 'token')}, "
                    f"iteration {example.rollout.iteration}",
                    "prompt": example.rollout.prompt[:_TEXT],
                    "response": example.rollout.response[:_TEXT],
                    "reference": example.rollout.reference[:_TEXT],
                }
                for example in shown
            ],
        }
    return by_run


_CHECKPOINTS = {"sampler_path": "for sampling", "state_path": "for training", "path": ""}


def _facts(run: RunData) -> list[list[str]]:
    facts = [
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
        [f"checkpoint {purpose}".strip(), str(record[key])]
        for record in run.checkpoints[-1:]
        for key, purpose in _CHECKPOINTS.items()
        if record.get(key)
    ]
    return [pair for pair in [*facts, *paths] if pair[1]]


def heat(pair: Grid2, sign: float) -> list[dict[str, Any]]:
    """Return the rows of a heat map. A row has a `name` and `places`: for each column the mean as a
    text, its rank from 0 (worst) to 1 (best; None if there is no mean), and whether it is the best
    of its row."""
    means = [mean for row in pair.means for mean in row if mean is not None]
    places = labels.decimals(*means)
    least = min((abs(mean) for mean in means if mean), default=1.0)
    if places is not None and 1e-3 <= least < 1:  # two digits of the smallest mean too
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
    """Return the rows of the table of blocks."""
    blocks = study.blocks
    if blocks is None:
        return []
    keys = [key for key in study.ranking.keys if key not in blocks.keys]
    rows: list[dict[str, Any]] = []
    for block in blocks.blocks:
        best = block.best
        ends = [
            f"{e.axis} ({e.side}{', further out it diverged' if e.stopped else ''}"
            f"{f', {e.doubt}' if e.doubt else ''})"
            for e in block.edges
        ]
        rows.append(
            {
                "name": block.value,
                "settings": ["" if best is None else setting_text(best, key)[0] for key in keys],
                "mean": "no result" if best is None else cell_figures(best, None)["mean"],
                "interval": "" if best is None else cell_figures(best, None)["interval"],
                "checkpoint": None if best is None else _checkpoint(best, study),
                "tied": len(block.tied) if block.compared else None,
                "compared": block.compared,
                "standing": block.standing,
                "ends": labels.listed(ends) if ends else labels.NONE,
                "diverged": block.diverged,
                "cells": block.cells,
                "holes": [", ".join(f"{k} {v}" for k, v in row) for row in block.holes],
            }
        )
    return rows


def _checkpoint(cell: Cell, study: Study) -> str | None:
    """Return the checkpoint path of a cell's best run; None if the run has no checkpoint."""
    metric = study.data.metric
    run = None if metric is None else cell.best_run(metric.sign)
    checkpoint = None if metric is None or run is None else choose_checkpoint(run, metric.at)
    return None if checkpoint is None else checkpoint.path


def surface_rows(surface: Surface | None) -> list[dict[str, str]]:
    """Return the rows of the table of axes in the model of all axes."""
    return [
        {
            "axis": axis.key,
            "share": labels.percent(axis.importance.value),
            "interval": _between(axis.importance.low, axis.importance.high),
            "permuted": labels.percent(max(axis.permuted.value, 0.0)),
            "spread": _between(max(axis.permuted.low, 0.0), max(axis.permuted.high, 0.0)),
            "p": labels.p_value(axis.p),
        }
        for axis in (surface.axes if surface is not None else ())
    ]


def _between(low: float, high: float) -> str:
    return f"{labels.percent(low)} to {labels.percent(high)}"


def rate_rows(rates: Sequence[Rate]) -> list[dict[str, Any]]:
    """Return the rows of the table that counts diverged and unstable runs for each value of an
    axis."""
    return [
        {
            "axis": rate.axis,
            "value": rate.value,
            "count": rate.count,
            "trials": rate.trials,
            "share": labels.percent(rate.count / rate.trials),
            "interval": _between(rate.low, rate.high),
            "from": round(100 * rate.low, 1),
            "to": round(100 * rate.high, 1),
            "at": round(100 * rate.count / rate.trials, 1),
        }
        for rate in rates
    ]


def paired_about(study: Study) -> str:
    """Describe the table of differences over shared seeds, and say why the table may be less
    certain than the verdict."""
    cells = [cell for cell in study.ranking.others if cell.name in study.paired]
    text = (
        "The mean difference over the seeds that both cells have, with the 95 % interval of a "
        "paired t test. Intervals and p are corrected for all pairs of cells, because the data "
        "chose the best (Bonferroni). Each row uses only the runs of its two cells."
    )
    unsure = [
        cell
        for cell in cells
        if (compared := study.ranking.comparisons.get(cell.name)) is not None
        and compared.told_apart
        and (estimate := study.paired[cell.name]).p is not None
        and estimate.p > 1 - CONFIDENCE
    ]
    if unsure:
        text += (
            f" For {labels.listed(names_of(unsure), 3)} this table is less certain than the "
            "verdict. The two do not contradict each other: the verdict estimates the noise from "
            "all cells, this table from a few shared seeds. The verdict counts; this table is a "
            "check that does not assume equal noise in all cells."
        )
    return text


def paired_rows(study: Study) -> list[dict[str, Any]]:
    """Return the rows of the table of differences from the best over shared seeds."""
    log = study.ranking.scale == "log"
    rows: list[dict[str, Any]] = []
    for cell in study.ranking.others:
        estimate = study.paired.get(cell.name)
        if estimate is None or estimate.low is None or estimate.high is None:
            continue
        shown = [estimate.value, estimate.low, estimate.high]
        texts = [labels.ratio(exp(v)) if log else labels.difference(v) for v in shown]
        rows.append(
            {
                "name": short_name(cell),
                "value": texts[0],
                "interval": f"{texts[1]} to {texts[2]}",
                "p": labels.p_value(estimate.p),
            }
        )
    return rows


def provenance(data: SweepData) -> list[tuple[str, str]]:
    """Return the provenance of the runs as (name, text) pairs. If there were several launches, a
    pair describes each launch. All facts about the last launch follow."""
    if data.plan is None:
        return []
    runs = [(run.origin, run) for run in data.runs if run.origin is not None]
    origins = {id(origin): origin for origin, _ in runs}
    used = sorted(origins.values(), key=lambda origin: origin.launched or "")
    rows: list[tuple[str, str]] = []
    for origin in used if len(used) > 1 else []:
        count = sum(run_origin is origin for run_origin, _ in runs)
        facts = {"commit": origin.commit, "code": origin.code, "command": origin.get("command")}
        text = ", ".join(f"{key} {value}" for key, value in _flat(facts))
        rows.append((f"{plural(count, 'run')} launched {origin.launched}", text))
    rows += _flat(used[-1].record if used else data.plan.provenance or {})
    return [*rows, *([("launched", data.plan.created)] if data.plan.created else [])]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key} ")  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, list):
            yield f"{prefix}{key}", shlex.join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]
        elif value is not None:
            yield f"{prefix}{key}", labels.setting(value)
