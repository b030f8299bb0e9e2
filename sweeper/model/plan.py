"""`sweep.json`: a sweep's plan as it was launched."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Never

from sweeper.model.document_reader import SCHEMA
from sweeper.model.html import table, title
from sweeper.model.launch import Launch
from sweeper.model.metric import Metric
from sweeper.model.notify import Notify
from sweeper.model.recipe import Recipe, Snapshot
from sweeper.model.stage_inputs import Choice, Source
from sweeper.model.usage import Usage

__all__ = [
    "Alarms",
    "Baseline",
    "Carried",
    "Metric",
    "OnAlarm",
    "Plan",
    "Run",
    "Stage",
    "Wandb",
]

_NOTHING: Mapping[str, Never] = MappingProxyType({})


class Run(NamedTuple):
    """A cell with a seed. `config` holds the explicitly given values by dotted keys, the seed
    field included, what the worker fills in (`log_path`) left out. `retired`: the grid has it no
    more.

    Where the grid has stages, `stage` is the run's, and `parents` are the ids of those that it goes
    on from; its configuration may then hold references to what is known only when they have
    ended."""

    id: str
    name: str
    cell: str
    seed: int | None
    config: dict[str, object]
    retired: bool = False
    stage: str | None = None
    parents: tuple[str, ...] = ()

    def document(self) -> dict[str, object]:
        """As `sweep.json` has it."""
        found = self._asdict()
        found["parents"] = list(self.parents)
        for key in ("retired", "stage", "parents"):
            if not found[key]:
                del found[key]
        return found


class Baseline(NamedTuple):
    """What the best of a sweep is compared with: one of its cells, or the best of another sweep (or
    `sweep/stage`)."""

    cell: str | None = None
    sweep: str | None = None

    def document(self) -> dict[str, str]:
        """As `sweep.json` has it."""
        return {key: value for key, value in self._asdict().items() if value is not None}


class Stage(NamedTuple):
    """A part of a sweep with a recipe of its own. `sources` say where its runs come from; without
    any they are on the plan. Else `runs` are what each of the parents becomes: runs without them.
    `launch` is what it says itself of how its runs are executed, in the shape of
    `Launch.document`; of a backend it has all options, the sweep's with its own over them.
    """

    name: str
    recipe: Recipe
    metric: Metric | None
    axes: dict[str, list[object]]
    sources: tuple[Source, ...] = ()
    runs: tuple[Run, ...] = ()
    baseline: Baseline | None = None
    launch: Mapping[str, object] = _NOTHING

    @property
    def before(self) -> tuple[str, ...]:
        """The stages that it takes from."""
        return tuple(dict.fromkeys(take.stage for one in self.sources for take in one.takes))

    def document(self) -> dict[str, object]:
        """As `sweep.json` has it."""
        return {
            "name": self.name,
            "recipe": self.recipe.document(),
            "metric": None if self.metric is None else _written(self.metric),
            "axes": self.axes,
            "from": [source.document() for source in self.sources],
            "runs": [run.document() for run in self.runs],
            **({} if self.baseline is None else {"baseline": self.baseline.document()}),
            **({"launch": dict(self.launch)} if self.launch else {}),
        }


class Wandb(NamedTuple):
    """Where the runs go; None for an entity or a mode means what W&B's own settings say, for a
    group the sweep's name. `app` is the address at which W&B shows them, known at a launch."""

    project: str
    entity: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    mode: str | None = None
    app: str | None = None

    def document(self) -> dict[str, object]:
        """As `sweep.json` has it."""
        return {**self._asdict(), "tags": list(self.tags)}


Alarms = Mapping[str, Mapping[str, float] | None]
"""What a grid says otherwise than the defaults: rule -> thresholds, None for a rule that is off."""


