"""From a sweep to its report: read, judge, draw, write."""

import gc
import html
import json
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from sweeper.analysis.baselines import with_baseline
from sweeper.analysis.costs import parse_prices
from sweeper.analysis.document import document, flat_row
from sweeper.analysis.frames import SweepData, lend, read
from sweeper.analysis.gallery import Panel, gallery
from sweeper.analysis.last_values import settle
from sweeper.analysis.page import render
from sweeper.analysis.sources import find_sources, write_file
from sweeper.analysis.study import Study, study
from sweeper.analysis.transcripts import read_transcripts
from sweeper.errors import UsageError
from sweeper.model.metric import FAILED, is_noise, lenders
from sweeper.results.registry import Registry
from sweeper.sanitize import sanitize

if TYPE_CHECKING:
    import pandas

__all__ = ["Options", "Report", "analyze"]


@dataclass(frozen=True)
class Report:
    """A finished report: `verdict` is a short text for a terminal, `document` what `report.json`
    holds, `files` where the files are by name, `figures` plotly figures as dicts, by the key or
    the thing that they draw."""

    verdict: str
    document: dict[str, Any]
    figures: dict[str, dict[str, Any]]
    files: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def html_path(self) -> str:
        """Where the page is."""
        return self.files["report.html"]

    @property
    def json_path(self) -> str:
        """Where the document is."""
        return self.files["report.json"]

    @property
    def cells(self) -> "pandas.DataFrame":
        """A row a cell, best first: `cell`, its settings, `n mean sd low high minimum maximum`,
        and against the best `difference` (on the log scale `ratio`) `p told_apart`."""
        return _frame([flat_row(row, "settings") for row in self.document["cells"]])

    @property
    def runs(self) -> "pandas.DataFrame":
        """A row a run: `run name cell seed state attempts reason wall_s value step last best
        smoothed steps diverged counts`."""
        rows = self.document["runs"]
        return _frame([{k: v for k, v in row.items() if k != "tokens"} for row in rows])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.verdict)}</pre>"


class Options(TypedDict, total=False):
    """How a sweep is judged, where not as its grid says, and what is written. None is as if it was
    not said."""

    at: str | None
    """"last", "best", "mean_of_last=5", or "auto" (the last, or such a mean where the last values
    are noisy), which is the default of a metric that is not the sweep's."""
    noise: str | None
    """Whose noise between seeds counts: "auto", "pooled", "own" or "from=SWEEP"."""
    failed: str | None
    """What a failed run counts as: "bound", "worst" or "drop"."""
    by: str | None
    """A setting each of whose values is judged by itself."""
    prices: str | None
    """Dollars per million tokens, like `train=0.4,sample=0.8`."""
    pictures: bool
    """Whether there is to be Markdown with pictures: there is, by default."""


