"""Finds the best cells of a sweep as the report does, but writes no file:
sweeper.analysis.best("sweeps", "quickstart").cells[0]"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.analysis.findings.baselines import with_baseline
from sweeper.analysis.findings.study import study
from sweeper.analysis.page.document import document, flat_row
from sweeper.analysis.page.verdict_line import executed_differently
from sweeper.analysis.reading.frames import load
from sweeper.analysis.reading.last_values import settle
from sweeper.errors import NotFound, UsageError
from sweeper.results.registry import Registry
from sweeper.sweep.metric import value_text

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Best:
    """The cells of a sweep, best first, as in `report.json`. The keys of a cell include `cell`,
    `settings`, `n`, `mean`, `low` and `high` (a 95 % interval), and `told_apart` (is the difference
    from the best significant? None if not compared). `label` is the label of the verdict. If blocks
    are judged separately, `leaders` has the best cell of each block, and no cell is the best of the
    sweep. `differences` describes differences in code, packages or data between the runs."""

    sweep: str
    metric: str
    goal: str
    at: str
    label: str
    leaders: tuple[str, ...]
    cells: tuple[Mapping[str, Any], ...]
    differences: tuple[str, ...] = ()

    @property
    def judged_by(self) -> str:
        """A description of the value by which runs are judged."""
        return f"{value_text(self.at)} of {self.metric}"

    @property
    def frame(self) -> "pandas.DataFrame":
        """Return a DataFrame with a row for each cell."""
        import pandas

        return pandas.DataFrame([flat_row(row, "settings") for row in self.cells])


def best(
    registry: "Registry | str | os.PathLike[str]",
    sweep: str,
    metric: str | None = None,
    goal: str | None = None,
    at: str | None = None,
) -> Best:
    """Rank the cells of a sweep, of a stage (`sweep/stage`) or of a folder with runs. `registry`
    may also be the root of a store. `metric`, `goal` and `at` default to those of the sweep. Cells
    without a value are left out. Raises `NotFound` if the sweep does not exist or no run has a
    value, `UsageError` if there is no metric."""
    if not isinstance(registry, Registry):
        registry = Registry(os.fspath(registry))
    with np.errstate(all="ignore"):
        (data,) = settle(load(registry, sweep, metric, goal, at, rollouts=False))
        if data.metric is None:
            raise UsageError(f"{sweep} has no metric: choose one with --metric")
        studied = study(with_baseline(data, registry))
    rows = [row for row in document(studied)["cells"] if row["mean"] is not None]
    if not rows:
        raise NotFound(f"{sweep}: no run has a value of {data.metric.name} yet")
    return Best(
        sweep=data.name,
        metric=data.metric.name,
        goal=data.metric.goal,
        at=data.metric.at,
        label=studied.verdict.label,
        leaders=tuple(dict.fromkeys(studied.ranking.leaders.values())),
        cells=tuple(rows),
        differences=executed_differently(data),
    )
