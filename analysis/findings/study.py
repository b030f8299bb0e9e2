"""Computes all results of a report, from the data that was read. If blocks are judged
separately, each block has a best cell."""

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from sweeper.analysis import labels
from sweeper.analysis.comparison.axes import (
    Axis,
    Grid2,
    Trend,
    find_axes,
    find_crossings,
    find_pairs,
    find_trends,
)
from sweeper.analysis.comparison.behaviour import Behaviour, examine
from sweeper.analysis.comparison.blocks import Block, Blocks, by_blocks, find_blocks
from sweeper.analysis.comparison.cells import Ranking, rank
from sweeper.analysis.comparison.contrasts import parts, usable
from sweeper.analysis.comparison.edges import judge_edges
from sweeper.analysis.comparison.episodes import Episodes, by_episodes
from sweeper.analysis.comparison.items import Compared
from sweeper.analysis.comparison.places import Place, find_places
from sweeper.analysis.comparison.power import seeds_for, usual_spread
from sweeper.analysis.comparison.stability import Stability, assess
from sweeper.analysis.comparison.surface import Surface, find_surface, varying
from sweeper.analysis.comparison.tasks import Checkpoints, Tasks, by_checkpoints, by_tasks
from sweeper.analysis.comparison.tradeoffs import Tradeoff, find_tradeoffs
from sweeper.analysis.findings.axis_findings import AxesTold
from sweeper.analysis.findings.baselines import against
from sweeper.analysis.findings.best_findings import standing
from sweeper.analysis.findings.comparability import tell_unlike, unlike
from sweeper.analysis.findings.finding import Finding, cell_text
from sweeper.analysis.findings.heldout import HeldOut, held_out, held_out_findings, told_with
from sweeper.analysis.findings.itemwise import by_items, item_findings
from sweeper.analysis.findings.next_steps import failures
from sweeper.analysis.findings.nextgrid import NextGrid, propose
from sweeper.analysis.findings.observations import Failure, group_failures, observe
from sweeper.analysis.findings.run_findings import tell_records, tell_runs
from sweeper.analysis.findings.verdict import (
    LATER,
    Check,
    Lead,
    Verdict,
    decide,
    measure,
    whole,
    wholly_stable,
)
from sweeper.analysis.reading.costs import dollars
from sweeper.analysis.reading.frames import SweepData
from sweeper.analysis.reading.settings import keys_of, level
from sweeper.analysis.statistics.inference import Estimate, paired_with
from sweeper.results.origins import Difference, differences
from sweeper.sweep.labels import plural

_LINES = 12
"""The largest number of blocks that the text for a terminal lists."""


def decide_by_blocks(
    data: SweepData,
    ranking: Ranking,
    findings: Sequence[Finding],
    blocks: Blocks,
    following: NextGrid | None = None,
) -> Verdict:
    """Return a verdict with the best cell of each block. The verdict names no best cell of the
    sweep, and uses no mean over blocks."""
    judged = [block for block in blocks.blocks if block.best is not None]
    count, reason = plural(len(judged), "best cell"), unlike(findings)
    return Verdict(
        kind="blocks",
        label=f"judged by {blocks.by}" + (f", but runs of {reason}" if reason else ""),
        headline=f"{count}, one for each {blocks.by}",
        measure=f"{measure(data)}; each {blocks.by} by itself",
        number=None,
        spread=None,
        believe=tuple(f for f in findings if f.kind not in LATER or f.kind == "block_holes"),
        caution="Each was chosen by the same runs that measure it, and its interval allows for "
        "that; without an interval, its value may be too good.",
        steps=tuple(_steps(data, findings, blocks, following)),
        checkpoint=None,
        checks=tuple(_checks(data, ranking, findings, judged, blocks.by)),
        each=tuple(_each(judged, blocks.by)),
    )


def _each(judged: Sequence[Block], by: str) -> Iterator[str]:
    """Yield a line about the best cell of each block, for at most `_LINES` blocks."""
    for block in judged[:_LINES]:
        if block.best is not None:
            texts = {key: text for key, text in block.best.texts.items() if key not in keys_of(by)}
            name = ", ".join(f"{key} {text}" for key, text in texts.items())
            mean = labels.number(block.best.summary.mean)
            how = f", {block.standing}" if block.standing else ""
            yield f"{block.value}: {name or cell_text(block.best)}, {mean}{how}"
    if len(judged) > _LINES:
        yield f"and {len(judged) - _LINES} more, in the report's table of blocks"