class OnAlarm(NamedTuple):
    """What to do about an alarm: run a command, stop something; `rules` are those that it is about
    (None: all)."""

    run: tuple[str, ...] | None = None
    stop: Literal["run", "sweep"] | None = None
    rules: tuple[str, ...] | None = None

    def document(self) -> dict[str, object]:
        """As `sweep.json` has it."""
        run, rules = (None if v is None else list(v) for v in (self.run, self.rules))
        return {"run": run, "rules": rules, "stop": self.stop}


class Budget(NamedTuple):
    """How much the runs of a sweep may use together at most; None for what has no limit. `hours`
    are those of all runs. `on_reach`: whether runs at work are stopped then, or go on."""

    usd: float | None = None
    tokens: float | None = None
    hours: float | None = None
    on_reach: Literal["stop", "pause"] = "stop"

    def document(self) -> dict[str, object]:
        """As `sweep.json` has it."""
        return {key: value for key, value in self._asdict().items() if value is not None}


class Carried(NamedTuple):
    """What jobs take along to machines that have Python and nothing else: sweeper's own source, an
    `archive` in the store with its `hash`, and the lines of a requirements file for the `packages`
    that its workers need. `files` are those of `Launch.requirements`, as written -> below the top
    folder of the copy of the code."""

    archive: str
    hash: str
    packages: tuple[str, ...]
    files: Mapping[str, str]

    def document(self) -> dict[str, object]:
        """As `sweep.json` has it."""
        return {**self._asdict(), "packages": list(self.packages), "files": dict(self.files)}


class Expected(NamedTuple):
    """What the recipe of a stage says itself that a run with that configuration will use."""

    stage: str | None
    config: Mapping[str, object]
    usage: Usage


