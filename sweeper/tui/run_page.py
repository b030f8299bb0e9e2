"""The page of one run: its curves, how its configuration differs from the best run's, the end of
its log, what it sampled last. Pure: what was read goes in, lines of styled text come out."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.cells import cell_len

from sweeper.sanitize import harmless
from sweeper.store.documents import dotted
from sweeper.tui.charts import Glyphs, age, fit, short, value, wrap
from sweeper.tui.curves import Points, curve_lines
from sweeper.tui.model import RunView, SweepView, best_run
from sweeper.tui.render import STATE_STYLES, Line, joined, trimmed

__all__ = ["PANELS", "PageData", "PageState", "Rollout", "is_wide", "page_lines"]

PANELS = ("curves", "configuration", "log", "rollouts")


class Rollout(NamedTuple):
    """Something that the model wrote: a line about it, and who said what."""

    head: str
    spoken: tuple[tuple[str, str], ...]


class PageData(NamedTuple):
    """What was read for a run's page. `curves`: the sweep's metric first; `links`: where else it
    can be looked at. `best` is the best of the other runs, with its curves."""

    run: str
    path: str = ""
    curves: Mapping[str, Points] = {}
    log: tuple[str, ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    links: tuple[str, ...] = ()
    problem: str = ""
    best: str = ""
    best_curves: Mapping[str, Points] = {}


class PageState(NamedTuple):
    """What the user looks at: a run, one of the panels, which of its curves, and how far from the
    usual place (the start; of a log the end) each panel was moved."""

    run: str
    panel: int = 0
    curve: int = 0
    moved: tuple[int, ...] = (0, 0, 0, 0)


class _Page(NamedTuple):
    """What its panels are drawn from."""

    view: SweepView
    run: RunView
    state: PageState
    data: PageData
    glyphs: Glyphs


def is_wide(width: int, height: int) -> bool:
    """Whether all panels have room beside each other."""
    return width >= 130 and height >= 34


def page_lines(
    view: SweepView, state: PageState, data: PageData, width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """The page, in `height` lines."""
    run = next((run for run in view.runs if run.id == state.run), None)
    if run is None:
        return [[("the run is not in the sweep any more", "warn")]]
    page = _Page(view, run, state, data, glyphs)
    lines = _head(view, run, data, width, glyphs)
    if not is_wide(width, height):
        lines.append(_tabs(state))
        room = height - len(lines)
        return lines + _panel(page, state.panel, width, room)
    left = (width - 3) // 2
    right = width - 3 - left
    above = (height - len(lines)) // 2
    below = height - len(lines) - above
    for tall, pair in ((above, (0, 1)), (below, (2, 3))):
        boxes = [
            [_title(state, place, wide, glyphs), *_panel(page, place, wide, tall - 1)]
            for place, wide in zip(pair, (left, right), strict=True)
        ]
        for one, other in zip(*(_filled(box, tall) for box in boxes), strict=True):
            lines.append([*_padded(one, left), ("   ", ""), *other])
    return lines


def _filled(lines: list[Line], height: int) -> list[Line]:
    return (lines + [[] for _ in range(height)])[:height]


def _padded(line: Line, width: int) -> Line:
    return [*line, (" " * max(0, width - cell_len(joined(line))), "")]


def _head(view: SweepView, run: RunView, data: PageData, width: int, glyphs: Glyphs) -> list[Line]:
    first: Line = [(harmless(run.name), "bold"), ("  ", "")]
    first.append((run.shown_state, STATE_STYLES[run.shown_state]))
    told: list[str] = []
    if run.attempt > 1:
        told.append(f"attempt {run.attempt}")
    if run.step is not None:
        total = "" if run.total is None else f"/{run.total}"
        told.append(f"step {value(run.step)}{total}")
    if run.eta is not None:
        told.append(f"ETA {short(run.eta)}")
    if run.beat is not None and run.beat >= 15.0:
        told.append(f"heartbeat {age(run.beat)} ago")
    if run.value is not None and view.metric is not None:
        ranked = sum(other.rank is not None for other in view.runs)
        place = "" if run.rank is None else f" (place {run.rank} of {ranked})"
        told.append(f"{harmless(view.metric)} {value(run.value)}{place}")
    if run.remark:
        told.append(harmless(run.remark))
    rest = ", ".join(told)
    if cell_len(joined(first) + rest) + 2 <= width:
        lines: list[Line] = [[*first, (f"  {rest}", "")]]
    else:
        lines = [trimmed(first, width, glyphs), [(fit(rest, width, cut=glyphs.cut), "")]]
    for alarm in run.alarms:
        text = harmless(f"! {alarm.rule}: {alarm.text}")
        first_line, *more = wrap(text, width)
        lines.append([(first_line, "bad")])
        lines += [[(fit(" ".join(more), width, cut=glyphs.cut), "bad")]] if more else []
    lines = lines[:6]
    if data.problem:
        lines.append([(fit(harmless(data.problem), width, cut=glyphs.cut), "bad")])
    for link in data.links:
        lines.append([(fit(harmless(link), width, cut=glyphs.cut), "info")])
    lines.append([(fit(harmless(data.path), width, cut=glyphs.cut), "dim")])
    return lines


def _tabs(state: PageState) -> Line:
    line: Line = []
    for place, name in enumerate(PANELS):
        style = "cursor" if place == state.panel else "head"
        line += [(f" {place + 1} {name} ", style), (" ", "")]
    return line


def _title(state: PageState, place: int, width: int, glyphs: Glyphs) -> Line:
    style = "bold" if place == state.panel else "dim"
    head = f"{glyphs.line} {place + 1} {PANELS[place]} "
    return [(head + glyphs.line * (width - len(head)), style)]


def _panel(page: _Page, place: int, width: int, height: int) -> list[Line]:
    """What a panel shows in `height` lines."""
    if place == 0:
        return _curves(page, width, height)
    made = {1: _configuration, 2: _log, 3: _rollouts}[place](page, width)
    spare = max(0, len(made) - height)
    moved = min(page.state.moved[place], spare)
    start = spare - moved if place == 2 else moved
    return made[start : start + height]


def _curves(page: _Page, width: int, height: int) -> list[Line]:
    view, run, state, data, glyphs = page
    best = next((other for other in view.runs if other.id == data.best), None)
    about = [_place_of(run)]
    if best is not None:
        differ = [f"{key} {theirs}, here {mine}" for key, mine, theirs in _difference(run, best)]
        about = [f"{_place_of(run)}, {best.name}", "; ".join(differ) or "not configured otherwise"]
    return curve_lines(data.curves, state.curve, data.best_curves, about, width, height, glyphs)


def _place_of(run: RunView) -> str:
    """What the best of the other runs is called on this run's page."""
    return "the next best" if run.rank == 1 else "the best"


