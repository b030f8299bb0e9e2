"""Makes the top of the report and the text for a terminal: the best cell, how certain this choice
is, and what to do next."""

import html
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.findings.axis_findings import KINDS
from sweeper.analysis.findings.comparability import unlike
from sweeper.analysis.findings.finding import Finding, behind, cell_text, short_name
from sweeper.analysis.findings.next_steps import how_to_part, next_steps
from sweeper.analysis.findings.nextgrid import NextGrid
from sweeper.analysis.reading.checkpoints import Checkpoint, choose_checkpoint
from sweeper.analysis.reading.costs import dollars
from sweeper.analysis.reading.frames import SweepData
from sweeper.analysis.reading.settings import ordered
from sweeper.analysis.statistics.inference import Estimate
from sweeper.analysis.statistics.looks import open_runs
from sweeper.analysis.statistics.seeds import Comparison, only_just
from sweeper.common.sanitize import sanitize
from sweeper.sweep.labels import plural
from sweeper.sweep.metric import value_text

LATER = ("retired", "unreadable", "own_keys", "undeclared", "waiting", *KINDS)
"""The kinds of findings that the report shows only further down."""


class Lead(NamedTuple):
    """The second cell of the ranking, compared with the best. `comparison` uses all seeds, `paired`
    only the seeds that both cells have. `comparison` or `paired` is None if it cannot be computed.
    `needed` is the number of seeds per cell that is enough to detect the smallest relevant
    difference (None if unknown)."""

    second: Cell
    comparison: Comparison | None
    paired: Estimate | None
    needed: int | None = None


class Check(NamedTuple):
    """A question that the first screen of the report answers. `good` is None if there is no
    answer."""

    name: str
    answer: str
    good: bool | None


@dataclass(frozen=True)
class Verdict:
    """The verdict on a sweep. `kind` is "clear", "ahead", "tied", "unproven", "alone", "none" or
    "blocks"; `label` describes it in a few words. "ahead" means that the best cell is ahead, but
    results are missing or a finding raises doubts. `headline` names the best cell. `each` has a
    line about the best cell of each block."""

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
    checks: tuple[Check, ...] = ()
    effect: str | None = None
    against: str | None = None
    cost: str | None = None
    at_edge: bool = False
    each: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """Return the verdict as HTML for a notebook."""
        return f"<pre>{html.escape(self.text('verdict'))}</pre>"

    def text(self, sweep: str, width: int = 88) -> str:
        """Return the verdict as a short text for a terminal."""
        lines = [f"{sweep}: {self.headline}  [{self.label}]", f"  {self.measure}"]
        if self.number is not None:
            lines.append(f"  {self.number}" + (f", {self.spread}" if self.spread else ""))
        lines += [f"  {line}" for line in (self.effect, self.against, self.cost) if line]
        lines += [f"    {line}" for line in self.each]
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
    """Return the line with plain minus signs (so that numbers can be pasted) and without the
    control characters that values and paths may contain."""
    return sanitize(line.replace(labels.MINUS, "-").replace(labels.NONE, "-"))


_LABELS = {
    "clear": "clear winner",
    "ahead": "ahead of what was compared",
    "tied": "tied for best",
    "unproven": "leads, unproven",
    "alone": "nothing to compare",
    "none": "no winner",
}


