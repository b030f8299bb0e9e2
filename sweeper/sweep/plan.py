"""A sweep's plan, stored in `sweep.json` when it is launched."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, Never

from sweeper.common import codec
from sweeper.common.codec import (
    SCHEMA,
    AtLeast,
    Check,
    Default,
    Key,
    Sparse,
    Time,
    Unstored,
    Whole,
    written,
)
from sweeper.common.json_values import is_table, table_of
from sweeper.errors import Damaged
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.metric import Metric
from sweeper.sweep.notify import Notify
from sweeper.sweep.recipe import Recipe, Snapshot
from sweeper.sweep.stage_inputs import Choice, Source
from sweeper.sweep.usage import Usage

_NOTHING: Mapping[str, Never] = MappingProxyType({})
_SEEDS = 2**63
"""The bound of seeds, because tables of runs store seeds as 64-bit integers."""
_LONGEST_ID = 64


def _is_id(text: str) -> bool:
    letters = text.replace("_", "").replace("-", "")
    return len(text) <= _LONGEST_ID and text.isascii() and letters.isalnum() and text[0].isalnum()


# Ids are part of paths and job names, so an unchecked id could lead to any file.
_Id = Annotated[str, Check(_is_id, "letters, digits, _ and -")]
_Seed = Annotated[int, Check(lambda seed: -_SEEDS <= seed < _SEEDS, "a 64-bit integer")]


class Run(NamedTuple):
    """A run: a cell with a seed. `config` maps dotted keys to the values that are set, including
    the seed. `config` lacks the fields that the worker fills in (`log_path`). `retired`: the grid
    no longer contains the run.

    In a grid with stages, `stage` is the run's stage, and `parents` are the ids of the runs that
    the run continues from. `config` may then contain references to values that are known only after
    the parents have ended.
    """

    id: _Id
    name: str
    cell: str
    seed: _Seed | None
    config: dict[str, object]
    retired: Sparse[bool] = False
    stage: Sparse[str | None] = None
    parents: Sparse[tuple[str, ...]] = ()

    def document(self) -> dict[str, object]:
        """Return the JSON object for `sweep.json`."""
        return written(self)


class Baseline(NamedTuple):
    """The baseline that the best cell is compared with: a cell of the sweep, or the best cell of
    another sweep (or of `sweep/stage`)."""

    cell: Sparse[str | None] = None
    sweep: Sparse[str | None] = None

    def document(self) -> dict[str, str]:
        """Return the JSON object for `sweep.json`."""
        return written(self)


_Source = Annotated[
    Source, Check(lambda source: source.base or bool(source.takes), "base or takes")
]


class Stage(NamedTuple):
    """A part of a sweep with its own recipe. `sources` select the parents of the stage's runs (the
    runs of earlier stages to continue from). If there are no sources, `runs` are the stage's runs.
    Otherwise `runs` are templates: each combination of parents makes one run from each template.
    `launch` has the settings of the stage's own section `launch`, in the form of `Launch.document`.
    If the stage overrides an option of a backend, `launch` also has the sweep's other options of
    that backend."""

    name: str
    recipe: Recipe
    metric: Metric | None
    axes: Annotated[dict[str, list[object]], Default({})]
    sources: Annotated[tuple[_Source, ...], Key("from")] = ()
    runs: tuple[Run, ...] = ()
    baseline: Sparse[Baseline | None] = None
    launch: Sparse[Mapping[str, object]] = _NOTHING

    @property
    def before(self) -> tuple[str, ...]:
        """The stages whose runs this stage's runs continue from."""
        return tuple(dict.fromkeys(take.stage for source in self.sources for take in source.takes))

    def document(self) -> dict[str, object]:
        """Return the JSON object for `sweep.json`."""
        return written(self)


class Wandb(NamedTuple):
    """The W&B project that the runs log to. A missing entity or mode comes from W&B's own settings;
    a missing group is the sweep's name. `app` is the address of W&B's web pages (None before the
    launch)."""

    project: str
    entity: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    mode: str | None = None
    app: str | None = None

    def document(self) -> dict[str, object]:
        """Return the JSON object for `sweep.json`."""
        return written(self)


