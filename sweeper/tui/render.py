"""The list of runs as lines of styled text, for any width. Pure."""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from sweeper.common.sanitize import sanitize
from sweeper.results.status import NOBODY
from sweeper.sweep.labels import plural
from sweeper.tui.charts import bar, sparkline
from sweeper.tui.list_model import Group, Item
from sweeper.tui.model import RunView, SweepView
from sweeper.tui.text import (
    STATES,
    Glyphs,
    Line,
    Span,
    age,
    fit,
    fit_middle,
    joined,
    short,
    trimmed,
    value,
)

_ORDER = tuple(STATES)
_BAD = ("silent", "stalled", "failed", "lost", "preempted", "waiting")
_URGENT = (*_BAD, *(state for state in _ORDER if state not in _BAD))
"""The order of states where there is little space: problems come first."""
_STATES = ("state", "try", "step", "left")
"""The leading columns of a run's line. A group's line shows the states of its runs there
instead."""

_REASON = re.compile(" since |: ")
"""Matches the text between the reason for waiting, which is the same for many runs, and the
details."""


def _nothing(_: Group) -> Span:
    return "", ""


@dataclass(frozen=True)
class Column:
    """A column of the list: title, width, and functions that return the content for a run and
    for a group."""

    title: str
    width: int
    run: Callable[[RunView], Span]
    group: Callable[[Group], Span] = _nothing
    right: bool = False


class Table(NamedTuple):
    """The layout of the list: the columns after the name, the width of the name (`room`), and
    the characters to draw with."""

    columns: tuple[Column, ...]
    room: int
    glyphs: Glyphs


def counted(counts: Counter[str], order: Sequence[str] = _ORDER) -> Line:
    """Format the number of runs per state as `4 running, 1 failed`."""
    line: Line = []
    for state in order:
        if counts[state]:
            line += [(", ", "")] if line else []
            line.append((f"{counts[state]} {state}", state))
    return line


def head_lines(view: SweepView, glyphs: Glyphs) -> list[Line]:
    """Return two lines about the sweep. The first has the states of the runs, the remaining time
    and the usage. The second has problems."""
    first: Line = [(f"{sanitize(view.name)} ", "bold"), (f"{plural(len(view.runs), 'run')}: ", "")]
    first += counted(view.counts) or [("none", "")]
    if view.eta is not None:
        first.append((f"  ETA {short(view.eta)}", "bold"))
    if view.costs:
        first.append((f"  {view.costs}", ""))
    if view.loading:
        first.append((f"  reading {plural(view.loading, 'run')}", "dim"))
    second: Line = []
    for part in _troubles(view):
        second += [(" · " if glyphs.dots else " | ", "dim")] if second else []
        second.append(part)
    return [first, second]


def _troubles(view: SweepView) -> list[Span]:
    """Return the sweep's problems and delays, and whether a launcher is running. Texts of the
    launcher may be long, so they come last: a small screen cuts off the end of the line."""
    parts: list[Span] = []
    if view.problem:
        parts.append((f"outdated: {sanitize(view.problem)}", "bad"))
    if alarmed := sum(bool(run.alarms) for run in view.runs):
        parts.append((f"{alarmed} with alarms", "bad"))
    if waiting := [run.waits for run in view.runs if run.shown_state == "waiting"]:
        reasons = Counter(_REASON.split(why)[0] for why in waiting)
        text = ", ".join(f"{number} by {sanitize(why)}" for why, number in reasons.items())
        parts.append((f"paused: {text}", "warn"))
    if view.limit is not None:
        parts.append((f"{view.limit} at once, not {view.parallel}", "warn"))
    if view.launcher:
        parts.append(("launcher running", "dim"))
    elif view.ended and not any(run.wants for run in view.runs):
        parts.append(("ended", "dim"))
    else:
        parts.append((NOBODY, "warn"))
    if view.unreachable:
        parts.append((f"the launcher waits: {sanitize(view.unreachable)}", "warn"))
    if view.held:
        parts.append((f"held: {sanitize(view.held)}", "bad"))
    if view.race:
        parts.append((view.race, "dim"))
    return parts


