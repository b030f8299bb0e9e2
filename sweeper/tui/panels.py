"""The panels of a run's page: head, curves, configuration (compared with the best run), end of
the log, last rollouts. Pure: takes data and returns lines."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.common.sanitize import sanitize
from sweeper.store.documents import dotted
from sweeper.sweep.labels import shown_marks
from sweeper.sweep.marks import Mark
from sweeper.terminal import setting
from sweeper.tui.charts import plot, sparkline
from sweeper.tui.model import RunView, SweepView, best_run
from sweeper.tui.text import Glyphs, Line, age, fit, short, value

_NOTES = 3
_LONGEST = 4000
"""The largest number of characters that are shown of a line or an alarm."""

Points = Sequence[tuple[float, float]]
"""The (step, value) points of a curve, thinned out."""


class Rollout(NamedTuple):
    """A rollout: a headline, and the conversation as (speaker, text) pairs."""

    head: str
    spoken: tuple[tuple[str, str], ...]


class PageData(NamedTuple):
    """The data of a run's page. `curves` is {metric: points}, with the sweep's metric first.
    `links` has addresses of other services that show the run. `best` is the id of the best other
    run, and `best_curves` has the curves of that run."""

    run: str
    path: str = ""
    curves: Mapping[str, Points] = {}
    log: tuple[str, ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    links: tuple[str, ...] = ()
    problem: str = ""
    best: str = ""
    best_curves: Mapping[str, Points] = {}


def page_head(view: SweepView, run: RunView, data: PageData) -> list[Line]:
    """Return lines with the run's progress, folder, marks and problems."""
    parts: list[str] = []
    if run.attempt > 1:
        parts.append(f"attempt {run.attempt}")
    if run.step is not None:
        total = "" if run.total is None else f"/{run.total}"
        parts.append(f"step {value(run.done_steps)}{total}")
    if run.eta is not None:
        parts.append(f"ETA {short(run.eta)}")
    if run.beat is not None and run.beat >= 15.0:
        parts.append(f"heartbeat {age(run.beat)} ago")
    if run.value is not None and view.metric is not None:
        ranked = sum(other.rank is not None for other in view.runs)
        place = "" if run.rank is None else f" (place {run.rank} of {ranked})"
        parts.append(f"{view.metric} {value(run.value)}{place}")
    if run.remark:
        parts.append(run.remark)
    state = (run.shown_state, run.shown_state)
    lines: list[Line] = [[(run.name, "bold"), ("  ", ""), state]]
    lines += [[(", ".join(parts), "")]] if parts else []
    lines.append([(data.path, "dim")])
    lines += [[(link, "info")] for link in data.links]
    marks = shown_marks(run.marks.tags, starred=run.marks.starred)
    lines += [[(marks, "info")]] if marks else []
    lines += [[(_noted(note), "info")] for note in run.marks.notes[-_NOTES:]]
    wrong = [data.problem] if data.problem else []
    wrong += [f"! {alarm.rule}: {alarm.text}" for alarm in run.alarms]
    return lines + [[(text[:_LONGEST], "bad")] for text in wrong]


def _noted(note: Mark) -> str:
    return sanitize(f"{note.by}: {' '.join(note.text.split())}")[:_LONGEST]


