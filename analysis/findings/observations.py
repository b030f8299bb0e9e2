"""Makes the findings about missing results, unstable runs, alarms, axes and rollouts. Pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.behaviour import Behaviour
from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.comparison.stability import Stability
from sweeper.analysis.findings.axis_findings import AxesTold, tell_axes
from sweeper.analysis.findings.finding import Finding, names_of
from sweeper.analysis.reading.frames import PENDING, RunData, SweepData
from sweeper.analysis.reading.identical_runs import across_cells
from sweeper.sweep.labels import plural


def observe(
    data: SweepData,
    ranking: Ranking,
    axes: AxesTold,
    stability: Stability,
    behaviour: Behaviour | None,
) -> list[Finding]:
    """Return the findings about missing results, unstable runs, curves, alarms, axes and rollouts,
    the most important first."""
    return [
        *_holes(ranking),
        *_unstable(ranking, stability),
        *_same_curves(data, ranking),
        *_alarms(data),
        *_judged_otherwise(data, ranking),
        *_undeclared(data, ranking),
        *tell_axes(axes),
        *_written(behaviour),
    ]


def _holes(ranking: Ranking) -> list[Finding]:
    if not ranking.measured or len(ranking.cells) < 2:
        return []
    cells = [cell for cell in ranking.cells if not cell.summary.n and not cell.diverged]
    settled = [c for c in cells if not any(run.state in PENDING for run in c.runs)]
    waiting = [c for c in cells if c not in settled]
    findings: list[Finding] = []
    for group, kind, outcome in (
        (settled, "hole", "no result"),
        (waiting, "waiting", "no result yet"),
    ):
        if group:
            names = labels.listed(names_of(group), 3)
            verb = "has" if len(group) == 1 else "have"
            text = f"{names} {verb} {outcome}."
            text += " `sweeper retry` runs failed runs again." if kind == "hole" else ""
            level = "warning" if kind == "hole" else "note"
            cells_ = tuple(cell.name for cell in group)
            states = Counter(run.state for cell in group for run in cell.runs)
            findings.append(
                Finding(kind, level, text, cells_, {"states": dict(sorted(states.items()))})
            )
    return findings


def _unstable(ranking: Ranking, stability: Stability) -> list[Finding]:
    if not stability.unstable:
        return []
    runs = stability.unstable
    cells = tuple(dict.fromkeys(run.cell for run in runs))
    parts = [
        f"{plural(len(group), 'run')} of {plural(len({run.cell for run in group}), 'cell')} {end}"
        for group, end in (
            ([run for run in runs if not run.worse], "did not keep their gains"),
            ([run for run in runs if run.worse], "ended worse than at the start"),
        )
        if group
    ]
    text = f"{labels.listed(parts)}, beyond the noise of single values."
    if ranking.best is not None and ranking.best.name in cells:
        text += (
            " The best cell is among them: look at its curves, and take a checkpoint from before "
            "the decline."
        )
    evidence = {
        "runs": [
            {"run": run.run, "first": run.first, "best": run.best, "last": run.last} for run in runs
        ]
    }
    best = ranking.best is not None and ranking.best.name in cells
    return [Finding("unstable", "warning" if best else "note", text, cells, evidence)]


def _same_curves(data: SweepData, ranking: Ranking) -> list[Finding]:
    """Return a finding if runs with different settings recorded exactly the same values."""
    across = across_cells(data)
    if not across:
        return []
    by_name = {cell.name: cell for cell in ranking.cells}
    keys: Counter[str] = Counter()
    for runs in across:
        settings = [by_name[cell].settings for cell in dict.fromkeys(run.cell for run in runs)]
        for key in ranking.keys:
            if len({repr(values.get(key)) for values in settings}) > 1:
                keys[key] += 1
    count = sum(map(len, across))
    cells = tuple(dict.fromkeys(run.cell for runs in across for run in runs))
    named = labels.listed(sorted(keys), 3) or "what tells them apart"
    text = (
        f"{count} runs of {len(cells)} cells recorded exactly the same curves: {named} may not "
        "reach the recipe. Check that the program uses what the grid gives it."
    )
    evidence = {"groups": [[run.name for run in runs] for runs in across], "keys": sorted(keys)}
    return [Finding("same_curves", "warning", text, cells, evidence)]


def _alarms(data: SweepData) -> list[Finding]:
    raised = [(run, alarm) for run in data.runs for alarm in run.alarms]
    if not raised:
        return []
    rules = Counter(alarm.rule for _, alarm in raised)
    runs = len({run.id for run, _ in raised})
    counted = labels.listed([f"{rule} ({count})" for rule, count in rules.most_common()], 6)
    text = f"{plural(len(raised), 'alarm')} went off in {plural(runs, 'run')}: {counted}."
    cells = tuple(dict.fromkeys(run.cell for run, _ in raised))
    evidence = {"alarms": [{**alarm.document(), "run": run.name} for run, alarm in raised]}
    return [Finding("alarms", "note", text, cells, evidence)]


def _judged_otherwise(data: SweepData, ranking: Ranking) -> list[Finding]:
    """Return a finding if the best cell depends on which value of a run counts: the last, the best
    or the smoothed one. Cells that are tied with the best cell are not reported."""
    if data.metric is None or ranking.best is None or not ranking.others:
        return []
    sign = data.metric.sign
    winners: dict[str, str] = {}
    for view in ("last", "best", "smoothed"):
        means: dict[str, float] = {}
        for cell in (ranking.best, *ranking.others):
            values = [getattr(run, view) for run in cell.runs if run.counts]
            if values and all(v is not None and math.isfinite(v) for v in values):
                means[cell.name] = sign * math.fsum(v / len(values) for v in values)
        if ranking.best.name in means:
            winners[view] = min(means, key=means.__getitem__)
    # Cells that cannot be distinguished from the best may swap places with it by chance.
    same = {cell.name for cell in (ranking.best, *ranking.tied)}
    rivals = {view: cell for view, cell in winners.items() if cell not in same}
    if not rivals or (data.metric.at in rivals and len(rivals) == len(winners)):
        return []
    named = labels.listed(
        [f"{name} by the {view} value" for view, name in rivals.items() if view != data.metric.at]
    )
    if not named:
        return []
    text = f"The winner depends on which value of a run counts: it would be {named}."
    cells = tuple(dict.fromkeys(rivals.values()))
    evidence = {"winners": winners, "others": rivals}
    return [Finding("judged_otherwise", "note", text, cells, evidence)]


def _undeclared(data: SweepData, ranking: Ranking) -> list[Finding]:
    declared = list(data.axes)
    if not declared or len(ranking.cells) < 2:
        return []
    outside = [
        key
        for key in ranking.keys
        if not any(key == a or key.startswith(f"{a}.") for a in declared)
    ]
    if not outside:
        return []
    text = (
        f"Cells also differ in {labels.listed(outside)}, which no axis declares. This may explain "
        "differences between them."
    )
    cells = tuple(c.name for c in ranking.cells if any(key in c.settings for key in outside))
    return [Finding("undeclared", "note", text, cells, {"keys": outside})]


def _written(behaviour: Behaviour | None) -> list[Finding]:
    if behaviour is None:
        return []
    findings: list[Finding] = []
    kinds: dict[str, list[Any]] = {}
    for flag in behaviour.flags:
        kinds.setdefault(flag.kind, []).append(flag)
    for kind, flags in kinds.items():
        texts: dict[str, list[str]] = {}
        for flag in flags:
            texts.setdefault(flag.text, []).append(flag.cell or "the only configuration")
        cells_by_text = "; ".join(
            f"{labels.listed(cells, 3)}: {text}" for text, cells in texts.items()
        )
        evidence: Mapping[str, Any] = {flag.cell: dict(flag.evidence) for flag in flags}
        names = tuple(flag.cell for flag in flags)
        findings.append(
            Finding(f"rollouts_{kind}", "warning", f"{cells_by_text}.", names, evidence)
        )
    dull = {
        cell.cell: cell.signal[max(cell.signal)]
        for cell in behaviour.cells
        if cell.signal and cell.signal[max(cell.signal)] < 0.1
    }
    rewards = {cell.cell: cell.reward[max(cell.reward)] for cell in behaviour.cells if cell.reward}
    wrong = [name for name in dull if rewards.get(name, 0.0) < _GOOD]
    solved = [name for name in dull if name not in wrong]
    for names, cells_by_text in ((solved, _SOLVED), (wrong, _WRONG)):
        if names:
            listed = labels.listed([name or "the only configuration" for name in names], 3)
            text = f"{listed}: {_SAME}, {cells_by_text}."
            evidence = {"mixed": {name: dull[name] for name in names}}
            findings.append(Finding("rollouts_no_signal", "note", text, tuple(names), evidence))
    return findings


_GOOD = 0.5
"""Answers with at least this mean reward count as correct, as in tinker-cookbook."""
_SAME = "in more than 90 % of groups at the last iteration, all answers have the same reward"
_SOLVED = "mostly a high one, so there is little left to learn"
_WRONG = (
    "mostly a low one: these groups teach nothing. The task may be too hard, or the reward broken "
    "(`sweeper rollouts` shows the answers)"
)


@dataclass(frozen=True)
class Failure:
    """Runs that failed in the same way: the reason, the last line of their logs, and the runs."""

    why: str
    last_line: str
    runs: tuple[RunData, ...]


def group_failures(runs: Sequence[RunData]) -> list[Failure]:
    """Group failed runs by reason and last line, the most frequent first."""
    groups: dict[tuple[str, str], list[RunData]] = {}
    for run in runs:
        if run.state == "failed":
            key = (run.why or "no reason recorded", run.last_line[:300])
            groups.setdefault(key, []).append(run)
    failures = [Failure(why, line, tuple(failed)) for (why, line), failed in groups.items()]
    return sorted(failures, key=lambda failure: -len(failure.runs))
