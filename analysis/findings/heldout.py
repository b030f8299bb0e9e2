"""Adds held-out results to the verdict of a sweep that is judged by training data. If the gap
between held-out and training results is significant, the verdict mentions it. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Cell, Ranking, rank
from sweeper.analysis.comparison.items import Compared
from sweeper.analysis.findings.finding import Finding, names_of, short_name
from sweeper.analysis.findings.verdict import Check, Verdict
from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.analysis.reading.keys import goal_of
from sweeper.analysis.reading.metric import Metric
from sweeper.analysis.reading.splits import counterparts, is_held_out, is_training, same_quantity
from sweeper.analysis.statistics.inference import Estimate, contrast, student
from sweeper.analysis.statistics.noise import Spread
from sweeper.analysis.statistics.seeds import Summary
from sweeper.results.cells import counts

SURE = 0.05
_POINTS = 8
"""The smallest number of values of a training curve from which the noise of batches is
estimated."""
_EFFICIENCY = 0.5
"""The degrees of freedom that each second difference contributes."""


class Side(NamedTuple):
    """The values of a cell on training data and on held-out data. If a cell did not record one of
    the two metrics, `n` is 0 in the summary of this metric."""

    cell: str
    training: Summary
    held_out: Summary


@dataclass(frozen=True)
class HeldOut:
    """A comparison of training and held-out values. `judged` says whether the sweep is judged by
    the `training` metric. `ranking` ranks the cells by the held-out metric. `gap` says how much
    worse held-out values are than training values, as a mean over all cells. `gap` is None if the
    metrics measure different quantities or no cell has both values."""

    metric: Metric
    training: str
    judged: bool
    ranking: Ranking
    sides: tuple[Side, ...]
    gap: Estimate | None

    @property
    def says_gap(self) -> bool:
        """Whether runs are significantly worse on held-out data than in training."""
        gap = self.gap
        return gap is not None and gap.value > 0 and gap.p is not None and gap.p <= SURE

    def side(self, cell: Cell) -> Side | None:
        """Return the values of a cell; None if neither value was recorded."""
        return next((side for side in self.sides if side.cell == cell.name), None)


def held_out(data: SweepData, ranking: Ranking) -> HeldOut | None:
    """Return the comparison of training and held-out values; None if only one of the two was
    recorded, or if neither the sweep nor a block has a best cell."""
    metric = data.metric
    if metric is None or not (ranking.best or ranking.leaders):
        return None
    pair = _pair(data, metric, ranking)
    if pair is None:
        return None
    held, training, judged = pair
    by_held = rank(_judged_by(data, held)) if judged else ranking
    by_training = ranking if judged else rank(_judged_by(data, Metric(training, metric.goal)))
    by_cell_held = {cell.name: cell for cell in by_held.cells}
    by_cell_training = {cell.name: cell for cell in by_training.cells}
    sides = tuple(
        Side(cell.name, by_cell_training[cell.name].summary, by_cell_held[cell.name].summary)
        for cell in ranking.cells
        if by_cell_held[cell.name].summary.n or by_cell_training[cell.name].summary.n
    )
    alike = same_quantity(training, held.name)
    gap = _gap(ranking, held, training) if alike else None
    return HeldOut(held, training, judged, by_held, sides, gap)


def _pair(data: SweepData, metric: Metric, ranking: Ranking) -> tuple[Metric, str, bool] | None:
    """Return the held-out metric, the training metric, and whether the sweep is judged by the
    training metric. None if the runs did not record both metrics."""
    recorded = {key for run in data.runs if run.counts for key in run.curves}
    for key in counterparts(metric.name, frozenset(recorded)):
        goal = metric.goal if same_quantity(key, metric.name) else goal_of(key)
        whole = all(key in run.curves for run in _counting(ranking))
        if goal is not None and whole:
            return Metric(key, goal), metric.name, True
    train = data.train_key
    if is_held_out(metric.name) and train is not None and same_quantity(train, metric.name):
        return metric, train, False
    return None


def _counting(ranking: Ranking) -> list[RunData]:
    return [run for cell in ranking.cells for run in cell.runs if run.counts]


def _judged_by(data: SweepData, metric: Metric) -> SweepData:
    """Return `data` with its runs judged by their last value of `metric`. Runs that do not count in
    comparisons get no value. The sweep's rule for failed runs is kept. Values lent by other sweeps
    are removed, because they are values of the sweep's own metric."""
    current = data.metric
    if current is not None:
        metric = replace(metric, failed=current.failed)

    def judged(run: RunData) -> RunData:
        value = run.last_of(metric.name) if run.counts else None
        fine = counts(run.state, value, diverged=False)
        return replace(run, value=value if fine else None, diverged=False)

    runs = tuple(judged(run) for run in data.runs)
    return replace(data, metric=metric, runs=runs, lent={})


