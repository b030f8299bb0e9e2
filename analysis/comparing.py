"""Compares cells by the rows of a DataFrame: `compare(runs, metric="value",
goal="minimize").pairs`."""

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeper.analysis import labels
from sweeper.analysis.figures.layouts import PALETTE, layout, plain, rounded
from sweeper.analysis.statistics.inference import Estimate, contrast, paired
from sweeper.analysis.statistics.noise import fit_noise
from sweeper.analysis.statistics.seeds import (
    Chosen,
    Summary,
    against_best,
    confidence,
    contenders,
    summarise,
    summarise_chosen,
)
from sweeper.errors import UsageError
from sweeper.metrics.objective import sign_of
from sweeper.results.cells import Scale, choose_scale, on_scale
from sweeper.sweep.labels import plural

if TYPE_CHECKING:
    import pandas

_ALL_PAIRS = 15


@dataclass(frozen=True)
class Compared:
    """A comparison of the cells of a DataFrame. `best` is the name of the cell with the best mean
    (None without cells). At a level of 5 %, the cells in `told_apart` can be distinguished from the
    best, and the cells in `tied` cannot. On the `scale` "log", means are geometric, and differences
    are differences of logarithms."""

    metric: str
    goal: str
    scale: Scale
    best: str | None
    tied: tuple[str, ...]
    told_apart: tuple[str, ...]
    cells: "pandas.DataFrame"
    pairs: "pandas.DataFrame"

    @property
    def text(self) -> str:
        """A summary in one or two lines."""
        if self.best is None:
            return f"{self.metric}: no value to compare"
        row = self.cells.iloc[0]
        mean = labels.number(float(row["mean"]))
        runs = plural(int(row["n"]), "run")
        text = f"{self.metric}: {self.best or 'the only cell'} is best, {mean} over {runs}"
        if self.tied:
            text += f"; {labels.listed(self.tied)} may be as good"
        if self.told_apart:
            standing = "unlikely to be the best" if self.tied else "worse beyond the noise"
            text += f"; {plural(len(self.told_apart), 'cell')} {standing}"
        return text

    @property
    def figure(self) -> dict[str, Any]:
        """Return a plotly figure with the means, their 95 % intervals and the single runs."""
        rows: list[dict[str, Any]] = self.cells.to_dict("records")  # pyright: ignore[reportAssignmentType, reportUnknownMemberType]
        return _figure(rows, self.metric)

    def _repr_html_(self) -> str:
        table = self.cells.drop(columns=["values"]).to_html(index=False)
        return f"<p>{html.escape(self.text)}</p>{table}"


def compare(
    frame: "pandas.DataFrame",
    metric: str = "value",
    goal: str = "minimize",
    by: str | Sequence[str] | None = None,
) -> Compared:
    """Compare cells by the column `metric` of a DataFrame that has a row for each run, such as the
    result of `Registry.runs()`. The columns `by` define a cell. Without `by`, the column `cell`
    does, with `sweep` and `root` if there are several sweeps or roots. A row counts if its value is
    finite and its `state`, if present, is succeeded. Two cells are also compared by seed if each
    row has a `seed` and no seed occurs twice in a cell. Raises `UsageError` for missing columns and
    for an unknown goal."""
    if goal not in ("minimize", "maximize"):
        raise UsageError(f"goal={goal!r} is not minimize or maximize")
    keys = _keys(frame, by)
    for column in (metric, *keys):
        if column not in frame.columns:
            columns = ", ".join(map(str, frame.columns))
            raise UsageError(f"no column {column!r}; choose from {columns}")
    groups = _groups(frame, metric, keys)
    values = {name: [value for _, value in rows] for name, rows in groups.items()}
    scale = choose_scale(list(values.values()))
    sign = sign_of(goal)
    noise = fit_noise({name: on_scale(group, scale) for name, group in values.items()})
    summaries = {name: summarise(group, scale, noise.of(name)) for name, group in values.items()}
    order = sorted(summaries, key=lambda name: sign * (summaries[name].mean or 0.0))
    best = order[0] if order else None
    compared = against_best(values, best, noise, sign, scale) if best is not None else {}
    if best is not None:
        rivals = contenders(compared, order[1:])
        share = confidence(compared, noise, [len(group) for group in values.values()], failed=False)
        chosen = Chosen(best, rivals, sign, share)
        summaries[best] = summarise_chosen(values[best], scale, noise, chosen)
    return Compared(
        metric=metric,
        goal=goal,
        scale=scale,
        best=best,
        tied=tuple(n for n in order if n in compared and not compared[n].told_apart),
        told_apart=tuple(n for n in order if n in compared and compared[n].told_apart),
        cells=_cells(order, summaries, values, compared),
        pairs=_pairs(order, groups, scale),
    )


def _keys(frame: "pandas.DataFrame", by: str | Sequence[str] | None) -> list[str]:
    if by is not None:
        return [by] if isinstance(by, str) else list(by)
    several = [c for c in ("root", "sweep") if c in frame.columns and frame[c].nunique() > 1]
    # Several roots may have a sweep of the same name.
    outer = ["root", "sweep"] if "root" in several and "sweep" in frame.columns else several
    return [*outer, "cell"]


