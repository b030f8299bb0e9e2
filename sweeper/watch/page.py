"""The page of one run: its curves, how its configuration differs from the best run's, the end of
its log, what it sampled last. Pure: what was read goes in, lines of styled text come out."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from sweeper.watch.drawing import STATE_STYLES, Line, trimmed
from sweeper.watch.shapes import Glyphs, age, fit, harmless, plot, short, sparkline, value, wrap
from sweeper.watch.view import RunView, SweepView, best_run

__all__ = ["PANELS", "PageData", "PageState", "Rollout", "is_wide", "page_lines"]

PANELS = ("curves", "configuration", "log", "rollouts")


class Rollout(NamedTuple):
    """Something that the model wrote: a line about it, and who said what."""

    head: str
    spoken: tuple[tuple[str, str], ...]


class PageData(NamedTuple):
    """What was read for a run's page. `curves`: key -> (step, value), thinned out, the sweep's
    metric first. `links`: where else it can be looked at."""

    run: str
    path: str = ""
    curves: Mapping[str, tuple[tuple[float, float], ...]] = {}
    log: tuple[str, ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    links: tuple[str, ...] = ()
    problem: str = ""


class PageState(NamedTuple):
    """What the user looks at: a run, one of the panels, which of its curves, and how far from the
    usual place (the start; of a log the end) each panel was moved."""

    run: str
    panel: int = 0
    curve: int = 0
    moved: tuple[int, ...] = (0, 0, 0, 0)


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
    lines = _head(view, run, data, width, glyphs)
    if not is_wide(width, height):
        lines.append(_tabs(state))
        room = height - len(lines)
        return lines + _panel(state.panel, view, run, state, data, width, room, glyphs)
    left = (width - 3) // 2
    right = width - 3 - left
    above = (height - len(lines)) // 2
    below = height - len(lines) - above
    for tall, pair in ((above, (0, 1)), (below, (2, 3))):
        boxes = [
            [
                _title(state, place, wide, glyphs),
                *_panel(place, view, run, state, data, wide, tall - 1, glyphs),
            ]
            for place, wide in zip(pair, (left, right), strict=True)
        ]
        for one, other in zip(*(_filled(box, tall) for box in boxes), strict=True):
            lines.append([*_padded(one, left), ("   ", ""), *other])
    return lines


def _filled(lines: list[Line], height: int) -> list[Line]:
    return (lines + [[] for _ in range(height)])[:height]


def _padded(line: Line, width: int) -> Line:
    from rich.cells import cell_len

    missing = width - sum(cell_len(text) for text, _ in line)
    return [*line, (" " * max(0, missing), "")]


def _head(view: SweepView, run: RunView, data: PageData, width: int, glyphs: Glyphs) -> list[Line]:
    first: Line = [(harmless(run.name), "bold"), ("  ", "")]
    first.append((run.shown_state, STATE_STYLES[run.shown_state]))
    told: list[str] = []
    if run.remark:
        told.append(harmless(run.remark))
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
        place = "" if run.rank is None else f" (rank {run.rank} of {ranked})"
        told.append(f"{harmless(view.metric)} {value(run.value)}{place}")
    first.append(("  " + ", ".join(told), ""))
    lines: list[Line] = [trimmed(first, width, glyphs)]
    for alarm in run.alarms:
        text = harmless(f"! {alarm.rule}: {alarm.text}")
        lines += [[(part, "bad")] for part in wrap(text, width)[:2]]
    lines = lines[:5]
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


def _panel(
    place: int,
    view: SweepView,
    run: RunView,
    state: PageState,
    data: PageData,
    width: int,
    height: int,
    glyphs: Glyphs,
) -> list[Line]:
    """What a panel shows in `height` lines."""
    if place == 0:
        return _curves(state, data, width, height, glyphs)
    made = {1: _configuration, 2: _log, 3: _rollouts}[place](view, run, data, width)
    spare = max(0, len(made) - height)
    moved = min(state.moved[place], spare)
    start = spare - moved if place == 2 else moved
    return made[start : start + height]


def _curves(
    state: PageState, data: PageData, width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    keys = list(data.curves)
    if not keys:
        return [[("no metrics yet", "dim")]]
    chosen = keys[state.curve % len(keys)]
    points = data.curves[chosen]
    step, last = points[-1]
    said = f"  {value(last)} at step {value(step)}   {state.curve % len(keys) + 1} of {len(keys)}"
    listed = min(len(keys), max(0, (height - 2) // 3))
    lines: list[Line] = [[(harmless(chosen), "bold"), (said, "")]]
    drawn = plot(points, width, max(4, height - 1 - listed), glyphs)
    lines += [[(line, "info")] for line in drawn]
    first = max(0, min(state.curve % len(keys) - listed // 2, len(keys) - listed))
    room = max(10, width - 40)
    for key in keys[first : first + listed]:
        name = fit(harmless(key), min(28, room), cut=glyphs.cut)
        numbers = [number for _, number in data.curves[key]]
        style = "bold" if key == chosen else "dim"
        curve = sparkline(numbers, max(8, width - 42), glyphs)
        latest = fit(value(numbers[-1]), 10, right=True)
        lines.append([(f"{name} ", style), (latest, ""), (f" {curve}", "info")])
    return lines[:height]


def _configuration(view: SweepView, run: RunView, data: PageData, width: int) -> list[Line]:
    del data
    best = best_run(view.runs, run.id)
    lines: list[Line] = []
    known = _flat(run.config)
    other = {} if best is None else _flat(best.config)
    differ = [key for key in {**known, **other} if known.get(key) != other.get(key)]
    if best is not None:
        if run.rank == 1:
            said = f"this run is the best; how the next, {best.name}, differs:"
        else:
            said = f"how the best, {best.name}, differs:"
        lines += [[(part, "")] for part in wrap(harmless(said), width)]
        for key in differ:
            mine, theirs = known.get(key, "not given"), other.get(key, "not given")
            text = f"  {harmless(key)}: {harmless(theirs)}, here {harmless(mine)}"
            lines += [[(part, "warn")] for part in wrap(text, width)]
        if not differ:
            lines.append([("  in nothing", "dim")])
        lines.append([])
    for key, text in known.items():
        lines += [[(part, "dim")] for part in wrap(f"{harmless(key)}: {harmless(text)}", width)]
    return lines


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, inner in config.items():
        if isinstance(inner, Mapping) and inner:
            found.update(_flat(inner, f"{prefix}{key}."))  # pyright: ignore[reportUnknownArgumentType]
        else:
            found[f"{prefix}{key}"] = inner if isinstance(inner, str) else json.dumps(inner)
    return found


def _log(view: SweepView, run: RunView, data: PageData, width: int) -> list[Line]:
    del view
    if not data.log:
        return [[(f"nothing printed ({run.shown_state})", "dim")]]
    return [[(part, "")] for line in data.log for part in wrap(harmless(line.expandtabs(4)), width)]


def _rollouts(view: SweepView, run: RunView, data: PageData, width: int) -> list[Line]:
    del view, run
    if not data.rollouts:
        return [[("this run has left no rollouts", "dim")]]
    lines: list[Line] = []
    for one in data.rollouts:
        lines.append([(fit(harmless(one.head), width).rstrip(), "bold")])
        for who, said in one.spoken:
            texts = said.splitlines() or [""]
            for place, text in enumerate(texts):
                label = f"{who}: " if place == 0 else "  "
                whole = harmless(label + text.expandtabs(4))
                lines += [[(part, "")] for part in wrap(whole, width)]
        lines.append([])
    return lines
