"""Makes the findings about axes. Each finding follows from a significance test. Pure."""

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
"""The kinds of findings that the report shows next to the figures of the axes."""


class AxesTold(NamedTuple):
    """All results about axes: the mean of the metric for each value, the results of tests, and (for
    sweeps that are not a full grid) the model of all axes."""

    axes: Sequence[Axis]
    trends: Sequence[Trend]
    crossings: Sequence[Crossing]
    surface: Surface | None
    blocks: Blocks | None = None
    left_out: Sequence[Cell] = ()
    """Cells that have a value but are left out, because some of their runs diverged or failed."""
    places: Sequence[Place] = ()


def tell_axes(axes: AxesTold) -> Iterator[Finding]:
    """Yield the findings about axes."""
    if axes.blocks is not None:
        yield from _in_blocks(axes.blocks)
    if axes.surface is not None:
        yield from _modelled(axes.surface, {trend.axis for trend in axes.trends})
    yield from map(_place, axes.places)
    yield from (_trend(trend, bool(axes.left_out)) for trend in axes.trends)
    yield from map(_crossing, axes.crossings)
    yield from _flat(axes.axes)
    if axes.left_out and (axes.axes or axes.surface is not None):
        names = labels.listed(names_of(axes.left_out), 4)
        text = f"Left out of the findings on axes, because runs there diverged or failed: {names}."
        cells = tuple(cell.name for cell in axes.left_out)
        yield Finding("axes_without", "note", text, cells)


def _in_blocks(blocks: Blocks) -> Iterator[Finding]:
    """Yield the findings about blocks (parts of the sweep that are judged separately): their number
    and reason, and the combinations of settings that some blocks lack."""
    ends: dict[str, int] = {}
    for edge in (edge for block in blocks.blocks for edge in block.edges):
        ends[edge.axis] = ends.get(edge.axis, 0) + 1
    count = plural(len(blocks.blocks), "block")
    text = f"{count} by {blocks.by}, each with a best cell of its own in the table of blocks"
    if blocks.why is not None:
        why = blocks.why
        text = (
            f"Judged by {blocks.by}, {count}: {why.x} {why.first} is better than {why.second} at "
            f"{why.here}, and worse at {why.there}, both beyond the noise"
        )
    if ends:
        at = [f"for {axis} in {plural(number, 'block')}" for axis, number in ends.items()]
        text += f". The best lies at an end of the values tried {labels.listed(at)}"
    evidence = {"by": blocks.by, "ends": ends, "told": blocks.why is not None}
    yield Finding("blocks", "note", f"{text}.", (), evidence)
    if blocks.holes:
        where = [block.value for block in blocks.blocks if block.holes]
        text = (
            f"Holes: {plural(blocks.holes, 'combination')} of other blocks "
            f"{'has' if blocks.holes == 1 else 'have'} no result in {labels.listed(where, 6)}, so "
            "the best combination there may not have been tried."
        )
        holes = {block.value: [dict(row) for row in block.holes] for block in blocks.blocks}
        yield Finding("block_holes", "note", text, (), {k: v for k, v in holes.items() if v})


