"""`sweep.json`: a sweep's plan as it was launched."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

from sweeper.model.parts import Part

__all__ = ["Launch", "Metric", "Plan", "check_snapshot", "read", "runs_anywhere"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""A run's id is part of paths, and of names of jobs: one that is none could lead anywhere."""
_SEEDS = 2**63
"""What a table of runs takes."""


class Metric(NamedTuple):
    """What decides which cell is best."""

    name: str
    goal: Literal["minimize", "maximize"]
    at: Literal["last", "best"]


class Launch(NamedTuple):
    """How the runs are executed. Durations are in seconds; None: no limit, or not given.

    `python` and `cwd` stand as written: a relative one counts from the folder in which
    `sweeper launch` is run, not from the grid's. `options` are those of backends, by the key of
    their section (`aws_batch`).
    """

    backend: str = "tmux"
    max_parallel: int = 8
    retries: int = 0
    timeout_s: float | None = None
    python: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = _NOTHING
    resume: Literal["auto", "always", "never"] = "auto"
    lease_s: float = 60.0
    grace_s: float = 30.0
    log_path_field: str | None = None
    metrics_dir: str | None = None
    window: str | None = None
    sync_s: float = 20.0
    options: Mapping[str, Mapping[str, Any]] = _NOTHING

    def document(self) -> dict[str, Any]:
        """As `sweep.json` has it: there a backend's options stand beside the rest."""
        found = self._asdict() | {"env": dict(self.env)}
        del found["options"]
        return found | {key: dict(options) for key, options in self.options.items()}


class Plan(NamedTuple):
    """A plan that was read. `runs` holds an object a run, with `id name cell seed config`, and
    `retired` where the grid has it no more; `document` is all of it, with the defaults of what an
    older version did not write, and `recorded` what is in the file."""

    name: str
    created: str | None
    metric: Metric | None
    launch: Launch
    axes: Mapping[str, list[Any]]
    runs: list[dict[str, Any]]
    document: dict[str, Any]
    recorded: Mapping[str, Any]


def read(document: object, place: str) -> Plan:
    """The plan in the file `place`. Raises `StoreError`."""
    top = Part(document, place)
    launch, metric = _launch(top.part("launch")), _metric(top.part_or_none("metric"))
    axes = top.table("axes")
    for key in axes:
        top.part("axes").items(key)
    for key in ("grid", "grid_path"):
        top.text_or(key, None)
    for key in ("extends", "launches"):
        if top.document.get(key) is not None:
            top.parts(key)
    _check_wandb(top.part_or_none("wandb"))
    _check_alarms(top)
    _check_provenance(top.part_or_none("provenance"))
    check_snapshot(top.part_or_none("snapshot"))
    plan = Plan(
        name=top.text("name"),
        created=top.text_or("created", None),
        metric=metric,
        launch=launch,
        axes=axes,
        runs=_runs(top),
        recorded=top.document,
        document=top.document
        | {
            "launch": top.part("launch").document | launch.document(),
            "metric": None if metric is None else metric._asdict(),
            "recipe": _recipe(top.part("recipe")),
            "service": top.text_or("service", "none"),
            "secrets": top.texts_or("secrets", []),
            "overrides": top.texts_or("overrides", []),
            "axes": axes,
            "wandb": top.document.get("wandb"),
        },
    )
    return plan._replace(document=plan.document | {"runs": plan.runs})


def _launch(part: Part) -> Launch:
    default = Launch()
    found = Launch(
        backend=part.text_or("backend", default.backend),
        max_parallel=part.integer_or("max_parallel", default.max_parallel),
        retries=part.integer_or("retries", default.retries),
        timeout_s=part.number_or("timeout_s", None),
        python=part.text_or("python", None),
        cwd=part.text_or("cwd", None),
        env=part.texts_by_key("env"),
        resume=cast(Any, part.one_of("resume", ("auto", "always", "never"), default.resume)),
        lease_s=part.number_or("lease_s", default.lease_s),
        grace_s=part.number_or("grace_s", default.grace_s),
        log_path_field=part.text_or("log_path_field", None),
        metrics_dir=part.text_or("metrics_dir", None),
        window=part.text_or("window", None),
        sync_s=part.number_or("sync_s", default.sync_s),
        options={
            key: part.table(key)
            for key, value in part.document.items()
            if key not in Launch._fields and isinstance(value, dict)
        },
    )
    for key, value, least in (
        ("max_parallel", found.max_parallel, 1),
        ("retries", found.retries, 0),
        ("timeout_s", found.timeout_s, 0),
        ("lease_s", found.lease_s, 0),
        ("grace_s", found.grace_s, 0),
        ("sync_s", found.sync_s, 0),
    ):
        if value is not None and value < least:
            part.refuse(key, f"{least} or more")
    return found


