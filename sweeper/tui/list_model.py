"""The lines of the list of runs: filtered, sorted, grouped, folded. Pure."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from sweeper.errors import UsageError
from sweeper.metrics.objective import sign_of
from sweeper.results.cells import Scale, choose_scale, mean, merit
from sweeper.results.selectors import in_one_spelling
from sweeper.results.where import parse_where, select
from sweeper.store.documents import dotted
from sweeper.tui.model import RunView, SweepView, stage_of

SORTS = ("plan", "state", "metric", "progress", "time left", "heartbeat", "alarms", "name")

_INTEREST = (
    *("silent", "stalled", "waiting", "running", "submitted", "failed", "lost", "preempted"),
    *("planned", "cancelled", "succeeded"),
)


class Group(NamedTuple):
    """Runs under one heading. `key` identifies the group. `mean` is the mean value of the runs for
    which `RunView.counts` is true, and `measured` is the number of these runs. If `scale` is `log`,
    `mean` is the geometric mean. `rank` is the group's rank by mean. None means unknown."""

    key: str
    title: str
    runs: tuple[RunView, ...]
    folded: bool = False
    mean: float | None = None
    measured: int = 0
    rank: int | None = None
    scale: Scale = "linear"

    @property
    def counts(self) -> Counter[str]:
        """The number of runs in each displayed state."""
        return Counter(run.shown_state for run in self.runs)

    @property
    def fraction(self) -> float:
        """The mean of the runs' completed fractions. An unknown fraction counts as 0."""
        return sum(run.fraction or 0.0 for run in self.runs) / len(self.runs)


Item = Group | RunView
"""A line of the list: a heading or a run."""


def groupings(view: SweepView) -> list[str]:
    """Return the possible groupings, the default first. The default is `stage` if the sweep has
    stages, else `cell` if a cell has several runs, else `none`."""
    cells = {run.cell for run in view.runs}
    by_cell = len(cells) < len(view.runs)
    axes = [axis for axis in view.axes if len({_setting(run, axis) for run in view.runs}) > 1]
    several = ["backend"] if any(run.backend for run in view.runs) else []
    if view.stages:
        return ["stage", "cell", "none", *axes, "state", *several]
    return [*(["cell"] * by_cell), "none", *(["cell"] * (not by_cell)), *axes, "state", *several]


def arranged(
    view: SweepView,
    *,
    sort: str = "plan",
    backwards: bool = False,
    by: str = "none",
    folded: Collection[str] = (),
    wanted: str = "",
) -> tuple[list[Item], str]:
    """Arrange the runs. Return the lines of the list, and the reason why the filter `wanted`
    could not be applied ("" if it was applied)."""
    runs, problem = matching(view.runs, wanted)
    key = _keys(view.goal)[sort]
    if by == "none":
        lines: list[Item] = [*sorted(runs, key=key, reverse=backwards)]
        return lines, problem
    groups = _groups(runs, by, view, folded)
    if sort == "metric":
        groups.sort(key=lambda group: (group.rank is None, group.rank or 0), reverse=backwards)
    elif sort != "plan" or backwards:
        edge = max if backwards else min
        groups.sort(key=lambda group: edge(map(key, group.runs)), reverse=backwards)
    lines = []
    for group in groups:
        lines.append(group)
        if not group.folded:
            lines += sorted(group.runs, key=key, reverse=backwards)
    return lines, problem


def _groups(
    runs: Sequence[RunView], by: str, view: SweepView, folded: Collection[str]
) -> list[Group]:
    if view.stages and by != "state":
        staged: list[Group] = []
        for stage, goal in view.stages:
            stage_view = view.of_stage(stage, goal)
            chosen = [run for run in runs if stage_of(run) == stage]
            groups = _groups(chosen, by, stage_view, ())
            staged += [_in_stage(group, stage, by, folded) for group in groups]
        return staged
    members: dict[str, list[RunView]] = {}
    for run in runs:
        members.setdefault(_heading(run, by), []).append(run)
    means: dict[str, tuple[float, int]] = {}
    merits: dict[str, tuple[bool, float]] = {}
    scale = choose_scale(_values(inner) for inner in _by_cell(view.runs).values())
    for title, inner in members.items():
        values = _values(inner)
        if values:
            summary = mean(values, scale)
            means[title] = (summary, len(values))
            diverged = any(run.diverged for run in inner)
            merits[title] = merit(summary, view.goal, diverged=diverged)
    order = sorted(merits, key=merits.__getitem__)
    place = {title: number for number, title in enumerate(order, start=1)}
    return [
        Group(
            f"{by}:{title}",
            title,
            tuple(inner),
            f"{by}:{title}" in folded,
            *means.get(title, (None, 0)),
            place.get(title),
            scale,
        )
        for title, inner in members.items()
    ]


