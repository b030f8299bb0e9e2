"""Groups runs into cells, ranks the cells, and determines which cells differ from the best.
Pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.analysis.reading.keys import bounds_of
from sweeper.analysis.reading.settings import ordered, settings
from sweeper.analysis.statistics.looks import price
from sweeper.analysis.statistics.noise import TOWARD, UNKNOWN, Noise, fit_noise, paired, with_failed
from sweeper.analysis.statistics.seeds import (
    Chosen,
    Comparison,
    Summary,
    against_best,
    confidence,
    contenders,
    summarise,
    summarise_chosen,
)
from sweeper.common.json_values import is_number
from sweeper.results.cells import Scale, choose_scale, mean, merit, off_scale, on_scale


@dataclass(frozen=True)
class Cell:
    """A configuration and its runs. `settings` are the values that distinguish this cell from other
    cells, with the declared axes first. `unset` are the keys that this cell leaves at the recipe's
    default, but a cell with otherwise equal settings sets. If the metric has `failed: worst`,
    `assumed` has the worst value of the sweep for each failed run."""

    name: str
    settings: Mapping[str, Any]
    unset: tuple[str, ...]
    runs: tuple[RunData, ...]
    summary: Summary
    assumed: tuple[float, ...] = ()
    baseline: bool = False

    @cached_property
    def failed(self) -> int:
        """The number of runs that failed for good. Diverged runs are not counted."""
        return sum(run.state == "failed" and not run.diverged for run in self.runs)

    @cached_property
    def diverged(self) -> int:
        """The number of runs that diverged: their last value of the metric is NaN or infinite."""
        return sum(run.diverged for run in self.runs)

    @cached_property
    def values(self) -> list[float]:
        """The values of the runs that count, and the values assumed for failed runs."""
        values = [run.value for run in self.runs if run.counts and run.value is not None]
        return [*values, *self.assumed]

    @cached_property
    def texts(self) -> dict[str, str]:
        """The values of the settings as strings. Numbers are written as in the cell's name."""
        parts = [part.partition("=")[2] for part in self.name.split(",")]
        spelled = {text: number for text in parts if (number := _spelled(text)) is not None}
        return {
            key: next(
                (t for t, n in spelled.items() if is_number(value) and math.isclose(n, value)),
                labels.brief(value),
            )
            for key, value in self.settings.items()
        }

    @cached_property
    def counted(self) -> bool:
        """Whether at least one run counts. If no run counts, all values of the cell are assumed."""
        return any(run.counts for run in self.runs)

    def by_seed(self, scale: Scale) -> dict[int, float]:
        """Return a dict from seed to value on `scale`, for the runs that count and have a seed."""
        by_seed = {
            run.seed: run.value
            for run in self.runs
            if run.counts and run.seed is not None and run.value is not None
        }
        return dict(zip(by_seed, on_scale(list(by_seed.values()), scale), strict=True))

    def best_run(self, sign: float) -> RunData | None:
        """Return the best of the runs that count. With `sign` 1, smaller values are better. Return
        None if no run counts."""
        counting = (run for run in self.runs if run.counts)
        return min(counting, key=lambda run: sign * (run.value or 0.0), default=None)

    @property
    def states(self) -> Counter[str]:
        """The number of runs in each state."""
        return Counter(run.state for run in self.runs)

    @property
    def wall_s(self) -> float | None:
        """The mean duration of the succeeded runs, in seconds. None if no duration is known."""
        walls = [r.wall_s for r in self.runs if r.wall_s is not None and r.state == "succeeded"]
        return sum(walls) / len(walls) if walls else None