def table(view: SweepView, width: int, need: int, glyphs: Glyphs) -> Table:
    """Choose the columns for a screen of `width` characters. `need` is the desired width of the
    column of names. The remark column gets the remaining space. If there is too little space, leave
    out less important columns."""
    cells = [
        Column("state", 10, _state),
        Column("try", 3, lambda run: (str(run.attempt or ""), "dim"), right=True),
        Column("step", _longest_step(view), _steps, right=True),
        Column(
            "done",
            12,
            lambda run: ("", "") if run.fraction is None else _done(run.fraction, glyphs),
            lambda group: _done(group.fraction, glyphs),
        ),
        Column("left", 5, lambda run: ("" if run.eta is None else short(run.eta), ""), right=True),
    ]
    if view.metric is not None:
        wide = 24 if width >= 160 else 8
        cells += [
            Column(_last(view.metric, 9), 9, _value, _mean, right=True),
            Column("curve", wide, lambda run: (_curve(run.curve, wide, glyphs), "info")),
            Column("place", 5, _rank, _group_rank, right=True),
        ]
    cells.append(Column("beat", 4, _beat, right=True))
    if width >= 130:
        cells.append(_REMARK)
    for spared in (*_SPARED, *_LAST_SPARED):
        if _room(cells, width) >= (need if spared in _SPARED else min(need, _LEAST_NAME)):
            break
        cells = [column for column in cells if column.title != spared]
    room = max(8, _room(cells, width))
    if cells and cells[-1].title == "remark":
        spare = max(0, room - max(20, need))
        cells[-1] = replace(cells[-1], width=cells[-1].width + spare)
        room -= spare
    return Table(tuple(cells), room, glyphs)


_SPARED = ("done", "try", "curve")
_LAST_SPARED = ("beat", "left", "place", "step", "state")
_LEAST_NAME = 24


def _room(columns: Sequence[Column], width: int) -> int:
    return width - sum(column.width + 1 for column in columns)


def _longest_step(view: SweepView) -> int:
    longest = max((len(_steps(run)[0]) for run in view.runs), default=0)
    return max(len("step"), min(13, longest + 1))


def _last(name: str, width: int) -> str:
    """Return a metric's name, or only the part after the last slash if the name is too long."""
    shown = sanitize(name)
    return shown if len(shown) <= width else shown.rpartition("/")[2]


def heading(view: SweepView, shown: Table, sort: str) -> Line:
    """Return the line with the titles of the columns."""
    cut = shown.glyphs.cut
    line: Line = [(fit("   run", shown.room, cut=cut), "head")]
    sorted_by = {"state": "state", "progress": "step", "time left": "left", "heartbeat": "beat"}
    metric = "" if view.metric is None else _last(view.metric, 9)
    mark = metric if sort == "metric" else sorted_by.get(sort)
    for column in shown.columns:
        style = "head sorted" if column.title == mark else "head"
        text = fit(column.title, column.width, right=column.right, cut=cut)
        line += [(" ", "head"), (text, style)]
    return line


def item_line(item: Item, shown: Table, *, inside: str, cursor: bool) -> Line:
    """Render a line of the list. A run's name is shown without `inside`, the heading above the run.
    If `cursor` is set, the line has the cursor: it begins with `>` and is highlighted."""
    columns, glyphs = shown.columns, shown.glyphs
    alarmed = any(run.alarms for run in item.runs) if isinstance(item, Group) else item.alarms
    mark = ">" if cursor else "!" if alarmed else " "
    style = "bold" if isinstance(item, Group) else ""
    if isinstance(item, Group):
        name = f"{mark}{glyphs.closed if item.folded else glyphs.opened} {sanitize(item.title)}"
    else:
        name = f"{mark}{'  ' if inside else ''} {sanitize(own_name(item, inside))}"
    if cursor and alarmed:
        name = f"{name} !"
    name = fit_middle(name, shown.room, cut=glyphs.cut)
    line: Line = [(name, f"{style} bad".strip() if alarmed else style)]
    if isinstance(item, Group):
        states = [*takewhile(lambda column: column.title in _STATES, columns)]
        line += _group_states(item, states, glyphs)
        columns = columns[len(states) :]
    else:
        columns = _in_words(item, columns)
    for column in columns:
        text, cell_style = column.group(item) if isinstance(item, Group) else column.run(item)
        line += [
            (" ", ""),
            (fit(text, column.width, right=column.right, cut=glyphs.cut), cell_style),
        ]
    return [(text, f"{cell_style} cursor".strip()) for text, cell_style in line] if cursor else line