class Plan(NamedTuple):
    """What a launch submits, or has submitted. `axes` are those declared with their values, in the
    grid's order, the seed left out; `grid_text` is the grid as written, `extends` the path and text
    of each file that it extends, the nearest first.

    A grid with `stages` has a recipe, a metric and axes in each of them (see `of`); `recipe` is
    then that of the first, `metric` that of the last with one, and `axes` are none. `unknown`
    counts, by stage, the runs that are not known before others have ended, and `choices` were made
    among those.

    `warnings` and `notes` (what recipes tell of their runs) are for people, a line each, and on no
    record; neither is what is `expected`. Only a launched sweep has the rest: `created`, where its
    code came from (`provenance`, `launches`: those before the last, `snapshot` the copy that runs,
    `carried` what else jobs take along), and `recorded`, all that is in the file.
    """

    name: str
    recipe: Recipe
    service: Literal["local", "tinker", "none"]
    metric: Metric | None
    secrets: tuple[str, ...]
    launch: Launch
    axes: dict[str, list[object]]
    runs: tuple[Run, ...]
    grid_text: str
    grid_path: str
    overrides: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    extends: tuple[tuple[str, str], ...] = ()
    wandb: Wandb | None = None
    alarms: Alarms | None = None
    on_alarm: OnAlarm | None = None
    budget: Budget | None = None
    notify: Notify | None = None
    created: str | None = None
    provenance: Mapping[str, object] | None = None
    launches: tuple[Mapping[str, object], ...] = ()
    snapshot: Snapshot | None = None
    carried: Carried | None = None
    recorded: Mapping[str, object] = _NOTHING
    stages: tuple[Stage, ...] = ()
    order: Literal["depth", "breadth"] = "depth"
    unknown: Mapping[str, int] = _NOTHING
    choices: tuple[Choice, ...] = ()
    baseline: Baseline | None = None
    expected: tuple[Expected, ...] = ()

    def stage(self, name: str | None) -> Stage | None:
        """The stage of that name; None if there is none."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def recipe_of(self, stage: str | None) -> Recipe:
        """The recipe of a stage's runs; its own where there is no such stage."""
        found = self.stage(stage)
        return self.recipe if found is None else found.recipe

    def launch_of(self, stage: str | None) -> Launch:
        """How a stage's runs are executed; as all are where there is no such stage."""
        found = self.stage(stage)
        return self.launch if found is None else self.launch.under(found.launch)

    def retries_of(self, stage: str | None) -> int:
        """How many failures of a stage's run are made good for."""
        own = None if stage is None else self.stage(stage)
        said: Mapping[str, object] = _NOTHING if own is None else own.launch
        retries = said.get("retries")
        return retries if isinstance(retries, int) else self.launch.retries

    def of(self, stage: str | None) -> "Plan":
        """The plan as runs of a stage see it: with the recipe, the metric and the axes of that
        stage, and as it is launched. Itself where there is no such stage."""
        found = self.stage(stage)
        if found is None:
            return self
        own = {"metric": found.metric, "axes": found.axes, "baseline": found.baseline}
        return self._replace(recipe=found.recipe, launch=self.launch_of(stage), **own)

    def only(self, stage: str) -> "Plan":
        """One stage as a plan of its own, with its runs alone."""
        mine = tuple(run for run in self.runs if run.stage == stage)
        alone = self.of(stage)._replace(runs=mine, stages=(), unknown=_NOTHING, choices=())
        return alone._replace(grid_text="")  # which is that of all of them

    @property
    def parts(self) -> "tuple[Plan, ...]":
        """Its stages as plans of their own, or itself where it has none."""
        return tuple(self.only(stage.name) for stage in self.stages) or (self,)

    def _repr_html_(self) -> str:
        """In a notebook: what varies, and the runs."""
        recipes = ", ".join(dict.fromkeys(part.recipe.reference for part in self.parts))
        told = f"{len(self.runs)} runs of {recipes}"
        keys = list(self.axes)
        rows = ([run.name, run.cell, run.seed, *map(run.config.get, keys)] for run in self.runs)
        return title(self.name, told) + table(["run", "cell", "seed", *keys], rows)

    @property
    def unseeded(self) -> bool:
        """Whether the runs are replicates that no seed is given to (`seeds: {field: none}`): that
        they differ is then the word of whoever wrote the grid."""
        return self.recipe.seed_field is None and any(run.seed is not None for run in self.runs)

    def document(self) -> dict[str, object]:
        """As `sweep.json` has it; without what only a launch knows where there was none."""
        known: dict[str, object] = {"created": self.created, "provenance": self.provenance}
        known |= {"snapshot": self.snapshot and self.snapshot.document()}
        known |= {"carried": self.carried.document()} if self.carried else {}
        known |= {"launches": list(self.launches)} if self.launches else {}
        return {
            "schema": SCHEMA,
            "name": self.name,
            "grid": self.grid_text,
            "grid_path": self.grid_path,
            "extends": [{"path": path, "grid": text} for path, text in self.extends],
            "overrides": list(self.overrides),
            "recipe": self.recipe.document(),
            "service": self.service,
            "metric": None if self.metric is None else _written(self.metric),
            "secrets": list(self.secrets),
            "launch": self.launch.document(),
            "wandb": None if self.wandb is None else self.wandb.document(),
            "alarms": self.alarms or {},
            "on_alarm": None if self.on_alarm is None else self.on_alarm.document(),
            **({} if self.budget is None else {"budget": self.budget.document()}),
            **({} if self.notify is None else {"notify": self.notify.document()}),
            **({} if self.baseline is None else {"baseline": self.baseline.document()}),
            "axes": self.axes,
            **self._staged(),
            "runs": [run.document() for run in self.runs],
            **(known if self.created is not None or self.provenance is not None else {}),
        }

    def _staged(self) -> dict[str, object]:
        if not self.stages:
            return {}
        return {"stages": [stage.document() for stage in self.stages], "order": self.order}


def _written(metric: Metric) -> dict[str, object]:
    """With what is not as usual."""
    usual = Metric._field_defaults
    return {k: v for k, v in metric._asdict().items() if k == "at" or v != usual.get(k)}
