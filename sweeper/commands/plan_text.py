"""The output of `sweeper plan`: the preview of a launch, in a short and in a full form. This
module formats its tables itself, since importing a table library would take longer than
planning. On a terminal, lines are cut to the width."""

import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from sweeper.common.json_values import is_number
from sweeper.common.sanitize import sanitize
from sweeper.fields.nodes import is_plain
from sweeper.grid.naming import canonical
from sweeper.grid.overrides import flow
from sweeper.launcher.preview import (
    LaunchPreview,
    RunPreview,
    command,
    counts,
    environment,
    estimate_of,
    log_path,
)
from sweeper.results.stage_graph import graph, of_stage, size
from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Plan
from sweeper.sweep.race import sentence as race_sentence
from sweeper.sweep.states import State
from sweeper.terminal import display_width, shortened

_SHOWN = 40
"""The largest number of runs that are listed without `--full`."""
_LISTED = 12
"""The largest number of values of an axis that are listed. More numbers are shown as a range."""
_GAP = "  "
_LEAST = 8
"""The smallest width in characters to which a column is cut."""


def short(preview: LaunchPreview) -> Iterator[str]:
    """Yield the lines of the short form: the axes, the numbers of runs, and the first runs."""
    plan, width = preview.plan, terminal_width()
    yield from _clipped(_head(plan), width)
    if plan.stages:
        yield ""
        yield from table(("stage", "runs", "of"), list(graph(plan)), width, gives=2)
    for part in plan.parts:
        axes = list(_axes(part))
        if axes:
            yield ""
            yield from table((_key_of(part, plan), "values", ""), axes, width, gives=2)
    if plan.notes:
        yield ""
        yield from plan.notes
    yield ""
    yield from _clipped(f"{size(plan)}: {counts(preview)}", width)
    if (race := race_sentence(plan)) is not None:
        yield from _clipped(race, width)
    elif plan.unknown:
        later = sum(plan.unknown.values())
        more = f"{later} more runs start" if later > 1 else "1 more run starts"
        yield from _clipped(f"{more} once the runs that they continue from have ended", width)
    if (use := estimate_of(preview)) is not None:
        yield from _clipped(use, width)
    if preview.dropped:
        from sweeper.sweep import trust  # imported late: few plans drop runs

        yield from _clipped(f"{trust.sentence(preview.dropped)} (--drop)", width)
    if others := preview.retired - preview.dropped:
        runs = f"{plural(others, 'run')} on record {'is' if others == 1 else 'are'}"
        yield from _clipped(f"{runs} not in this grid: a launch keeps them", width)
    yield ""
    succeeded = {p.run.id for p in preview.previews if p.state.state is State.SUCCEEDED}
    rows = [
        (preview.run.name, preview.run.id, preview.state.state.value, _act(preview, succeeded))
        for preview in preview.previews[:_SHOWN]
    ]
    yield from table(("run", "id", "state", "launch"), rows, width)
    if len(preview.previews) > _SHOWN:
        yield f"... and {len(preview.previews) - _SHOWN} more (--full shows all)"


def full(preview: LaunchPreview) -> Iterator[str]:
    """Yield the lines of the full form: everything that a launch would submit."""
    plan, recipe = preview.plan, preview.plan.recipe
    yield _head(plan)
    yield f"{size(plan)}: {counts(preview)}"
    if (race := race_sentence(plan)) is not None:
        yield race
    yield from plan.notes
    yield ""
    document = {
        "recipe": recipe.reference,
        "class": recipe.config_class,
        **{f"stage {s.name}": of_stage(s) for s in plan.stages},
        **{f"launch of {s.name}": flow(dict(s.launch)) for s in plan.stages if s.launch},
        "python": recipe.python,
        "cwd": recipe.cwd,
        "log_path": f"{log_path(preview.folder, '<run id>', 0).removesuffix('.0')}.<attempt>",
        "environment": ", ".join(environment(plan)),
        "secrets": ", ".join(plan.secrets) or None,
        "track": ", ".join(plan.track) or None,
        "wandb": None if plan.wandb is None else flow(plan.wandb.document()),
        **{
            key: value if isinstance(value, str) else flow(value)
            for key, value in plan.launch.document().items()
            if key not in ("python", "cwd", "log_path_field") and value not in (None, {})
        },
    }
    yield from (f"{key:<12}  {sanitize(str(v))}" for key, v in document.items() if v is not None)
    succeeded = {p.run.id for p in preview.previews if p.state.state is State.SUCCEEDED}
    for of_run in preview.previews:
        run, attempt = of_run.run, max(1, of_run.attempt)
        yield ""
        yield f"{run.name}  {run.id}  {of_run.state.state.value}  {_act(of_run, succeeded)}"
        argv = command(plan, run, attempt, log_path(preview.folder, run.id, attempt))
        if argv is not None:
            yield f"  command: {sanitize(flow(argv))}"
        for key, value in run.config.items():
            yield f"  {key}: {sanitize(flow(value))}"