def decide(
    data: SweepData,
    ranking: Ranking,
    findings: Sequence[Finding],
    lead: Lead | None = None,
    following: NextGrid | None = None,
    prices: Mapping[str, float] | None = None,
) -> Verdict:
    """Derive the verdict from the findings."""
    kind = _kind(data, ranking, findings)
    best = ranking.best
    checkpoint = None
    if ranking.best_run is not None and data.metric is not None:
        checkpoint = choose_checkpoint(ranking.best_run, data.metric.at)
    number, spread = _number(ranking)
    at_edge = any(finding.kind == "edge" for finding in findings)
    relevant = None if data.metric is None else data.metric.relevant
    needed = None if lead is None else lead.needed
    to_part = how_to_part(ranking, following, relevant, needed, prices or {})
    return Verdict(
        kind=kind,
        label=_label(data, kind, findings)
        + (", at the edge of the grid" if at_edge else "")
        + (", may have diverged" if best is not None and _is_doubtful(best, findings) else "")
        + (", but not by the last value" if _is_only_by_mean(data, findings) else ""),
        at_edge=at_edge,
        headline=_headline(best),
        measure=measure(data),
        number=number,
        spread=spread,
        believe=tuple(f for f in findings if _up_here(f) and _concerns(f, ranking)),
        caution=_caution(ranking, data.sign),
        steps=next_steps(data, findings, ranking, checkpoint, following, to_part),
        checkpoint=checkpoint,
        checks=_checks(data, ranking, findings),
        effect=_effect(ranking, lead, data.sign),
        cost=_cost(best, prices or {}),
    )


def _label(data: SweepData, kind: str, findings: Sequence[Finding]) -> str:
    label, reason = _standing_label(data, kind, findings), unlike(findings)
    if not reason or kind in ("alone", "none"):
        return label
    # A difference in what runs executed may explain the whole lead.
    return f"{'ahead' if kind == 'ahead' else label}, but runs of {reason}"


def _standing_label(data: SweepData, kind: str, findings: Sequence[Finding]) -> str:
    evidence = next((finding.evidence for finding in findings if finding.kind == "few_runs"), None)
    if kind == "ahead" and evidence is not None:
        return f"ahead, by {plural(evidence['runs'][0], 'run')}"
    if kind == "ahead" and (left := open_runs(data)):
        return f"ahead so far ({left} of {plural(len(data.runs), 'run')} open)"
    return _LABELS[kind]


def _is_doubtful(best: Cell, findings: Sequence[Finding]) -> bool:
    """Return whether the metric is missing at the end of a run of the best cell."""
    return any(f.kind == "missing_end" and best.name in f.cells for f in findings)


def _is_only_by_mean(data: SweepData, findings: Sequence[Finding]) -> bool:
    """Return whether a mean of the last values was chosen automatically, and the last value alone
    would give another best cell. An outlier near the end can cause this."""
    if data.ends is None:
        return False
    return any(
        f.kind == "judged_otherwise" and "last" in (f.evidence or {})["others"] for f in findings
    )


def _up_here(finding: Finding) -> bool:
    """Return whether the report shows a finding at the top."""
    return finding.kind not in LATER or finding.kind == "effect"


def _concerns(finding: Finding, ranking: Ranking) -> bool:
    """Return whether a finding concerns the verdict. If there is a best cell, alarms and findings
    about rollouts concern the verdict only if they name this cell or a cell tied with it."""
    top = {cell.name for cell in (ranking.best, *ranking.tied) if cell is not None}
    elsewhere = finding.kind == "alarms" or finding.kind.startswith("rollouts_")
    return not elsewhere or not top or bool(top & set(finding.cells))


def _caution(ranking: Ranking, sign: float) -> str | None:
    best, cells = ranking.best, len(ranking.measured)
    if best is None or cells < 2:
        return None
    chosen = f"The best of {cells} cells was chosen by the same runs that measure it"
    mean, low, high = best.summary.mean, best.summary.low, best.summary.high
    if mean is None or low is None or high is None:
        return f"{chosen}, so its value may be too good. New seeds would show its true value."
    if only_just(ranking.comparisons):
        most = labels.number(high - mean if sign > 0 else mean - low, 2)
        return (
            f"{chosen}, and its lead is barely beyond the noise, so chance has probably helped it: "
            f"with many fresh seeds it may be worse by up to {most}. Its interval allows for that."
        )
    if ranking.chosen_of < 2:
        return f"{chosen}; it leads by so much that this hardly inflates its value."
    return (
        f"{chosen}, which may make it look too good. Its interval allows for that: it extends "
        f"further on the worse side, as if chosen among {ranking.chosen_of} equally good cells."
    )


