"""What is said of axes: only what a test behind it has told. Pure."""

from collections.abc import Iterator, Sequence

from sweeper.analysis import labels
from sweeper.analysis.axes import Axis, Crossing, Trend
from sweeper.analysis.findings import Finding
from sweeper.analysis.inference import CONFIDENCE

__all__ = ["KINDS", "tell_axes"]

KINDS = ("trend", "interaction", "no_effect", "at_end")
"""Findings that have their place beside the figures of the axes."""


def tell_axes(
    axes: Sequence[Axis], trends: Sequence[Trend], crossings: Sequence[Crossing]
) -> Iterator[Finding]:
    """The findings about axes."""
    yield from map(_trend, trends)
    yield from map(_crossing, crossings)
    yield from _flat(axes)


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
    """Axes that cannot be told to do anything."""
    flat = [a.key for a in axes if a.effect.p is not None and a.effect.p > 1 - CONFIDENCE]
    if flat:
        verb = "makes" if len(flat) == 1 else "make"
        text = (
            f"{labels.listed(flat)} {verb} no difference on average that stands out from the noise."
        )
        evidence = {a.key: a.effect._asdict() for a in axes if a.key in flat}
        yield Finding("no_effect", "note", text, (), evidence)