def terminal_width() -> int | None:
    """Return the terminal's width in columns; None if the output is not a terminal."""
    if not sys.stdout.isatty():
        return None
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, gives: int = 0
) -> Iterator[str]:
    """Yield the lines of a table. If the table is wider than `width`, cut the column at index
    `gives`."""
    rows = [[sanitize(cell) for cell in row] for row in rows]
    widths = [max(map(display_width, cells)) for cells in zip(columns, *rows, strict=True)]
    if width is not None:
        others = sum(widths) - widths[gives] + len(_GAP) * (len(columns) - 1)
        widths[gives] = max(_LEAST, min(widths[gives], width - others))
    for row in (columns, *rows):
        cells = [cut(text, size) for text, size in zip(row, widths, strict=True)]
        sized = zip(cells, widths, strict=True)
        yield _GAP.join(c + " " * (size - display_width(c)) for c, size in sized).rstrip()


def cut(text: str, width: int) -> str:
    """Shorten a text to `width` columns by cutting the middle. The end stays, since a run's name
    ends with the seed."""
    if display_width(text) <= width:
        return text
    end = (width - 3) // 3
    begin = width - 3 - end
    while display_width(text[:begin]) + display_width(text[len(text) - end :]) + 3 > width:
        begin, end = max(0, begin - 1), max(0, end - 1)
    return f"{text[:begin]}...{text[len(text) - end :]}"


def _clipped(text: str, width: int | None) -> Iterator[str]:
    yield text if width is None else cut(text, width)


def _act(preview: RunPreview, succeeded: Collection[str]) -> str:
    if preview.attempt and not all(parent in succeeded for parent in preview.run.parents):
        return "later"
    return {0: "leave", 1: "start"}.get(preview.attempt, f"attempt {preview.attempt}")


def _head(plan: Plan) -> str:
    stages = plural(len(plan.stages), "stage") if plan.stages else None
    recipe = stages or shortened(plan.recipe.reference)
    where = f"{plan.launch.backend}, service {plan.service}"
    return f"{plan.name}: {sanitize(recipe)} on {where}, at most {plan.launch.max_parallel} at once"


def _key_of(part: Plan, plan: Plan) -> str:
    """Return the title of the column that shows keys. If there are stages, the title names the
    stage."""
    stage = next((run.stage for run in part.runs), None)
    return f"{stage}: key" if plan.stages and stage else "key"


def _axes(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield (key, number of values, values) for each axis and for each other key whose value
    differs between runs. Also yield a tuple for the seeds if there are several seeds. All values
    come from the runs, so zipped, sampled, conditional and excluded axes are counted correctly."""
    seen: dict[str, dict[str, object]] = {key: {} for key in plan.axes}
    present: Counter[str] = Counter()
    texts: dict[int, str] = {}
    for run in plan.runs:
        for key, value in run.config.items():
            present[key] += 1
            text = texts.get(id(value)) or texts.setdefault(id(value), canonical(value))
            seen.setdefault(key, {})[text] = value
    seed = plan.recipe.seed_field
    for key, values in seen.items():
        partly = present[key] < len(plan.runs)
        if values and key != seed and (key in plan.axes or len(values) > 1 or partly):
            where = f" (in {present[key]} of {len(plan.runs)} runs)" if partly else ""
            yield key, str(len(values)), _listed(list(values.values())) + where
    seeds = sorted({run.seed for run in plan.runs if run.seed is not None})
    if len(seeds) > 1:
        yield seed or "replicate (no seed is set)", str(len(seeds)), _listed(seeds)


def _listed(values: Sequence[object]) -> str:
    numbers = [value for value in values if is_number(value)]
    if len(values) > _LISTED and len(numbers) == len(values):
        return f"{flow(min(numbers))} to {flow(max(numbers))}"
    return ", ".join(sanitize(_shown(value)) for value in values)


def _shown(value: object) -> str:
    """Return a value in the notation of a grid. Quote a string that could be read as another type,
    or as several values."""
    if isinstance(value, str) and is_plain(value) and ", " not in value:
        return value
    return flow(value)
