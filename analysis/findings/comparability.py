"""Makes the findings about runs that are not comparable. The report shows these findings first.
Runs may differ in code, data or last step; if runs are judged by their best evaluation, evaluations
may differ in noise. Pure."""

import math
import re
import shlex
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.findings.finding import Finding, short_name
from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.analysis.reading.series import Series
from sweeper.analysis.statistics.distributions import maximum_quantile
from sweeper.results.origins import differences, sentences

KINDS = ("executed", "unequal_steps", "noisier_best", "maybe_noisier")
"""The kinds of the findings about comparability."""

_APART = 0.05
"""Last steps that differ by a smaller fraction than this count as equal."""
_NOISIER = 1.25
_SURE = 3.5
"""The number of standard errors by which a ratio of scatters must exceed 1 to count as a
difference."""
_MAYBE = 2.5
"""The number of standard errors by which the ratio of scatters may be larger than estimated."""
_POINTS = 8
"""The smallest number of evaluations from which the scatter of a run is estimated."""
_EFFICIENCY = 0.37
"""The degrees of freedom that each value contributes to a median, for normal noise."""
_ALTERNATES = -0.3
_BEND = 1.4826 / math.sqrt(6)
"""The factor from the median of absolute second differences to the standard deviation of single
values."""
_LENGTHS = re.compile(r"step|epoch|batch|iter|budget|length|token|example|eval|duration|accum")


def tell_unlike(data: SweepData, ranking: Ranking) -> list[Finding]:
    """Return all findings of this module, the most serious first."""
    return [*_executed(data), *_unequal_steps(data, ranking), *_noisier_best(data, ranking)]


def unlike(findings: Sequence[Finding]) -> str:
    """Return a phrase for the headline that names the differences between the compared runs; ""
    without differences."""
    parts: list[str] = []
    for finding in findings:
        if finding.level != "warning" or finding.kind not in KINDS:
            continue
        if finding.kind == "executed":
            parts.append(f"different {labels.listed(list(finding.evidence or {}), 2)}")
        else:
            parts.append(_HEADLINE[finding.kind])
    return labels.listed(parts)


_HEADLINE = {
    "unequal_steps": "different lengths",
    "noisier_best": "unequal noise of single evaluations",
    "maybe_noisier": "possibly unequal noise of single evaluations",
}


def _executed(data: SweepData) -> list[Finding]:
    """Return a finding if the programs, packages, services or data differ between the runs that
    count in comparisons."""
    origins = differences(run for run in data.runs if run.counts)
    if not origins:
        return []
    text = (
        f"The runs differ in more than their settings: {'; '.join(sentences(origins))}. "
        f"This may explain a difference between cells. {_again(data)}"
    )
    evidence = {
        each.kind: {label: [run.name for run in runs] for label, runs in each.groups}
        for each in origins
    }
    return [Finding("executed", "warning", text, (), evidence)]


def _again(data: SweepData) -> str:
    if len(data.names) > 1 or not data.root:
        return "Compare only runs that are alike."
    retry = shlex.join(["sweeper", "retry", data.name, "--state", "succeeded"])
    return f"Run all of them again (`{retry}`), or compare only runs that are alike."


class _End(NamedTuple):
    """A cell, and the median of the steps at which its runs last recorded the metric."""

    cell: Cell
    step: float


def _unequal_steps(data: SweepData, ranking: Ranking) -> list[Finding]:
    """Return a finding if cells are compared at different steps. The finding names the best cell at
    the last step that all cells have reached."""
    metric = data.metric
    if metric is None or ranking.best is None or not ranking.others:
        return []
    ends: list[_End] = []
    for cell in (ranking.best, *ranking.others):
        steps = [float(curve.steps[-1]) for curve in _curves(data, cell)]
        if steps:
            ends.append(_End(cell, median(steps)))
    if len(ends) < 2:
        return []
    short, long = (choose(ends, key=lambda end: end.step) for choose in (min, max))
    if long.step - short.step <= max(1.0, _APART * long.step):
        return []
    text = (
        f"Cells are compared at different steps: {short_name(short.cell)} ended at step "
        f"{short.step:g}, {short_name(long.cell)} at {long.step:g}."
    )
    at_same = _best_at(data, [end.cell for end in ends], short.step)
    if at_same is not None:
        text += f" At step {short.step:g} the best is {short_name(at_same)}."
    meant = any(_LENGTHS.search(key.lower()) for key in ranking.keys)
    if meant:
        text += " If a setting is meant to change the number of steps, this is part of its effect."
    else:
        text += " Run all to the same step before you believe a difference."
    evidence = {
        "steps": {end.cell.name: end.step for end in ends},
        "best_at_the_shortest": None if at_same is None else at_same.name,
    }
    level = "note" if meant else "warning"
    cells = (short.cell.name, long.cell.name)
    return [Finding("unequal_steps", level, text, cells, evidence)]