def _gap(ranking: Ranking, held: Metric, training: str) -> Estimate | None:
    """Return the mean gap over all cells; None if no cell has a gap. The interval allows for the
    noise between runs (between cells, if a cell has a single run) and for the noise of the last
    training batches. Without an estimate of both, the result has no interval."""
    groups: list[list[float]] = []
    for cell in ranking.cells:
        ends = [(run.last_of(held.name), run.last_of(training)) for run in cell.runs if run.counts]
        gaps = [held.sign * (a - b) for a, b in ends if a is not None and b is not None]
        if gaps and all(map(math.isfinite, gaps)):
            groups.append(gaps)
    if not groups:
        return None
    if min(map(len, groups)) < 2:
        groups = [[math.fsum(gaps) / len(gaps) for gaps in groups]]
    gap = contrast(groups, [1 / len(groups)] * len(groups))
    luck = _of_batches(ranking, training)
    if gap.error is None or gap.df is None or luck is None:
        return Estimate(gap.value)
    parts = (gap.error**2, gap.df), (luck.sd**2, luck.df)
    square = sum(part for part, _ in parts)
    df = square**2 / sum(part**2 / free for part, free in parts)
    return student(gap.value, math.sqrt(square), df)


def _of_batches(ranking: Ranking, training: str) -> Spread | None:
    """Return the noise of the mean training curve from step to step, estimated from its last
    values. None if the curve is too short or has values that are not finite."""
    curves = [run.curves[training].values for run in _counting(ranking) if training in run.curves]
    last = min(map(len, curves), default=0)
    if last < _POINTS:
        return None
    last = min(last, 5 * _POINTS)
    mean = np.mean([values[-last:] for values in curves], axis=0)
    bends = np.diff(mean, 2)
    if not np.isfinite(bends).all():
        return None
    return Spread(math.sqrt(float((bends**2).mean()) / 6), _EFFICIENCY * len(bends))


def held_out_findings(held: HeldOut | None, ranking: Ranking) -> list[Finding]:
    """Return a finding if the sweep is judged by training data, and a finding if runs are
    significantly worse on held-out data than in training."""
    best = ranking.best
    if held is None or not (best or ranking.leaders):
        return []
    findings: list[Finding] = []
    if held.judged and best is None:
        text = (
            f"The sweep is judged by {held.training}, {_remark(held)}. To judge by held-out data, "
            f"use --metric {held.metric.name}."
        )
        findings.append(Finding("judged_in_training", "warning", text))
    elif held.judged and best is not None:
        findings.append(_judged_in_training(held, best))
    if held.says_gap and held.gap is not None:
        gap = held.gap
        mean, low, high = labels.within(gap.value, gap.low, gap.high)
        text = (
            f"On average over the cells {held.metric.name} is worse than {held.training} by "
            f"{mean} ({low} to {high})."
        )
        evidence = {"training": held.training, "held_out": held.metric.name, **gap._asdict()}
        cells = () if best is None else (best.name,)
        findings.append(Finding("gap", "warning", text, cells, evidence))
    return findings


def _remark(held: HeldOut) -> str:
    if is_training(held.training):
        return "a value on training data"
    return "which does not say that its data are held out"


def _judged_in_training(held: HeldOut, best: Cell) -> Finding:
    text = f"The sweep is judged by {held.training}, {_remark(held)}. {_held_standing(held, best)}"
    evidence = {"metric": held.training, "held_out": held.metric.name, "kind": _kind(held, best)}
    level = "good" if evidence["kind"] == "ahead" else "warning"
    return Finding("judged_in_training", level, text, (best.name,), evidence)


def _kind(held: HeldOut, best: Cell) -> str:
    """Return how the cell that is best in training stands in the held-out ranking: "ahead" of all
    cells, "worse" than the best cell of that ranking, "tied", or "unknown"."""
    ranking = held.ranking
    top = ranking.best
    if top is None or not ranking.comparisons:
        return "unknown"
    if top.name == best.name:
        return "tied" if ranking.tied or ranking.not_compared else "ahead"
    comparison = ranking.comparisons.get(best.name)
    if comparison is None:
        return "unknown"
    return "worse" if comparison.told_apart else "tied"


