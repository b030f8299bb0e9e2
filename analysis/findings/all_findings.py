"""Collects all findings about a sweep, the most important first. Pure."""

from dataclasses import asdict, replace

from sweeper.analysis import labels
from sweeper.analysis.comparison.blocks import Blocks
from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.comparison.contrasts import parts
from sweeper.analysis.comparison.edges import judge_edges
from sweeper.analysis.findings.best_findings import standing
from sweeper.analysis.findings.comparability import tell_unlike
from sweeper.analysis.findings.finding import Finding
from sweeper.analysis.findings.run_findings import tell_records, tell_runs
from sweeper.analysis.reading.frames import SweepData
from sweeper.analysis.reading.settings import level


def find(data: SweepData, ranking: Ranking, blocks: Blocks | None = None) -> list[Finding]:
    """Return all findings, the most important first."""
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
    """Return the ends of the grid at which the best cell lies: "edge" if the metric still improves
    there, else "at_end". The cells of a confirmation are only some of those tried, so their ends
    do not count."""
    best = ranking.best
    if best is None or not ranking.others or data.metric is None or data.confirmed is not None:
        return []
    blocks = 1
    if by:  # other blocks have an optimum of their own
        blocks = parts(ranking, by)
        own = level(best.settings, by)
        cells = tuple(cell for cell in ranking.cells if level(cell.settings, by) == own)
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
            how = _HOW[edge.doubt]
            text = (
                f"{edge.axis} was tried at {inner} and {best.texts[edge.axis]} only. The best "
                f"cell has {best.texts[edge.axis]}{how}. Nothing further out was tried."
            )
            kind, mark = ("edge", "warning") if edge.told else ("at_end", "note")
            findings.append(Finding(kind, mark, text, (best.name,), evidence))
        elif edge.told:
            text = (
                f"{end}, and better than {inner} beyond the noise: a better one may lie beyond it."
            )
            findings.append(Finding("edge", "warning", text, (best.name,), evidence))
        else:
            text = f"{end}{_HOW[edge.doubt]}. The value before it is {inner}."
            findings.append(Finding("at_end", "note", text, (best.name,), evidence))
    return findings


_HOW = {
    "": ", better beyond the noise",
    "within the noise": "; noise can explain that",
    "noise not known": "; whether by luck is not known, because nothing shows the noise",
}
"""What is said of an end, by the doubt about it."""