def curve_lines(
    data: PageData,
    about: Sequence[str],
    chosen: int,
    size: tuple[int, int],
    glyphs: Glyphs,
    *,
    log: bool = False,
) -> list[Line]:
    """Plot the metric with the index `chosen`. Below the plot, draw a sparkline for this metric and
    for each neighbour in the list of metrics. `size` is (columns, lines). `about` describes the
    best other run: first its name, then more lines."""
    width, height = size
    keys = list(data.curves)
    if not keys:
        return [[("no metrics yet", "dim")]]
    chosen %= len(keys)
    key = keys[chosen]
    points, other = data.curves[key], data.best_curves.get(key, ())
    step, last = points[-1]
    summary = f"  {value(last)} at step {value(step)}   {chosen + 1} of {len(keys)}"
    lines: list[Line] = [[(sanitize(key), "bold"), (summary, ""), ("   logarithmic" * log, "info")]]
    if other:
        name, *more = about
        texts = [f"{glyphs.other} {_compared(step, other)}: {name}", *(f"  {m}" for m in more)]
        lines += [[(fit(sanitize(text), width, cut=glyphs.cut), "warn")] for text in texts]
    listed = min(len(keys), max(0, (height - 2) // 3))
    room = max(4, height - len(lines) - listed)
    lines += [_coloured(line, glyphs) for line in plot(points, width, room, glyphs, other, log=log)]
    first = max(0, min(chosen - listed // 2, len(keys) - listed))
    for neighbour in keys[first : first + listed]:
        style = "bold" if neighbour == key else "dim"
        lines.append(_in_a_line(neighbour, style, data.curves[neighbour], width, glyphs, log=log))
    return lines[:height]


def _compared(step: float, other: Points) -> str:
    """Describe two points of another run: the last point up to `step` (if there is none, the first
    point), and the latest point."""
    place = bisect_right(other, step, key=lambda point: point[0])
    then, number = other[max(0, place - 1)]
    last_step, last = other[-1]
    text = f"{value(number)} at step {value(then)}"
    return text if last_step == then else f"{text}, {value(last)} at {value(last_step)}"


def _coloured(line: str, glyphs: Glyphs) -> Line:
    """Colour a line of a plot. The characters of the second curve get their own colour."""
    coloured: Line = []
    for place, part in enumerate(line.split(glyphs.other)):
        coloured += [(glyphs.other, "warn")] if place else []
        coloured += [(part, "info")] if part else []
    return coloured


def _in_a_line(
    key: str, style: str, points: Points, width: int, glyphs: Glyphs, *, log: bool
) -> Line:
    name = fit(sanitize(key), min(28, max(10, width - 40)), cut=glyphs.cut)
    numbers = [number for _, number in points]
    latest = fit(value(numbers[-1]), 10, right=True)
    if log:
        numbers = [math.log10(y) if 0 < y < math.inf else math.nan for y in numbers]
    curve = sparkline(numbers, max(8, width - len(name) - 12), glyphs)
    return [(f"{name} ", style), (latest, ""), (f" {curve}", "info")]


def about_best(view: SweepView, run: RunView, best: str) -> list[str]:
    """Return two lines about the best other run, which has the id `best`: its rank and name, and
    the settings that differ from `run`. If the view has no such run, return only the rank."""
    best_view = next((other for other in view.runs if other.id == best), None)
    if best_view is None:
        return [_place_of(run)]
    differ = [
        f"{key} {best_value}, here {own_value}"
        for key, own_value, best_value in _difference(run, best_view)
    ]
    return [f"{_place_of(run)}, {best_view.name}", "; ".join(differ) or "same configuration"]


def _place_of(run: RunView) -> str:
    return "the next best" if run.rank == 1 else "the best"


def _difference(run: RunView, best: RunView) -> list[tuple[str, str, str]]:
    """Return (key, value in `run`, value in `best`) for each setting in which the two runs
    differ."""
    own_values, best_values = _texts(run.config), _texts(best.config)
    return [
        (key, own_values.get(key, "not given"), best_values.get(key, "not given"))
        for key in {**own_values, **best_values}
        if own_values.get(key) != best_values.get(key)
    ]


def configuration_lines(view: SweepView, run: RunView) -> list[Line]:
    """Return lines with the settings in which this run and the best other run differ, followed by
    all settings of this run."""
    best = best_run(view.runs, run.id)
    lines: list[Line] = []
    if best is not None:
        lines.append([(f"how {_place_of(run)}, {best.name}, differs:", "")])
        differ = _difference(run, best)
        lines += [
            [(f"  {key}: {best_value}, here {own_value}", "warn")]
            for key, own_value, best_value in differ
        ]
        lines += [] if differ else [[("  no difference", "dim")]]
        lines.append([])
    return lines + [[(f"{key}: {text}", "dim")] for key, text in _texts(run.config).items()]


def _texts(config: Mapping[str, object]) -> dict[str, str]:
    return {key: setting(value) for key, value in dotted(config)}


def log_lines(run: RunView, data: PageData) -> list[Line]:
    """Return the last lines of the run's log."""
    if not data.log:
        return [[(f"nothing printed ({run.shown_state})", "dim")]]
    return [[(line.expandtabs(4)[:_LONGEST], "")] for line in data.log]


def rollout_lines(data: PageData) -> list[Line]:
    """Return some of the run's last rollouts."""
    if not data.rollouts:
        return [[("this run has no rollouts", "dim")]]
    lines: list[Line] = []
    for rollout in data.rollouts:
        lines.append([(rollout.head, "bold")])
        for who, text in rollout.spoken:
            first, *more = [text.expandtabs(4)[:_LONGEST] for text in text.splitlines() or [""]]
            lines.append([(f"{who}: ", "info"), (first, "")])
            lines += [[(f"  {text}", "")] for text in more]
        lines.append([])
    return lines