Alarms = Mapping[str, Mapping[str, float] | None]
"""A grid's changes to the default alarms: rule -> thresholds, None for a rule that is off."""


class OnAlarm(NamedTuple):
    """The reaction to alarms: a command to `run`, and whether to `stop` the run or the sweep (None:
    neither). Only alarms of these `rules` cause the reaction (None: all rules)."""

    run: tuple[str, ...] | None = None
    stop: Literal["run", "sweep"] | None = None
    rules: tuple[str, ...] | None = None

    def document(self) -> dict[str, object]:
        """Return the JSON object for `sweep.json`."""
        return written(self)


class Budget(NamedTuple):
    """Limits on what all runs of a sweep use together; None means no limit. `hours` limits the sum
    of the durations of all runs. `on_reach` says whether running runs stop at a limit (`stop`) or
    continue (`pause`)."""

    usd: Sparse[float | None] = None
    tokens: Sparse[float | None] = None
    hours: Sparse[float | None] = None
    on_reach: Literal["stop", "pause"] = "stop"

    @property
    def of_tokens(self) -> tuple[str, ...]:
        """The names of the limits that are set and need a count of tokens (`tokens`, `usd`)."""
        return tuple(key for key in ("tokens", "usd") if getattr(self, key) is not None)

    def document(self) -> dict[str, object]:
        """Return the JSON object for `sweep.json`."""
        return written(self)


class Carried(NamedTuple):
    """What jobs need on machines that have only Python. `archive` is the path in the store of a
    copy of sweeper's source, and `hash` is the copy's hash. `packages` are the packages that
    workers need, as lines of a requirements file. `files` maps each value of `Launch.requirements`
    to a path in the copy of the recipe's code."""

    archive: str
    hash: str
    packages: Annotated[tuple[str, ...], Default(())]
    files: Annotated[Mapping[str, str], Default({})]

    def document(self) -> dict[str, object]:
        """Return the JSON object for `sweep.json`."""
        return written(self)


class Extended(NamedTuple):
    """A file that the grid extends: its `path`, and its text (`grid`)."""

    path: Annotated[str, Default("")]
    grid: Annotated[str, Default("")]


def _has_path(provenance: Mapping[str, object]) -> bool:
    match provenance.get("diff"):
        case None | {"path": str()}:
            return True
        case _:
            return False


MODEL_KEYS = ("model_name", "base_model")
"""The names of the field for the service's model, in tinker-cookbook and in the SDK."""


class Expected(NamedTuple):
    """The recipe's estimate of the usage of a run with this `config`."""

    stage: str | None
    config: Mapping[str, object]
    usage: Usage


Ended = Literal["clear", "spent", "identical"]
"""Why a race ended; see `Round`."""


class Round(NamedTuple):
    """A decision of a race. Decisions are never revised. If the race continues, `runs` are the ids
    of the next runs, which bring their cells to `seeds` seeds each. If the race has ended, `runs`
    is empty, and `ended` says why: one cell is clearly the best (`clear`), the cells that may be
    the best have all their seeds (`spent`), or the runs of each cell are identical (`identical`).
    `judged` is a digest of the race's runs, its metric and its largest number of seeds. If a
    changed grid has another digest, a race that had ended continues."""

    seeds: Annotated[int, AtLeast(1)]
    runs: Annotated[tuple[str, ...], Default(())]
    ended: Ended | None
    judged: Annotated[str, Key("of"), Default("")]
    time: Time

    def document(self) -> dict[str, object]:
        """Return the JSON object to store."""
        return {"schema": SCHEMA, **written(self)}


class Race(NamedTuple):
    """A race, in which the number of seeds depends on results. Every cell starts with `least`
    seeds, and gets up to `most` while it may be the best. `runs` are the runs of all cells beyond
    the first `least` seeds."""

    least: Annotated[int, AtLeast(2)]
    most: Annotated[int, AtLeast(3)]
    runs: tuple[Run, ...] = ()