def _in_stage(group: Group, stage: str, by: str, folded: Collection[str]) -> Group:
    """Return the group with the stage in its key and title."""
    title = group.title if by in ("stage", "cell") else f"{stage}: {group.title}"
    key = f"{by}:{title}"
    rank = None if by == "stage" else group.rank
    return group._replace(key=key, title=title, folded=key in folded, rank=rank)


def _by_cell(runs: Sequence[RunView]) -> dict[str, list[RunView]]:
    members: dict[str, list[RunView]] = {}
    for run in runs:
        members.setdefault(run.cell, []).append(run)
    return members


def _values(runs: Sequence[RunView]) -> list[float]:
    return [run.value for run in runs if run.counts and run.value is not None]


def _heading(run: RunView, by: str) -> str:
    if by == "cell":
        return run.cell
    if by == "state":
        return run.shown_state
    if by == "stage":
        return stage_of(run)
    if by == "backend":
        return run.backend or "not submitted"
    return f"{by}={_setting(run, by)}"


def _setting(run: RunView, axis: str) -> str:
    """Return a run's value on an axis as text, or "-" if the run has none. The axis may be a dotted
    key, such as `optimizer.lr`."""
    value = (run.config if axis in run.config else dict(dotted(run.config))).get(axis)
    return "-" if value is None else str(value)


def matching(runs: Sequence[RunView], wanted: str) -> tuple[list[RunView], str]:
    """Return the runs that match the filter `wanted`, and an error message. The message is "" if
    the filter is valid; otherwise all runs are returned. A filter is either a condition such as
    `learning_rate < 1e-3 and state = failed`, or words separated by spaces. Each word must occur in
    a run's name, id, state, remark, alarms or tags."""
    if not wanted.strip():
        return list(runs), ""
    try:
        selected = select(parse_where(wanted), [_record(run) for run in runs])
    except UsageError as error:
        if _LIKE_A_CONDITION.search(wanted):
            return list(runs), str(error)
        words = [in_one_spelling(word) for word in wanted.lower().split()]
        return [run for run in runs if all(word in _state_text(run) for word in words)], ""
    ids = {record["id"] for record in selected}
    return [run for run in runs if run.id in ids], ""


_LIKE_A_CONDITION = re.compile(r"[<>]|!=|==| = |\bis (not )?missing\b|\bin \(")
"""Matches text that is probably a condition, even if it is incomplete."""


def _record(run: RunView) -> dict[str, object]:
    identity = {"id": run.id, "name": run.name, "cell": run.cell, "seed": run.seed}
    now = {"state": run.shown_state, "attempts": run.attempt, "reason": run.reason or None}
    now |= {"backend": run.backend or None}
    reached = {"value": run.value, "place": run.rank, "step": run.step, "alarms": len(run.alarms)}
    return {**identity, **now, **reached, "config": dict(run.config)}


def _state_text(run: RunView) -> str:
    rules = " ".join(f"alarm {alarm.rule}" for alarm in run.alarms)
    tags = " ".join([*(f"tag {tag}" for tag in run.marks.tags), "star" * run.marks.starred])
    words = run.name, in_one_spelling(run.name), run.id, run.state, run.shown_state, run.remark
    return " ".join((*words, rules, tags)).lower()


def _keys(goal: str) -> dict[str, Callable[[RunView], int | str | tuple[bool, float]]]:
    """Return the key function of each sort order. Unknown values come last."""
    sign = sign_of(goal)

    def number(value: float | None, direction: float = 1.0) -> tuple[bool, float]:
        is_known = value is not None and math.isfinite(value)
        return not is_known, direction * value if is_known and value is not None else 0.0

    return {
        "plan": lambda _: 0,
        "state": lambda run: _INTEREST.index(run.shown_state),
        "metric": lambda run: number(run.value, sign),
        "progress": lambda run: number(run.fraction if run.fraction is not None else run.step, -1),
        "time left": lambda run: number(run.eta),
        "heartbeat": lambda run: number(run.beat, -1),
        "alarms": lambda run: -len(run.alarms),
        "name": lambda run: run.name,
    }
