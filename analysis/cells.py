"""From runs to cells: values over seeds, ranks, and who can be told apart from the best. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.frames import RunData, SweepData
from analysis.statistics import Comparison, Summary, against_best, summarise

__all__ = ["Cell", "Ranking", "axis_value", "rank"]


@dataclass(frozen=True)
class Cell:
    """One configuration and its runs. `settings` are its values on the axes, in grid order."""

    name: str
    settings: Mapping[str, Any]
    runs: tuple[RunData, ...]
    summary: Summary

    @property
    def diverged(self) -> int:
        """Runs whose last value of the metric is NaN or infinite."""
        return sum(run.diverged for run in self.runs)

    @property
    def states(self) -> Counter[str]:
        """How many runs are in which state."""
        return Counter(run.state for run in self.runs)

    @property
    def wall_s(self) -> float | None:
        """Mean seconds of its succeeded runs."""
        walls = [r.wall_s for r in self.runs if r.wall_s is not None and r.state == "succeeded"]
        return sum(walls) / len(walls) if walls else None


@dataclass(frozen=True)
class Ranking:
    """All cells, best first, then those that cannot be ranked in the order of the plan.

    `best` is None when no cell can be named: nothing was measured, or every measured cell has a
    diverged run. `comparisons` are with the best, by cell. A cell that is in neither `apart` nor
    `tied` was not compared: it has no interval, or the best has none.
    """

    cells: tuple[Cell, ...]
    best: Cell | None
    best_run: RunData | None
    comparisons: Mapping[str, Comparison]

    @property
    def measured(self) -> tuple[Cell, ...]:
        """Cells with a value."""
        return tuple(cell for cell in self.cells if cell.summary.n)

    @property
    def others(self) -> tuple[Cell, ...]:
        """Measured cells but the best, diverged ones left out."""
        if self.best is None:
            return ()
        return tuple(c for c in self.measured if c is not self.best and not c.diverged)

    @property
    def apart(self) -> tuple[Cell, ...]:
        """Cells whose difference from the best is beyond the noise."""
        return tuple(c for c in self.others if (f := self._of(c)) is not None and f.told_apart)

    @property
    def tied(self) -> tuple[Cell, ...]:
        """Cells that cannot be told apart from the best."""
        return tuple(c for c in self.others if (f := self._of(c)) is not None and not f.told_apart)

    @property
    def not_compared(self) -> tuple[Cell, ...]:
        """Measured cells that say nothing about their own noise, or all when the best is one."""
        return tuple(c for c in self.others if self._of(c) is None)

    def _of(self, cell: Cell) -> Comparison | None:
        return self.comparisons.get(cell.name)


def axis_value(config: Mapping[str, Any], axis: str) -> Any:
    """A dotted key of a configuration that is flat, nested, or both; None when it has none."""
    if axis in config:
        return config[axis]
    head, dot, rest = axis.partition(".")
    inner = config.get(head)
    return axis_value(inner, rest) if dot and isinstance(inner, Mapping) else None  # pyright: ignore[reportUnknownArgumentType]


def rank(data: SweepData) -> Ranking:
    """Cells in order of their mean over seeds.

    Only runs that succeeded with a finite value count. A cell with a diverged run is ranked by
    what is left of it but is never the best: its mean leaves out just the runs that went wrong.
    """
    grouped: dict[str, list[RunData]] = {}
    for run in data.runs:
        grouped.setdefault(run.cell, []).append(run)
    cells = [_cell(name, runs, data) for name, runs in grouped.items()]
    sign = data.metric.sign if data.metric is not None else 1.0
    ranked = sorted(
        (cell for cell in cells if cell.summary.mean is not None),
        key=lambda cell: (cell.diverged > 0, sign * (cell.summary.mean or 0.0)),
    )
    rest = [cell for cell in cells if cell.summary.mean is None]
    best = ranked[0] if ranked and not ranked[0].diverged else None
    if best is None:
        return Ranking((*ranked, *rest), None, None, {})
    groups = {
        cell.name: [run.value for run in cell.runs if run.counts and run.value is not None]
        for cell in ranked
        if not cell.diverged
    }
    best_run = min(
        (run for run in best.runs if run.counts), key=lambda run: sign * (run.value or 0.0)
    )
    return Ranking((*ranked, *rest), best, best_run, against_best(groups, best.name))


def _cell(name: str, runs: list[RunData], data: SweepData) -> Cell:
    values = [run.value for run in runs if run.counts and run.value is not None]
    settings = {axis: axis_value(runs[0].config, axis) for axis in data.axes}
    return Cell(name, settings, tuple(runs), summarise(values))
