"""Makes the report of a sweep: reads the runs, judges them, draws the figures, writes the files."""

import gc
import html
import json
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from sweeper.analysis.figures.gallery import gallery
from sweeper.analysis.figures.layouts import Panel
from sweeper.analysis.findings.baselines import with_baseline
from sweeper.analysis.findings.study import Study, study
from sweeper.analysis.findings.transcripts import read_transcripts
from sweeper.analysis.page.document import document, flat_row
from sweeper.analysis.page.html import render
from sweeper.analysis.reading.costs import parse_prices
from sweeper.analysis.reading.frames import SweepData, lend, read
from sweeper.analysis.reading.last_values import settle
from sweeper.analysis.reading.run_keys import OwnKeys
from sweeper.analysis.reading.sources import find_sources, write_file
from sweeper.common.sanitize import sanitize
from sweeper.errors import UsageError
from sweeper.results.registry import Registry
from sweeper.sweep.metric import FAILED, is_noise, lenders

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Report:
    """A finished report. `verdict` is a short text for a terminal, and `document` the content of
    `report.json`. `files` maps the names of files to their paths. `figures` maps the names of
    figures to dicts for plotly."""

    verdict: str
    document: dict[str, Any]
    figures: dict[str, dict[str, Any]]
    files: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def html_path(self) -> str:
        """The path of the page."""
        return self.files["report.html"]

    @property
    def json_path(self) -> str:
        """The path of the JSON document."""
        return self.files["report.json"]

    @property
    def cells(self) -> "pandas.DataFrame":
        """Return a DataFrame with a row for each cell, best first. Its columns include `cell`, the
        settings, `n`, `mean`, `sd`, `low` and `high`, and, from the comparison with the best cell,
        `difference` (or `ratio` if cells are compared by ratios), `p` and `told_apart`."""
        return _frame([flat_row(row, "settings") for row in self.document["cells"]])

    @property
    def runs(self) -> "pandas.DataFrame":
        """Return a DataFrame with a row for each run. Its columns include `run`, `name`, `cell`,
        `seed`, `state`, `attempts`, `value`, `steps`, `diverged` and `counts`."""
        rows = self.document["runs"]
        return _frame([{k: v for k, v in row.items() if k != "tokens"} for row in rows])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.verdict)}</pre>"


class Options(TypedDict, total=False):
    """Options for judging a sweep and writing its report. For an option that is None, the grid's
    choice applies, or else the default."""

    at: str | None
    """"last", "best", "mean_of_last=5" or "auto", which is the last value, or a mean of the last
    values if these are noisy. "auto" is the default for a metric other than the sweep's."""
    noise: str | None
    """The method that estimates the noise between seeds: "auto", "pooled", "own" or
    "from=SWEEP"."""
    failed: str | None
    """The rule for failed runs: "bound", "worst" or "drop"."""
    by: str | None
    """A setting that separates blocks, which are judged separately."""
    ignore: Sequence[str]
    """Configuration keys of runs in plain folders that are not settings."""
    seed: Sequence[str]
    """The configuration keys that hold the seed of runs in plain folders."""
    prices: str | None
    """Dollars per million tokens, such as `train=0.4,sample=0.8`."""
    pictures: bool
    """Whether Markdown with pictures is written (default: yes)."""


