"""Chooses which runs of a stage are taken, by the value that each is judged by. The same runs
always give the same choice."""

import math
from collections.abc import Collection, Mapping, Sequence

from sweeper.metrics.objective import sign_of
from sweeper.results.cells import choose_scale, mean
from sweeper.results.runs import RecordedRun
from sweeper.sweep.stage_inputs import Choice


def choose(
    choice: Choice, runs: Mapping[str, RecordedRun], succeeded: Collection[str]
) -> tuple[tuple[str, float], ...]:
    """The chosen runs, best first, each with its value. Among equal values the first in the plan
    wins. Runs without a finite value are left out. Runs of which the metric is missing at the end
    come after all others, since they may have diverged. Empty if no run has a value."""
    metric = choice.metric._asdict()
    values: dict[str, float] = {}
    missing: set[str] = set()
    for run in choice.candidates:
        point = runs[run].value(metric) if run in succeeded and run in runs else None
        if point is not None and math.isfinite(point.value):
            values[run] = point.value
            missing |= {run} if point.missing else set()
    sign = sign_of(choice.metric.goal)
    if choice.take.how == "best-cell":
        return _of_best_cell(choice, runs, values, missing, sign)
    # `best` is the first of these, `top` so many of them.
    ordered = sorted(values, key=lambda run: (run in missing, sign * values[run]))
    return tuple((run, values[run]) for run in ordered[: choice.take.number])


def _of_best_cell(
    choice: Choice,
    runs: Mapping[str, RecordedRun],
    values: Mapping[str, float],
    missing: Collection[str],
    sign: float,
) -> tuple[tuple[str, float], ...]:
    """All runs of the cell with the best mean. A cell with a run that has no value comes after
    complete cells, unless failures count for nothing; before it come those with a run whose metric
    is missing at the end."""
    planned: dict[str, list[str]] = {}
    for run in choice.candidates:
        if run in runs:
            planned.setdefault(runs[run].cell, []).append(run)
    cells = {cell: [run for run in mine if run in values] for cell, mine in planned.items()}
    cells = {cell: mine for cell, mine in cells.items() if mine}
    if not cells:
        return ()
    scale = choose_scale([values[run] for run in mine] for mine in cells.values())

    def rank(cell: str) -> tuple[bool, bool, float]:
        torn = choice.metric.failed != "drop" and len(cells[cell]) < len(planned[cell])
        doubtful = any(run in missing for run in cells[cell])
        return torn, doubtful, sign * mean(_values(values, cells[cell]), scale)

    best = min(cells, key=rank)
    return tuple((run, values[run]) for run in cells[best])


def _values(values: Mapping[str, float], runs: Sequence[str]) -> list[float]:
    return [values[run] for run in runs]
