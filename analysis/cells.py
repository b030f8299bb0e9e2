"""From runs to cells: values over seeds, ranks, and who can be told apart from the best. Pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sweeper.analysis.frames import RunData, SweepData
from sweeper.analysis.inference import on_logits
from sweeper.analysis.keys import bounds_of
from sweeper.analysis.noise import UNKNOWN, Noise, fit_noise
from sweeper.analysis.settings import settings
from sweeper.analysis.statistics import (
    Comparison,
    Summary,
    against_best,
    contenders,
    summarise,
    summarise_chosen,
)
from sweeper.results.cells import Scale, choose_scale, mean, merit, off_scale, on_scale

__all__ = ["Cell", "Ranking", "as_chosen", "bounded", "rank", "uneven_best"]


@dataclass(frozen=True)
class Cell:
    """One configuration and its runs. `settings` are the values that tell it from the others,
    declared axes first; `unset` the keys that it leaves to the recipe while another cell, the same
    in all else, sets them. `assumed` are values that failed runs count as; `baseline`: it is what
    the best is compared with."""

    name: str
    settings: Mapping[str, Any]
    unset: tuple[str, ...]
    runs: tuple[RunData, ...]
    summary: Summary
    assumed: tuple[float, ...] = ()
    baseline: bool = False

    @cached_property
    def failed(self) -> int:
        """Runs that failed for good, but for those that diverged."""
        return sum(run.state == "failed" and not run.diverged for run in self.runs)

    @cached_property
    def diverged(self) -> int:
        """Runs whose last value of the metric is NaN or infinite."""
        return sum(run.diverged for run in self.runs)

    @cached_property
    def values(self) -> list[float]:
        """What the runs that count reached, and what failed ones are taken to have."""
        found = [run.value for run in self.runs if run.counts and run.value is not None]
        return [*found, *self.assumed]

    @cached_property
    def counted(self) -> bool:
        """Whether one of its runs counts: else all of its values, if any, are assumed."""
        return any(run.counts for run in self.runs)

    def by_seed(self, scale: Scale) -> dict[int, float]:
        """What the runs that count and have a seed reached, by seed, on a scale."""
        found = {
            r.seed: r.value
            for r in self.runs
            if r.counts and r.seed is not None and r.value is not None
        }
        return dict(zip(found, on_scale(list(found.values()), scale), strict=True))

    def best_run(self, sign: float) -> RunData | None:
        """The run that counts with the best value (`sign` 1: the least is best)."""
        counting = (run for run in self.runs if run.counts)
        return min(counting, key=lambda run: sign * (run.value or 0.0), default=None)

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

    `best` is None when no cell can be named: nothing was measured, every measured cell has a
    diverged run or none that counts, or all runs of all cells gave the same value. `comparisons`
    are with the best, by cell. A cell that is in neither `apart` nor `tied` was not compared: it
    has no interval, or the best has none. `passed_over` are cells that are not the best only
    because a run of theirs diverged: what is left of them has a better mean; `held_back` the same
    of cells with a run that failed, which in its place might have had the `worst` value of all.
    On the `scale` "log" means are geometric and comparisons are ratios. `keys` are the settings of
    all cells, in order. No interval leaves the `bounds` of what the metric can be. `noise` is that
    between runs of a cell; `chosen_of` the number of cells that may be the best, by which the
    interval of `best` is the wider for having been chosen. Where blocks are judged each by itself,
    none is best of all: `leaders` has for each cell the best of its block, with which it is
    compared.
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

    @property
    def shares(self) -> bool:
        """Whether the metric is a share, from 0 to 1."""
        return self.bounds == (0.0, 1.0)

    @property
    def cut(self) -> bool:
        """Whether an interval ends where the metric does, and not by itself."""
        ends = (end for cell in self.measured for end in (cell.summary.low, cell.summary.high))
        return any(end in self.bounds for end in ends)

    @cached_property
    def measured(self) -> tuple[Cell, ...]:
        """Cells with a value."""
        return tuple(cell for cell in self.cells if cell.summary.n)

    @cached_property
    def tried(self) -> tuple[Cell, ...]:
        """Cells with a result, be it that they diverged."""
        return tuple(cell for cell in self.cells if cell.summary.n or cell.diverged)

    @cached_property
    def others(self) -> tuple[Cell, ...]:
        """Measured cells but the best, diverged ones left out."""
        if self.best is None:
            return ()
        return tuple(c for c in self.measured if c is not self.best and not c.diverged)

    @cached_property
    def apart(self) -> tuple[Cell, ...]:
        """Cells whose difference from the best is beyond the noise."""
        return tuple(c for c in self.others if (f := self._of(c)) is not None and f.told_apart)

    @cached_property
    def tied(self) -> tuple[Cell, ...]:
        """Cells that cannot be told apart from the best, those that equal it among them."""
        equal = {cell.name for cell in self.equal}
        return tuple(
            cell
            for cell in self.others
            if ((found := self._of(cell)) is not None and not found.told_apart)
            or cell.name in equal
        )

    @cached_property
    def equal(self) -> tuple[Cell, ...]:
        """Cells whose mean is exactly the best's, and was found, not assumed."""
        mean = None if self.best is None else self.best.summary.mean
        return tuple(cell for cell in self.others if cell.counted and cell.summary.mean == mean)

    @cached_property
    def not_compared(self) -> tuple[Cell, ...]:
        """Measured cells of whose noise nothing is known, or all when that is so of the best; but
        for those that equal it."""
        equal = {cell.name for cell in self.equal}
        return tuple(c for c in self.others if self._of(c) is None and c.name not in equal)

    def on_scale(self, cell: Cell) -> list[float]:
        """A cell's values on the scale of the comparison."""
        return on_scale(cell.values, self.scale)

    def off_scale(self, value: float) -> float:
        """Back from the scale of the comparison."""
        return off_scale(value, self.scale)

    def _of(self, cell: Cell) -> Comparison | None:
        return self.comparisons.get(cell.name)