def _modelled(surface: Surface, trends: Set[str]) -> Iterator[Finding]:
    """Yield the findings of the model of all axes. For the axes in `trends`, the trend is left out,
    because another finding states it."""
    modelled = [axis for axis in surface.axes if axis.certain]
    flat = [axis.key for axis in surface.axes if not axis.certain]
    where = f"within each {surface.within}" if surface.within else "between cells"
    if modelled:
        parts = [f"{axis.key} ({_share(axis.importance)})" for axis in modelled]
        text = (
            f"In a model of all axes over {surface.cells} cells, these settings make a difference "
            f"beyond the noise (in parentheses: their shares of the variance {where}): "
            f"{labels.listed(parts, 8)}."
        )
        shares = {axis.key: axis.importance._asdict() | {"p": axis.p} for axis in surface.axes}
        yield Finding("effect", "note", text, (), shares)
        yield from filter(None, (_shape(axis) for axis in modelled if axis.key not in trends))
    if flat:
        verb = "has" if len(flat) == 1 else "have"
        text = f"{labels.listed(flat, 12)} {verb} no effect beyond the noise in that model."
        if not modelled:
            text = f"In a model of all axes over {surface.cells} cells no setting stands out."
        yield Finding("no_effect", "note", text, (), {"axes": flat})
    for pair in surface.pairs:
        if pair.certain:
            text = f"The effect of {pair.x} depends on {pair.y}, beyond the noise."
            yield Finding("interaction", "note", text, (), {"x": pair.x, "y": pair.y, "p": pair.p})
    left = [f"{key} ({why})" for key, why in surface.left]
    if surface.why or left:
        text = f"The effects of axes were not modelled: {surface.why}." if surface.why else ""
        more = f"Not in the model: {labels.listed(left, 8)}." if left else ""
        yield Finding("not_modelled", "note", " ".join(filter(None, (text, more))))


_LITTLE = 0.005


def _share(share: Share) -> str:
    if share.high < _LITTLE:
        return "less than 1 %, but real"
    low, high = (labels.percent(bound) for bound in (share.low, share.high))
    return f"{labels.percent(share.value)}, {low} to {high}"


def _shape(axis: AxisEffect) -> Finding | None:
    if not axis.side:
        return None
    text = f"{axis.key}: better toward the {axis.side} values; the ends differ beyond the noise."
    evidence = {"axis": axis.key, "side": axis.side, "p": axis.p}
    return Finding("trend", "note", text, (), evidence)


def _place(place: Place) -> Finding:
    if place.counts:
        named = [f"{place.text(value)} in {count}" for value, count in place.counts]
        (value, count), rows = place.counts[0], _rows(place)
        text = f"{place.axis}: {place.text(value)} is best in {count} of {place.of} {rows}"
        text += f", {labels.listed(named[1:], 4)}." if named[1:] else "."
    else:
        low, high = place.text(place.low), place.text(place.high)
        text = f"{place.axis}: the best {place.of} of {place.cells} cells have {low} to {high}."
    evidence = {**place._asdict(), "counts": [list(each) for each in place.counts]}
    del evidence["texts"]
    return Finding("optimum", "note", text, (), evidence)


def _rows(place: Place) -> str:
    return "combinations of the other settings" if place.rows == "row" else f"{place.rows} values"


def _trend(trend: Trend, left_out: bool) -> Finding:
    how = "every step differs" if trend.every else "the ends differ"
    end = "of the values whose cells count" if left_out else "value"
    text = f"{trend.axis}: better toward the {trend.side} {end}; {how} beyond the noise."
    evidence = {"axis": trend.axis, "side": trend.side, "every": trend.every}
    return Finding("trend", "note", text, (), {**evidence, **trend.effect._asdict()})


def _crossing(crossing: Crossing) -> Finding:
    text = (
        f"The best {crossing.x} depends on {crossing.y}: {crossing.first} is better than "
        f"{crossing.second} at "
        f"{crossing.y} {crossing.here}, and worse at {crossing.there}, both beyond the noise."
    )
    best = {crossing.here: crossing.first, crossing.there: crossing.second}
    evidence = {"x": crossing.x, "y": crossing.y, "best": best, "p": crossing.p}
    return Finding("interaction", "note", text, (), evidence)


def _flat(axes: Sequence[Axis]) -> Iterator[Finding]:
    """Yield a finding about the axes whose effects may be noise."""
    flat = [a.key for a in axes if a.effect.p is not None and a.effect.p > 1 - CONFIDENCE]
    if flat:
        verb = "makes" if len(flat) == 1 else "make"
        text = (
            f"{labels.listed(flat)} {verb} no difference on average that stands out from the noise."
        )
        evidence = {a.key: a.effect._asdict() for a in axes if a.key in flat}
        yield Finding("no_effect", "note", text, (), evidence)