class Plan(NamedTuple):
    """The plan of a sweep. `axes` are the declared axes with their values, in the grid's order,
    without the seed. `grid_text` is the text of the grid file. `extends` has the files that the
    grid extends, the nearest first.

    In a grid with `stages`, each stage has its own recipe, metric and axes (see `of`). The plan's
    `recipe` is then the recipe of the first stage, `metric` is the metric of the last stage with a
    metric, and `axes` is empty. `choices` are the choices not made yet: which runs later stages
    continue from. `unknown` is a dict from stage to the largest number of runs that depend on these
    choices. For a `race`, `unknown[""]` is the number of runs that it may start after its `rounds`.

    `warnings`, and the `notes` of recipes about their runs, are messages for users. `model_places`
    says for each model where the grid file names the model. `warnings`, `notes`,
    `model_places` and `expected` are not stored. Only a launched sweep has these fields: `created`;
    `provenance`, the origin of the code; `launches`, the origins of earlier launches' code;
    `snapshot`, the copy of the code that runs; `carried`, what else jobs need; and `recorded`, the
    whole JSON object.
    """

    name: str
    recipe: Recipe
    service: Annotated[Literal["local", "tinker", "none"], Default("none")]
    metric: Metric | None
    secrets: Annotated[tuple[str, ...], Default(())]
    launch: Launch
    axes: Annotated[dict[str, list[object]], Default({})]
    runs: tuple[Run, ...]
    grid_text: Annotated[str, Key("grid"), Default("")]
    grid_path: Annotated[str, Default("")]
    overrides: tuple[str, ...] = ()
    warnings: Unstored[tuple[str, ...]] = ()
    notes: Unstored[tuple[str, ...]] = ()
    extends: tuple[Extended, ...] = ()
    wandb: Wandb | None = None
    track: Sparse[tuple[str, ...]] = ()
    alarms: Alarms | None = None
    on_alarm: OnAlarm | None = None
    budget: Sparse[Budget | None] = None
    notify: Sparse[Notify | None] = None
    created: str | None = None
    provenance: Annotated[
        Mapping[str, object] | None, Check(_has_path, "an object whose diff has a path")
    ] = None
    launches: Sparse[tuple[Mapping[str, object], ...]] = ()
    snapshot: Snapshot | None = None
    carried: Sparse[Carried | None] = None
    recorded: Whole[Mapping[str, object]] = _NOTHING
    stages: Sparse[tuple[Stage, ...]] = ()
    order: Literal["depth", "breadth"] = "depth"
    unknown: Unstored[Mapping[str, int]] = _NOTHING
    choices: Unstored[tuple[Choice, ...]] = ()
    baseline: Sparse[Baseline | None] = None
    expected: Unstored[tuple[Expected, ...]] = ()
    model_places: Unstored[Mapping[str, str]] = _NOTHING
    race: Sparse[Race | None] = None
    rounds: Unstored[tuple[Round, ...]] = ()

    def stage(self, name: str | None) -> Stage | None:
        """Return the stage `name`; None if there is no such stage."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def recipe_of(self, stage: str | None) -> Recipe:
        """Return the recipe of a stage's runs, or the plan's own recipe if there is no such
        stage."""
        part = self.stage(stage)
        return self.recipe if part is None else part.recipe

    def launch_of(self, stage: str | None) -> Launch:
        """Return the launch settings of a stage's runs, or the plan's own settings if there is
        no such stage."""
        part = self.stage(stage)
        return self.launch if part is None else self.launch.under(part.launch)

    def retries_of(self, stage: str | None) -> int:
        """Return how many times a run of a stage is retried after failures."""
        part = None if stage is None else self.stage(stage)
        launch: Mapping[str, object] = _NOTHING if part is None else part.launch
        retries = launch.get("retries")
        return retries if isinstance(retries, int) else self.launch.retries

    def of(self, stage: str | None) -> "Plan":
        """Return the plan with the recipe, metric, axes, baseline and launch settings of a stage,
        or the plan itself if there is no such stage."""
        part = self.stage(stage)
        if part is None:
            return self
        fields = {"metric": part.metric, "axes": part.axes, "baseline": part.baseline}
        return self._replace(recipe=part.recipe, launch=self.launch_of(stage), **fields)

    def only(self, stage: str) -> "Plan":
        """Return a plan for one stage: a plan without stages, with only this stage's runs."""
        runs = tuple(run for run in self.runs if run.stage == stage)
        alone = self.of(stage)._replace(runs=runs, stages=(), unknown=_NOTHING, choices=())
        return alone._replace(grid_text="")  # The text describes all stages.

    @property
    def has_commands(self) -> bool:
        """Whether some runs execute a command. The usage of commands cannot be measured."""
        return any(part.recipe.kind == "command" for part in self.parts)

    @property
    def parts(self) -> "tuple[Plan, ...]":
        """One plan for each stage (see `only`), or the plan itself if it has no stages."""
        return tuple(self.only(stage.name) for stage in self.stages) or (self,)

    def __repr__(self) -> str:
        recipes = ", ".join(dict.fromkeys(part.recipe.reference for part in self.parts))
        return f"<plan {self.name}: {len(self.runs)} runs of {recipes}>"

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show: a table of the runs and their axes."""
        from sweeper.common.html import table, title

        recipes = ", ".join(dict.fromkeys(part.recipe.reference for part in self.parts))
        summary = f"{len(self.runs)} runs of {recipes}"
        keys = list(self.axes)
        rows = ([run.name, run.cell, run.seed, *map(run.config.get, keys)] for run in self.runs)
        return title(self.name, summary) + table(["run", "cell", "seed", *keys], rows)

    @property
    def unseeded(self) -> bool:
        """Whether the runs of a cell are repetitions without a seed (`seeds: {field: none}`)."""
        return self.recipe.seed_field is None and any(run.seed is not None for run in self.runs)

    def document(self) -> dict[str, object]:
        """Return the JSON object for `sweep.json`. Before a launch, the object lacks `created` and
        the fields about the code."""
        document: dict[str, object] = {"schema": SCHEMA, **written(self)}
        document["alarms"] = self.alarms or {}
        if not self.stages:
            del document["order"]
        if self.created is None and self.provenance is None:
            for key in ("created", "provenance", "snapshot", "carried", "launches"):
                document.pop(key, None)
        return document


def launch_id(provenance: Mapping[str, object] | None) -> str | None:
    """Return the id of the launch with this provenance. Return None without a provenance, or if an
    older version has recorded the provenance."""
    identity = (provenance or {}).get("launch")
    return identity if isinstance(identity, str) else None


def read(document: object, place: str) -> Plan:
    """Return the plan in `document`, the content of the file `place`. Values that an older version
    did not write get defaults. Raises `StoreError`."""
    plan = codec.read(Plan, document, place)
    key = plan.launch.backend.replace("-", "_")
    options = table_of(table_of(document).get("launch")).get(key)
    if key not in Launch._fields and options is not None and not is_table(options):
        raise Damaged(f"{place}: launch.{key}: should be an object")
    _check_ids(plan.runs, place, "runs")
    stages: list[Stage] = []
    for number, stage in enumerate(plan.stages):
        inside = f"stages[{number}]"
        _check_ids(stage.runs, place, f"{inside}.runs")
        settings = dict(stage.launch)
        launch = codec.read(Launch, settings, place, f"{inside}.launch").document()
        stages.append(
            stage._replace(launch={key: launch[key] for key in settings if key in launch})
        )
    return plan._replace(stages=tuple(stages))


def _check_ids(runs: tuple[Run, ...], place: str, inside: str) -> None:
    """Raise `Damaged` if two runs have the same id."""
    seen: set[str] = set()
    for number, run in enumerate(runs):
        if run.id in seen:
            path = f"{inside}[{number}].id"
            raise Damaged(f"{place}: {path}: should be unique")
        seen.add(run.id)


def read_round(document: object, place: str) -> Round:
    """Return the round in `document`, the content of the file `place`. Raises `StoreError`."""
    return codec.read(Round, document, place)
