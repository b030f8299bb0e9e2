"""The curves of one run, and the best run's beside the one that is looked at. Pure."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from sweeper.sanitize import harmless
from sweeper.tui.charts import Glyphs, fit, plot, sparkline, value
from sweeper.tui.render import Line

__all__ = ["Points", "curve_lines"]

Points = Sequence[tuple[float, float]]
"""(step, value), thinned out."""


def curve_lines(
    curves: Mapping[str, Points],
    chosen: int,
    best: Mapping[str, Points],
    about_best: Sequence[str],
    width: int,
    height: int,
    glyphs: Glyphs,
) -> list[Line]:
    """A plot of one metric, and a line for each of those around it. `best` has the curves of the
    run to compare with; `about_best` says which that is, and then what else there is to know."""
    keys = list(curves)
    if not keys:
        return [[("no metrics yet", "dim")]]
    chosen %= len(keys)
    key = keys[chosen]
    points, other = curves[key], best.get(key, ())
    step, last = points[-1]
    said = f"  {value(last)} at step {value(step)}   {chosen + 1} of {len(keys)}"
    lines: list[Line] = [[(harmless(key), "bold"), (said, "")]]
    if other:
        which, *more = about_best
        told = [f"{glyphs.other} {_compared(step, other)}: {which}", *(f"  {one}" for one in more)]
        lines += [[(fit(harmless(one), width, cut=glyphs.cut), "warn")] for one in told]
    listed = min(len(keys), max(0, (height - 2) // 3))
    room = max(4, height - len(lines) - listed)
    lines += [_coloured(line, glyphs) for line in plot(points, width, room, glyphs, other)]
    first = max(0, min(chosen - listed // 2, len(keys) - listed))
    for near in keys[first : first + listed]:
        lines.append(_in_a_line(near, curves[near], near == key, width, glyphs))
    return lines[:height]


def _compared(step: float, other: Points) -> str:
    """What the other had at this step, or the last before it, and what it has come to."""
    place = bisect_right(other, step, key=lambda point: point[0])
    then, number = other[max(0, place - 1)]
    last_step, last = other[-1]
    told = f"{value(number)} at step {value(then)}"
    return told if last_step == then else f"{told}, {value(last)} at {value(last_step)}"


def _coloured(line: str, glyphs: Glyphs) -> Line:
    """A line of a plot: the other's marks are told by their form, and by a colour too."""
    found: Line = []
    for place, part in enumerate(line.split(glyphs.other)):
        found += [(glyphs.other, "warn")] if place else []
        found += [(part, "info")] if part else []
    return found


def _in_a_line(key: str, points: Points, bold: bool, width: int, glyphs: Glyphs) -> Line:
    name = fit(harmless(key), min(28, max(10, width - 40)), cut=glyphs.cut)
    numbers = [number for _, number in points]
    latest = fit(value(numbers[-1]), 10, right=True)
    curve = sparkline(numbers, max(8, width - 42), glyphs)
    return [(f"{name} ", "bold" if bold else "dim"), (latest, ""), (f" {curve}", "info")]