def analyze(
    registry: "Registry | str | os.PathLike[str]",
    sweep: str | Sequence[str],
    metric: str | None = None,
    goal: str | None = None,
    out: str | os.PathLike[str] | None = None,
    **options: Unpack[Options],
) -> Report:
    """Compare the cells of a sweep, or of several, and write `report.html`, `report.json`,
    `report.md` with its pictures, and `next.yaml` where there is a grid to run next.

    `registry` may be a root; instead of a sweep's name there may be the path of a folder with runs
    in it, of which nothing tells the finished ones and all are taken for finished. `metric` and
    `goal` ("minimize" or "maximize") default to the sweep's own; the name of another metric tells
    the goal where it can. Sweeps that lend their noise are looked for in the registry. The files go
    to the folder `out`, by default to `report/` in the folder of the (first) sweep. For the rest
    see `Options`. The same records in the same place give the same bytes: commands name that place.

    Raises `NotFound` without such a sweep, `TypeError` for an option that there is not,
    `UsageError` for a metric whose goal nothing tells, for prices that are none, and for an `out`
    that is no folder, `StoreError` when the report cannot be written.
    """
    if not isinstance(registry, Registry):
        registry = Registry(os.fspath(registry))
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"analyze() has no option {min(unknown)!r}")
    priced = parse_prices(options.get("prices"))
    names = [sweep] if isinstance(sweep, str) else list(dict.fromkeys(sweep))
    sources = find_sources(registry, names)
    # Of recorded values some are near the ends of all floats.
    with np.errstate(all="ignore"), _uncollected():
        (data,) = settle(read(sources, metric, goal, options.get("at")))
        data = _ruled(data, registry, options.get("noise"), options.get("failed"))
        data = with_baseline(_by(data, options.get("by")), registry)
        found = study(data, priced)
        if found.next is not None:
            here = None if out is None else os.path.join(os.path.abspath(out), "next.yaml")
            placed = found.next.placed(data, here or sources[0].place("next.yaml"))
            found = replace(found, next=placed)
        panels = gallery(found)
        told = document(found)
        page = render(found, panels, read_transcripts(found, sources))
        files = _files(found, page, told, panels if options.get("pictures", True) else None)
    written = {
        name: sources[0].write(name, content)
        if out is None
        else write_file(os.fspath(out), name, content)
        for name, content in files.items()
    }
    figures = {panel.name: panel.figure for panel in panels}
    return Report(_text(found), told, figures, written)


def _files(
    found: Study, page: str, told: Mapping[str, Any], panels: Sequence[Panel] | None
) -> dict[str, bytes]:
    """What is to be written, by names; without `panels` no Markdown."""
    files = {
        "report.html": page.encode("utf-8", "replace"),
        "report.json": (json.dumps(told, indent=1, allow_nan=False) + "\n").encode(),
    }
    if found.next is not None:
        files["next.yaml"] = found.next.yaml.encode("utf-8", "replace")
    if panels is not None:
        from sweeper.analysis.markdown import write

        files |= write(found, panels)
    return files


def _ruled(data: SweepData, registry: Registry, noise: str | None, failed: str | None) -> SweepData:
    """With the noise and the rule for failed runs that were asked for, else the grid's."""
    if noise is not None and not is_noise(noise):
        raise UsageError(f"noise {noise!r}: say auto, pooled, own or from=SWEEP")
    if failed is not None and failed not in FAILED:
        raise UsageError(f"failed {failed!r}: say {', '.join(FAILED)}")
    if data.metric is None:
        return data
    metric = replace(
        data.metric, noise=noise or data.metric.noise, failed=failed or data.metric.failed
    )
    return lend(replace(data, metric=metric), registry, lenders(metric.noise))


def _by(data: SweepData, by: str | None) -> SweepData:
    """With the setting that blocks are made by, where one was asked for."""
    if by is None or data.metric is None:
        return data
    return replace(data, metric=replace(data.metric, by=by))


def _text(study: Study) -> str:
    """For the terminal: the verdict, and the command of what is to be run next."""
    lines = [study.verdict.text(study.data.name)]
    if study.next is not None:
        lines.append(f"  next: {sanitize(study.next.command)}")
        lines += [f"        {sanitize(study.next.note)}"] if study.next.note else []
    if study.no_next is not None:
        lines.append(f"  no next.yaml: {study.no_next}")
    return "\n".join(lines)


@contextmanager
def _uncollected() -> Generator[None]:
    """Without Python's garbage collector: what is made here lives until the report is written, and
    looking through all of it again and again for what does not takes a tenth of the time."""
    used = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if used:
            gc.enable()


def _frame(rows: list[dict[str, Any]]) -> "pandas.DataFrame":
    """Texts that are no Unicode (half a surrogate pair) are mended: pandas refuses them."""
    import pandas

    def mended(value: Any) -> Any:
        return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value

    return pandas.DataFrame([{mended(k): mended(v) for k, v in row.items()} for row in rows])