def analyze(
    registry: "Registry | str | os.PathLike[str]",
    sweep: str | Sequence[str],
    metric: str | None = None,
    goal: str | None = None,
    out: str | os.PathLike[str] | None = None,
    **options: Unpack[Options],
) -> Report:
    """Compare the cells of one or several sweeps, and write `report.html`, `report.json`,
    `report.md` with its pictures, and `next.yaml` if another grid is worth running.

    `registry` may also be the root of a store. `sweep` may also be the path of a folder with runs.
    Such runs are treated as finished if their state is unknown. `metric` and `goal` ("minimize" or
    "maximize") default to those of the sweep. If `metric` is not the sweep's own, its default goal
    is guessed from its name. The sweeps that `noise: {from: ...}` names are read too.

    The files are written to the folder `out`. The default is `report/` in the folder of the sweep;
    for several sweeps, `report/with-OTHERS/` in the folder of the first sweep. `Options` has the
    other options. Repeated reports on the same records in the same folder have the same bytes.
    Raises `NotFound` if a sweep does not exist, `TypeError` for an unknown option, `UsageError` if
    the goal of the metric is unknown, if an option is invalid or if `out` is not a folder, and
    `StoreError` if the report cannot be written.
    """
    if not isinstance(registry, Registry):
        registry = Registry(os.fspath(registry))
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"analyze() has no option {min(unknown)!r}")
    priced = parse_prices(options.get("prices"))
    names = [sweep] if isinstance(sweep, str) else list(dict.fromkeys(sweep))
    keys = OwnKeys(ignored=tuple(options.get("ignore", ())), named=tuple(options.get("seed", ())))
    sources = find_sources(registry, names, keys)
    # Recorded values may be so large or small that arithmetic overflows or underflows.
    with np.errstate(all="ignore"), _uncollected():
        (data,) = settle(read(sources, metric, goal, options.get("at")))
        data = _ruled(data, registry, options.get("noise"), options.get("failed"))
        data = with_baseline(_by(data, options.get("by")), registry)
        studied = study(data, priced)
        if studied.next is not None:
            here = None if out is None else os.path.join(os.path.abspath(out), "next.yaml")
            placed = studied.next.placed(data, here or sources[0].place("next.yaml"))
            studied = replace(studied, next=placed)
        panels = gallery(studied)
        content = document(studied)
        page = render(studied, panels, read_transcripts(studied, sources))
        files = _files(studied, page, content, panels if options.get("pictures", True) else None)
    if out is None:
        written = dict(zip(files, sources[0].write(files), strict=True))
    else:
        written = {name: write_file(os.fspath(out), name, data) for name, data in files.items()}
    figures = {panel.name: panel.figure for panel in panels}
    return Report(_text(studied), content, figures, written)


def _files(
    studied: Study, page: str, content: Mapping[str, Any], panels: Sequence[Panel] | None
) -> dict[str, bytes]:
    """Return a dict from the names of files to their contents. Without `panels` no Markdown is
    written."""
    files = {
        "report.html": page.encode("utf-8", "replace"),
        "report.json": (json.dumps(content, indent=1, allow_nan=False) + "\n").encode(),
    }
    if studied.next is not None:
        files["next.yaml"] = studied.next.yaml.encode("utf-8", "replace")
    if panels is not None:
        from sweeper.analysis.page.markdown import write

        files |= write(studied, panels)
    return files


def _ruled(data: SweepData, registry: Registry, noise: str | None, failed: str | None) -> SweepData:
    """Apply `noise` and `failed`, which override the grid's method for noise and its rule for
    failed runs. Raises `UsageError` for an invalid value."""
    if noise is not None and not is_noise(noise):
        raise UsageError(f"noise={noise!r} is not one of auto, pooled, own, from=SWEEP")
    if failed is not None and failed not in FAILED:
        raise UsageError(f"failed={failed!r} is not one of {', '.join(FAILED)}")
    if data.metric is None:
        return data
    metric = replace(
        data.metric, noise=noise or data.metric.noise, failed=failed or data.metric.failed
    )
    return lend(replace(data, metric=metric), registry, lenders(metric.noise))


def _by(data: SweepData, by: str | None) -> SweepData:
    """Return `data` with `by` as the setting that separates blocks; unchanged if `by` is None."""
    if by is None or data.metric is None:
        return data
    return replace(data, metric=replace(data.metric, by=by))


def _text(study: Study) -> str:
    """Return the verdict for a terminal. If a next grid is suggested, the text ends with the
    command that launches it, or with the reason why the grid cannot be written."""
    lines = [study.verdict.text(study.data.name)]
    if study.next is not None:
        lines.append(f"  next: {sanitize(study.next.command)}")
        lines += [f"        {sanitize(study.next.note)}"] if study.next.note else []
    if study.no_next is not None:
        lines.append(f"  no next.yaml: {study.no_next}")
    return "\n".join(lines)


@contextmanager
def _uncollected() -> Generator[None]:
    """Turn Python's garbage collector off during the `with` block. Almost all objects live until
    the report is written, and repeated collections would take a tenth of the report's time."""
    used = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if used:
            gc.enable()


def _frame(rows: list[dict[str, Any]]) -> "pandas.DataFrame":
    """Return the rows as a DataFrame. Invalid Unicode (half of a surrogate pair) is replaced,
    because pandas rejects it."""
    import pandas

    def mended(value: Any) -> Any:
        return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value

    return pandas.DataFrame([{mended(k): mended(v) for k, v in row.items()} for row in rows])
