"""The top of the report if blocks are judged separately: a best cell for each. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence

from sweeper.analysis import labels
from sweeper.analysis.comparison.blocks import Block, Blocks
from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.findings.comparability import unlike
from sweeper.analysis.findings.finding import Finding, cell_text
from sweeper.analysis.findings.next_steps import failures
from sweeper.analysis.findings.nextgrid import NextGrid
from sweeper.analysis.findings.verdict import LATER, Check, Verdict, measure, whole, wholly_stable
from sweeper.analysis.reading.frames import SweepData
from sweeper.sweep.labels import plural

_LINES = 12
"""The most blocks that the text for a terminal names."""


def decide_by_blocks(
    data: SweepData,
    ranking: Ranking,
    findings: Sequence[Finding],
    blocks: Blocks,
    following: NextGrid | None = None,
) -> Verdict:
    """Return the verdict over all blocks. It names no best cell of all, and takes no mean over
    blocks."""
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
        "that; where it has none, its value may flatter it.",
        steps=tuple(_steps(data, findings, blocks, following)),
        checkpoint=None,
        checks=tuple(_checks(data, ranking, findings, judged, blocks.by)),
        each=tuple(_each(judged, blocks.by)),
    )


def _each(judged: Sequence[Block], by: str) -> Iterator[str]:
    """Yield a line for each of the first blocks."""
    for block in judged[:_LINES]:
        if block.best is not None:
            own = {key: text for key, text in block.best.texts.items() if key != by}
            name = ", ".join(f"{key} {text}" for key, text in own.items())
            mean = labels.number(block.best.summary.mean)
            yield f"{block.value}: {name or cell_text(block.best)}, {mean}{_standing(block)}"
    if len(judged) > _LINES:
        yield f"and {len(judged) - _LINES} more, in the report's table of blocks"


def _standing(block: Block) -> str:
    """Return how the best of a block compares with its other cells."""
    if block.tied:
        return f", not told from {len(block.tied)} of {block.compared}"
    return f", ahead of {block.compared}" if block.compared else ""


def _checks(
    data: SweepData, ranking: Ranking, findings: Sequence[Finding], judged: Sequence[Block], by: str
) -> Iterator[Check]:
    total = len(judged)
    ahead = sum(block.ahead for block in judged)
    known = any(block.compared for block in judged)
    text = f"in {ahead} of {total}" if known else "not known"
    yield Check("Beyond the noise?", text, (ahead == total) if known else None)
    fewest = min(block.best.summary.n for block in judged if block.best is not None)
    yield Check("Seeds", f"{fewest} or more for each best", fewest > 2)
    edges = [[edge for edge in block.edges if not edge.stopped] for block in judged]
    text = sum(any(edge.told for edge in own) for own in edges)
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
            f"Launch next.yaml: of each {blocks.by} whose best is not sure, that and what may be "
            f"better, on fresh seeds ({runs} of {cells})."
        )
    elif fewest < 3 and not unknown:
        yield "Run the best cells and those not told from them with three seeds or more."
    if unknown:
        first = "Or" if kind == "confirm" else "Run some cells with three seeds or more, or"
        yield (
            f"{first} say whose noise to take (--noise from=SWEEP): a few repeated cells tell the "
            "noise of all (--noise pooled)."
        )
    yield "Take for each block its best cell: the table of blocks has its settings and checkpoint."