def _difference(run: RunView, best: RunView) -> list[tuple[str, str, str]]:
    """The settings in which a run differs from the best: key, here, there."""
    mine, theirs = _texts(run.config), _texts(best.config)
    return [
        (key, mine.get(key, "not given"), theirs.get(key, "not given"))
        for key in {**mine, **theirs}
        if mine.get(key) != theirs.get(key)
    ]


def _configuration(page: _Page, width: int) -> list[Line]:
    run = page.run
    best = best_run(page.view.runs, run.id)
    lines: list[Line] = []
    if best is not None:
        said = f"how {_place_of(run)}, {best.name}, differs:"
        lines += [[(part, "")] for part in wrap(harmless(said), width)]
        differ = _difference(run, best)
        for key, mine, theirs in differ:
            text = f"  {harmless(key)}: {harmless(theirs)}, here {harmless(mine)}"
            lines += [[(part, "warn")] for part in wrap(text, width)]
        if not differ:
            lines.append([("  in nothing", "dim")])
        lines.append([])
    for key, text in _texts(run.config).items():
        lines += [[(part, "dim")] for part in wrap(f"{harmless(key)}: {harmless(text)}", width)]
    return lines


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in dotted(config)
    }


def _log(page: _Page, width: int) -> list[Line]:
    if not page.data.log:
        return [[(f"nothing printed ({page.run.shown_state})", "dim")]]
    texts = (harmless(line.expandtabs(4)) for line in page.data.log)
    return [[(part, "")] for text in texts for part in wrap(text, width)]


def _rollouts(page: _Page, width: int) -> list[Line]:
    if not page.data.rollouts:
        return [[("this run has left no rollouts", "dim")]]
    lines: list[Line] = []
    for one in page.data.rollouts:
        lines.append([(fit(harmless(one.head), width).rstrip(), "bold")])
        for who, said in one.spoken:
            texts = said.splitlines() or [""]
            for place, text in enumerate(texts):
                label = f"{who}: " if place == 0 else "  "
                whole = harmless(label + text.expandtabs(4))
                lines += [[(part, "")] for part in wrap(whole, width)]
        lines.append([])
    return lines
