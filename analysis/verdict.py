"""What won, can it be believed, what to do next: the top of the report, and the terminal's text."""

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis import words
from analysis.cells import Cell, Ranking
from analysis.findings import PENDING, Finding, cell_text, short_name
from analysis.frames import RunData, SweepData
from sweeper.metrics import as_float

__all__ = ["Checkpoint", "Verdict", "choose_checkpoint", "decide"]


@dataclass(frozen=True)
class Checkpoint:
    """Where the weights of the best run are. `path` is for sampling where the record has such a
    path, else for training on. `expires` is what the record says of it, as a phrase."""

    run: str
    name: str
    path: str
    step: float | None
    expires: str | None
    note: str | None


@dataclass(frozen=True)
class Verdict:
    """`kind`: "clear", "ahead" (clear of what could be compared, but that is not all), "tied",
    "unproven", "alone" or "none"; `label` says it in a few words, `headline` names the best
    cell."""

    kind: str
    label: str
    headline: str
    measure: str
    number: str | None
    spread: str | None
    believe: tuple[Finding, ...]
    caution: str | None
    steps: tuple[str, ...]
    checkpoint: Checkpoint | None

    def text(self, sweep: str, width: int = 88) -> str:
        """A short text for the terminal."""
        lines = [f"{sweep}: {self.headline}  [{self.label}]", f"  {self.measure}"]
        if self.number is not None:
            lines.append(f"  {self.number}" + (f", {self.spread}" if self.spread else ""))
        for finding in self.believe:
            mark = "!" if finding.level == "warning" else "-"
            lines += _wrapped(finding.text, mark, width)
        for step in self.steps:
            lines += _wrapped(step, ">", width)
        if self.checkpoint is not None:
            expires = f" ({self.checkpoint.expires})" if self.checkpoint.expires else ""
            lines.append(f"  checkpoint of {self.checkpoint.run}: {self.checkpoint.path}{expires}")
        return "\n".join(_for_terminal(line) for line in lines)