def _groups(
    frame: "pandas.DataFrame", metric: str, keys: Sequence[str]
) -> dict[str, list[tuple[int | None, float]]]:
    groups: dict[str, list[tuple[int | None, float]]] = {}
    rows: list[dict[str, Any]] = frame.to_dict("records")  # pyright: ignore[reportAssignmentType, reportUnknownMemberType]
    for row in rows:
        if row.get("state", "succeeded") != "succeeded":
            continue
        try:
            value = float(row[metric])
        except (TypeError, ValueError):
            continue
        if math.isfinite(value):
            name = "/".join(labels.setting(row[key]) for key in keys)
            seed = row.get("seed")
            run_seed = int(seed) if isinstance(seed, int | float) and math.isfinite(seed) else None
            groups.setdefault(name, []).append((run_seed, value))
    return groups


def _cells(
    order: Sequence[str],
    summaries: Mapping[str, Summary],
    values: Mapping[str, Sequence[float]],
    compared: Mapping[str, Any],
) -> "pandas.DataFrame":
    import pandas

    rows: list[dict[str, Any]] = []
    for name in order:
        comparison = compared.get(name)
        rows.append(
            {
                "cell": name,
                **summaries[name]._asdict(),
                "difference": None if comparison is None else comparison.difference,
                "p": None if comparison is None else comparison.p,
                "told_apart": None if comparison is None else comparison.told_apart,
                "values": list(values[name]),
            }
        )
    columns = ["cell", *Summary._fields, "difference", "p", "told_apart", "values"]
    return pandas.DataFrame(rows, columns=columns)


def _pairs(
    order: Sequence[str], groups: Mapping[str, Sequence[tuple[int | None, float]]], scale: Scale
) -> "pandas.DataFrame":
    """Return a row for each pair of cells. If there are many cells, return only the pairs with the
    best cell. The columns that begin with `paired_` are about the seeds that both cells have."""
    import pandas

    names = list(itertools.combinations(order, 2))
    if len(order) > _ALL_PAIRS:
        names = [(order[0], name) for name in order[1:]]
    rows: list[dict[str, Any]] = []
    for a, b in names:
        first, second = (on_scale([v for _, v in groups[name]], scale) for name in (a, b))
        over_seeds = paired(_by_seed(groups[b], scale), _by_seed(groups[a], scale))
        unpaired = _prefixed("", contrast([second, first], [1, -1]))
        rows.append({"a": a, "b": b, **unpaired, **_prefixed("paired_", over_seeds)})
    fields = [f"{prefix}{name}" for prefix in ("", "paired_") for name in _FIELDS]
    return pandas.DataFrame(rows, columns=["a", "b", *fields])


_FIELDS = ("difference", "low", "high", "p")


def _prefixed(prefix: str, estimate: Estimate | None) -> dict[str, float | None]:
    values = (
        (None,) * 4
        if estimate is None
        else (estimate.value, estimate.low, estimate.high, estimate.p)
    )
    return {f"{prefix}{name}": value for name, value in zip(_FIELDS, values, strict=True)}


def _by_seed(rows: Sequence[tuple[int | None, float]], scale: Scale) -> dict[int, float]:
    """Return a dict from seed to value. Return an empty dict if a row has no seed or two rows have
    the same seed."""
    seeds = [seed for seed, _ in rows if seed is not None]
    if len(set(seeds)) != len(rows):
        return {}
    return dict(zip(seeds, on_scale([value for _, value in rows], scale), strict=True))


def _figure(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    traces: list[dict[str, Any]] = []
    names = [plain(str(row["cell"])) or "the only cell" for row in rows]
    for position, row in enumerate(rows):
        colour = PALETTE[position % len(PALETTE)]
        name, meta = names[position], {"cell": position, "tone": position % len(PALETTE)}
        shared = {"type": "scatter", "mode": "markers", "meta": meta | {"role": "point"}}
        ends = (row[key] for key in ("mean", "low", "high"))
        mean, low, high = (float(math.nan if end is None else end) for end in ends)
        bounded = math.isfinite(low) and math.isfinite(high)
        error = {
            "type": "data",
            "array": rounded([high - mean if bounded else 0.0]),
            "arrayminus": rounded([mean - low if bounded else 0.0]),
            "color": colour,
        }
        marker = {"size": 10, "color": colour}
        at = {"x": rounded([mean]), "y": [name], "error_x": error, "marker": marker}
        traces.append({**shared, "name": name, **at})
        marker = {"size": 9, "symbol": "line-ns-open", "color": colour}
        at = {"x": rounded(row["values"]), "y": [name] * len(row["values"]), "marker": marker}
        traces.append({**shared, "name": f"runs of {name}", **at})
    figure_layout = layout(metric, height=120 + 32 * len(rows))
    figure_layout["xaxis"]["rangemode"] = "normal"
    figure_layout["yaxis"] = {"type": "category", "autorange": "reversed", "automargin": True}
    return {"data": traces, "layout": figure_layout}