def _spelled(text: str) -> float | None:
    if len(text) > labels.BRIEF:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class Ranking:
    """All cells of a sweep, the best first. Cells without a value come last, in the order of the
    plan.

    `best` is None if nothing was measured, if each measured cell has a diverged run or no run that
    counts, or if all runs gave the same value. `comparisons` has the comparisons of other cells
    with `best`. `passed_over` are cells with a better mean than `best`, but with a diverged run.
    `held_back` are cells with a better mean than `best`, but not if the mean includes the `worst`
    value of the sweep for each failed run.

    On the `scale` "log", means are geometric and comparisons are ratios. `keys` are the settings
    that distinguish the cells. Intervals do not exceed the `bounds` of the metric. `noise` is the
    noise between the runs of a cell. `chosen_of` is the number of cells that could have become
    `best`; the interval of `best` allows for this selection. If blocks are judged separately,
    `leaders` maps each cell to the best cell of its block. All p values are multiplied by `price`,
    which corrects for repeated analyses.
    """

    cells: tuple[Cell, ...]
    best: Cell | None
    best_run: RunData | None
    comparisons: Mapping[str, Comparison]
    passed_over: tuple[Cell, ...]
    scale: Scale
    keys: tuple[str, ...]
    noise: Noise
    bounds: tuple[float, float] = (-math.inf, math.inf)
    chosen_of: int = 1
    held_back: tuple[Cell, ...] = ()
    worst: float | None = None
    leaders: Mapping[str, str] = field(default_factory=dict[str, str])
    price: float = 1.0

    @property
    def shares(self) -> bool:
        """Whether the metric is a fraction between 0 and 1."""
        return self.bounds == (0.0, 1.0)

    @property
    def cut(self) -> bool:
        """Whether the interval of a cell ends at a bound of the metric."""
        ends = (end for cell in self.measured for end in (cell.summary.low, cell.summary.high))
        return any(end in self.bounds for end in ends)

    @cached_property
    def measured(self) -> tuple[Cell, ...]:
        """Cells with a value."""
        return tuple(cell for cell in self.cells if cell.summary.n)

    @cached_property
    def tried(self) -> tuple[Cell, ...]:
        """Cells with a value or a diverged run."""
        return tuple(cell for cell in self.cells if cell.summary.n or cell.diverged)

    @cached_property
    def others(self) -> tuple[Cell, ...]:
        """The measured cells without a diverged run, and without the best cell. Empty if there is
        no best cell."""
        if self.best is None:
            return ()
        return tuple(c for c in self.measured if c is not self.best and not c.diverged)

    @cached_property
    def apart(self) -> tuple[Cell, ...]:
        """Cells whose difference from the best cell is significant."""
        return tuple(c for c in self.others if (f := self._of(c)) is not None and f.told_apart)

    @cached_property
    def tied(self) -> tuple[Cell, ...]:
        """Cells that cannot be distinguished from the best, including the cells in `equal`."""
        equal = {cell.name for cell in self.equal}
        return tuple(
            cell
            for cell in self.others
            if ((comparison := self._of(cell)) is not None and not comparison.told_apart)
            or cell.name in equal
        )

    @cached_property
    def equal(self) -> tuple[Cell, ...]:
        """Cells whose mean is exactly equal to the mean of the best cell."""
        mean = None if self.best is None else self.best.summary.mean
        return tuple(cell for cell in self.others if cell.counted and cell.summary.mean == mean)

    @cached_property
    def not_compared(self) -> tuple[Cell, ...]:
        """Cells in `others` that were not compared with the best cell, because the noise is
        unknown. Cells in `equal` are left out."""
        equal = {cell.name for cell in self.equal}
        return tuple(c for c in self.others if self._of(c) is None and c.name not in equal)

    def on_scale(self, cell: Cell) -> list[float]:
        """Return a cell's values on the scale of the comparison."""
        return on_scale(cell.values, self.scale)

    def off_scale(self, value: float) -> float:
        """Convert a value back from the scale of the comparison."""
        return off_scale(value, self.scale)

    def _of(self, cell: Cell) -> Comparison | None:
        return self.comparisons.get(cell.name)


def rank(data: SweepData) -> Ranking:
    """Rank the cells by their mean over seeds. A run counts if it succeeded with a finite value. A
    cell with a diverged run, or without a run that counts, cannot be the best. If the metric has
    `failed: bound`, the order counts each failed run with the worst value of the sweep."""
    bounds, paid = _bounds(data), price(data)
    cells, scale, noise, keys = _cells(data, bounds)
    goal = data.metric.goal if data.metric is not None else "minimize"

    sign = data.sign

    def level(cell: Cell) -> float:
        return sign * (cell.summary.mean or 0.0)

    worst = _worst(data)
    bound = worst is not None and data.metric is not None and data.metric.failed == "bound"

    def order(cell: Cell) -> tuple[bool, float]:
        middle = cell.summary.mean or 0.0
        if bound and cell.failed:
            middle = mean([*cell.values, *[worst or 0.0] * cell.failed], scale)
        return merit(middle, goal, diverged=cell.diverged > 0 or not cell.counted)

    measured = [cell for cell in cells if cell.summary.n]
    ranked = sorted(measured, key=order)
    ordered = (*ranked, *(cell for cell in cells if not cell.summary.n))
    best = next((c for c in ranked[:1] if c.counted and not c.diverged), None)
    if _all_same([cell for cell in measured if cell.counted]):
        best = None
    if best is None:
        return Ranking(ordered, None, None, {}, (), scale, keys, noise, bounds, price=paid)
    best_run = best.best_run(sign)
    groups = {cell.name: cell.values for cell in ranked if not cell.diverged}
    comparisons = bounded(against_best(groups, best.name, noise, sign, scale, paid), bounds)
    ahead = [cell for cell in ranked if level(cell) < level(best)]
    passed_over = tuple(cell for cell in ahead if cell.diverged)
    held_back = tuple(cell for cell in ahead if cell.failed and not cell.diverged)
    ranking = Ranking(ordered, best, best_run, comparisons, passed_over, scale, keys, noise, bounds)
    ranking = replace(ranking, worst=worst if bound else None, price=paid)
    chosen, count = as_chosen(ranking, best, comparisons, sign)
    ordered = tuple(chosen if cell is best else cell for cell in ordered)
    ranking = replace(ranking, cells=ordered, best=chosen, chosen_of=count)
    return replace(ranking, held_back=held_back, worst=worst)