def _checks(
    data: SweepData, ranking: Ranking, findings: Sequence[Finding], judged: Sequence[Block], by: str
) -> Iterator[Check]:
    total = len(judged)
    ahead = sum(block.ahead for block in judged)
    compared = any(block.compared for block in judged)
    text = f"in {ahead} of {total}" if compared else "not known"
    yield Check("Beyond the noise?", text, (ahead == total) if compared else None)
    fewest = min(block.best.summary.n for block in judged if block.best is not None)
    yield Check("Seeds", f"{fewest} or more for each best", fewest > 2)
    edges = [[edge for edge in block.edges if not edge.stopped] for block in judged]
    text = sum(any(edge.told for edge in group) for group in edges)
    ends = sum(map(bool, edges))
    inside = f"at an end in {ends} of {total} {by}" if ends else "yes"
    inside += f", better there beyond the noise in {text}" if text else ""
    yield Check("Inside the grid?", inside, False if text else None if ends else True)
    yield whole(data, findings)
    yield wholly_stable(data, ranking, findings)


def _steps(
    data: SweepData, findings: Sequence[Finding], blocks: Blocks, following: NextGrid | None
) -> Iterator[str]:
    yield from failures(data)
    beyond: Counter[tuple[str, str]] = Counter()
    for block in blocks.blocks:
        beyond.update({(e.axis, e.side) for e in block.edges if e.told and not e.stopped})
    for (axis, side), count in beyond.most_common():
        way = "larger" if side == "largest" else "smaller"
        yield (
            f"Try {way} values of {axis}: in {plural(count, 'block')} the {side} value "
            "tried is better than the one before it beyond the noise."
        )
    kind = following.kind if following is not None else ""
    runs = plural(following.runs, "new run") if following is not None else ""
    if blocks.holes:
        how = f": launch next.yaml ({runs}, finished ones are kept)" if kind == "holes" else ""
        yield f"Fill the {plural(blocks.holes, 'hole')} in the table of blocks{how}."
    fewest = min((b.best.summary.n for b in blocks.blocks if b.best is not None), default=0)
    evidence = next((f.evidence for f in findings if f.kind == "by_blocks"), None) or {}
    unknown = bool(evidence.get("not_known"))
    if kind == "confirm" and following is not None:
        cells = plural(following.cells, "cell")
        yield (
            f"Launch next.yaml: for each {blocks.by} without a clear best, the cells that may be "
            f"the best, on fresh seeds ({runs} of {cells})."
        )
    elif fewest < 3 and not unknown:
        yield "Run the best cells and those tied with them with three seeds or more."
    if unknown:
        first = "Or" if kind == "confirm" else "Run some cells with three seeds or more, or"
        yield (
            f"{first} name a sweep whose noise to use (--noise from=SWEEP), or use the noise of "
            "the few repeated cells for all (--noise pooled)."
        )
    yield "For each block, take its best cell: the table of blocks has settings and checkpoints."


def find(data: SweepData, ranking: Ranking, blocks: Blocks | None = None) -> list[Finding]:
    """Return the findings about differences between runs, the best cell, diverged or failed runs,
    edges of the grid and missing results, in this order."""
    first = standing(data, ranking, blocks)
    kinds = {finding.kind for finding in first}
    return [
        *tell_unlike(data, ranking),
        *first,
        *tell_runs(data, ranking, diverged="all_diverged" not in kinds),
        *_edges(data, ranking, "" if blocks is None else blocks.by),
        *tell_records(data, ranking),
    ]


