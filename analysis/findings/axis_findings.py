"""Makes the findings about axes. Each rests on a test. Pure."""

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from sweeper.analysis import labels
from sweeper.analysis.comparison.axes import Axis, Crossing, Trend
from sweeper.analysis.comparison.blocks import Blocks
from sweeper.analysis.comparison.cells import Cell
from sweeper.analysis.comparison.places import Place
from sweeper.analysis.comparison.surface import AxisEffect, Share, Surface
from sweeper.analysis.findings.finding import Finding, names_of
from sweeper.analysis.statistics.inference import CONFIDENCE
from sweeper.sweep.labels import plural

KINDS = (
    *("blocks", "block_holes", "effect", "trend", "optimum"),
    *("interaction", "no_effect", "at_end", "not_modelled", "axes_without"),
)
"""Findings that the report shows beside the figures of the axes."""


class AxesTold(NamedTuple):
    """The results about axes: their means by value, the results of tests, and the model of all
    axes for sweeps without a grid."""

    axes: Sequence[Axis]
    trends: Sequence[Trend]
    crossings: Sequence[Crossing]
    surface: Surface | None
    blocks: Blocks | None = None
    left_out: Sequence[Cell] = ()
    """Cells with a value that are left out, because runs of them diverged, or failed in a way
    that leaves their quality unknown."""
    places: Sequence[Place] = ()


def tell_axes(found: AxesTold) -> Iterator[Finding]:
    """The findings about axes."""
    if found.blocks is not None:
        yield from _in_blocks(found.blocks)
    if found.surface is not None:
        yield from _modelled(found.surface, {trend.axis for trend in found.trends})
    yield from map(_place, found.places)
    yield from map(_trend, found.trends)
    yield from map(_crossing, found.crossings)
    yield from _flat(found.axes)
    if found.left_out and (found.axes or found.surface is not None):
        names = labels.listed(names_of(found.left_out), 4)
        text = f"Left out of what is said of the axes, as runs there diverged or failed: {names}."
        cells = tuple(cell.name for cell in found.left_out)
        yield Finding("axes_without", "note", text, cells)


def _in_blocks(found: Blocks) -> Iterator[Finding]:
    """The findings about blocks: what each shows, and that they differ, if a test says so."""
    ends: dict[str, int] = {}
    for edge in (edge for block in found.blocks for edge in block.edges):
        ends[edge.axis] = ends.get(edge.axis, 0) + 1
    count = plural(len(found.blocks), "block")
    text = f"{count} by {found.by}, each with a best cell of its own in the table of blocks"
    if found.why is not None:
        why = found.why
        text = (
            f"Judged by {found.by}, {count}: {why.x} {why.first} is better than {why.second} at "
            f"{why.here}, and worse at {why.there}, both beyond the noise"
        )
    if ends:
        at = [f"{axis} in {number}" for axis, number in ends.items()]
        text += f". The best lies at an end of what was tried of {labels.listed(at)}"
    evidence = {"by": found.by, "ends": ends, "told": found.why is not None}
    yield Finding("blocks", "note", f"{text}.", (), evidence)
    if found.holes:
        where = [block.value for block in found.blocks if block.holes]
        text = (
            f"Holes: {labels.listed(where, 6)} have no result of "
            f"{plural(found.holes, 'combination')} that other blocks have, so nothing is "
            "known there."
        )
        holes = {block.value: [dict(row) for row in block.holes] for block in found.blocks}
        yield Finding("block_holes", "note", text, (), {k: v for k, v in holes.items() if v})