def as_chosen(
    ranking: Ranking, best: Cell, comparisons: Mapping[str, Comparison], sign: float
) -> tuple[Cell, int]:
    """Return the best cell, with an interval that allows for its selection as the best. Also return
    the number of cells that could have been selected."""
    rivals = [c for c in ranking.measured if c.name != best.name and c.counted and not c.diverged]
    count = contenders(comparisons, [cell.name for cell in rivals])
    if ranking.noise.of(best.name) is None:
        return best, count
    failed = ranking.worst is not None and any(cell.failed for cell in ranking.cells)
    runs = [cell.summary.n for cell in (best, *rivals)]
    share = confidence(comparisons, ranking.noise, runs, failed=failed)
    chosen = Chosen(best.name, count, sign, share)
    chosen_summary = summarise_chosen(best.values, ranking.scale, ranking.noise, chosen)
    if best.failed and ranking.worst is not None:
        # The failed runs of the best cell may have had the worst value of all, so the interval ends
        # further out on that side.
        values = [*best.values, *[ranking.worst] * best.failed]
        worst_case = summarise_chosen(values, ranking.scale, ranking.noise, chosen)
        end = {"high": worst_case.high} if sign > 0 else {"low": worst_case.low}
        chosen_summary = chosen_summary._replace(**end)
    return replace(best, summary=_within(chosen_summary, ranking.bounds)), count


def bounded(
    comparisons: Mapping[str, Comparison], bounds: tuple[float, float]
) -> dict[str, Comparison]:
    """Return the comparisons, with `most` (the largest possible difference) set to the distance
    between the metric's bounds. Comparisons on a log scale are unchanged."""
    most = bounds[1] - bounds[0]
    linear = {name: entry for name, entry in comparisons.items() if entry.scale == "linear"}
    return {**comparisons, **{name: entry._replace(most=most) for name, entry in linear.items()}}


def _all_same(cells: Sequence[Cell]) -> bool:
    ends = {end for cell in cells for end in (cell.summary.minimum, cell.summary.maximum)}
    return len(cells) > 1 and len(ends) == 1 and min(cell.summary.n for cell in cells) > 1


def _cells(
    data: SweepData, bounds: tuple[float, float]
) -> tuple[list[Cell], Scale, Noise, tuple[str, ...]]:
    grouped: dict[str, list[RunData]] = {}
    for run in data.runs:
        grouped.setdefault(run.cell, []).append(run)
    configs = {name: runs[0].config for name, runs in grouped.items()}
    keys, values_of = settings(configs, list(data.axes), data.seed_field, data.derived)
    empty = summarise([])
    bare = [
        Cell(name, values_of[name], _unset(values_of[name], keys, values_of), tuple(runs), empty)
        for name, runs in grouped.items()
    ]
    bare = [replace(c, baseline=True) if c.name == data.baseline else c for c in bare]
    worst = _worst(data)
    if worst is not None and data.metric is not None and data.metric.failed == "worst":
        bare = [replace(cell, assumed=(worst,) * cell.failed) for cell in bare]
    scale = choose_scale(cell.values for cell in bare)
    uneven = uneven_best(data, bare) is not None
    shares = bounds == (0.0, 1.0)
    noise = UNKNOWN if uneven else _noise(data, bare, scale, keys, shares=shares)
    cells = [
        replace(cell, summary=_within(summarise(cell.values, scale, noise.of(cell.name)), bounds))
        for cell in bare
    ]
    if uneven:
        cells = [replace(c, summary=c.summary._replace(low=None, high=None)) for c in cells]
    return cells, scale, noise, keys