def _edges(data: SweepData, ranking: Ranking, by: str) -> list[Finding]:
    """Return a finding for each axis on which the best cell has the smallest or the largest value
    that was tried. The finding's kind is "edge" if three or more values were tried and the best
    cell's value is better than the value before it beyond the noise, else "at_end". An axis has no
    finding if diverged or failed runs had values beyond that of the best cell. The list is empty
    for a sweep that confirms an earlier one."""
    best = ranking.best
    if best is None or not ranking.others or data.metric is None or data.confirmed is not None:
        return []
    blocks = 1
    if by:  # each block may have an optimum of its own
        blocks = parts(ranking, by)
        value = level(best.settings, by)
        cells = tuple(cell for cell in ranking.cells if level(cell.settings, by) == value)
        ranking = replace(ranking, cells=cells)
    findings: list[Finding] = []
    for edge in judge_edges(ranking, data.metric.sign, blocks=blocks):
        if edge.stopped or edge.inner is None:
            continue
        end = f"{edge.axis} {best.texts[edge.axis]} is the {edge.side} value tried"
        inner = next(
            (c.texts[edge.axis] for c in ranking.cells if c.settings.get(edge.axis) == edge.inner),
            labels.brief(edge.inner),
        )
        gain = edge.gain and edge.gain._asdict()
        evidence = {**asdict(edge), "gain": gain, "doubt": edge.doubt}
        evidence["shown"] = best.texts[edge.axis]
        if edge.values < 3:
            # With two values, the best is always an end, which says nothing about values beyond it.
            text = (
                f"{edge.axis} was tried at {inner} and {best.texts[edge.axis]} only. The best "
                f"cell has {best.texts[edge.axis]}. Nothing further out was tried."
            )
            findings.append(Finding("at_end", "note", text, (best.name,), evidence))
        elif edge.told:
            text = (
                f"{end}, and better than {inner} beyond the noise: a still better value may lie "
                "beyond it."
            )
            findings.append(Finding("edge", "warning", text, (best.name,), evidence))
        else:
            text = f"{end}{_HOW[edge.doubt]}. The value before it is {inner}."
            findings.append(Finding("at_end", "note", text, (best.name,), evidence))
    return findings


_HOW = {
    "": ", better beyond the noise",
    "within the noise": "; noise can explain that",
    "noise not known": "; this may be luck, because the noise is unknown",
}
"""How the sentence about an end continues, for each reason for doubt."""


@dataclass(frozen=True)
class Study:
    """All results of a study. `surface` is the model of all axes (None for a full grid). `blocks`
    are the blocks that were requested or detected. `paired` maps the name of each cell to its
    difference from the best cell over shared seeds. `needed` is the number of seeds per cell that
    is enough to detect the smallest relevant difference. `no_next` is the reason if a suggested
    next grid cannot be written. `prices` are dollars per million tokens. `unlike` lists differences
    in the code, packages or data of the runs."""

    data: SweepData
    ranking: Ranking
    findings: tuple[Finding, ...]
    verdict: Verdict
    axes: tuple[Axis, ...]
    trends: tuple[Trend, ...]
    pairs: tuple[Grid2, ...]
    surface: Surface | None
    blocks: Blocks | None
    stability: Stability
    behaviour: Behaviour | None
    tradeoffs: tuple[Tradeoff, ...]
    paired: Mapping[str, Estimate]
    lead: Lead | None
    needed: int | None
    next: NextGrid | None
    no_next: str | None
    failures: tuple[Failure, ...]
    prices: Mapping[str, float]
    items: tuple[Compared, ...] = ()
    held_out: HeldOut | None = None
    tasks: Tasks | None = None
    checkpoints: Checkpoints | None = None
    episodes: tuple[Episodes, ...] = ()
    unlike: tuple[Difference, ...] = ()

    @functools.cached_property
    def priced(self) -> bool:
        """Whether the cost of at least one run is known."""
        return any(dollars(run.cost, self.prices) is not None for run in self.data.runs)


def study(data: SweepData, prices: Mapping[str, float] | None = None) -> Study:
    """Compute all results of a report, without I/O."""
    ranking = rank(data)
    sign = data.sign
    blocks = find_blocks(ranking, sign, data.metric.by) if data.metric is not None else None
    if blocks is not None and blocks.requested:
        ranking, blocks = by_blocks(ranking, blocks, sign)
    axes = _axes(data, ranking, sign, blocks)
    stability = assess(data, ranking.keys)
    behaviour = examine(data, ranking)
    answered, held = by_items(data, ranking), held_out(data, ranking)
    findings = [
        *held_out_findings(held, ranking),
        *find(data, ranking, blocks),
        *([] if ranking.leaders else item_findings(answered, ranking)),
        *observe(data, ranking, axes, stability, behaviour),
    ]
    shared = _paired(ranking)
    lead = _lead(ranking, shared)
    needed = _needed(data, ranking)
    lead = None if lead is None else lead._replace(needed=needed)
    proposed = propose(data, ranking, findings, needed, blocks)
    following = proposed if isinstance(proposed, NextGrid) else None
    verdict = (
        decide_by_blocks(data, ranking, findings, blocks, following)
        if blocks is not None and ranking.leaders
        else decide(data, ranking, findings, lead, following, prices or {})
    )
    return Study(
        data=data,
        ranking=ranking,
        findings=tuple(findings),
        verdict=replace(
            told_with(verdict, held, answered, ranking),
            against=data.unmet or against(ranking, sign),
        ),
        axes=tuple(axes.axes),
        trends=tuple(axes.trends),
        pairs=tuple(find_pairs(ranking, axes.axes, sign)),
        surface=axes.surface,
        blocks=blocks,
        stability=stability,
        behaviour=behaviour,
        tradeoffs=tuple(find_tradeoffs(data, ranking, prices or {})),
        paired=shared,
        lead=lead,
        needed=needed,
        next=following,
        no_next=proposed if isinstance(proposed, str) else None,
        failures=tuple(group_failures(data.runs)),
        prices=dict(prices or {}),
        items=tuple(answered),
        held_out=held,
        tasks=by_tasks(data, ranking),
        checkpoints=by_checkpoints(ranking),
        episodes=tuple(by_episodes(data, ranking)),
        unlike=tuple(differences(data.runs)),
    )