def rank(data: SweepData) -> Ranking:
    """Cells in order of their mean over seeds.

    Only runs that succeeded with a finite value count. A cell with a diverged run is ranked by
    what is left of it but is never the best: its mean leaves out just the runs that went wrong.
    Nor is one of which no run counts, whatever failed ones are taken to have; nor one with a failed
    run, where the rule for those is a bound, unless it leads with the worst value of all in that
    one's place.
    """
    bounds = _bounds(data)
    cells, scale, noise, keys = _cells(data, bounds)
    goal = data.metric.goal if data.metric is not None else "minimize"

    sign = data.sign

    def level(cell: Cell) -> float:
        return sign * (cell.summary.mean or 0.0)

    worst = _worst(data)
    bound = worst is not None and data.metric is not None and data.metric.failed == "bound"

    def order(cell: Cell) -> tuple[bool, float]:
        found = cell.summary.mean or 0.0
        if bound and cell.failed:
            found = mean([*cell.values, *[worst or 0.0] * cell.failed], scale)
        return merit(found, goal, diverged=cell.diverged > 0 or not cell.counted)

    measured = [cell for cell in cells if cell.summary.n]
    ranked = sorted(measured, key=order)
    ordered = (*ranked, *(cell for cell in cells if not cell.summary.n))
    best = next((c for c in ranked[:1] if c.counted and not c.diverged), None)
    if _all_same([cell for cell in measured if cell.counted]):
        best = None
    if best is None:
        return Ranking(ordered, None, None, {}, (), scale, keys, noise, bounds)
    best_run = best.best_run(sign)
    groups = {cell.name: cell.values for cell in ranked if not cell.diverged}
    comparisons = bounded(against_best(groups, best.name, noise, sign, scale), bounds)
    ahead = [cell for cell in ranked if level(cell) < level(best)]
    passed_over = tuple(cell for cell in ahead if cell.diverged)
    held_back = tuple(cell for cell in ahead if cell.failed and not cell.diverged)
    found = Ranking(ordered, best, best_run, comparisons, passed_over, scale, keys, noise, bounds)
    chosen, of = as_chosen(found, best, comparisons, sign)
    ordered = tuple(chosen if cell is best else cell for cell in ordered)
    found = replace(found, cells=ordered, best=chosen, chosen_of=of)
    return replace(found, held_back=held_back, worst=worst)


def as_chosen(
    ranking: Ranking, best: Cell, comparisons: Mapping[str, Comparison], sign: float
) -> tuple[Cell, int]:
    """The best of the cells of a ranking, with the interval of one that was chosen among them, and
    by how many that allows for."""
    others = [c for c in ranking.measured if c.name != best.name and c.counted and not c.diverged]
    of = contenders(comparisons, [cell.name for cell in others])
    noise = ranking.noise
    spread = noise.noisier.get(best.name) or noise.of(best.name)
    if spread is None:
        return best, of
    found = summarise_chosen(best.values, ranking.scale, spread, of, sign)
    return replace(best, summary=_within(found, ranking.bounds)), of


def bounded(
    comparisons: Mapping[str, Comparison], bounds: tuple[float, float]
) -> dict[str, Comparison]:
    """Comparisons of a metric that lies within bounds: no difference is larger than they allow."""
    most = bounds[1] - bounds[0]
    linear = {name: one for name, one in comparisons.items() if one.scale == "linear"}
    return {**comparisons, **{name: one._replace(most=most) for name, one in linear.items()}}


