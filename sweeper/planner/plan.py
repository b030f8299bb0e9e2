"""Makes the plan of a grid: the checked runs of a sweep, each with its configuration, name and id.
Starts and writes nothing. All mistakes are reported in one `GridError`."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from sweeper.errors import GridError, NotFound, StoreError
from sweeper.fields.nodes import Problems
from sweeper.grid import Grid, GridText, read_grid
from sweeper.grid.naming import canonical
from sweeper.grid.seeds import Seeds
from sweeper.planner.cells import name
from sweeper.planner.checks import check, check_readable_part
from sweeper.planner.expansion import expand_some, expand_with_baseline
from sweeper.planner.stages import NO_RECIPE, baseline_of, check_readable_stages, with_stages
from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Expected, Extended, Plan, Race, Run
from sweeper.sweep.race import raced


def plan(
    source: "str | os.PathLike[str] | Mapping[str, object]",
    overrides: "Mapping[str, object] | Sequence[str] | None" = None,
    *,
    validate: bool = True,
) -> Plan:
    """Make the plan of a grid. `source` is the path of a file, the address of a file in a store, or
    a mapping.

    `overrides` are written as on the command line (`["max_steps=5", "~lr"]`, or one string). In a
    mapping of overrides, a list sets an axis. Without `validate`, the recipe is not imported; a
    stage with parents must then set the fields that load their checkpoints. Raises `GridError`.
    """
    problems = Problems()
    grid = read_grid(_fetched(source), overrides or (), problems)
    if problems:
        if validate and grid.stages:
            check_readable_stages(grid, problems)
        elif validate:
            check_readable_part(grid, expand_some(grid), problems)
        raise problems.error()
    planned = _without_runs(grid)
    if grid.stages:
        return with_stages(grid, planned, problems, validate=validate)
    if grid.baseline is not None and grid.baseline.is_base_model:
        message = "baseline: `base` works only in a stage with `from`"
        problems.add(grid.baseline.place, message)
    expanded, baseline = expand_with_baseline(grid, problems)
    named = name(expanded, problems)
    checked = check(expanded, named.runs, problems, validate=validate)
    whole = planned._replace(
        baseline=baseline_of(grid, expanded, named.runs, baseline),
        recipe=checked.recipe,
        axes=named.axes,
        runs=named.runs,
        warnings=tuple(dict.fromkeys((*expanded.warnings, *checked.warnings))),
        notes=checked.notes,
        model_places=checked.model_places,
        expected=tuple(
            Expected(None, named.runs[n].config, used) for n, used in checked.estimates.items()
        ),
    )
    return _with_race(whole, expanded.grid.seeds)


def _with_race(plan: Plan, seeds: Seeds | None) -> Plan:
    """Return the plan without the runs that a race may add later; its `race` has these runs. If the
    grid has no race, return the plan unchanged. Raises `GridError`."""
    if seeds is None or seeds.least is None:
        return plan
    counts: Counter[str] = Counter()
    first: list[Run] = []
    later: list[Run] = []
    for run in plan.runs:
        counts[run.cell] += 1
        (first if counts[run.cell] <= seeds.least else later).append(run)
    if len(counts) < 2:
        message = "seeds.race needs two cells or more: write seeds: 3, or add an axis"
        raise GridError([f"{seeds.place}: {message}"])
    race = Race(seeds.least, len(seeds.values), tuple(later))
    return raced(plan._replace(runs=tuple(first), race=race), ())


def _without_runs(grid: Grid) -> Plan:
    """Return a plan with the settings of the grid, and without recipe, axes and runs."""
    return Plan(
        name=grid.name,
        recipe=NO_RECIPE,
        service=grid.service,
        metric=grid.metric,
        secrets=grid.secrets,
        launch=grid.launch,
        axes={},
        runs=(),
        grid_text=grid.text,
        grid_path=grid.path,
        overrides=grid.overrides,
        extends=tuple(Extended(source.path, source.text) for source in grid.extends),
        wandb=grid.wandb,
        track=grid.track,
        alarms=grid.alarms,
        on_alarm=grid.on_alarm,
        budget=grid.budget,
        notify=grid.notify,
    )


def _fetched(
    source: "str | os.PathLike[str] | Mapping[str, object]",
) -> "str | os.PathLike[str] | Mapping[str, object] | GridText":
    """Return the text of the grid if `source` is an address in a store, else return `source`.
    Raises `GridError` if the grid cannot be read."""
    if not isinstance(source, str) or "://" not in source:
        return source
    from sweeper.store.opening import open_store

    above, _, name = source.rpartition("/")
    if above.endswith(":/"):
        raise GridError([f"{source} names no bucket: write {above}/BUCKET/{name}"])
    try:
        return GridText(source, open_store(above).read(name))
    except (NotFound, StoreError) as error:
        text = str(error)
        raise GridError([text if text.startswith(source) else f"{source}: {text}"]) from error


def repeats_by_default(plan: Plan, recorded: Plan) -> list[str]:
    """Return warnings about new runs that differ from recorded runs only in values that equal the
    recipe's defaults. An example is `lora_rank: 8` if the recorded runs did not set this key.

    A run's id is made from the values that the grid sets, so these runs train again. The recorded
    results are not used, since the defaults may have changed since then.
    """
    if plan.stages or recorded.stages:
        names = [stage.name for stage in plan.stages if recorded.stage(stage.name)]
        return [w for n in names for w in repeats_by_default(plan.only(n), recorded.only(n))]
    if recorded.recipe.reference != plan.recipe.reference:
        return []
    defaults = {
        key: canonical(about["default"])
        for key, about in plan.recipe.takes.items()
        if "default" in about
    }
    planned = {run.id for run in plan.runs}
    recorded_ids = {run.id for run in recorded.runs}
    retired: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for run in recorded.runs:
        if run.id not in planned:
            retired.setdefault(_stripped(run.config, defaults), set()).update(run.config)
    counts: dict[tuple[str, ...], int] = {}
    for run in plan.runs:
        is_new = run.id not in recorded_ids
        before = retired.get(_stripped(run.config, defaults)) if is_new else None
        keys = tuple(key for key in run.config if before is not None and key not in before)
        if keys:
            counts[keys] = counts.get(keys, 0) + 1
    return [
        f"{plural(count, 'run')} will train again: the grid now sets {', '.join(keys)[:80]} "
        "explicitly, to the recipe's default, which gives runs new ids"
        for keys, count in counts.items()
    ]


def _stripped(
    config: Mapping[str, object], defaults: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the values of a configuration that differ from the defaults, sorted by key."""
    texts = {key: canonical(value) for key, value in config.items()}
    return tuple(sorted((k, text) for k, text in texts.items() if defaults.get(k) != text))
