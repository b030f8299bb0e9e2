"""What can be said of a sweep, each sentence computed from its data. Pure.

A finding is `{kind, cells, evidence, text}`: what `report.json` lists and the page shows.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.alike import same_curves
from sweeper.analysis.blocks import Blocks
from sweeper.analysis.cells import Cell, Ranking, uneven_best
from sweeper.analysis.contrasts import parts
from sweeper.analysis.edges import judge_edges
from sweeper.analysis.frames import SweepData
from sweeper.analysis.noise import LEVEL, Noise, split_noise
from sweeper.analysis.settings import level
from sweeper.analysis.statistics import Comparison
from sweeper.model.metric import value_text
from sweeper.results.cells import SPAN, Scale

__all__ = [
    "DEALS",
    "PENDING",
    "Finding",
    "cell_text",
    "find",
    "method",
    "noise_text",
    "short_name",
    "worse_by",
]

_SHARED = (
    "comparisons with the best of all cells (Hsu 1981, Dunnett's distribution) at the 5 % level, "
    "with the noise that all cells share"
)
_OWN = (
    "comparisons with the best of all cells (Welch's, Bonferroni's bound) at the 5 % level, each "
    "cell with its own noise"
)
_RATIOS = (
    "as ratios, on a log scale, because all values are positive, the means of the cells span more "
    f"than a factor of {SPAN:g} and the noise grows with them"
)

DEALS = 20
"""In fewer ways the runs of two cells can be dealt out to them, chance alone may part them: three
and three have so many, two and two but six."""

PENDING = ("planned", "submitted", "running", "lost", "preempted")
"""States of runs that may still give a result."""


@dataclass(frozen=True)
class Finding:
    """Something true of the sweep. `level` is "good", "note" or "warning"; `evidence` holds the
    numbers behind `text`."""

    kind: str
    level: str
    text: str
    cells: tuple[str, ...] = ()
    evidence: Mapping[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """As in `report.json`."""
        found = asdict(self)
        return {**found, "cells": list(self.cells), "evidence": dict(self.evidence or {})}


def noise_text(noise: Noise) -> str | None:
    """What intervals and comparisons take for the noise between runs of a cell, in a sentence; None
    where no cell was repeated."""
    if noise.kind == "none":
        return None
    cells = labels.counted(noise.repeated, "repeated cell")
    lent = f"{labels.counted(noise.lent_cells, 'cell')} of {labels.listed(noise.lent)}"
    behind = f"{cells} and {lent}" if noise.repeated else lent
    behind = f"{behind if noise.lent else cells} ({noise.total:g} degrees of freedom)"
    tested = f", as their variances do not differ (Bartlett's test, {labels.p_value(noise.p)})"
    tested = tested if noise.p is not None else ""
    if noise.kind == "pooled":
        return f"All cells share one noise, that of {behind}{tested}."
    if noise.kind == "moderated":
        return (
            f"Cells share their noise, that of {behind}{tested}: each cell's variance is drawn "
            f"toward what all have in common, which weighs like {noise.prior_df:.0f} runs."
        )
    if noise.p is not None:
        return (
            f"Each cell has its own noise, as the variances of {behind} differ more than normal "
            f"noise would let them (Bartlett's test, {labels.p_value(noise.p)})."
        )
    if noise.asked == "own":
        return "Each cell has its own noise, as was asked for."
    return (
        f"Each cell has its own noise: {behind} are too few to ask whether they share it."
        if noise.repeated > 1
        else f"The noise is that of {behind}, for this cell alone."
    )


def method(scale: Scale, noise: Noise) -> str:
    """How cells are told apart, in a sentence."""
    told = _SHARED if noise.shared else _OWN
    return f"{told}; {_RATIOS}" if scale == "log" else told


def short_name(cell: Cell) -> str:
    """A cell by the name that its runs carry."""
    name = cell.name or "the only configuration"
    return f"the baseline {name}" if cell.baseline else name


def cell_text(cell: Cell) -> str:
    """A cell by its settings, as people say it: `learning_rate 5e-3, lora_rank 16`."""
    parts = [f"{axis} {labels.brief(v)}" for axis, v in cell.settings.items()]
    parts += [f"{axis} not set" for axis in cell.unset]
    told = ", ".join(parts)
    return (f"the baseline ({told})" if cell.baseline else told) if told else short_name(cell)


def find(data: SweepData, ranking: Ranking, blocks: Blocks | None = None) -> list[Finding]:
    """Everything worth saying, the most important first."""
    standing = _standing(data, ranking)
    if blocks is not None and ranking.leaders:
        standing = [_by_blocks(blocks)]
    told = {finding.kind for finding in standing}
    return [
        *standing,
        *([] if "all_diverged" in told else _diverged(data, ranking)),
        *_failed(data, ranking),
        *_repeated(data),
        *_noisy_ends(data),
        *_edges(data, ranking, "" if blocks is None else blocks.by),
        *_incomplete(data),
        *_replicates(data, ranking),
        *_records(data),
    ]


def _standing(data: SweepData, ranking: Ranking) -> list[Finding]:
    best = ranking.best
    if data.metric is None or best is None:
        return [_nothing(data, ranking)]
    if not ranking.others:
        return [_alone(ranking, best)]
    found: list[Finding] = []
    if ranking.equal and not ranking.comparisons:
        found.append(Finding("tied", "warning", _equal(ranking, best), _tied(ranking, best)))
    if ranking.comparisons:
        found.append(_compared(ranking, best, data.metric.sign))
        found += _few_runs(ranking, best)
    if ranking.not_compared:
        found.append(_not_compared(data, ranking, best))
    return found


def _by_blocks(blocks: Blocks) -> Finding:
    """In how many blocks the best is ahead of all others there."""
    judged = [block for block in blocks.blocks if block.best is not None]
    ahead = [block for block in judged if block.ahead]
    tied = [block for block in judged if block.tied]
    unknown = [block for block in judged if not block.compared and block.cells > 1]
    cells = tuple(block.best.name for block in judged if block.best is not None)
    evidence = {
        "by": blocks.by,
        "ahead": [block.value for block in ahead],
        "tied": [block.value for block in tied],
        "not_known": [block.value for block in unknown],
    }
    if len(unknown) == len(judged):
        text = "Nothing tells the noise: in no block can a better setting be told from a lucky run."
        return Finding("by_blocks", "warning", text, cells, evidence)
    parts = [
        (ahead, "the best cell is ahead of every other there beyond the noise"),
        (tied, "noise can explain its lead over some of them"),
        (unknown, "nothing tells the noise"),
    ]
    told = "; ".join(f"in {len(own)} {what}" for own, what in parts if own)
    text = f"Of {len(judged)} blocks, each judged by itself at the 5 % level: {told}."
    single = [block for block in ahead if block.best is not None and block.best.summary.n == 1]
    if single:
        text += (
            f" Of those that are ahead {len(single)} lead by a single run, by noise that other "
            "cells show: a lucky run would look the same."
        )
    sure = len(ahead) == len(judged) and not single
    return Finding("by_blocks", "good" if sure else "warning", text, cells, evidence)


def _alone(ranking: Ranking, best: Cell) -> Finding:
    diverged = [cell for cell in ranking.cells if cell.diverged]
    if diverged:
        other = "The other cell" if len(diverged) == 1 else f"The {len(diverged)} other cells"
        text = f"{other} with a result diverged: nothing is left to compare it with."
    elif len(ranking.cells) == 1:
        text = "It is the only cell of the sweep: there is nothing to compare it with."
    else:
        text = "No other cell has a value: there is nothing to compare it with."
    return Finding("alone", "note", text, (best.name,))


def _tied(ranking: Ranking, best: Cell) -> tuple[str, ...]:
    return tuple(cell.name for cell in (best, *ranking.tied))


def _equal(ranking: Ranking, best: Cell) -> str:
    value = best.summary.mean
    text = (
        f"{labels.listed(_names([best, *ranking.equal]), 4)} are tied: the mean of each is exactly "
        f"{labels.brief(value)}"
    )
    if value in ranking.bounds:
        return f"{text}, and the metric can be no better: it tells nothing more of them."
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
        # What is left of a cell that lost runs may have the better mean: there is no lead over it.
        held = [cell for cell in tied if cell in ranking.held_back]
        behind = [cell for cell in tied if cell.name not in equal and cell not in held]
        text = _equal(ranking, best) if equal else ""
        if held:
            left = labels.listed(_names(held), 3)
            text += f" It is not ahead of {left}, of which runs failed."
        if behind:
            listed = labels.listed(_names(behind), 3)
            text += f" Noise between seeds alone can explain its lead over {listed}."
        if best.name in ranking.noise.noisier:
            text += (
                f" The runs of {short_name(best)} differ more than those of the others, so its "
                "lead is judged by its own noise."
            )
        text = text.strip()
        if apart:
            text += f" {labels.counted(len(apart), 'cell is', 'cells are')} worse beyond the noise."
        return Finding("tied", "warning", text, names, evidence)
    nearest = max(apart, key=lambda cell: ranking.comparisons[cell.name].p)
    compared = ranking.comparisons[nearest.name]
    low, high = compared.interval()
    evidence["nearest"] = {"cell": nearest.name, "low": low, "high": high}
    by = f"{worse_by(compared, sign)[1]}, 95 %"
    if len(apart) == 1:
        text = (
            f"The only other cell compared, {short_name(nearest)}, is worse beyond the noise "
            "between seeds."
        )
    else:
        text = (
            "Every other cell compared is worse beyond the noise between seeds. The closest call, "
            f"{short_name(nearest)}, is {by} for all at once."
        )
    return Finding("separated", "good", text, names, evidence)


def _few_runs(ranking: Ranking, best: Cell) -> list[Finding]:
    """A warning where the best is ahead of all, by so few runs that it hangs on their noise being
    normal, and alike where they share it: a single run, or two and two with the noise of each."""
    if ranking.tied or ranking.equal:
        return []
    nearest = max(ranking.apart, key=lambda cell: ranking.comparisons[cell.name].p)
    runs = sorted((best.summary.n, nearest.summary.n))
    if best.summary.n == 1:
        text = (
            f"The lead is that of a single run of {short_name(best)}, by noise that other cells "
            "show: a cell that is noisier than those, or a lucky run, would look the same. Fresh "
            "seeds of it tell."
        )
    elif not ranking.noise.shared and math.comb(sum(runs), runs[0]) < DEALS:
        text = (
            f"It rests on {runs[0]} runs against {runs[1]}, each cell with its own noise: were "
            "seeds to end at one of two values, equal cells would look like this in up to one of "
            "eight sweeps. Three runs of each tell."
        )
    else:
        return []
    names = (best.name, nearest.name)
    return [Finding("few_runs", "warning", text, names, {"runs": runs})]


def worse_by(found: Comparison, sign: float) -> tuple[str, str]:
    """By how much a cell is worse than the best, in words, and the same for the bounds of that."""
    low, high = found.interval()
    if found.ratio is not None:
        ratio, *ends = labels.within(found.ratio, low, high)
        return f"{ratio} times the best", f"{' to '.join(ends)} times the best"
    gap, *ends = labels.within(sign * found.difference, *sorted((sign * low, sign * high)))
    return f"worse by {gap}", f"worse by {' to '.join(ends)}"


def _not_compared(data: SweepData, ranking: Ranking, best: Cell) -> Finding:
    cells = tuple(cell.name for cell in ranking.not_compared)
    evidence = {"n": {cell.name: cell.summary.n for cell in (best, *ranking.not_compared)}}
    uneven = uneven_best(data, ranking.measured)
    if uneven is not None:
        text = (
            f"Runs of some cells were evaluated {uneven[0]} times, of others {uneven[1]}, and each "
            "is judged by its best value: the best of more values is better by chance alone. So "
            "nothing is compared; judge by the last value, or by the mean of the last few."
        )
        return Finding("uneven_best", "warning", text, cells, {"evaluations": list(uneven)})
    if ranking.comparisons:
        text = (
            f"{labels.counted(len(cells), 'cell')} with one run, or identical ones, could not be "
            "compared: nothing tells their noise."
        )
    elif best.summary.n == 1:
        text = (
            "The best cell has a single finished run. Nothing here tells a better setting from a "
            "luckier seed."
        )
    elif best.summary.identical:
        text = "The runs of the best cell are identical: nothing here tells noise from effect."
    else:
        text = "The other cells have one run each, or identical ones: their noise is not known."
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
        text = f"The grid names no metric to compare by, and none was asked for.{hint}"
        return Finding("no_metric", "warning", text, (), {"keys": list(data.keys)})
    if ranking.measured and not any(cell.diverged for cell in ranking.measured):
        value = labels.number(ranking.measured[0].summary.mean)
        text = (
            f"All runs of {labels.counted(len(ranking.measured), 'cell')} gave {data.metric.name} "
            f"{value}: what tells them apart makes no difference, or does not reach the recipe."
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
    text = f"No finished run recorded {data.metric.name}.{hint}"
    return Finding("metric_missing", "warning", text, (), {"keys": list(data.keys)})


def _last_words(data: SweepData) -> str:
    """What the first failed run said at the end of its log."""
    for run in data.runs:
        said = [line.strip() for line in run.log if line.strip()]
        if run.state == "failed" and said:
            return f" The last line of {run.name}: {said[-1][:200]}"
    return ""


def _diverged(data: SweepData, ranking: Ranking) -> list[Finding]:
    runs = [run for run in data.runs if run.diverged]
    if not runs or data.metric is None:
        return []
    cells = tuple(dict.fromkeys(run.cell for run in runs))
    text = (
        f"{labels.counted(len(runs), 'run')} of {labels.counted(len(cells), 'cell')} diverged: the "
        f"last {data.metric.name} is NaN or infinite. They are left out of every mean, and their "
        f"{'cell' if len(cells) == 1 else 'cells'} cannot be named best."
    )
    ahead = ranking.passed_over
    if ahead:
        names = labels.listed([short_name(cell) for cell in ahead], 3)
        text += f" What is left of {names} is better than the best named here."
    evidence = {"runs": [run.name for run in runs], "better": [cell.name for cell in ahead]}
    return [Finding("diverged", "warning", text, cells, evidence)]


def _edges(data: SweepData, ranking: Ranking, by: str) -> list[Finding]:
    """Ends of what was tried at which the best cell lies: as a claim ("edge") where it is still
    getting better there, else as what it is ("at_end"). The cells of a confirmation are some of
    those that were tried: their ends are none."""
    best = ranking.best
    if best is None or not ranking.others or data.metric is None or data.confirmed is not None:
        return []
    blocks = 1
    if by:  # other blocks have an optimum of their own
        blocks = parts(ranking, by)
        own = level(best.settings, by)
        cells = tuple(cell for cell in ranking.cells if level(cell.settings, by) == own)
        ranking = replace(ranking, cells=cells)
    found: list[Finding] = []
    for edge in judge_edges(ranking, data.metric.sign, blocks=blocks):
        if edge.stopped or edge.inner is None:
            continue
        end = f"{edge.axis} {labels.brief(edge.value)} is the {edge.side} value tried"
        inner = labels.brief(edge.inner)
        evidence = {**asdict(edge), "gain": edge.gain and edge.gain._asdict()}
        if edge.values < 3:
            how = "which is better" if edge.told else "and the two are not told apart"
            text = (
                f"{edge.axis} was tried at {inner} and {labels.brief(edge.value)} alone; the best "
                f"cell has the latter, {how}: two values make no trend, and what lies beyond is "
                "open."
            )
            found.append(Finding("at_end", "note", text, (best.name,), evidence))
        elif edge.told:
            text = (
                f"{end}, and better than {inner} beyond the noise: a better one may lie beyond it."
            )
            found.append(Finding("edge", "warning", text, (best.name,), evidence))
        else:
            text = f"{end}; that it is better than {inner} cannot be told from the noise."
            found.append(Finding("at_end", "note", text, (best.name,), evidence))
    return found


_RULES = {
    "worst": "each counts as the worst value of all, {worst}",
    "drop": "they are left out of every mean",
    "bound": "they are left out of means, and no cell is named best that would not be with the "
    "worst value of all, {worst}, in their place",
}


def _failed(data: SweepData, ranking: Ranking) -> list[Finding]:
    """What failed runs count as, where a cell was judged in spite of them."""
    best, metric = ranking.best, data.metric
    cells = [cell for cell in ranking.measured if cell.failed]
    if metric is None or not cells or not (best or ranking.leaders):
        return []
    runs = sum(cell.failed for cell in cells)
    rule = _RULES[metric.failed].format(worst=labels.brief(ranking.worst))
    text = f"{labels.counted(runs, 'run')} of {labels.listed(_names(cells), 3)} failed: {rule}."
    if ranking.held_back:
        names = labels.listed(_names(ranking.held_back), 3)
        text += f" What is left of {names} is better than the best named here."
    elif best is not None and best.failed and metric.failed == "bound":
        text += " The best would lead with that in their place, too."
    elif best is not None and best.failed and metric.failed == "drop":
        text += " The best cell is among them, and may be the better for it."
    doubt = ranking.held_back or (best is not None and best.failed)
    level = "warning" if doubt else "note"
    evidence = {
        "rule": metric.failed,
        "worst": ranking.worst,
        "failed": {cell.name: cell.failed for cell in cells},
        "better": [cell.name for cell in ranking.held_back],
    }
    return [Finding("failed", level, text, tuple(cell.name for cell in cells), evidence)]


def _repeated(data: SweepData) -> list[Finding]:
    again = data.confirmed
    if again is None:
        return []
    text = (
        f"{labels.listed(again.fresh)} repeated {len(again.names)} of the {again.cells} cells of "
        f"{again.first} on fresh seeds: they are judged by those alone, as what chose them "
        "flatters them; the other cells are no part of this."
    )
    cells = tuple(again.names.values())
    return [Finding("confirmed", "note", text, cells, {"first": again.first, "by": again.fresh})]


def _noisy_ends(data: SweepData) -> list[Finding]:
    """That a mean of the last values is judged by, though nobody asked for it, and why."""
    ends, metric = data.ends, data.metric
    if ends is None or metric is None:
        return []
    scatter, between = labels.together(ends.scatter, ends.between)
    text = (
        f"The last values of {metric.name} scatter by {scatter} from one to the next and go "
        f"nowhere; runs differ by {between} there. So each run is judged by the "
        f"{value_text(metric.at)}: the grid does not say which counts (at: last is the last alone)."
    )
    return [Finding("noisy_ends", "note", text, (), ends._asdict())]


def _names(cells: Sequence[Cell]) -> list[str]:
    return [short_name(cell) for cell in cells]


def _incomplete(data: SweepData) -> list[Finding]:
    states = Counter(run.state for run in data.runs)
    done, planned = states["succeeded"], len(data.runs)
    if done == planned or states["failed"] == planned:
        return []
    rest = [f"{n} {state}" for state, n in sorted(states.items()) if state != "succeeded"]
    what = "result is" if done == 1 else "results are"
    text = f"{done} of {planned} runs succeeded, {labels.listed(rest, 7)}"
    if any(states[state] for state in PENDING):
        text += f": the {what} preliminary." if done else "."
    else:
        text += "; what the others would have shown is not known." if done else "."
    cells = tuple(dict.fromkeys(run.cell for run in data.runs if run.state != "succeeded"))
    evidence = {"planned": planned, "states": dict(sorted(states.items()))}
    return [Finding("incomplete", "warning", text, cells, evidence)]


def _replicates(data: SweepData, ranking: Ranking) -> list[Finding]:
    found: list[Finding] = []
    unseeded = data.plan is not None and data.plan.unseeded
    if unseeded:
        text = (
            "Seeds are not set: the grid says that runs of one cell differ by themselves, and the "
            "intervals hold as far as that is so."
        )
        found.append(Finding("unseeded", "note", text))
    identical = [cell for cell in ranking.cells if cell.summary.identical]
    metric = None if data.metric is None else data.metric.name
    unknown = "" if ranking.noise.shared else " No interval is given there."
    copies = [c for c in identical if same_curves([run for run in c.runs if run.counts], metric)]
    if copies:
        all_of, why = ("seeds", "the seed may not reach the recipe")
        if unseeded:
            all_of, why = ("replicates", "they do not differ by themselves")
        text = (
            f"All {all_of} of {labels.counted(len(copies), 'cell')} recorded exactly the same: "
            f"{why}.{unknown}"
        )
        found.append(Finding("identical", "warning", text, tuple(c.name for c in copies)))
    equal = tuple(cell.name for cell in identical if cell not in copies)
    if equal:
        text = (
            f"All runs of {labels.counted(len(equal), 'cell')} ended at exactly the same value, "
            f"which tells nothing of the noise there.{unknown}"
        )
        found.append(Finding("same_value", "note", text, equal))
    return [*found, *_split(ranking)]


def _split(ranking: Ranking) -> list[Finding]:
    """A warning where the noise looks like one for which intervals are too narrow."""
    split = split_noise([ranking.on_scale(cell) for cell in ranking.measured])
    if split is None or ranking.noise.p is None or ranking.noise.p > LEVEL:
        return []
    text = (
        f"Seeds of {split.close} cells end close together, those of {split.wide} others at least "
        f"{split.factor:.0f} times as far apart, as if some seeds had gone another way. Intervals "
        "from a few seeds then hold the truth less often than they say: in simulations three times "
        "in four, and less."
    )
    return [Finding("split_noise", "warning", text, (), split._asdict())]


def _records(data: SweepData) -> list[Finding]:
    found: list[Finding] = []
    lines = sum(run.unreadable for run in data.runs)
    if lines:
        runs = tuple(run.name for run in data.runs if run.unreadable)
        text = (
            f"{labels.counted(len(runs), 'run')} left {labels.counted(lines, 'malformed line')} in "
            "metrics.jsonl, skipped here."
        )
        found.append(Finding("unreadable", "note", text, (), {"lines": lines, "runs": list(runs)}))
    if data.metric is not None and data.metric.name in data.keys:
        silent = [run for run in data.runs if run.state == "succeeded" and run.value is None]
        if silent:
            cells = tuple(dict.fromkeys(run.cell for run in silent))
            names = [run.name for run in silent]
            text = f"{labels.listed(names, 3)} succeeded, but recorded no {data.metric.name}."
            found.append(Finding("unmeasured", "warning", text, cells, {"runs": names}))
    if data.assumed:
        text = (
            f"Nothing says how {labels.counted(data.assumed, 'run')} in plain folders ended: they "
            "are taken for finished."
        )
        found.append(Finding("assumed", "note", text, (), {"runs": data.assumed}))
    if data.retired:
        text = f"{labels.counted(data.retired, 'run')} of an earlier version of the grid left out."
        found.append(Finding("retired", "note", text, (), {"runs": data.retired}))
    return found
