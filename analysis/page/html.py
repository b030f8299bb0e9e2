"""Writes the report as a self-contained HTML file. Values in the page cannot run code: jinja2
escapes all texts, and the content security policy allows only two scripts, identified by their
hashes."""

import base64
import functools
import hashlib
import importlib.util
import json
import os
import zlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.comparison.stability import RULE
from sweeper.analysis.figures.axes import PARALLEL, telling, undrawn
from sweeper.analysis.figures.layouts import MUTED, PALETTE, SECTIONS, Panel, tones
from sweeper.analysis.figures.learning_curves import WINDOWS
from sweeper.analysis.findings.axis_findings import KINDS
from sweeper.analysis.findings.finding import method, noise_text, short_name
from sweeper.analysis.findings.next_steps import NOTHING_NEXT
from sweeper.analysis.findings.study import Study
from sweeper.analysis.findings.transcripts import Transcripts, embedded
from sweeper.analysis.page.celltables import (
    AS_GOOD,
    CELLS,
    FIRST_CELLS,
    cell_table,
    first_cells,
    groups,
    strip_of_all,
)
from sweeper.analysis.page.episodetables import episode_tables
from sweeper.analysis.page.itemtables import checkpoint_rows, held_rows, item_tables, task_rows
from sweeper.analysis.page.tables import (
    RUNS,
    block_rows,
    common,
    details,
    executed,
    heat,
    paired_about,
    paired_rows,
    provenance,
    rate_rows,
    run_rows,
    surface_rows,
)
from sweeper.analysis.page.timetables import ABOUT, LINKED, time_table
from sweeper.analysis.reading.commands import listing, reading_logs, reproducing
from sweeper.analysis.statistics.regression import DEALS
from sweeper.common.sanitize import sanitize_lines
from sweeper.errors import EnvironmentFailure
from sweeper.sweep.labels import plural
from sweeper.sweep.metric import value_text

DARK = ("#4ba6dd", "#ef8a4a", "#2fbf95", "#d68ad0", "#d9b340", "#9ad7ff", "#dd6f9f", "#98a4f2")
"""`PALETTE` for a dark screen."""

DARK_MUTED = "#737a85"
_FAILURES = 12
_ALARMS = 20
_FIRST = 6
"""The largest number of cells on the first screen."""

_BLOCKS = 8
"""The largest number of blocks on the first screen."""

_STATES = (
    *("succeeded", "running", "submitted", "planned", "lost", "preempted"),
    *("cancelled", "failed"),
)


def render(study: Study, panels: Sequence[Panel], beside: Sequence[Transcripts] = ()) -> str:
    """Return the page as HTML. `beside` has the transcripts of items for each task."""
    panels = [panel for panel in panels if panel.on_page]
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            **_assets(study, panels, beside),
            **_study(study),
            **_runs(study),
            **_tables(study),
            **_figures(study, panels),
            axis_kinds=KINDS,
            deals=DEALS,
            rule=RULE,
            short_name=short_name,
            executed=functools.partial(executed, study),
            labels=labels,
        )
    )


def _assets(
    study: Study, panels: Sequence[Panel], beside: Sequence[Transcripts]
) -> dict[str, object]:
    """Return the template's variables for styles, scripts, and the data that the scripts read."""
    from markupsafe import Markup

    script = asset("report.js")
    library, library_hash = _plotly() if panels else ("", None)
    hashes = [_hash(script), *([library_hash] if library_hash else [])]
    return {
        "policy": policy(hashes),
        "css": Markup(asset("report.css")),  # noqa: S704 - a file of ours
        "script": Markup(script),  # noqa: S704 - a file of ours
        "library": library,
        "embedded": _packed(_json(_embedded(study, panels, beside))),
        "light": [*PALETTE, MUTED],
        "dark": [*DARK, DARK_MUTED],
    }


def _study(study: Study) -> dict[str, object]:
    """Return the template's variables for results, methods, the grid and the provenance of the
    runs."""
    data, ranking = study.data, study.ranking
    return {
        "study": study,
        "data": data,
        "ranking": ranking,
        "best": ranking.best,
        "findings": study.findings,
        "verdict": study.verdict,
        "nothing_next": NOTHING_NEXT,
        "as_good": AS_GOOD,
        "method": method(ranking.scale, ranking.noise),
        "noise": noise_text(ranking.noise),
        "judged_by": value_text("last" if data.metric is None else data.metric.at),
        "commands": reproducing(data, study.prices),
        "grid": data.plan and data.plan.grid_text,
        "grid_path": data.plan and data.plan.grid_path,
        "provenance": provenance(data),
    }


def _runs(study: Study) -> dict[str, object]:
    """Return the template's variables for runs: states, failures, retries and alarms."""
    data = study.data
    return {
        "states": [(s, n) for s in _STATES if (n := sum(run.state == s for run in data.runs))],
        "failures": study.failures[:_FAILURES],
        "failed": sum(run.state == "failed" for run in data.runs),
        "retried": [run for run in data.runs if run.attempts > 1],
        "alarms": [(run, alarm) for run in data.runs for alarm in run.alarms],
        "alarms_shown": _ALARMS,
        "logs": reading_logs(data),
        "list_failed": listing(data, "failed") if data.root else None,
    }