def _modelled(surface: Surface, trends: Set[str]) -> Iterator[Finding]:
    """The findings of the model of all axes, without `trends` that the means of a grid already
    show."""
    told = [axis for axis in surface.axes if axis.told]
    flat = [axis.key for axis in surface.axes if not axis.told]
    where = f"within each {surface.within}" if surface.within else "between cells"
    if told:
        parts = [f"{axis.key} ({_share(axis.importance)})" for axis in told]
        text = (
            f"In a model of all axes over {surface.cells} cells these stand out from the noise and "
            f"the scatter of the others, with their shares of the variance {where}: "
            f"{labels.listed(parts, 8)}."
        )
        shares = {axis.key: axis.importance._asdict() | {"p": axis.p} for axis in surface.axes}
        yield Finding("effect", "note", text, (), shares)
        yield from filter(None, (_shape(axis) for axis in told if axis.key not in trends))
    if flat:
        verb = "does" if len(flat) == 1 else "do"
        text = f"{labels.listed(flat, 12)} {verb} nothing that stands out in that model."
        if not told:
            text = f"In a model of all axes over {surface.cells} cells none stands out."
        yield Finding("no_effect", "note", text, (), {"axes": flat})
    for pair in surface.pairs:
        if pair.told:
            text = f"What {pair.x} does depends on {pair.y}, beyond the noise."
            yield Finding("interaction", "note", text, (), {"x": pair.x, "y": pair.y, "p": pair.p})
    left = [f"{key} ({why})" for key, why in surface.left]
    if surface.why or left:
        text = f"What axes do was not modelled: {surface.why}." if surface.why else ""
        more = f"Not in the model: {labels.listed(left, 8)}." if left else ""
        yield Finding("not_modelled", "note", " ".join(filter(None, (text, more))))


_LITTLE = 0.005


def _share(found: Share) -> str:
    if found.high < _LITTLE:
        return "less than 1 %, but real"
    low, high = (labels.percent(bound) for bound in (found.low, found.high))
    return f"{labels.percent(found.value)}, {low} to {high}"


def _shape(axis: AxisEffect) -> Finding | None:
    if axis.side:
        text = f"{axis.key}: better toward the {axis.side} values, the ends beyond the noise."
        return Finding(
            "trend", "note", text, (), {"axis": axis.key, "side": axis.side, "p": axis.p}
        )
    return None


def _place(found: Place) -> Finding:
    if found.counts:
        named = [f"{labels.brief(value)} in {count}" for value, count in found.counts]
        (value, count), rows = found.counts[0], _rows(found)
        text = f"{found.axis}: {labels.brief(value)} is best in {count} of {found.of} {rows}"
        text += f", {labels.listed(named[1:], 4)}." if named[1:] else "."
    else:
        low, high = labels.place(found.low), labels.place(found.high)
        text = f"{found.axis}: the best {found.of} of {found.cells} cells have {low} to {high}."
    evidence = {**found._asdict(), "counts": [list(each) for each in found.counts]}
    return Finding("optimum", "note", text, (), evidence)


def _rows(found: Place) -> str:
    return "combinations of the other settings" if found.rows == "row" else f"{found.rows} values"


def _trend(found: Trend) -> Finding:
    how = "every step differs" if found.every else "the ends differ"
    text = f"{found.axis}: better toward the {found.side} value; {how} beyond the noise."
    evidence = {"axis": found.axis, "side": found.side, "every": found.every}
    return Finding("trend", "note", text, (), {**evidence, **found.effect._asdict()})


def _crossing(found: Crossing) -> Finding:
    text = (
        f"The best {found.x} depends on {found.y}: {found.first} is better than {found.second} at "
        f"{found.y} {found.here}, and worse at {found.there}, both beyond the noise."
    )
    evidence = {
        "x": found.x,
        "y": found.y,
        "best": {found.here: found.first, found.there: found.second},
        "p": found.p,
    }
    return Finding("interaction", "note", text, (), evidence)


def _flat(axes: Sequence[Axis]) -> Iterator[Finding]:
    """Axes without any effect that can be shown."""
    flat = [a.key for a in axes if a.effect.p is not None and a.effect.p > 1 - CONFIDENCE]
    if flat:
        verb = "makes" if len(flat) == 1 else "make"
        text = (
            f"{labels.listed(flat)} {verb} no difference on average that stands out from the noise."
        )
        evidence = {a.key: a.effect._asdict() for a in axes if a.key in flat}
        yield Finding("no_effect", "note", text, (), evidence)
