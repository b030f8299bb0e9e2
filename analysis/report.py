"""From a sweep to its report: read, judge, draw, write."""

import html
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from analysis.cells import Cell, Ranking, rank
from analysis.figures import curves
from analysis.findings import Finding, find, method
from analysis.frames import RunData, SweepData, load
from analysis.page import render
from analysis.verdict import Verdict, decide
from sweeper.documents import strict
from sweeper.errors import StoreError, UsageError
from sweeper.registry import Registry

if TYPE_CHECKING:
    import pandas

__all__ = ["Report", "analyze"]


@dataclass(frozen=True)
class Report:
    """A finished report: `verdict` is a short text for a terminal, `document` what `report.json`
    holds, `html_path` and `json_path` where the files are, `figures` plotly figures as dicts by
    the key that they draw."""

    verdict: str
    document: dict[str, Any]
    figures: dict[str, dict[str, Any]]
    html_path: str
    json_path: str

    @property
    def cells(self) -> "pandas.DataFrame":
        """A row a cell, best first: `cell`, its settings, `n mean sd low high minimum maximum`,
        and against the best `difference` (on the log scale `ratio`) `p told_apart`."""
        import pandas

        return pandas.DataFrame([_flat_row(row, "settings") for row in self.document["cells"]])

    @property
    def runs(self) -> "pandas.DataFrame":
        """A row a run: `run name cell seed state attempts reason wall_s value step diverged`."""
        import pandas

        return pandas.DataFrame(self.document["runs"])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.verdict)}</pre>"


def analyze(
    registry: "Registry | str | os.PathLike[str]",
    sweep: str,
    metric: str | None = None,
    goal: str | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Report:
    """Compare the cells of a sweep and write `report.html` and `report.json`.

    `registry` may be a root. `metric` and `goal` ("minimize" or "maximize") default to the
    sweep's own; another metric is compared by its last value. The files go to the folder `out`,
    by default to `report/` in the sweep's folder. The same records give the same bytes.

    Raises `NotFound` without such a sweep, `UsageError` for a metric whose goal is not known and
    for an `out` that is no folder, `StoreError` when the report cannot be written.
    """
    if not isinstance(registry, Registry):
        registry = Registry(os.fspath(registry))
    data = load(registry, sweep, metric, goal)
    ranking = rank(data)
    findings = find(data, ranking)
    verdict = decide(data, ranking, findings)
    figures = _figures(data, ranking)
    document = _document(data, ranking, findings, verdict)
    page = render(data, ranking, findings, verdict, figures).encode("utf-8", "replace")
    text = (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()
    if out is None:
        place = registry.sweep(sweep)
        html_path = place.write_report("report.html", page)
        json_path = place.write_report("report.json", text)
    else:
        html_path = _write(os.fspath(out), "report.html", page)
        json_path = _write(os.fspath(out), "report.json", text)
    return Report(verdict.text(data.name), document, figures, html_path, json_path)


def _write(folder: str, name: str, content: bytes) -> str:
    try:
        os.makedirs(folder, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in it
        raise UsageError(f"out {folder!r}: cannot be made a folder ({_why(error)})") from error
    path = os.path.abspath(os.path.join(folder, name))
    try:
        with open(path, "wb") as file:
            file.write(content)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({_why(error)})") from error
    return path


def _why(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _figures(data: SweepData, ranking: Ranking) -> dict[str, dict[str, Any]]:
    keys = [data.metric.name if data.metric is not None else None, data.train_key]
    found = {key: curves(ranking, key) for key in keys if key is not None}
    return {key: figure for key, figure in found.items() if figure is not None}


def _document(
    data: SweepData, ranking: Ranking, findings: list[Finding], verdict: Verdict
) -> dict[str, Any]:
    best = ranking.best
    document = {
        "schema": 1,
        "sweep": data.name,
        "metric": None if data.metric is None else asdict(data.metric),
        "verdict": {
            "kind": verdict.kind,
            "label": verdict.label,
            "text": verdict.text(data.name),
            "best": None if best is None else best.name,
            "tied": [cell.name for cell in ranking.tied],
            "told_apart": [cell.name for cell in ranking.apart],
            "not_compared": [cell.name for cell in ranking.not_compared],
            "checkpoint": None if verdict.checkpoint is None else asdict(verdict.checkpoint),
            "next": list(verdict.steps),
        },
        "method": {
            "scale": ranking.scale,
            "interval": "Student t, 95 %",
            "comparison": method(ranking.scale),
        },
        "completeness": {
            "planned": len(data.runs),
            "retired": data.retired,
            "states": dict(sorted(Counter(run.state for run in data.runs).items())),
        },
        "findings": [finding.document() for finding in findings],
        "cells": [_cell_row(cell, ranking) for cell in ranking.cells],
        "runs": [_run_row(run) for run in data.runs],
    }
    return strict(document)


def _cell_row(cell: Cell, ranking: Ranking) -> dict[str, Any]:
    comparison = ranking.comparisons.get(cell.name)
    log = ranking.scale == "log"
    return {
        "cell": cell.name,
        "settings": dict(cell.settings),
        **cell.summary._asdict(),
        "planned": len(cell.runs),
        "diverged": cell.diverged,
        "wall_s": cell.wall_s,
        "difference": None if comparison is None or log else comparison.difference,
        "ratio": None if comparison is None else comparison.ratio,
        "p": None if comparison is None else comparison.p,
        "told_apart": None if comparison is None else comparison.told_apart,
    }


def _run_row(run: RunData) -> dict[str, Any]:
    return {
        "run": run.id,
        "name": run.name,
        "cell": run.cell,
        "seed": run.seed,
        "state": run.state,
        "attempts": run.attempts,
        "reason": run.reason,
        "wall_s": run.wall_s,
        "value": run.value,
        "step": run.step,
        "diverged": run.diverged,
        "counts": run.counts,
    }


def _flat_row(row: Mapping[str, Any], nested: str) -> dict[str, Any]:
    flat: dict[str, Any] = {"cell": row["cell"]}
    for key, value in row[nested].items():
        flat[f"config.{key}" if key in row else key] = value
    return flat | {key: value for key, value in row.items() if key not in (nested, "cell")}