def _held_standing(held: HeldOut, best: Cell) -> str:
    name, top = held.metric.name, held.ranking.best
    kind = _kind(held, best)
    if kind == "ahead":
        return f"By {name}, held out, the best cell is ahead of every other cell too."
    if kind == "worse" and top is not None:
        return f"By {name}, held out, {short_name(top)} is better beyond the noise."
    if kind == "tied" and top is not None and top.name != best.name:
        return f"By {name}, held out, {short_name(top)} has the better mean, within the noise."
    if kind == "tied":
        tied = labels.listed(names_of(held.ranking.tied), 3)
        return f"By {name}, held out, noise can explain its lead{f' over {tied}' if tied else ''}."
    return f"By {name}, held out, the cells cannot be compared."


def told_with(
    verdict: Verdict, held: HeldOut | None, items: Sequence[Compared], ranking: Ranking
) -> Verdict:
    """Return the verdict with the held-out value of the best cell, if the sweep is judged by
    training data. Otherwise, if the best cell has no interval over runs, add its interval over
    items."""
    best = ranking.best
    if best is None:
        return verdict
    side = held.side(best) if held is not None and held.judged else None
    if held is not None and side is not None and side.held_out.mean is not None:
        return _headed(verdict, held, side, best)
    over = item_interval(best, items)
    if over is not None and best.summary.low is None:
        low, high, count = over
        mean, below, above = labels.within(best.summary.mean, low, high)
        runs = _without_spread(best.summary)
        spread = f"{runs}; over {count} questions the 95 % interval is {below} to {above}"
        return replace(verdict, number=mean, spread=spread)
    return verdict


def item_interval(cell: Cell, items: Sequence[Compared]) -> tuple[float, float, int] | None:
    """Return the bounds of a cell's interval over items, and the number of items. None if the
    cell's value is not the mean of its recorded items."""
    for task in items:
        side = next((entry for entry in task.cells if entry.cell == cell.name), None)
        mean = cell.summary.mean
        if side is not None and mean is not None and abs(side.mean - mean) * task.items < 0.5:
            return side.low, side.high, task.items
    return None


def _headed(verdict: Verdict, held: HeldOut, side: Side, best: Cell) -> Verdict:
    kind = _kind(held, best)
    mean, spread = _number(side.held_out)
    trained = labels.together(side.training.mean)[0]
    sentences = {
        "ahead": "and ahead held out",
        "tied": "tied held out",
        "worse": "worse held out",
        "unknown": "held out not known",
    }[kind]
    standing, edge, rest = verdict.label.partition(",")
    change: dict[str, Any] = {"kind": verdict.kind if kind == "ahead" else "unproven"}
    if verdict.effect is not None:
        change["effect"] = f"in training {verdict.effect}"
    return replace(
        verdict,
        label=f"{standing} in training, {sentences}{edge}{rest}",
        measure=f"{verdict.measure}; shown below: the last value of {held.metric.name}, held out",
        number=mean,
        spread=f"held out, {spread}; in training {trained}",
        checks=tuple(_checks(verdict, kind)),
        steps=(*verdict.steps, f"Judge by held-out data: --metric {held.metric.name}."),
        **change,
    )


def _checks(verdict: Verdict, kind: str) -> Iterator[Check]:
    """Yield the checks of the verdict, with a check about held-out data after the check about
    noise."""
    held = {"ahead": "ahead there too", "tied": "tied", "worse": "worse than another"}
    answer = Check("Held out?", held.get(kind, "not known"), kind == "ahead")
    for position, check in enumerate(verdict.checks):
        if position == 0 and check.name == "Beyond the noise?":
            yield check._replace(answer=f"in training {check.answer}")
            yield answer
        else:
            yield check


def _without_spread(summary: Summary) -> str:
    return "one run" if summary.n == 1 else f"{summary.n} identical runs"


def _number(summary: Summary) -> tuple[str, str]:
    if summary.low is None or summary.high is None:
        runs = _without_spread(summary)
        return labels.together(summary.mean)[0], f"{runs}, so no interval over seeds"
    mean, low, high = labels.within(summary.mean, summary.low, summary.high)
    return mean, f"mean of {summary.n} seeds, 95 % interval {low} to {high}"