def _in_words(run: RunView, columns: Sequence[Column]) -> Sequence[Column]:
    """Return the columns for a run. If the run has no step and no value, its remark may replace all
    columns but the first and the last."""
    titles = {column.title for column in columns}
    if run.step is not None or run.value is not None or not {"state", "beat"} <= titles:
        return columns
    if "remark" in titles:
        return columns
    room = sum(column.width + 1 for column in columns[1:-1]) - 1
    return [columns[0], replace(_REMARK, width=room), columns[-1]]


def _group_states(group: Group, columns: Sequence[Column], glyphs: Glyphs) -> Line:
    """Format the number of runs in each state, cut to the total width of `columns`."""
    room = sum(column.width + 1 for column in columns) - 1
    line = trimmed(counted(group.counts, _URGENT), room, glyphs)
    return [(" ", ""), *line, (" " * (room - len(joined(line))), "")]


def own_name(run: RunView, inside: str) -> str:
    """Return a run's name without the heading above the run: `seed=0` below `lr=1e-4`."""
    if inside and run.name.startswith(f"{inside},"):
        return run.name[len(inside) + 1 :]
    return run.name


@functools.lru_cache(maxsize=512)
def _curve(numbers: tuple[float, ...], width: int, glyphs: Glyphs) -> str:
    """Draw the curve of a run. The result is cached, since few curves change between two polls."""
    return sparkline(numbers, width, glyphs)


def _state(run: RunView) -> Span:
    return run.shown_state, run.shown_state


def _steps(run: RunView) -> Span:
    if run.step is None:
        return "", ""
    total = "" if run.total is None else f"/{run.total}"
    return f"{value(run.done_steps)}{total}", ""


def _done(fraction: float, glyphs: Glyphs) -> Span:
    return f"{bar(fraction, 7, glyphs)} {int(fraction * 100):>3}%", "dim"


def _value(run: RunView) -> Span:
    if run.value is None:
        return "", ""
    style = "bold" if run.rank == 1 else "" if math.isfinite(run.value) else "bad"
    return value(run.value), style


def _mean(group: Group) -> Span:
    return ("" if group.mean is None else value(group.mean)), "bold" if group.rank == 1 else "dim"


def _rank(run: RunView) -> Span:
    return ("" if run.rank is None else str(run.rank)), "bold" if run.rank == 1 else ""


def _group_rank(group: Group) -> Span:
    return ("" if group.rank is None else f"#{group.rank}"), "bold" if group.rank == 1 else "dim"


def _beat(run: RunView) -> Span:
    # A view that has just started does not know the age of a silent worker's heartbeat.
    unknown = run.beat is None or (run.silent and run.beat < 15.0)
    return ("" if unknown else age(run.beat)), "bad" if run.silent else "dim"


def _remark(run: RunView) -> Span:
    if run.alarms:
        prefix = f"{run.remark}; " if run.silent else ""
        return sanitize(f"{prefix}{run.alarms[0].rule}: {run.alarms[0].text}"), "bad"
    return sanitize(run.remark), "warn" if run.waits else "dim"


def _group_remark(group: Group) -> Span:
    geometric = "geometric " if group.scale == "log" else ""
    return (f"{geometric}mean of {group.measured}" if group.measured > 1 else ""), "dim"


_REMARK = Column("remark", 30, _remark, _group_remark)
