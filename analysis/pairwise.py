"""`sweeper compare A B`: compares two sweeps, cell by cell, or two cells, seed by seed."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Cell, Ranking, rank
from sweeper.analysis.findings.finding import short_name
from sweeper.analysis.reading.frames import RunData, SweepData, load
from sweeper.analysis.reading.last_values import settle
from sweeper.analysis.reading.metric import Metric, differently
from sweeper.analysis.reading.settings import level
from sweeper.analysis.statistics.inference import Estimate, contrast, holm, paired
from sweeper.common.sanitize import sanitize
from sweeper.errors import NotFound, UsageError
from sweeper.results.cells import Scale, choose_scale, on_scale
from sweeper.results.origins import differences
from sweeper.results.registry import Registry
from sweeper.store.documents import dotted, strict
from sweeper.sweep.labels import plural
from sweeper.sweep.metric import value_text

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Row:
    """A cell of sweep A and the corresponding cell of sweep B. `difference` is the mean of B minus
    the mean of A, on the scale of the comparison. `over_seeds` is this difference for only the
    seeds that both cells have (None without such seeds). `p` is the p value of `difference`,
    corrected for the number of rows (Holm)."""

    name: str
    a: Cell
    b: Cell
    difference: Estimate
    over_seeds: Estimate | None
    p: float | None


@dataclass(frozen=True)
class Versus:
    """A comparison of two sweeps or two cells, A and B. `changed` lists the settings with one value
    in A and another value in B, and other differences such as the code: (name, text for A, text for
    B)."""

    a: str
    b: str
    metric: Metric
    scale: Scale
    rows: tuple[Row, ...]
    overall: Estimate | None
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    changed: tuple[tuple[str, str, str], ...]
    costs: tuple[tuple[str, str, str], ...] = field(default_factory=tuple)
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The comparison as text for a terminal."""
        return "\n".join(map(sanitize, _lines(self)))

    @property
    def table(self) -> "pandas.DataFrame":
        """Return a DataFrame with a row for each pair of cells."""
        import pandas

        return pandas.DataFrame([_record(row) for row in self.rows])

    @property
    def document(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return strict(
            {
                "schema": 1,
                "a": self.a,
                "b": self.b,
                "metric": self.metric.name,
                "goal": self.metric.goal,
                "at": self.metric.at,
                "scale": self.scale,
                "cells": [_record(row) for row in self.rows],
                "overall": None if self.overall is None else self.overall._asdict(),
                "only_a": list(self.only_a),
                "only_b": list(self.only_b),
                "changed": [{"key": key, "a": a, "b": b} for key, a, b in self.changed],
            }
        )


def versus(
    registry: Registry,
    a: str,
    b: str,
    metric: str | None = None,
    goal: str | None = None,
    at: str | None = None,
) -> Versus:
    """Compare two sweeps or two cells. Write a cell as `sweep/cell`, with at least the beginning of
    its name. Cells of two sweeps are paired if the settings that vary in the sweeps are equal.
    Raises `NotFound` if `a` or `b` does not exist. Raises `UsageError` if `a` or `b` matches
    several cells, if only one of them is a cell, if both are the same cell, if there is no metric,
    or if the two sweeps have different metrics or different options of the metric."""
    read = [_read(registry, reference, metric, goal, at) for reference in (a, b)]
    both = zip(settle(*read), (a, b), strict=True)
    left, right = (_side(registry, data, reference) for data, reference in both)
    if (left.cell is None) != (right.cell is None):
        raise UsageError("compare two sweeps, or two cells (sweep/cell)")
    judged = left.data.metric
    if (mismatch := differently([judged, right.data.metric])) is not None:
        raise UsageError(f"{a} and {b} are {mismatch}")
    if judged is None:
        raise UsageError("neither grid has a metric: choose one with --metric")
    if left.cell is not None and right.cell is not None:
        if left.data.paths == right.data.paths and left.cell.name == right.cell.name:
            raise UsageError(
                f"{a} and {b} are both in the cell {left.cell.name}: name two runs, or two cells"
            )
        pairs = [(f"{short_name(left.cell)} and {short_name(right.cell)}", left.cell, right.cell)]
        only: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    else:
        pairs, only = _joined(left, right)
    scale = choose_scale([cell.values for _, x, y in pairs for cell in (x, y)])
    rows = _rows(pairs, scale)
    return Versus(
        a=left.title,
        b=right.title,
        metric=judged,
        scale=scale,
        rows=tuple(rows),
        overall=_overall(pairs, scale) if len(pairs) > 1 else None,
        only_a=only[0],
        only_b=only[1],
        changed=tuple(_changed(left, right)),
        costs=tuple(_costs(left, right)),
        notes=tuple(_notes(left, right)),
    )


def _notes(left: "_Side", right: "_Side") -> Iterator[str]:
    for letter, side in (("A", left), ("B", right)):
        if side.of_run and side.cell is not None:
            runs = plural(len(side.cell.runs), "run")
            yield f"{letter} is the whole cell of the named run: {runs}"


@dataclass(frozen=True)
class _Side:
    data: SweepData
    ranking: Ranking
    cell: Cell | None
    title: str
    of_run: bool = False
    """Whether the user named only one of several runs of the cell."""

    @property
    def runs(self) -> Sequence[RunData]:
        return self.data.runs if self.cell is None else self.cell.runs


def _read(
    registry: Registry, reference: str, metric: str | None, goal: str | None, at: str | None
) -> SweepData:
    return load(registry, registry.split(reference)[0], metric, goal, at, rollouts=False)


def _side(registry: Registry, data: SweepData, reference: str) -> _Side:
    name, wanted = registry.split(reference)
    ranking = rank(data)
    if not wanted:
        return _Side(data, ranking, None, reference)
    named = [cell for cell in ranking.cells if cell.name == wanted]
    of_runs = [] if named else _of_runs(registry, ranking, reference)
    fitting = named or of_runs or [cell for cell in ranking.cells if cell.name.startswith(wanted)]
    if not fitting:
        names = labels.listed([cell.name for cell in ranking.cells], 5)
        raise NotFound(f"no cell {wanted!r} in {name}: choose from {names}")
    if len(fitting) > 1:
        names = labels.listed([cell.name for cell in fitting], 3)
        raise UsageError(f"{reference!r} matches {len(fitting)} cells ({names}): name one of them")
    (cell,) = fitting
    whole = bool(of_runs) and len(cell.runs) > 1
    return _Side(data, ranking, cell, f"{name}/{cell.name}", of_run=whole)


def _of_runs(registry: Registry, ranking: Ranking, selector: str) -> list[Cell]:
    try:
        chosen = {run.id for run in registry.choose([selector])}
    except NotFound:
        return []
    return [cell for cell in ranking.cells if any(run.id in chosen for run in cell.runs)]


def _joined(
    left: _Side, right: _Side
) -> tuple[list[tuple[str, Cell, Cell]], tuple[tuple[str, ...], tuple[str, ...]]]:
    keys = list(dict.fromkeys((*left.ranking.keys, *right.ranking.keys)))

    def place(cell: Cell) -> tuple[str, ...]:
        return tuple(level(cell.runs[0].config, key) for key in keys)

    cells_b = {place(cell): cell for cell in right.ranking.cells}
    cells_a = {place(cell): cell for cell in left.ranking.cells}
    pairs = [(short_name(cells_a[at]), cells_a[at], cells_b[at]) for at in cells_a if at in cells_b]
    only_a = tuple(short_name(cell) for at, cell in cells_a.items() if at not in cells_b)
    only_b = tuple(short_name(cell) for at, cell in cells_b.items() if at not in cells_a)
    return pairs, (only_a, only_b)


def _rows(pairs: Sequence[tuple[str, Cell, Cell]], scale: Scale) -> list[Row]:
    rows: list[tuple[str, Cell, Cell, Estimate, Estimate | None]] = []
    for name, a, b in pairs:
        if not a.values or not b.values:
            continue
        values = [on_scale(cell.values, scale) for cell in (b, a)]
        over_seeds = paired(b.by_seed(scale), a.by_seed(scale))
        rows.append((name, a, b, contrast(values, [1, -1]), over_seeds))
    p_values = [row[3].p for row in rows if row[3].p is not None]
    adjusted = iter(holm(p_values))
    return [Row(*row, p=None if row[3].p is None else next(adjusted)) for row in rows]


def _overall(pairs: Sequence[tuple[str, Cell, Cell]], scale: Scale) -> Estimate | None:
    both = [(a, b) for _, a, b in pairs if a.values and b.values]
    if not both:
        return None
    groups = [on_scale(cell.values, scale) for a, b in both for cell in (b, a)]
    return contrast(groups, [1 / len(both), -1 / len(both)] * len(both))


def _changed(left: _Side, right: _Side) -> Iterator[tuple[str, str, str]]:
    seeds = {side.data.seed_field for side in (left, right)}
    keys: dict[str, None] = {}
    for side in (left, right):
        for run in side.runs:
            keys.update(dict.fromkeys(key for key, _ in dotted(run.config)))
    for key in (key for key in keys if key not in seeds):
        a, b = ({level(run.config, key) for run in side.runs} for side in (left, right))
        if len(a) == len(b) == 1 and a != b:
            yield key, a.pop(), b.pop()
    for each in differences([*left.runs, *right.runs]):
        a, b = (dict.fromkeys(filter(None, map(each.label, side.runs))) for side in (left, right))
        yield each.title, labels.listed(list(a)), labels.listed(list(b))


def _costs(left: _Side, right: _Side) -> Iterator[tuple[str, str, str]]:
    def mean(side: _Side, get: Callable[[RunData], float | None]) -> float | None:
        values = [v for run in side.runs if run.counts and (v := get(run)) is not None]
        return sum(values) / len(values) if values else None

    costs: Mapping[str, tuple[Callable[[RunData], float | None], Callable[[float | None], str]]] = {
        "time per run": (lambda run: run.wall_s, labels.duration),
        "tokens per run": (lambda run: run.cost.total, labels.amount),
    }
    for name, (get, text_of) in costs.items():
        a, b = mean(left, get), mean(right, get)
        if a is not None or b is not None:
            yield name, text_of(a), text_of(b)


def _record(row: Row) -> dict[str, Any]:
    return {
        "cell": row.name,
        "n_a": row.a.summary.n,
        "n_b": row.b.summary.n,
        "mean_a": row.a.summary.mean,
        "mean_b": row.b.summary.mean,
        "difference": row.difference.value,
        "low": row.difference.low,
        "high": row.difference.high,
        "p": row.p,
        "paired_difference": row.over_seeds and row.over_seeds.value,
        "paired_low": row.over_seeds and row.over_seeds.low,
        "paired_high": row.over_seeds and row.over_seeds.high,
    }


def _interval_text(estimate: Estimate, scale: Scale) -> str:
    log = scale == "log"

    def show(value: float) -> str:
        return labels.ratio(math.exp(min(value, 700))) if log else labels.difference(value)

    if estimate.low is None or estimate.high is None:
        return f"{show(estimate.value)}, no interval"
    return f"{show(estimate.value)} ({show(estimate.low)} to {show(estimate.high)})"


def _judgement(estimate: Estimate, p: float | None, metric: Metric) -> str:
    if p is None:
        return "noise not known"
    if p > 0.05:
        return "noise can explain it"
    return "B better" if metric.sign * estimate.value < 0 else "A better"


def _doubts(row: Row, metric: str) -> Iterator[str]:
    for side, cell in (("A", row.a), ("B", row.b)):
        runs = sum(run.missing > 0 and not run.diverged for run in cell.runs)
        if runs:
            subject = f"{plural(runs, 'run')} of {short_name(cell)} in {side}"
            yield f"  ! {subject} may have diverged: the last rows have no {metric}"


def _lines(versus: Versus) -> Iterator[str]:
    better = "lower" if versus.metric.goal == "minimize" else "higher"
    yield f"A {versus.a}"
    yield f"B {versus.b}"
    yield from versus.notes
    quantity = "B as a multiple of A" if versus.scale == "log" else "B minus A"
    yield f"{versus.metric.name}, {better} is better, {value_text(versus.metric.at)} of each run"
    yield f"{quantity}, with 95 % intervals"
    for key, a, b in versus.changed:
        yield f"  {key}: {a} in A, {b} in B"
    if not versus.rows:
        yield "  nothing to compare: no cell has a value in both A and B"
    for row in versus.rows:
        judged = _judgement(row.difference, row.p, versus.metric)
        count = f"n {row.a.summary.n} and {row.b.summary.n}"
        p = f", {labels.p_value(row.p)}" if row.p is not None else ""
        line = f"  {row.name}: {_interval_text(row.difference, versus.scale)}, {judged}{p}, {count}"
        if row.over_seeds is not None and row.over_seeds.low is not None:
            line += f"; on shared seeds {_interval_text(row.over_seeds, versus.scale)}"
        yield line.replace(labels.MINUS, "-")
    for row in versus.rows:
        yield from (line.replace(labels.MINUS, "-") for line in _doubts(row, versus.metric.name))
    if versus.overall is not None:
        judged = _judgement(versus.overall, versus.overall.p, versus.metric)
        line = f"  on average: {_interval_text(versus.overall, versus.scale)}, {judged}"
        yield line.replace(labels.MINUS, "-")
    for side, names in (("A", versus.only_a), ("B", versus.only_b)):
        if names:
            yield f"  only in {side}: {labels.listed(names, 5)}"
    for name, a, b in versus.costs:
        yield f"  {name}: {a} in A, {b} in B".replace(labels.NONE, "-")
    if len(versus.rows) > 1:
        yield "  p values are adjusted for the number of cells"