def _checks(data: SweepData, ranking: Ranking, findings: Sequence[Finding]) -> tuple[Check, ...]:
    complete = whole(data, findings)
    best = ranking.best
    if best is None:
        return (complete,)
    compared, tied = len(ranking.comparisons), len(ranking.tied)
    if not compared:
        text = f"equal to {tied}" if tied else "not known"
        noise = Check("Beyond the noise?", text, False if tied else None)
    elif tied:
        noise = Check("Beyond the noise?", f"tied with {tied} of {compared}", False)
    else:
        left = len(ranking.not_compared)
        text = f"ahead of {compared} of {compared + left}"
        noise = Check("Beyond the noise?", text, None if left else True)
    stable = wholly_stable(data, ranking, findings)
    seeds = best.summary.n
    return (
        noise,
        Check("Seeds", f"{seeds} for the best", seeds > 2 and not best.summary.identical),
        _inside(ranking, findings),
        complete,
        stable,
    )


def whole(data: SweepData, findings: Sequence[Finding]) -> Check:
    """Check whether all planned runs have results."""
    kinds = {finding.kind for finding in findings}
    done = sum(run.state == "succeeded" for run in data.own_runs)
    share = f"{done} of {plural(len(data.own_runs), 'run')}"
    lacking = kinds & {"incomplete", "hole", "unmeasured"}
    return Check("Complete?", share, not lacking and done == len(data.own_runs))


def wholly_stable(data: SweepData, ranking: Ranking, findings: Sequence[Finding]) -> Check:
    """Check whether any run diverged or became unstable."""
    if any(run.diverged for run in data.runs):
        cells = sum(cell.diverged > 0 for cell in ranking.cells)
        return Check("Stable?", f"{plural(cells, 'cell')} diverged", False)
    if any(finding.kind == "missing_end" for finding in findings):
        return Check("Stable?", "some runs may have diverged", False)
    if any(finding.kind == "unstable" for finding in findings):
        return Check("Stable?", "some runs fell back", "best" not in _unstable_text(findings))
    return Check("Stable?", "no run diverged", True)


def _unstable_text(findings: Sequence[Finding]) -> str:
    return next((f.text for f in findings if f.kind == "unstable"), "")


def _inside(ranking: Ranking, findings: Sequence[Finding]) -> Check:
    edges = [str((f.evidence or {})["axis"]) for f in findings if f.kind == "edge"]
    if edges:
        return Check("Inside the grid?", f"at the end of {labels.listed(edges, 2)}", False)
    ends = [f.evidence or {} for f in findings if f.kind == "at_end"]
    if ends:
        axes = labels.listed([str(end["axis"]) for end in ends], 2)
        doubts = dict.fromkeys(str(end["doubt"]) for end in ends)
        why = "two values tried" if all(end["values"] < 3 for end in ends) else " or ".join(doubts)
        return Check("Inside the grid?", f"at the end of {axes}, {why}", None)
    best = ranking.best
    keys: list[str] = [] if best is None else list(best.settings)
    inner = [key for key in keys if len(ordered(key, [c.settings for c in ranking.tried])) > 2]
    if not inner:
        return Check("Inside the grid?", "no axis has three or more numbers", None)
    return Check("Inside the grid?", "yes", True)


def _effect(ranking: Ranking, lead: Lead | None, sign: float) -> str | None:
    # If a cell is second only because of its failed runs, the finding about failed runs describes
    # its standing.
    if lead is None or lead.second in ranking.held_back:
        return None
    standing = _standing(ranking, lead, sign)
    return None if standing is None else f"the next, {short_name(lead.second)}, {standing}"