def _wrapped(text: str, mark: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"  {mark} ",
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _for_terminal(line: str) -> str:
    """Figures that can be pasted; and no control characters, which come from values and paths."""
    line = line.replace(words.MINUS, "-").replace(words.NONE, "-")
    return "".join(c if c.isprintable() else "\ufffd" for c in line)


_LABELS = {
    "clear": "clear winner",
    "ahead": "ahead of what was compared",
    "tied": "leads, not alone",
    "unproven": "leads, unproven",
    "alone": "nothing to compare",
    "none": "no winner",
}


def decide(data: SweepData, ranking: Ranking, findings: Sequence[Finding]) -> Verdict:
    """The verdict that the findings add up to."""
    kind = _kind(data, ranking, findings)
    best = ranking.best
    checkpoint = None
    if ranking.best_run is not None and data.metric is not None:
        checkpoint = choose_checkpoint(ranking.best_run, data.metric.at)
    number, spread = _number(ranking)
    caution = None
    if best is not None and len(ranking.measured) > 1:
        caution = (
            f"The best of {len(ranking.measured)} cells was chosen by the same runs that measure "
            "it, so its value here is somewhat flattering; expect less from a fresh seed."
        )
    shown = tuple(f for f in findings if f.kind not in ("retired", "unreadable"))
    return Verdict(
        kind=kind,
        label=_LABELS[kind],
        headline=_headline(best),
        measure=_measure(data),
        number=number,
        spread=spread,
        believe=shown,
        caution=caution,
        steps=_steps(data, findings, ranking, checkpoint),
        checkpoint=checkpoint,
    )


def _headline(best: Cell | None) -> str:
    text = "No cell can be named best" if best is None else cell_text(best)
    named = best is not None and (best.settings or best.unset)
    return text if named else text[:1].upper() + text[1:]


def _kind(data: SweepData, ranking: Ranking, findings: Sequence[Finding]) -> str:
    kinds = {finding.kind for finding in findings}
    if "tied" in kinds:
        return "tied"
    if "not_compared" in kinds:
        return "unproven"
    if "separated" in kinds:
        complete = all(run.state == "succeeded" for run in data.runs)
        # What is left of a cell that lost a run was compared with nothing.
        whole = not any(cell.diverged for cell in ranking.measured)
        return "clear" if complete and whole and "unmeasured" not in kinds else "ahead"
    return "alone" if "alone" in kinds else "none"


def _measure(data: SweepData) -> str:
    if data.metric is None:
        return "no metric to compare by"
    better = "lower" if data.metric.goal == "minimize" else "higher"
    return f"{data.metric.name}, {better} is better, {data.metric.at} value of each run"


def _number(ranking: Ranking) -> tuple[str | None, str | None]:
    if ranking.best is None:
        return None, None
    summary = ranking.best.summary
    if summary.n == 1:
        return words.together(summary.mean)[0], "one run, so no interval"
    if summary.low is None:
        return words.together(summary.mean)[0], f"{summary.n} identical runs, so no interval"
    mean, low, high = words.together(summary.mean, summary.low, summary.high)
    log = ranking.scale == "log"
    kind, student = ("geometric mean", "Student t of logarithms") if log else ("mean", "Student t")
    return mean, f"{kind} of {summary.n} seeds, 95 % interval {low} to {high} ({student})"


def _steps(
    data: SweepData,
    findings: Sequence[Finding],
    ranking: Ranking,
    checkpoint: Checkpoint | None,
) -> tuple[str, ...]:
    """What to do next, computed from the findings."""
    by_kind = {finding.kind: finding for finding in findings}
    states = Counter(run.state for run in data.runs)
    steps: list[str] = []
    pending = sum(states[state] for state in PENDING)
    if pending:
        steps.append(f"Let the {words.counted(pending, 'open run')} finish, then analyze again.")
    if states["failed"]:
        steps.append(f"Read in the logs why {words.counted(states['failed'], 'run')} failed.")
    if ranking.passed_over:
        names = words.listed([short_name(cell) for cell in ranking.passed_over], 3)
        steps.append(f"Find out why runs of {names} diverge: the others there beat the best.")
    edges = [finding.evidence for finding in findings if finding.kind == "edge"]
    steps += [_beyond(evidence) for evidence in edges if evidence is not None]
    if "tied" in by_kind:
        most = max(cell.summary.n for cell in ranking.measured)
        cells = words.counted(len(ranking.tied) + 1, "cell")
        steps.append(
            f"To part the {cells} at the top, run more seeds than {most}; or take the cheapest."
        )
    elif "not_compared" in by_kind:
        steps.append("Run every cell with three seeds or more (seeds: 3 in the grid).")
    if "metric_missing" in by_kind or "no_metric" in by_kind:
        steps.append("Name one of the recorded keys as the metric, in the grid or with --metric.")
    if "all_diverged" in by_kind:
        steps.append("Try settings under which every seed stays finite.")
    if checkpoint is not None and not steps:
        steps.append("Use the checkpoint below.")
    return tuple(steps)


def _beyond(evidence: Mapping[str, Any]) -> str:
    if evidence["suggestion"] is None:
        return f"Ask whether {evidence['axis']} can go beyond {words.setting(evidence['value'])}."
    suggestion = words.setting(evidence["suggestion"])
    return (
        f"Extend {evidence['axis']} beyond {words.setting(evidence['value'])}, for example by "
        f"{suggestion}, and launch again: finished runs are kept."
    )


def choose_checkpoint(run: RunData, at: str) -> Checkpoint | None:
    """The checkpoint to take from a run: with `at` "best" the one saved at the best step if there
    is one, else the final one, else the last. None when no record holds a path."""
    usable = [record for record in run.checkpoints if _path(record) is not None]
    if not usable:
        return None
    final = [record for record in usable if record.get("final")]
    chosen = (final or usable)[-1]
    note = None
    if at == "best" and run.step is not None and chosen.get("batch") != run.step:
        exact = [record for record in usable if record.get("batch") == run.step]
        chosen = exact[-1] if exact else chosen
        if not exact:
            note = f"the best value was at step {words.number(run.step)}, which has no checkpoint"
    step = chosen.get("batch")
    return Checkpoint(
        run=run.name or run.id,
        name=str(chosen.get("name", "")),
        path=_path(chosen) or "",
        step=step if isinstance(step, int | float) else None,
        expires=_expires(chosen),
        note=note,
    )


def _path(record: Mapping[str, Any]) -> str | None:
    for key in ("sampler_path", "state_path", "path"):
        if isinstance(record.get(key), str) and record[key]:
            return record[key]
    return None


def _expires(record: Mapping[str, Any]) -> str | None:
    for key in ("expires_at", "expires"):
        if record.get(key):
            return f"expires {record[key]}"
    seconds = as_float(record.get("ttl_seconds"))
    if seconds is not None and math.isfinite(seconds):
        days = seconds / 86400
        span = words.counted(round(days), "day") if days >= 1 else words.duration(seconds)
        return f"kept for {span} after it was saved"
    return None