def _metric(part: Part | None) -> Metric | None:
    if part is None:
        return None
    goal = part.one_of("goal", ("minimize", "maximize"), "minimize")
    at = part.one_of("at", ("last", "best"), "last")
    return Metric(part.text("name"), cast(Any, goal), cast(Any, at))


def _recipe(part: Part) -> dict[str, Any]:
    """What the recipe is. Only a launch needs all of it: see `runs_anywhere`."""
    for key in ("reference", "module", "file", "config_class", "python", "cwd"):
        part.text_or(key, None)
    for key in ("log_path_field", "seed_field"):
        part.text_or(key, None)
    if part.document.get("kind") is not None:
        part.one_of("kind", ("module", "file", "command"), "")
    part.texts_or("command", None)
    part.flag_or("on_path", False)
    part.flag_or("behavior_field", False)
    for about in part.parts_by_key("takes").values():
        about.text_or("type", None)
    part.texts_by_key("forms")
    return {"reference": None, "cwd": None, **part.document}


def runs_anywhere(recipe: Part) -> None:
    """See that a recipe's description says all that it takes to run it. Raises `StoreError`."""
    recipe.text("cwd")
    if recipe.text("kind") == "command":
        if not recipe.texts_or("command", None):
            recipe.refuse("command", "a list of texts")
        return
    recipe.text("python")
    recipe.text_or("log_path_field", None)
    recipe.flag_or("behavior_field", False)


def _runs(top: Part) -> list[dict[str, Any]]:
    """There may be thousands: what is as it should be is found so by one look."""
    runs = top.items("runs")
    seen: set[str] = set()
    for number, run in enumerate(runs):
        if not _is_run(run):
            _refuse_run(Part(run, top.place, f"runs[{number}]"))
        identity = run["id"]
        if identity in seen:
            Part(run, top.place, f"runs[{number}]").refuse("id", "another than those before it")
        seen.add(identity)
    return runs


def _is_run(run: Any) -> bool:
    if type(run) is not dict:
        return False
    found = cast(dict[str, Any], run)
    seed, config = found.get("seed"), found.get("config")
    return (
        type(found.get("id")) is str
        and _ID.fullmatch(found["id"]) is not None
        and type(found.get("name")) is str
        and type(found.get("cell", "")) is str
        and (seed is None or (type(seed) is int and -_SEEDS <= seed < _SEEDS))
        and type(config) is dict
        and type(found.get("retired", False)) is bool
    )


def _refuse_run(run: Part) -> None:
    if not _ID.fullmatch(run.text("id")):
        run.refuse("id", "letters, digits, _ and -")
    run.text("name")
    if "cell" in run.document:
        run.text("cell")
    run.integer_or("seed", None)
    run.part("config")
    run.flag_or("retired", False)
    run.refuse("retired", "true or false")


def _check_wandb(part: Part | None) -> None:
    if part is not None:
        part.text("project")
        for key in ("entity", "group", "mode", "app"):
            part.text_or(key, None)
        part.texts_or("tags", [])


def _check_alarms(top: Part) -> None:
    """What a grid says of alarms; a rule that is off is null."""
    alarms = top.part_or_none("alarms")
    for rule in () if alarms is None else alarms.document:
        limits = alarms.part_or_none(rule) if alarms else None
        for key in () if limits is None else limits.document:
            if limits and limits.number_or(key, None) is None:
                limits.refuse(key, "a number")
    asked = top.part_or_none("on_alarm")
    if asked is not None:
        asked.texts_or("run", None)
        asked.texts_or("rules", None)
        if asked.document.get("stop") is not None:
            asked.one_of("stop", ("run", "sweep"), "")


def _check_provenance(part: Part | None) -> None:
    if part is not None:
        diff = part.part_or_none("diff")
        if diff is not None:
            diff.text("path")


def check_snapshot(part: Part | None) -> None:
    """See that the description of a copy of the code has what it takes to find it. Raises
    `StoreError`."""
    if part is not None:
        for key in ("hash", "archive", "root", "cwd"):
            part.text(key)
        part.text_or("commit", None)
