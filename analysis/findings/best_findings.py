"""Makes the findings about the best cell: its comparison with the other cells, or the reason why
there is no best cell. Pure."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.blocks import Blocks
from sweeper.analysis.comparison.cells import Cell, Ranking, uneven_best
from sweeper.analysis.findings.finding import Finding, behind, method, names_of, short_name
from sweeper.analysis.reading.frames import PENDING, SweepData
from sweeper.analysis.statistics.noise import FEW
from sweeper.analysis.statistics.seeds import may_hide_collapse
from sweeper.sweep.labels import plural

DEALS = 20
"""Chance alone may separate two cells if their runs can be divided between them in fewer ways
than this. Six runs can be divided into three and three in 20 ways, four runs into two and two in
6 ways."""


def standing(data: SweepData, ranking: Ranking, blocks: Blocks | None = None) -> list[Finding]:
    """Return the findings about the best cell, or about the best cell of each block."""
    if blocks is not None and ranking.leaders:
        return [_by_blocks(blocks)]
    best = ranking.best
    if data.metric is None or best is None:
        return [_nothing(data, ranking)]
    if not ranking.others:
        return [_alone(ranking, best)]
    findings: list[Finding] = []
    if ranking.equal and not ranking.comparisons:
        text = _equal(ranking, best, data.metric.sign)
        findings.append(Finding("tied", "warning", text, _tied(ranking, best)))
    if ranking.comparisons:
        findings.append(_compared(ranking, best, data.metric.sign))
        findings += _few_runs(ranking, best)
    if ranking.not_compared:
        findings.append(_not_compared(data, ranking, best))
    return findings


def _by_blocks(blocks: Blocks) -> Finding:
    """Return a finding that counts the blocks whose best cell is ahead of all other cells of the
    block."""
    judged = [block for block in blocks.blocks if block.best is not None]
    ahead = [block for block in judged if block.ahead]
    tied = [block for block in judged if block.tied]
    unknown = [block for block in judged if not block.compared and block.cells > 1]
    cells = tuple(block.best.name for block in judged if block.best is not None)
    groups = {"ahead": ahead, "tied": tied, "not_known": unknown}
    values = {kind: [block.value for block in group] for kind, group in groups.items()}
    evidence: dict[str, Any] = {"by": blocks.by, **values}
    if len(unknown) == len(judged):
        text = "The noise is unknown: in each block, the best cell may just have been lucky."
        return Finding("by_blocks", "warning", text, cells, evidence)
    parts = [
        (tied, "noise can explain the lead of the best cell over some others"),
        (unknown, "the noise is unknown"),
        (ahead, "the best cell is ahead of every other beyond the noise"),
    ]
    listed = "; ".join(f"in {len(group)} {reason}" for group, reason in parts if group)
    text = f"Of {len(judged)} blocks, each judged by itself: {listed}."
    single = [block for block in ahead if block.best is not None and block.best.summary.n == 1]
    if single:
        text += (
            f" In {plural(len(single), 'block')} with such a lead, the best cell has a single run, "
            "judged by the noise of other cells: a lucky run would look the same."
        )
    sure = len(ahead) == len(judged) and not single
    return Finding("by_blocks", "good" if sure else "warning", text, cells, evidence)


def _alone(ranking: Ranking, best: Cell) -> Finding:
    diverged = [cell for cell in ranking.cells if cell.diverged]
    if diverged:
        subject = "The other cell" if len(diverged) == 1 else f"The {len(diverged)} other cells"
        text = f"{subject} with a result diverged: nothing is left to compare it with."
    elif len(ranking.cells) == 1:
        text = "It is the only cell of the sweep: there is nothing to compare it with."
    else:
        text = "No other cell has a value: there is nothing to compare it with."
    return Finding("alone", "note", text, (best.name,))


def _tied(ranking: Ranking, best: Cell) -> tuple[str, ...]:
    return tuple(cell.name for cell in (best, *ranking.tied))


def _equal(ranking: Ranking, best: Cell, sign: float) -> str:
    value = best.summary.mean
    text = (
        f"{labels.listed(names_of([best, *ranking.equal]), 4)} are tied: the mean of each is "
        f"exactly {labels.brief(value)}"
    )
    if value == ranking.bounds[0 if sign > 0 else 1]:
        return f"{text}, and the metric cannot be better, so it cannot separate them."
    return f"{text}."


def _compared(ranking: Ranking, best: Cell, sign: float) -> Finding:
    tied, apart = ranking.tied, ranking.apart
    names = _tied(ranking, best)
    evidence: dict[str, Any] = {
        "method": method(ranking.scale, ranking.noise),
        "scale": ranking.scale,
        "compared": len(ranking.comparisons) + 1,
        "p": {cell: comparison.p for cell, comparison in ranking.comparisons.items()},
    }
    if tied:
        equal = {cell.name for cell in ranking.equal}
        # A cell with failed runs may have a better mean than the best, so there is no lead over it.
        held = [cell for cell in tied if cell in ranking.held_back]
        trailing = [cell for cell in tied if cell.name not in equal and cell not in held]
        text = _equal(ranking, best, sign) if equal else ""
        if held:
            left = labels.listed(names_of(held), 3)
            text += f" The best cell is not ahead of {left}, because some of their runs failed."
        if trailing:
            listed = labels.listed(names_of(trailing), 3)
            text += f" Noise between seeds alone can explain its lead over {listed}."
        if best.name in ranking.noise.noisier:
            text += (
                f" The runs of {short_name(best)} differ more than those of the others, so its "
                "lead is judged by its own noise."
            )
        text = text.strip()
        worse = [cell for cell in apart if ranking.comparisons[cell.name].beyond]
        evidence["worse"] = [cell.name for cell in worse]
        return Finding("tied", "warning", text + _unlikely(apart, worse), names, evidence)
    nearest = max(apart, key=lambda cell: ranking.comparisons[cell.name].p)
    compared = ranking.comparisons[nearest.name]
    low, high = compared.interval()
    evidence["nearest"] = {"cell": nearest.name, "low": low, "high": high}
    by = behind(compared, sign)
    runs = [cell.summary.n for cell in (best, *apart)]
    may_hide = may_hide_collapse(ranking.noise, runs)
    evidence["may_hide_collapse"] = may_hide
    noise = "noise that these runs show" if may_hide else "noise between seeds"
    if len(apart) == 1:
        text = f"The only other cell compared, {short_name(nearest)}, is worse beyond the {noise}."
    else:
        text = (
            f"Every other cell compared is worse beyond the {noise}. The closest, "
            f"{short_name(nearest)}, is {by.worse(by.interval)} (95 %, for all cells at once)."
        )
    if may_hide:
        text += (
            f" If some runs of a cell collapse, {plural(max(runs), 'run')} may miss that by luck. "
            "Six runs of each cell would probably show it."
        )
    return Finding("separated", "good", text, names, evidence)


def _unlikely(apart: Sequence[Cell], worse: Sequence[Cell]) -> str:
    """Describe the cells in `apart`, which are unlikely to be the best, and name those in `worse`,
    which are worse than the best beyond the noise. Return "" if `apart` is empty."""
    if not apart:
        return ""
    text = f" {plural(len(apart), 'cell is', 'cells are')} unlikely to be the best"
    if not worse:
        return f"{text}."
    if len(worse) == len(apart):
        return f"{text}, and worse beyond the noise."
    verb = "is" if len(worse) == 1 else "are"
    return f"{text}; of these {labels.listed(names_of(worse), 3)} {verb} worse beyond the noise."


def _few_runs(ranking: Ranking, best: Cell) -> list[Finding]:
    """Return a warning if the lead of the best cell rests on too few runs: on a single run, or on
    fewer runs than `DEALS` requires if the noise of each cell is estimated separately. The list is
    empty if a cell is tied with the best."""
    if ranking.tied or ranking.equal:
        return []
    nearest = max(ranking.apart, key=lambda cell: ranking.comparisons[cell.name].p)
    runs = sorted((best.summary.n, nearest.summary.n))
    if best.summary.n == 1:
        text = (
            f"The lead rests on a single run of {short_name(best)}, judged by the noise of other "
            "cells. A lucky run would look the same: run more seeds of this cell to decide."
        )
    elif _each_its_own(ranking) and math.comb(sum(runs), runs[0]) < DEALS:
        text = (
            f"The lead rests on {runs[0]} runs against {runs[1]}, each cell with its own noise. If "
            "runs end at one of only two values, equal cells show such a lead in up to one of "
            "eight sweeps. Run three seeds of each cell to decide."
        )
    else:
        return []
    names = (best.name, nearest.name)
    return [Finding("few_runs", "warning", text, names, {"runs": runs})]


def _each_its_own(ranking: Ranking) -> bool:
    """Return whether each comparison uses only the noise of the two compared cells."""
    noise = ranking.noise
    return not noise.shared or (noise.between is not None and len(noise.spreads) < FEW)


def _not_compared(data: SweepData, ranking: Ranking, best: Cell) -> Finding:
    cells = tuple(cell.name for cell in ranking.not_compared)
    evidence = {"n": {cell.name: cell.summary.n for cell in (best, *ranking.not_compared)}}
    uneven = uneven_best(data, ranking.measured)
    if uneven is not None:
        text = (
            f"Runs of some cells were evaluated {uneven[0]} times, of others {uneven[1]}, and each "
            "is judged by its best value: the best of more values is better by chance alone. So "
            "cells are not compared. Judge by the last value, or by the mean of the last few."
        )
        return Finding("uneven_best", "warning", text, cells, {"evaluations": list(uneven)})
    if ranking.comparisons:
        text = (
            f"{plural(len(cells), 'cell')} with one run, or identical ones, could not be "
            "compared: their noise is unknown."
        )
    elif best.summary.n == 1:
        text = (
            "The best cell has a single finished run. Its lead may be a better setting "
            "or a luckier seed."
        )
    elif best.summary.identical:
        text = "The runs of the best cell are identical: they show nothing about its noise."
    else:
        text = "The other cells have one run each, or identical ones: their noise is unknown."
    return Finding("not_compared", "warning", text, cells, evidence)


def _nothing(data: SweepData, ranking: Ranking) -> Finding:
    states = Counter(run.state for run in data.runs)
    evidence: dict[str, Any] = {"states": dict(sorted(states.items()))}
    recorded = labels.listed(list(data.keys), 6)
    if not states["succeeded"]:
        if not data.runs:
            text = "The sweep has no runs."
        elif states["failed"] == len(data.runs):
            text = f"Every run failed.{_last_words(data)}"
        elif any(states[state] for state in PENDING):
            text = "No run has succeeded yet."
        else:
            text = "No run succeeded."
        return Finding("nothing_done", "warning", text, (), evidence)
    if data.metric is None:
        hint = f" Recorded: {recorded}." if recorded else ""
        text = f"Neither the grid nor the command names a metric to compare by.{hint}"
        return Finding("no_metric", "warning", text, (), {"keys": list(data.keys)})
    if ranking.measured and not any(cell.diverged for cell in ranking.measured):
        value = labels.number(ranking.measured[0].summary.mean)
        text = (
            f"All runs of {plural(len(ranking.measured), 'cell')} gave {data.metric.name} "
            f"{value}: their settings make no difference, or do not reach the recipe."
        )
        cells = tuple(cell.name for cell in ranking.measured)
        return Finding("all_equal", "warning", text, cells, {"value": value})
    if any(run.diverged for run in data.runs):
        text = (
            f"In every cell with a value of {data.metric.name} a run diverged: its last value is "
            "NaN or infinite."
        )
        cells = tuple(cell.name for cell in ranking.cells if cell.diverged)
        return Finding("all_diverged", "warning", text, cells)
    hint = f" Recorded: {recorded}." if recorded else " They recorded no numbers at all."
    not_numbers = {key: value for run in data.runs for key, value in run.not_numbers.items()}
    if data.metric.name in not_numbers:
        hint = f" It is {not_numbers.pop(data.metric.name)}.{hint}"
    if not_numbers:
        shown = labels.listed([f"{key} ({value})" for key, value in not_numbers.items()], 4)
        hint += f" Not numbers: {shown}."
    text = f"No finished run recorded a number as {data.metric.name}.{hint}"
    return Finding("metric_missing", "warning", text, (), {"keys": list(data.keys)})


def _last_words(data: SweepData) -> str:
    """Return a sentence with the last log line of a failed run; "" if no failed run has a log
    line."""
    for run in data.runs:
        if run.state == "failed" and run.last_line:
            return f" The last line of {run.name}: {run.last_line[:200]}"
    return ""
