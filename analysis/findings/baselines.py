"""The baseline that the best cell is compared with: a cell of the sweep, or the best cell of
another sweep. The runs of a cell of another sweep are added to the data."""

from dataclasses import replace

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Cell, Ranking, rank
from sweeper.analysis.findings.finding import behind, short_name
from sweeper.analysis.reading.frames import SweepData, load
from sweeper.analysis.reading.metric import Metric
from sweeper.errors import NotFound, UsageError
from sweeper.results.registry import Registry

_NOTHING = "there is no comparison with a baseline"


def with_baseline(data: SweepData, registry: Registry) -> SweepData:
    """Set `baseline` to the cell that the grid names as baseline. If the grid names another sweep,
    add the runs of that sweep's best cell. If there is no such cell, set `unmet` to the reason.
    Return `data` unchanged if the grid has no baseline or no metric."""
    plan = data.plan
    wanted = None if plan is None or len(data.names) > 1 else plan.baseline
    if wanted is None or data.metric is None:
        return data
    if wanted.sweep is None:
        planned = {run.cell for run in plan.runs if not run.retired} if plan else set[str]()
        if planned and wanted.cell not in planned:
            return replace(data, unmet=f"the baseline {wanted.cell} is not a cell: {_NOTHING}")
        return replace(data, baseline=wanted.cell)
    return _with_another(data, wanted.sweep, data.metric, registry)


def _with_another(data: SweepData, sweep: str, metric: Metric, registry: Registry) -> SweepData:
    """Add the runs of the best cell of another sweep."""
    try:
        baseline = load(registry, sweep, metric.name, metric.goal, metric.at, rollouts=False)
    except (NotFound, UsageError) as error:
        return replace(data, unmet=f"the baseline {sweep} cannot be read: {error}; {_NOTHING}")
    best = rank(replace(baseline, metric=metric)).best
    if best is None:
        reason = f"the baseline {sweep} has no best cell by {metric.name}: {_NOTHING}"
        return replace(data, unmet=reason)
    cells = {run.id: run.cell for run in data.runs}
    shared = next((cells[run.id] for run in best.runs if run.id in cells), None)
    if shared is not None:  # this sweep has the same runs
        return replace(data, baseline=shared)
    cell = f"{sweep}/{best.name}"
    runs = tuple(replace(run, cell=cell, name=f"{sweep}/{run.name}") for run in best.runs)
    return replace(data, runs=(*data.runs, *runs), baseline=cell, borrowed=frozenset({cell}))


def against(ranking: Ranking, sign: float) -> str | None:
    """Return a sentence that compares the best cell with the baseline; None without a baseline."""
    cell = next((cell for cell in ranking.cells if cell.baseline), None)
    if cell is None:
        return None
    name = short_name(cell)
    best = ranking.best
    if best is None:
        return f"nothing can be compared with {name}, as no cell is best"
    if best is cell:
        return f"{name} is not beaten by any cell"
    comparison = ranking.comparisons.get(cell.name)
    if comparison is not None and comparison.difference != 0:
        by = behind(comparison, sign)
        doubt = "" if comparison.told_apart else ", which noise can explain"
        how = by.worse(by.amount) if by.ratio else f"beaten by {by.amount}"
        return f"{name} is {how} (95 % interval {by.interval}){doubt}"
    return _without_interval(cell, best, name, sign)


def _without_interval(cell: Cell, best: Cell, name: str, sign: float) -> str:
    if cell.summary.mean is None or best.summary.mean is None:
        return f"{name} has no value to compare with"
    gap = sign * (cell.summary.mean - best.summary.mean)
    if gap == 0:
        return f"{name} has the same mean as the best"
    return f"{name} is beaten by {labels.number(gap, 3)}, with no interval"
