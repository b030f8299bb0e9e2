"""Makes the rows of the tables of episodes, as texts. Pure."""

from collections.abc import Mapping
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.episodes import CellEpisodes, Episodes, Figures, TaskEpisodes
from sweeper.analysis.figures.layouts import named_rows
from sweeper.analysis.findings.study import Study
from sweeper.sweep.labels import plural

_CELLS = 40
_COLUMNS = 8
_TASKS = 60
_DETAILS = 200
_PLACES = 2
_STOPS = {"max_turns": "turns", "context_limit": "context", "time": "time"}


def episode_tables(study: Study) -> list[dict[str, Any]]:
    """Return the tables of episodes for each split."""
    named = named_rows(study.ranking)
    return [_of_split(episodes, named) for episodes in study.episodes]


def _of_split(episodes: Episodes, named: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    cells = [cell.cell for cell in episodes.cells[:_COLUMNS]]
    rewards = [figures.reward for task in episodes.tasks for figures in task.cells.values()]
    low, high = min(0.0, *rewards), max(1.0, *rewards)
    details = [
        {"task": task.task, "cell": named[cell]["name"], **_figures(figures)}
        for task in episodes.tasks
        for cell, figures in task.cells.items()
    ]
    return {
        "title": "Trained on" if episodes.split == "train" else _split(episodes.split),
        "about": _about(episodes),
        "points": list(_points(episodes)),
        "rows": [{**named[cell.cell], **_row(cell, episodes)} for cell in episodes.cells[:_CELLS]],
        "cells_left": max(len(episodes.cells) - _CELLS, 0),
        "columns": [named[cell]["name"] for cell in cells],
        "columns_left": len(episodes.cells) - len(cells),
        "tasks": [
            _task(task, cells, len(episodes.cells), low, high) for task in episodes.tasks[:_TASKS]
        ],
        "tasks_left": max(len(episodes.tasks) - _TASKS, 0),
        "cut": any(cell.figures.cut for cell in episodes.cells),
        "tested": any(task.p is not None for task in episodes.tasks),
        "details": details[:_DETAILS],
        "details_left": max(len(details) - _DETAILS, 0),
    }


def _split(split: str) -> str:
    return "Held out" if split == "eval_test" else split.removeprefix("eval_")


def _about(episodes: Episodes) -> str:
    tasks = plural(len(episodes.tasks), "task")
    steps = plural(episodes.iterations, "step")
    return (
        f"{plural(episodes.read, 'episode')} of {tasks}, from {steps} of a run at most: the "
        "first, the last and some between. Failures are counted over all of these steps; the other "
        "figures are of the last step."
    )


def _points(episodes: Episodes) -> list[str]:
    """Return sentences about differences between cells, unsolved tasks and failed environments."""
    points: list[str] = []
    if len(episodes.cells) > 1:
        if episodes.apart:
            points.append(f"Cells differ in {labels.listed(episodes.apart, 8)}, beyond the noise.")
        elif any(task.p is not None for task in episodes.tasks):
            points.append("In no task do cells differ beyond the noise between runs.")
    if episodes.unsolved:
        count = plural(len(episodes.unsolved), "task")
        points.append(f"No cell ever solves {count}: {labels.listed(episodes.unsolved, 8)}.")
    failures = sum(cell.figures.failures for cell in episodes.cells)
    if failures:
        lost = sum(cell.figures.lost for cell in episodes.cells)
        ended = plural(failures, "environment")
        given_up = f"{plural(lost, 'episode')} given up" if lost else "none was given up"
        points.append(f"{ended} ended by themselves; the episodes were played again, {given_up}.")
    return points


def _row(cell: CellEpisodes, episodes: Episodes) -> dict[str, Any]:
    return {
        "runs": cell.runs,
        "first": labels.fixed(cell.first, _PLACES),
        "tasks": f"{cell.tasks} of {len(episodes.tasks)}",
        **_figures(cell.figures),
    }


def _figures(figures: Figures) -> dict[str, Any]:
    stops = ", ".join(f"{_STOPS[key]} {labels.percent(v)}" for key, v in figures.stops.items())
    return {
        "episodes": figures.episodes,
        "reward": labels.fixed(figures.reward, _PLACES),
        "solved": labels.percent(figures.solved),
        "turns": f"{figures.turns:.1f}",
        "limited": stops or labels.NONE,
        "cut": labels.percent(figures.cut) if figures.cut else labels.NONE,
        "failures": f"{figures.failures}" + (f", {figures.lost} given up" if figures.lost else ""),
        "seconds": labels.NONE if figures.seconds is None else f"{figures.seconds:.3g} s",
    }


def _task(
    task: TaskEpisodes, cells: list[str], count: int, low: float, high: float
) -> dict[str, Any]:
    places = [task.cells.get(cell) for cell in cells]
    return {
        "task": task.task,
        "places": [
            None
            if place is None
            else (labels.fixed(place.reward, _PLACES), (place.reward - low) / (high - low))
            for place in places
        ],
        "solved_by": f"{len(task.solved_by)} of {count}" if task.solved_by else "no cell",
        "unsolved": not task.solved_by,
        "gap": labels.fixed(task.gap, _PLACES),
        "p": labels.NONE if task.p is None else labels.p_value(task.p),
        "apart": task.apart,
    }