def _best_at(data: SweepData, cells: Sequence[Cell], step: float) -> Cell | None:
    """Return the cell with the best mean at a step. A run without a value at this step counts with
    its last earlier value. None if a cell has no value up to this step, or if a value is not
    finite."""
    means: dict[str, float] = {}
    for cell in cells:
        seen = [points.values[points.steps <= step] for points in _curves(data, cell)]
        values = [float(before[-1]) for before in seen if len(before)]
        if not values or not all(map(math.isfinite, values)):
            return None
        means[cell.name] = math.fsum(value / len(values) for value in values)
    best = min(means, key=lambda name: data.sign * means[name])
    return next(cell for cell in cells if cell.name == best)


def _noisier_best(data: SweepData, ranking: Ranking) -> list[Finding]:
    """Return a finding if runs are judged by their best evaluation, and the evaluations of the best
    cell vary more, or may vary more, than those of another cell. (The best of noisier values is
    better by chance.)"""
    best = ranking.best
    if data.metric is None or data.metric.at != "best" or best is None:
        return []
    if (spread := _scatter(data, best)) is None:
        return []
    scatters = [(cell, scatter) for cell in ranking.others if (scatter := _scatter(data, cell))]
    calmer = [
        (cell, sd)
        for cell, (sd, df) in scatters
        if spread[0] > _NOISIER * sd
        and math.log(spread[0] / sd) > _SURE * math.sqrt(0.5 / spread[1] + 0.5 / df)
    ]
    if not calmer:
        return _maybe_noisier(data, ranking, best, spread)
    cell, sd = min(calmer, key=lambda pair: pair[1])
    high, low = labels.together(spread[0], sd)
    text = (
        f"Each run is judged by its best evaluation, and single evaluations of {short_name(best)} "
        f"vary more than those of {short_name(cell)} ({high} against {low}): the best of "
        "noisier values is better by chance. Judge by --at last or --at mean_of_last=5."
    )
    evidence = {"scatter": {best.name: spread[0]} | {cell.name: sd for cell, sd in calmer}}
    return [Finding("noisier_best", "warning", text, (best.name, cell.name), evidence)]


def _maybe_noisier(
    data: SweepData, ranking: Ranking, best: Cell, spread: tuple[float, float]
) -> list[Finding]:
    """Return a finding if the lead of the best cell could be due to noisier evaluations of this
    cell. The list is empty if a cell is tied with the best, since there is no lead to explain."""
    counts = [len(points.values) for points in _curves(data, best)]
    if ranking.tied or not ranking.apart or not counts:
        return []
    gain = maximum_quantile(0.5, max(counts), 1e6)
    for cell in ranking.apart:
        scatter = _scatter(data, cell)
        if scatter is None or cell.summary.mean is None or best.summary.mean is None:
            continue
        lead = data.sign * (cell.summary.mean - best.summary.mean)
        most = spread[0] * math.exp(_MAYBE * math.sqrt(0.5 / spread[1] + 0.5 / scatter[1]))
        if lead <= gain * (most - scatter[0]):
            high, low = labels.together(most, scatter[0])
            text = (
                f"Each run is judged by its best evaluation. Single evaluations of "
                f"{short_name(best)} may vary by up to {high}, those of {short_name(cell)} vary by "
                f"{low}: this alone could explain the lead. Judge by --at last or --at "
                "mean_of_last=5."
            )
            return [Finding("maybe_noisier", "warning", text, (best.name, cell.name))]
    return []


def _scatter(data: SweepData, cell: Cell) -> tuple[float, float] | None:
    """Return the standard deviation of evaluations around the trend of their run, and its degrees
    of freedom. Only the second half of each run is used. None if the noise cannot be estimated."""
    bends = [
        np.diff(points.values[len(points.values) // 2 :], 2)
        for points in (curve.finite for curve in _curves(data, cell))
        if len(points.values) >= _POINTS
    ]
    if not bends:
        return None
    # Second differences of noise alternate in sign (their correlation is -2/3); a bend's do not.
    turns = sum(float(np.dot(bend[1:], bend[:-1])) for bend in bends)
    if not turns < _ALTERNATES * sum(float(np.dot(bend, bend)) for bend in bends):
        return None
    joined = np.abs(np.concatenate(bends))
    sd = _BEND * float(np.median(joined))
    return (sd, _EFFICIENCY * len(joined)) if 0 < sd < math.inf else None


def _curves(data: SweepData, cell: Cell) -> list[Series]:
    runs: list[RunData] = [run for run in cell.runs if run.counts]
    curves = [run.curves.get(data.metric_name or "") for run in runs]
    return [points for points in curves if points]