def uneven_best(data: SweepData, cells: Sequence[Cell]) -> tuple[int, int] | None:
    """Compute the mean number of evaluations per run for each cell. Return the smallest and the
    largest of these numbers if they differ by more than a quarter. Otherwise, or if runs are not
    judged by their best value, return None. (More evaluations improve the best value by chance.)"""
    if data.metric is None or data.metric.at != "best":
        return None
    counts: list[float] = []
    for cell in cells:
        runs = [run.curves.get(data.metric.name) for run in cell.runs if run.counts]
        lengths = [len(curve.finite.values) for curve in runs if curve is not None]
        if lengths:
            counts.append(sum(lengths) / len(lengths))
    if not counts or max(counts) <= _EVEN * min(counts):
        return None
    return round(min(counts)), round(max(counts))


_EVEN = 1.25


def _worst(data: SweepData) -> float | None:
    values = [run.value for run in data.runs if run.counts and run.value is not None]
    return max(values, key=lambda value: data.sign * value, default=None)


def _noise(
    data: SweepData, cells: Sequence[Cell], scale: Scale, keys: Sequence[str], *, shares: bool
) -> Noise:
    lent: dict[str, dict[str, list[float]]] = {}
    for sweep, borrowed in data.lent.items():
        lent[sweep] = {
            name: on_scale(values, scale)
            for name, values in borrowed.items()
            if scale == "linear" or min(values) > 0
        }
    rule_name = "auto" if data.metric is None else data.metric.noise
    groups = {cell.name: on_scale(cell.values, scale) for cell in cells}
    rule = "own" if rule_name == "own" else "pooled" if rule_name == "pooled" else "auto"
    noise = fit_noise(groups, rule, lent, _positions(cells, keys), shares=shares)
    counted = [cell for cell in cells if cell.counted and not cell.diverged]
    noise = paired(noise, {cell.name: cell.by_seed(scale) for cell in counted})
    worst = _worst(data)
    if worst is None or data.metric is None or data.metric.failed != "bound":
        return noise
    failed = {cell.name: cell.failed for cell in cells}
    return with_failed(noise, groups, failed, on_scale([worst], scale)[0])


def _positions(cells: Sequence[Cell], keys: Sequence[str]) -> dict[str, dict[str, float]]:
    places: dict[str, dict[str, float]] = {}
    for key in keys:
        values = ordered(key, [cell.settings for cell in cells])
        if len(values) > 2 and all(key in cell.settings for cell in cells):
            places[key] = {c.name: float(values.index(c.settings[key])) for c in cells}
            levels: dict[float, list[bool]] = {}
            for cell in cells:
                levels.setdefault(cell.settings[key], []).append(cell.diverged > 0)
            wild = {value for value, marks in levels.items() if 2 * sum(marks) >= len(marks)}
            if wild and len(wild) < len(levels):
                places[key + TOWARD] = {c.name: float(c.settings[key] in wild) for c in cells}
    return places


def _bounds(data: SweepData) -> tuple[float, float]:
    """Return the bounds of the metric, inferred from its name and from all recorded values."""
    metric = data.metric
    curves = [run.curves.get(metric.name) for run in data.runs] if metric is not None else []
    values = [curve.finite.values for curve in curves if curve is not None]
    ends = [float(end) for series in values if len(series) for end in (series.min(), series.max())]
    if metric is None or not ends:
        return -math.inf, math.inf
    # In tinker-cookbook's evaluations a score is a share of `num_examples` examples.
    above, _, leaf = metric.name.rpartition("/")
    of_examples = leaf == "score" and f"{above}/num_examples" in data.keys
    if of_examples and 0 <= min(ends) <= max(ends) <= 1:
        return 0.0, 1.0
    return bounds_of(metric.name, min(ends), max(ends))


def _within(summary: Summary, bounds: tuple[float, float]) -> Summary:
    if summary.mean is None or summary.low is None or summary.high is None:
        return summary
    return summary._replace(low=max(summary.low, bounds[0]), high=min(summary.high, bounds[1]))


def _unset(
    values: Mapping[str, Any], keys: Sequence[str], values_of: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    if len(values) == len(keys):
        return ()
    longer = (cell for cell in values_of.values() if len(cell) > len(values))
    wider = [cell for cell in longer if all(item in cell.items() for item in values.items())]
    return tuple(key for key in keys if key not in values and any(key in cell for cell in wider))