def _tables(study: Study) -> dict[str, object]:
    """Return the template's variables for tables, and the number of rows that are shown at
    first."""
    ranking = study.ranking
    return {
        "table": cell_table(ranking),
        "first": first_cells(ranking, _FIRST),
        "all_strip": strip_of_all(ranking),
        "cells_shown": CELLS,
        "cells_first": FIRST_CELLS,
        "groups": groups(ranking),
        "runs_shown": RUNS,
        "rows": run_rows(study),
        "common": common(study),
        "paired": paired_rows(study),
        "paired_about": paired_about(study),
        "item_tables": item_tables(study),
        "held_rows": held_rows(study),
        "task_rows": task_rows(study),
        "checkpoint_rows": checkpoint_rows(study),
        "episode_tables": episode_tables(study),
        "times": time_table(ranking),
        "times_about": ABOUT,
        "linked": LINKED,
        "blocks": block_rows(study),
        "blocks_first": _BLOCKS,
        "model": surface_rows(study.surface),
        "rates": rate_rows(study.stability.rates),
    }


def _figures(study: Study, panels: Sequence[Panel]) -> dict[str, object]:
    """Return the template's variables for figures, and the settings without a figure."""
    return {
        "panels": _by_section(panels),
        "figures": len(panels),
        "legend": _legend(study.ranking, panels),
        "windows": [f"{share:.0%}".replace("%", " %") for share in WINDOWS],
        "heats": [(pair, heat(pair, study.data.sign)) for pair in study.pairs],
        "telling": telling(study),
        "undrawn": undrawn(study, panels),
        "lines": PARALLEL,
    }


def _embedded(
    study: Study, panels: Sequence[Panel], beside: Sequence[Transcripts]
) -> dict[str, Any]:
    """Return the data of the page's script."""
    return {
        "beside": embedded(beside),
        "figures": [{"name": panel.name, **panel.figure} for panel in panels],
        "runs": details(study),
        "groups": groups(study.ranking),
        "windows": list(WINDOWS),
        "light": {"tones": [*PALETTE, MUTED], "text": "#4b515b", "grid": "#e6e4df"},
        "dark": {"tones": [*DARK, DARK_MUTED], "text": "#b4bac4", "grid": "#2c313a"},
    }


def _by_section(panels: Sequence[Panel]) -> dict[str, list[tuple[int, Panel]]]:
    """Return a dict from section to its panels, each with its position in `panels`."""
    places: dict[str, list[tuple[int, Panel]]] = {section: [] for section in SECTIONS}
    for index, panel in enumerate(panels):
        places[panel.section].append((index, panel))
    return places


@functools.cache
def environment() -> Any:
    """Return the jinja2 environment. Templates are compiled only once, because compiling takes
    longer than the rest of a page."""
    import jinja2

    made: Any = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["capitalize_first"] = labels.capitalised
    made.globals["plural"] = plural
    made.filters["breakable"] = _breakable
    return made


def _harmless(value: object) -> object:
    """Make plain text safe to display (see `sanitize_lines`). Return any other value unchanged."""
    return sanitize_lines(value) if type(value) is str else value


def _breakable(text: str) -> Any:
    """Return the text as markup, with line breaks allowed after commas and equals signs."""
    from markupsafe import Markup, escape

    shown = sanitize_lines(text).split(",")
    parts = [Markup("=<wbr>").join(map(escape, part.split("="))) for part in shown]
    return Markup(",<wbr>").join(parts)


def asset(name: str) -> str:
    """Return the content of a file of the page's templates."""
    return resources.files("sweeper.analysis").joinpath("templates", name).read_text("utf-8")


@functools.cache
def _plotly() -> tuple[str, str]:
    """Return plotly's script, compressed, and the hash of the script before compression."""
    # Find plotly without importing it, which would take longer than making the page.
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise EnvironmentFailure("plotly is not installed: pip install plotly")
    path = os.path.join(os.path.dirname(spec.origin), "package_data", "plotly.min.js")
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    # A browser reads every line ending as one "\n" before it computes the script's hash.
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _packed(text.encode()), _hash(text)


def _packed(data: bytes) -> str:
    """Return the data compressed, as text for `DecompressionStream("deflate")` in the page."""
    return base64.b64encode(zlib.compress(data, 4)).decode()


def policy(hashes: Sequence[str]) -> str:
    """Return the content security policy: only scripts with these hashes run."""
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(value: Any) -> bytes:
    import orjson

    try:
        text = orjson.dumps(value).decode()
    except TypeError:  # half of a surrogate pair, which UTF-8 cannot encode
        text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    if not text.isascii():
        for character in filter(lambda char: not char.isprintable(), set(text)):
            text = text.replace(character, sanitize_lines(character).replace("\\", "\\\\"))
    return text.encode("utf-8", "replace")


def _legend(ranking: Ranking, panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Return the entries of the legend: an entry for each coloured cell that is drawn, and a single
    entry for all other drawn cells."""
    curves = [panel.figure for panel in panels if panel.section == "curves"]
    traces = [trace["meta"] for figure in curves for trace in figure["data"]]
    drawn = {cell for meta in traces for cell in meta.get("cells", [meta["cell"]])}
    colours = tones(ranking)
    named: list[dict[str, Any]] = []
    muted: list[int] = []
    for position, cell in enumerate(ranking.cells):
        if position in drawn and colours[cell.name] >= 0:
            tone = colours[cell.name]
            named.append({"tone": tone, "cells": [position], "name": short_name(cell)})
        elif position in drawn:
            muted.append(position)
    if muted:
        name = plural(len(muted), "other cell")
        named.append({"tone": len(PALETTE), "cells": muted, "name": name})
    return named