def _all_same(cells: Sequence[Cell]) -> bool:
    """Whether several cells have one and the same value, each in two runs or more."""
    ends = {end for cell in cells for end in (cell.summary.minimum, cell.summary.maximum)}
    return len(cells) > 1 and len(ends) == 1 and min(cell.summary.n for cell in cells) > 1


def _cells(
    data: SweepData, bounds: tuple[float, float]
) -> tuple[list[Cell], Scale, Noise, tuple[str, ...]]:
    grouped: dict[str, list[RunData]] = {}
    for run in data.runs:
        grouped.setdefault(run.cell, []).append(run)
    configs = {name: runs[0].config for name, runs in grouped.items()}
    keys, found = settings(configs, list(data.axes), data.seed_field)
    empty = summarise([])
    bare = [
        Cell(name, found[name], _unset(found[name], keys, found), tuple(runs), empty)
        for name, runs in grouped.items()
    ]
    bare = [replace(c, baseline=True) if c.name == data.baseline else c for c in bare]
    worst = _worst(data)
    if worst is not None and data.metric is not None and data.metric.failed == "worst":
        bare = [replace(cell, assumed=(worst,) * cell.failed) for cell in bare]
    scale = choose_scale(cell.values for cell in bare)
    uneven = uneven_best(data, bare) is not None
    noise = UNKNOWN if uneven else _noise(data, bare, scale)
    cells = [
        replace(cell, summary=_within(summarise(cell.values, scale, noise.of(cell.name)), bounds))
        for cell in bare
    ]
    if uneven:
        cells = [replace(c, summary=c.summary._replace(low=None, high=None)) for c in cells]
    return cells, scale, noise, keys


def uneven_best(data: SweepData, cells: Sequence[Cell]) -> tuple[int, int] | None:
    """How often runs of the cell with the fewest and of the one with the most evaluations were
    evaluated, where each is judged by the best of them and one had a quarter more or so: the best
    of more values is better by chance alone, and says nothing of the cell."""
    if data.metric is None or data.metric.at != "best":
        return None
    counts: list[float] = []
    for cell in cells:
        runs = [run.curves.get(data.metric.name) for run in cell.runs if run.counts]
        found = [len(curve.finite.values) for curve in runs if curve is not None]
        if found:
            counts.append(sum(found) / len(found))
    if not counts or max(counts) <= _EVEN * min(counts):
        return None
    return round(min(counts)), round(max(counts))


_EVEN = 1.25


def _worst(data: SweepData) -> float | None:
    """The worst value that a run ended with."""
    values = [run.value for run in data.runs if run.counts and run.value is not None]
    return max(values, key=lambda value: data.sign * value, default=None)


def _noise(data: SweepData, cells: Sequence[Cell], scale: Scale) -> Noise:
    lent = {
        sweep: {
            name: on_scale(own, scale)
            for name, own in others.items()
            if scale == "linear" or min(own) > 0
        }
        for sweep, others in data.lent.items()
    }
    asked = "auto" if data.metric is None else data.metric.noise
    own = {cell.name: on_scale(cell.values, scale) for cell in cells}
    return fit_noise(
        own, "own" if asked == "own" else "pooled" if asked == "pooled" else "auto", lent
    )


def _bounds(data: SweepData) -> tuple[float, float]:
    """What the metric can be, by its name and by all that was recorded of it."""
    metric = data.metric
    curves = [run.curves.get(metric.name) for run in data.runs] if metric is not None else []
    found = [curve.finite.values for curve in curves if curve is not None]
    ends = [float(end) for own in found if len(own) for end in (own.min(), own.max())]
    if metric is None or not ends:
        return -math.inf, math.inf
    # tinker-cookbook's evaluations: a score is the share of so many examples.
    above, _, leaf = metric.name.rpartition("/")
    if (
        leaf == "score"
        and f"{above}/num_examples" in data.keys
        and 0 <= min(ends) <= max(ends) <= 1
    ):
        return 0.0, 1.0
    return bounds_of(metric.name, min(ends), max(ends))


def _within(found: Summary, bounds: tuple[float, float]) -> Summary:
    if found.mean is None or found.low is None or found.high is None:
        return found
    if bounds == (0.0, 1.0) and 0 < found.mean < 1:
        low = on_logits(found.mean, found.mean - found.low)[0]
        high = on_logits(found.mean, found.high - found.mean)[1]
        return found._replace(low=low, high=high)
    return found._replace(low=max(found.low, bounds[0]), high=min(found.high, bounds[1]))


def _unset(
    own: Mapping[str, Any], keys: Sequence[str], found: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """The `keys` missing in `own` that a cell has which agrees with all of `own`."""
    if len(own) == len(keys):
        return ()
    wider = [
        other
        for other in found.values()
        if len(other) > len(own) and all(item in other.items() for item in own.items())
    ]
    return tuple(key for key in keys if key not in own and any(key in other for other in wider))
