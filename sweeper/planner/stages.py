"""Plans a grid with stages. Each stage is planned as a grid of its own. Values that a run takes
from its parents are checked with the values of one possible parent."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import GridError
from sweeper.fields.kinds import hint, nearest
from sweeper.fields.nodes import Place, Problems
from sweeper.grid import Grid, StageGrid
from sweeper.grid.blocks import Setting
from sweeper.grid.stage_inputs import stages_before
from sweeper.planner.cells import name
from sweeper.planner.checks import check, check_readable_part, fields_of
from sweeper.planner.expansion import expand_some, expand_with_baseline
from sweeper.planner.points import Expanded
from sweeper.planner.product import MAX_RUNS
from sweeper.sweep.names import shorten
from sweeper.sweep.plan import Baseline, Expected, Plan, Run, Stage
from sweeper.sweep.recipe import Recipe
from sweeper.sweep.stage_inputs import LATE, PARENT, Choice, Source, Take, references
from sweeper.sweep.stage_runs import Growth, Taken, grow, grown

_MODEL = "model_name"
_GOES_ON = {_MODEL: _MODEL, "load_checkpoint_path": "checkpoint.state"}
"""The fields with which a recipe continues from a parent's weights, each with the parent's value
that it gets by default."""


def _nothing_chosen(_choice: Choice) -> None:
    return None


def _the_first(choice: Choice) -> Sequence[str]:
    return choice.candidates[: choice.take.number]


class _Planned(NamedTuple):
    """A planned stage. `runs` are the runs of the stage's own grid, without its parents' runs."""

    grid: StageGrid
    stage: Stage
    runs: tuple[Run, ...]


def check_readable_stages(grid: Grid, problems: Problems) -> None:
    """Let the recipes check the readable part of a grid that has mistakes. Stages with references
    to other stages are not checked."""
    for stage in grid.stages:
        if not stage.references:
            check_readable_part(stage.grid, expand_some(stage.grid), problems)


def with_stages(grid: Grid, plan: Plan, problems: Problems, *, validate: bool) -> Plan:
    """Return the plan with its stages, and with all runs that do not depend on results of other
    runs. Raises `GridError` with all mistakes."""
    return _Planning(grid, plan, problems, validate).all()


class _Planning:
    """The planning of one grid. Each step notes the mistakes that it finds."""

    def __init__(self, grid: Grid, plan: Plan, problems: Problems, validate: bool) -> None:
        self.grid, self.plan, self.problems, self.validate = grid, plan, problems, validate
        self.done: dict[str, _Planned] = {}
        self.counts: dict[str, int] = {}
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.expected: list[Expected] = []
        self.model_places: dict[str, str] = {}

    def all(self) -> Plan:
        """Plan every stage, parents first, and return the whole plan."""
        for stage in self.grid.stages:
            before = set(stages_before(stage.takings))
            # A stage is skipped if its parents have mistakes.
            if self.done.keys() >= before:
                with suppress(GridError):  # All mistakes are reported together below.
                    self._add(stage)
        if not self.problems:
            self._check_duplicates()
        self.problems.raise_any()
        stages = tuple(done.stage for done in self.done.values())
        metrics = [stage.metric for stage in stages if stage.metric is not None]
        plan = self.plan._replace(
            recipe=stages[0].recipe,
            metric=metrics[-1] if metrics else None,
            runs=tuple(self._root_runs()),
            stages=stages,
            order=self.grid.order,
            warnings=tuple(dict.fromkeys(self.warnings)),
            notes=tuple(dict.fromkeys(self.notes)),
            expected=tuple(self.expected),
            model_places=self.model_places,
        )
        return grown(plan, _nothing_chosen)

    def _root_runs(self) -> Iterator[Run]:
        return (run for done in self.done.values() if not done.grid.takings for run in done.runs)

    def _add(self, stage: StageGrid) -> None:
        """Plan one stage. Its parent stages must be planned already. Raises `GridError`."""
        if stage.takings and not stage.references:
            stage = self._with_default_references(stage)
        expanded, baseline = expand_with_baseline(stage.grid, self.problems)
        named = name(expanded, self.problems)
        runs = named.runs
        if not stage.takings:
            runs = tuple(_named_after(run, stage.name) for run in runs)
        sources = tuple(taking.source for taking in stage.takings)
        planned = Stage(stage.name, NO_RECIPE, stage.grid.metric, named.axes, sources)
        planned = planned._replace(launch=stage.launch)
        planned = planned._replace(runs=runs) if sources else planned
        if self._compares_with_base(stage):
            planned = planned._replace(baseline=self._base_baseline(stage, planned))
        else:
            planned = planned._replace(baseline=self._baseline(stage, expanded, runs, baseline))
        checkable = (
            self._check_references(stage, runs)
            & self._check_takes(stage)
            & self._within_limit(planned, len(runs))
        )
        # A value from another stage can only be checked if it is known.
        parents = (self.done[name].stage for name in planned.before)
        checkable &= all(parent.recipe is not NO_RECIPE for parent in parents)
        examples = self._runs_of_first_parents(planned) if sources and checkable else runs
        validated = self.validate and (not sources or (checkable and len(examples) == len(runs)))
        self.done[stage.name] = _Planned(stage, planned, runs)
        elsewhere = {ref.key for other in self.grid.stages for ref in other.references}
        checked = check(
            expanded,
            examples if validated else runs,
            self.problems,
            validate=validated,
            elsewhere=elsewhere,
        )
        self.warnings += [*expanded.warnings, *checked.warnings]
        self.notes += [f"{stage.name}: {note}" for note in checked.notes]
        self.model_places = {**checked.model_places, **self.model_places}
        estimates = checked.estimates.items()
        self.expected += [Expected(stage.name, runs[n].config, used) for n, used in estimates]
        self.done[stage.name] = _Planned(stage, planned._replace(recipe=checked.recipe), runs)

    def _with_default_references(self, stage: StageGrid) -> StageGrid:
        """Set the fields in `_GOES_ON` to references to the parents' checkpoints, except fields
        that the recipe lacks or the stage sets."""
        grid = stage.grid
        given = {key for setting in grid.every_setting() for key in setting.given}
        if grid.recipe is None or _GOES_ON.keys() <= given:
            return stage
        base, place = dict(grid.base), stage.takings[0].place
        if not self.validate:
            message = "without validation, the fields for the parents' checkpoints are unknown"
            advice = "set these fields, as in load_checkpoint_path: $${from.checkpoint.state}"
            self.problems.add(place, f"stages.{stage.name}.from: {message}: {advice}")
            return stage
        takes = fields_of(grid)
        for key, value in _GOES_ON.items():
            if (
                key in takes
                and key not in given
                and self._fault_of_reference(stage, PARENT, value) is None
            ):
                text = f"$${{{PARENT}.{value}}}"
                base[key] = Setting(text, {key: text}, {key: place}, place, refers=True)
        return stage._replace(grid=grid._replace(base=base))

    def _baseline(
        self, stage: StageGrid, expanded: Expanded, runs: Sequence[Run], cell: int | None
    ) -> Baseline | None:
        baseline = stage.grid.baseline
        in_grid = baseline is not None and baseline.cell is not None and not stage.takings
        if baseline is None or baseline.sweep is not None or in_grid:
            return baseline_of(stage.grid, expanded, runs, cell)
        message = "`base` needs the base model in `from`, as in from: [..., {base: true}]"
        if baseline.cell is not None:
            message = "in a stage with `from`, the baseline is `base` or {sweep: NAME}, not a cell"
        self.problems.add(baseline.place, f"stages.{stage.name}.baseline: {message}")
        return None

    def _compares_with_base(self, stage: StageGrid) -> bool:
        """Return whether a stage has the base model both in `from` and as its baseline."""
        baseline = stage.grid.baseline
        takes_base = any(taking.source.base for taking in stage.takings)
        return baseline is not None and baseline.is_base_model and takes_base

    def _base_baseline(self, stage: StageGrid, planned: Stage) -> Baseline | None:
        """Return the cell of the base model as the stage's baseline. If the base model has several
        cells, note a mistake and return None."""
        roots = [done.stage for done in self.done.values() if not done.grid.takings]
        runs = self._grow(*roots, planned._replace(sources=(Source(base=True),))).runs
        cells = list(dict.fromkeys(run.cell for run in runs if run.stage == stage.name))
        if len(cells) <= 1:  # There is no cell if no stage has a model, which is noted elsewhere.
            return Baseline(cell=cells[0] if cells else f"{stage.name}/base")
        shown = f"{', '.join(cells[:3])}{', ...' if len(cells) > 3 else ''}"
        message = f"the base model has {len(cells)} cells ({shown}), but a baseline is one cell"
        if stage.grid.baseline is not None:
            self.problems.add(stage.grid.baseline.place, f"stages.{stage.name}.baseline: {message}")
        return None

    def _grow(self, *stages: Stage, chosen: Taken = _nothing_chosen) -> Growth:
        """Make those runs of the stages that can be known now. `chosen` returns the runs that a
        stage takes from another stage, or None if these runs are still unknown."""
        recipe = stages[0].recipe
        plan = self.plan._replace(recipe=recipe, stages=stages, runs=tuple(self._root_runs()))
        return grow(plan, chosen)

    def _runs_of_first_parents(self, stage: Stage) -> tuple[Run, ...]:
        """Return the runs that a stage would have with its first possible parent run."""
        sources = [source for source in stage.sources if not source.base] or stage.sources
        stages = (*self._first_sources(stage), stage._replace(sources=sources[:1]))
        growth = self._grow(*stages, chosen=_the_first)
        runs = [run for run in growth.runs if run.stage == stage.name]
        return tuple(runs[: len(stage.runs)])

    def _first_sources(self, stage: Stage) -> Iterator[Stage]:
        """Yield the planned stages, each with only the first source in `from`, to limit the number
        of runs. If another stage takes one of a stage's runs by name, that stage and its ancestors
        keep all sources."""
        planned = [done.stage for done in self.done.values()]
        takes = [
            t
            for planned_stage in (*planned, stage)
            for source in planned_stage.sources
            for t in source.takes
        ]
        whole = self._ancestors([take.stage for take in takes if take.how == "run"])
        for planned_stage in planned:
            yield (
                planned_stage
                if planned_stage.name in whole
                else planned_stage._replace(sources=planned_stage.sources[:1])
            )

    def _check_references(self, stage: StageGrid, runs: Sequence[Run]) -> bool:
        """Return whether all references to other stages can be resolved."""
        used = {pair for run in runs for value in run.config.values() for pair in references(value)}
        good = True
        for reference in dict.fromkeys(stage.references):
            key = f"${{{reference.stage}.{reference.key}}}"[:60]
            message = self._fault_of_reference(stage, reference.stage, reference.key)
            if message is None and (reference.stage, reference.key) not in used:
                message = (
                    "references work in base and axes, not in command: put the reference in base, "
                    "and its key in the command"
                )
            if message is not None:
                self.problems.add(reference.place, f"{key}: {message}")
                good = False
        return good

    def _fault_of_reference(self, stage: StageGrid, name: str, key: str) -> str | None:
        """Return why a reference of a stage cannot be resolved, or None."""
        sources = [taking.source for taking in stage.takings if not taking.source.base]
        if not stage.takings:
            return f"stages.{stage.name} has no from, so it has no parents"
        if name == PARENT:
            meant = [source.takes[0].stage for source in sources]
        else:
            if not all(name in self._ancestors([t.stage for t in s.takes]) for s in sources):
                return f"stages.{stage.name} does not come from {name}"
            if not sources and key != _MODEL:
                return f"stages.{stage.name} comes from the base model alone"
            meant = [name]
        return next(
            (fault for parent in meant if (fault := self._missing_value(parent, key)) is not None),
            None,
        )

    def _missing_value(self, name: str, key: str) -> str | None:
        """Return why a run of a stage lacks a value that a reference needs, or None."""
        if key in LATE:
            return None
        done = self.done[name]
        takes = done.stage.recipe.takes
        if all(key in run.config for run in done.runs) or "default" in takes.get(key, {}):
            return None
        if _was_not_inspected(done.stage.recipe):
            return None
        keys = [*LATE, *takes, *(k for run in done.runs[:1] for k in run.config)]
        in_other_runs = any(key in run.config for run in done.runs)
        reason = (
            f"not every run of stages.{name} has this value"
            if in_other_runs
            else "has no such value"
        )
        suggestion = hint(key, keys, self.problems)
        if key.partition(".")[0] == "checkpoint":
            return (
                f"a checkpoint has {' and '.join(k for k in LATE if k != 'log_path')}{suggestion}"
            )
        return f"{reason}{suggestion}" if in_other_runs else f"stages.{name} {reason}{suggestion}"

    def _ancestors(self, names: Sequence[str]) -> set[str]:
        ancestors: set[str] = set()
        pending = list(names)
        while pending:
            name = pending.pop()
            if name not in ancestors and name in self.done:
                ancestors.add(name)
                pending += self.done[name].stage.before
        return ancestors

    def _check_takes(self, stage: StageGrid) -> bool:
        """Return whether the runs that a stage takes (`from`) can exist. If not, add a problem."""
        good = True
        for taking in stage.takings:
            for take, place in taking.placed_takes():
                message = self._fault_of_take(take)
                if message is not None:
                    self.problems.add(place, f"stages.{stage.name}.from: {message}")
                    good = False
            if taking.source.base and not self._has_model():
                message = f"no stage gives a {_MODEL}, so there is no base model"
                self.problems.add(taking.place, f"stages.{stage.name}.from: {message}")
                good = False
        return good

    def _fault_of_take(self, take: Take) -> str | None:
        # Making the runs of a later stage takes long if there are many.
        runs = self._known_runs(take.stage) if take.how in ("top", "run") else None
        if runs is None:
            return None
        if take.how == "top" and take.number > len(runs):
            return (
                f"stages.{take.stage} has only {len(runs)} runs, so {take.number} cannot be taken"
            )
        names = [run.name.partition("/")[2] for run in runs]
        if take.how == "run" and (take.run or "").removeprefix(f"{take.stage}/") not in names:
            words = ["best", "best-cell", "each", *names]
            similar = nearest(take.run or "", words)
            return f"stages.{take.stage} has no run {(take.run or '')[:60]!r}{similar}"
        return None

    def _known_runs(self, name: str) -> Sequence[Run] | None:
        """Return the runs of a stage. Return None if some runs depend on the results of other runs,
        or if the grid has too many runs."""
        before = self.done[name]
        if not before.grid.takings:
            return before.runs
        if sum(self.counts.values()) > MAX_RUNS:  # An earlier call has reported this.
            return None
        growth = self._grow(*(done.stage for done in self.done.values()))
        return None if name in growth.unknown else [r for r in growth.runs if r.stage == name]

    def _has_model(self) -> bool:
        roots = [done for done in self.done.values() if not done.grid.takings]
        if any(_was_not_inspected(done.stage.recipe) for done in roots):
            return True
        return any(
            _MODEL in run.config or "default" in done.stage.recipe.takes.get(_MODEL, {})
            for done in roots
            for run in done.runs
        )

    def _within_limit(self, stage: Stage, runs: int) -> bool:
        """Count the runs of a stage, and return whether the grid's total is within the limit.
        `runs` is the number of runs of the stage's own grid, without its parents' runs."""
        self.counts[stage.name] = self._count(stage, runs)
        total = sum(self.counts.values())
        if total <= MAX_RUNS:
            return True
        if total - self.counts[stage.name] <= MAX_RUNS:  # No earlier stage has reported this.
            place = self._place(stage.name)
            self.problems.add(place, f"{total} runs; a sweep has at most {MAX_RUNS}")
        return False

    def _count(self, stage: Stage, runs: int) -> int:
        if not stage.sources:
            return runs
        total = 0
        for source in stage.sources:
            parents = 1
            for take in source.takes:
                if take.how == "top":
                    parents *= take.number
                elif take.how in ("each", "best-cell"):
                    parents *= self.counts[take.stage]
            total += parents * runs
        return total

    def _check_duplicates(self) -> None:
        """Add a problem for stages with the same runs, since one run would replace the other."""
        seen: list[_Planned] = []
        for done in self.done.values():
            ids = {run.id for run in done.runs}
            for other in seen:
                same = {run.id for run in other.runs} & ids
                shared = set(other.stage.sources) & set(done.stage.sources)
                if same and (shared or not (other.stage.sources or done.stage.sources)):
                    message = f"makes the same runs as stages.{other.stage.name}"
                    self.problems.add(
                        self._place(done.stage.name), f"stages.{done.stage.name} {message}"
                    )
            seen.append(done)

    def _place(self, name: str) -> Place:
        return next(stage.place for stage in self.grid.stages if stage.name == name)


def _was_not_inspected(recipe: Recipe) -> bool:
    """Return whether a recipe's fields are unknown because the recipe was not inspected. A command
    has no fields, so return False for a command."""
    return recipe.kind != "command" and not recipe.takes


def _named_after(run: Run, stage: str) -> Run:
    """Return a run with its stage's name before its own name and its cell's name."""
    name, cell = f"{stage}/{run.name}", f"{stage}/{run.cell}"
    return run._replace(name=shorten(name), cell=shorten(cell), stage=stage)


def baseline_of(
    grid: Grid, expanded: Expanded, runs: Sequence[Run], cell: int | None
) -> Baseline | None:
    """Return the baseline with which the grid's best cell is compared, or None if the grid has no
    baseline. `cell` is the number of the baseline's cell, if the baseline is a cell of the grid."""
    if grid.baseline is None:
        return None
    if grid.baseline.sweep is not None:
        return Baseline(sweep=grid.baseline.sweep)
    replicates = len(runs) // len(expanded.points) if expanded.points else 0
    return Baseline(cell=runs[cell * replicates].cell) if cell is not None and replicates else None


NO_RECIPE = Recipe(reference="", kind="module")
"""Placeholder for a recipe that is not inspected yet."""