def _axes(data: SweepData, ranking: Ranking, sign: float, blocks: Blocks | None) -> AxesTold:
    """Return all results about axes. The results are empty without a metric."""
    axes = find_axes(ranking, sign) if data.metric is not None else []
    surface = _modelled(ranking, axes, sign, blocks) if data.metric is not None else None
    counted = {cell.name for cell in usable(ranking)}
    return AxesTold(
        axes,
        find_trends(axes, sign),
        find_crossings(ranking, axes, sign),
        surface,
        blocks,
        [cell for cell in ranking.measured if cell.name not in counted],
        _places(ranking, surface, blocks, sign),
    )


def _places(
    ranking: Ranking, surface: Surface | None, blocks: Blocks | None, sign: float
) -> list[Place]:
    """Return, for each axis, the range that contains its best values. If blocks are judged
    separately, all axes are examined, else only the axes that matter in the model of all axes."""
    if blocks is not None and ranking.leaders:
        return find_places(ranking, ranking.keys, sign, blocks.by)
    keys = [axis.key for axis in surface.axes if axis.certain] if surface is not None else []
    return find_places(ranking, keys, sign)


def _modelled(
    ranking: Ranking, axes: Sequence[Axis], sign: float, blocks: Blocks | None
) -> Surface | None:
    """Return a model of all axes. None if no model can be made, or for a full grid, in which the
    means of values already separate the effects of the axes."""
    matched = {axis.key for axis in axes if axis.matched}
    if matched.issuperset(varying(ranking)):
        return None
    return find_surface(ranking, sign, blocks.by if blocks is not None else "")


def _paired(ranking: Ranking) -> dict[str, Estimate]:
    """Compare each cell with the best cell, or with the best of its block, over shared seeds."""
    bests = [ranking.best] if ranking.best is not None else []
    bests += [c for c in ranking.cells if ranking.leaders.get(c.name) == c.name]
    estimates: dict[str, Estimate] = {}
    for best in bests:
        group = [c for c in ranking.cells if ranking.leaders.get(c.name, best.name) == best.name]
        good = [c for c in group if c is not best and c.summary.n and not c.diverged]
        rivals = {cell.name: cell.by_seed(ranking.scale) for cell in good}
        # The data chose the best cell, so the correction counts all pairs of cells.
        pairs = max((len(rivals) + 1) * len(rivals) // 2, 1)
        estimates |= paired_with(rivals, best.by_seed(ranking.scale), pairs)
    return estimates


def _lead(ranking: Ranking, shared: Mapping[str, Estimate]) -> Lead | None:
    """Compare the best cell with the next cell of the ranking; None if either is missing."""
    if ranking.best is None or not ranking.others:
        return None
    second = ranking.others[0]
    return Lead(second, ranking.comparisons.get(second.name), shared.get(second.name))


def _needed(data: SweepData, ranking: Ranking) -> int | None:
    """Return how many seeds per cell are enough to detect the smallest relevant difference
    between the cells that may be the best. None if the grid declares no relevant difference, the
    noise is unknown, no cells are tied, or more than 100 seeds are needed."""
    relevant = None if data.metric is None else data.metric.relevant
    spread = usual_spread(ranking)
    best = ranking.best and ranking.best.summary.mean
    if relevant is None or spread is None or not ranking.tied or best is None:
        return None
    if ranking.scale == "log":
        relevant = math.log1p(relevant / abs(best))
    return seeds_for(relevant / spread.sd, len(ranking.tied) + 1, spread.df)