def _standing(ranking: Ranking, lead: Lead, sign: float) -> str | None:
    """Describe how the second cell compares with the best. None if one of them has no mean."""
    best, second = ranking.best, lead.second.summary.mean
    if best is None or best.summary.mean is None or second is None:
        return None
    if second == best.summary.mean:
        return "has the same mean"
    if lead.comparison is None:
        gap = labels.number(sign * (second - best.summary.mean), 3)
        return f"is worse by {gap}, with no interval"
    by = behind(lead.comparison, sign)
    if not by.ratio and not re.search("[1-9]", by.amount):
        return f"has nearly the same mean (95 % interval of the difference {by.interval})"
    return f"is {by.worse(by.amount)} (95 % interval {by.interval})"


def _cost(best: Cell | None, prices: Mapping[str, float]) -> str | None:
    """Return the mean cost of a run of the best cell; None if nothing is known about the cost."""
    if best is None:
        return None
    runs = [run for run in best.runs if run.counts]
    parts: list[str] = []
    steps = [run.cost.steps for run in runs if run.cost.steps is not None]
    tokens = [run.cost.total for run in runs if run.cost.total is not None]
    paid = [p for run in runs if (p := dollars(run.cost, prices)) is not None]
    if steps:
        parts.append(plural(round(sum(steps) / len(steps)), "step"))
    if tokens:
        parts.append(f"{labels.amount(sum(tokens) / len(tokens))} tokens")
    if best.wall_s is not None:
        parts.append(labels.duration(best.wall_s))
    if paid:
        parts.append(f"${labels.number(sum(paid) / len(paid), 3)}")
    return f"a run takes {labels.listed(parts)}" if parts else None


def _headline(best: Cell | None) -> str:
    text = "No cell can be named best" if best is None else cell_text(best)
    named = best is not None and (best.settings or best.unset or (best.name and not best.baseline))
    return text if named else labels.capitalised(text)


def _kind(data: SweepData, ranking: Ranking, findings: Sequence[Finding]) -> str:
    kinds = {finding.kind for finding in findings}
    if "tied" in kinds:
        return "tied"
    if kinds & {"not_compared", "uneven_best"}:
        return "unproven"
    if "separated" in kinds:
        complete = all(run.state == "succeeded" for run in data.runs)
        # A cell with a diverged run was not compared with anything.
        whole = not any(cell.diverged for cell in ranking.measured)
        whole = whole and not kinds & {"unmeasured", "few_runs", "missing_end"}
        whole = whole and not unlike(findings)
        return "clear" if complete and whole else "ahead"
    return "alone" if "alone" in kinds else "none"


_OTHER = {"minimize": "maximize", "maximize": "minimize"}


def measure(data: SweepData) -> str:
    """Describe in one line the value by which cells are compared."""
    if data.metric is None:
        return "no metric to compare by"
    better = "lower" if data.metric.goal == "minimize" else "higher"
    guessed = f" (guessed from its name: --goal {_OTHER[data.metric.goal]} reverses it)"
    note = guessed if data.metric.guessed else ""
    return f"{data.metric.name}, {better} is better{note}, {value_text(data.metric.at)} of each run"


def _number(ranking: Ranking) -> tuple[str | None, str | None]:
    if ranking.best is None:
        return None, None
    summary = ranking.best.summary
    if summary.low is None:
        runs = "identical runs" if summary.identical else "runs with unequal numbers of evaluations"
        why = "one run" if summary.n == 1 else f"{summary.n} {runs}"
        return labels.together(summary.mean)[0], f"{why}, so no interval"
    mean, low, high = labels.within(summary.mean, summary.low, summary.high)
    log = ranking.scale == "log"
    kind = "geometric mean" if log else "mean"
    basis = "one run" if summary.n == 1 else f"{kind} of {summary.n} seeds"
    count = ranking.chosen_of
    allowed = f", which allows for its choice among {count} cells" if count > 1 else ""
    return mean, f"{basis}, 95 % interval {low} to {high}{allowed}"
