"""Reads `sweep.json`, in which a launch stores its plan."""

import re
from collections.abc import Mapping
from typing import Literal, NoReturn, NotRequired, TypedDict, TypeGuard, cast

from sweeper.common.document_reader import Part
from sweeper.common.json_values import is_list, is_table, list_of
from sweeper.sweep.launch import Launch, Share
from sweeper.sweep.metric import FAILED, Metric, is_at, is_noise
from sweeper.sweep.notify import read as read_notify
from sweeper.sweep.plan import Alarms, Baseline, Budget, Carried, OnAlarm, Plan, Run, Stage, Wandb
from sweeper.sweep.recipe import read_recipe, read_snapshot
from sweeper.sweep.stage_inputs import read_sources

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""A run's id is part of paths and of job names, so an unchecked one could lead anywhere."""
_SEEDS = 2**63
"""Bound of seeds in a table of runs."""


def read(document: object, place: str) -> Plan:
    """Read the plan in the file `place`. Values that an older version did not write get defaults.
    Raises `StoreError`."""
    top = Part(document, place)
    axes = {key: top.part("axes").items(key) for key in top.table("axes")}
    extends = top.parts("extends") if top.document.get("extends") is not None else ()
    launches = top.parts("launches") if top.document.get("launches") is not None else ()
    return Plan(
        name=top.text("name"),
        recipe=read_recipe(top.part("recipe")),
        service=cast(Literal["local", "tinker", "none"], top.text_or("service", "none")),
        metric=_metric(top.part_or_none("metric")),
        secrets=tuple(top.texts_or("secrets", ())),
        launch=_launch(top.part("launch")),
        axes=axes,
        runs=_runs(top),
        grid_text=top.text_or("grid", ""),
        grid_path=top.text_or("grid_path", ""),
        overrides=tuple(top.texts_or("overrides", ())),
        extends=tuple((one.text_or("path", ""), one.text_or("grid", "")) for one in extends),
        wandb=_wandb(top.part_or_none("wandb")),
        alarms=_alarms(top.part_or_none("alarms")),
        on_alarm=_on_alarm(top.part_or_none("on_alarm")),
        budget=_budget(top.part_or_none("budget")),
        notify=read_notify(top.part_or_none("notify")),
        baseline=_baseline(top.part_or_none("baseline")),
        created=top.text_or("created", None),
        provenance=_provenance(top.part_or_none("provenance")),
        launches=tuple(one.document for one in launches),
        snapshot=read_snapshot(top.part_or_none("snapshot")),
        carried=_carried(top.part_or_none("carried")),
        recorded=top.document,
        stages=tuple(map(_stage, top.parts("stages"))) if "stages" in top.document else (),
        order=top.one_of("order", ("depth", "breadth"), "depth"),
    )


def _stage(part: Part) -> Stage:
    return Stage(
        name=part.text("name"),
        recipe=read_recipe(part.part("recipe")),
        metric=_metric(part.part_or_none("metric")),
        axes={key: list_of(values) for key, values in part.table("axes").items()},
        sources=read_sources(part.parts("from")),
        runs=_runs(part),
        baseline=_baseline(part.part_or_none("baseline")),
        launch=_own_launch(part.part_or_none("launch")),
    )


def _own_launch(part: Part | None) -> Mapping[str, object]:
    """Read a stage's own `launch`."""
    if part is None:
        return {}
    read = _launch(part).document()
    return {key: read[key] for key in part.document if key in read}


def _baseline(part: Part | None) -> Baseline | None:
    return part and Baseline(part.text_or("cell", None), part.text_or("sweep", None))


def _budget(part: Part | None) -> Budget | None:
    if part is None:
        return None
    return Budget(
        usd=part.number_or("usd", None),
        tokens=part.number_or("tokens", None),
        hours=part.number_or("hours", None),
        on_reach=part.one_of("on_reach", ("stop", "pause"), "stop"),
    )


def _launch(part: Part) -> Launch:
    default = Launch()
    backend = part.text_or("backend", default.backend)
    launch = Launch(
        backend=backend,
        max_parallel=part.integer_or("max_parallel", default.max_parallel),
        retries=part.integer_or("retries", default.retries),
        timeout_s=part.number_or("timeout_s", None),
        python=part.text_or("python", None),
        cwd=part.text_or("cwd", None),
        env=part.texts_by_key("env"),
        resume=part.one_of("resume", ("auto", "always", "never"), default.resume),
        lease_s=part.number_or("lease_s", default.lease_s),
        grace_s=part.number_or("grace_s", default.grace_s),
        log_path_field=part.text_or("log_path_field", None),
        metrics_dir=part.text_or("metrics_dir", None),
        window=part.text_or("window", None),
        sync_s=part.number_or("sync_s", default.sync_s),
        priority=part.number_or("priority", default.priority),
        warm=part.flag_or("warm", default.warm),
        requirements=part.text_or("requirements", None),
        options={
            key: part.table(key)
            for key, value in part.document.items()
            if key not in Launch._fields
            and (isinstance(value, dict) or key == backend.replace("-", "_"))
        },
        backends=tuple(map(_share, part.parts("backends"))) if "backends" in part.document else (),
    )
    for key, value, least in (
        ("max_parallel", launch.max_parallel, 1),
        ("retries", launch.retries, 0),
        ("timeout_s", launch.timeout_s, 0),
        ("lease_s", launch.lease_s, 0),
        ("grace_s", launch.grace_s, 0),
        ("sync_s", launch.sync_s, 0),
    ):
        if value is not None and value < least:
            part.refuse(key, f"{least} or more")
    if launch.priority <= 0:
        part.refuse("priority", "more than 0")
    return launch


def _share(part: Part) -> Share:
    most = part.integer_or("max_parallel", None)
    if most is not None and most < 1:
        part.refuse("max_parallel", "1 or more")
    return Share(part.text("backend"), most)


def _metric(part: Part | None) -> Metric | None:
    if part is None:
        return None
    goal: Literal["minimize", "maximize"] = part.one_of(
        "goal", ("minimize", "maximize"), "minimize"
    )
    at = part.text_or("at", "last")
    if not is_at(at):
        part.refuse("at", "auto, last, best or mean_of_last=5")
    noise = part.text_or("noise", "auto")
    if not is_noise(noise):
        part.refuse("noise", "auto, pooled, own or from=SWEEP")
    failed = part.one_of("failed", FAILED, "bound")
    by, relevant = part.text_or("by", None), part.number_or("relevant", None)
    return Metric(part.text("name"), goal, at, noise, failed, by, relevant)


class _RunDocument(TypedDict):
    """A run as in `sweep.json`."""

    id: str
    name: str
    cell: NotRequired[str]
    seed: NotRequired[int | None]
    config: dict[str, object]
    retired: NotRequired[bool]
    stage: NotRequired[str | None]
    parents: NotRequired[list[str]]


def _runs(top: Part) -> tuple[Run, ...]:
    """Read the runs. There may be thousands, so a valid run is recognized in one quick check."""
    runs: list[_RunDocument] = []
    seen: set[str] = set()
    for number, run in enumerate(top.items("runs")):
        if not _is_run(run):
            _refuse_run(Part(run, top.place, f"runs[{number}]"))
        runs.append(run)
        identity = run["id"]
        if identity in seen:
            Part(run, top.place, f"runs[{number}]").refuse("id", "another than those before it")
        seen.add(identity)
    return tuple(
        Run(r["id"], r["name"], r.get("cell", r["name"]), r.get("seed"), r["config"],
            r.get("retired", False), r.get("stage"), tuple(r.get("parents", ())))
        for r in runs
    )  # fmt: skip


def _is_run(run: object) -> TypeGuard[_RunDocument]:
    if not is_table(run):
        return False
    entry = run
    seed, config = entry.get("seed"), entry.get("config")
    return (
        isinstance(identity := entry.get("id"), str)
        and _ID.fullmatch(identity) is not None
        and type(entry.get("name")) is str
        and type(entry.get("cell", "")) is str
        and (seed is None or (type(seed) is int and -_SEEDS <= seed < _SEEDS))
        and type(config) is dict
        and type(entry.get("retired", False)) is bool
        and type(entry.get("stage", "")) is str
        and is_list(parents := entry.get("parents", []))
        and all(isinstance(parent, str) for parent in parents)
    )


def _refuse_run(run: Part) -> NoReturn:
    if not _ID.fullmatch(run.text("id")):
        run.refuse("id", "letters, digits, _ and -")
    run.text("name")
    if "cell" in run.document:
        run.text("cell")
    run.integer_or("seed", None)
    run.part("config")
    run.flag_or("retired", False)
    run.text_or("stage", None)
    run.texts_or("parents", None)
    run.refuse("retired", "true or false")


def _wandb(part: Part | None) -> Wandb | None:
    if part is None:
        return None
    given = {key: part.text_or(key, None) for key in ("entity", "group", "mode", "app")}
    return Wandb(part.text("project"), tags=tuple(part.texts_or("tags", ())), **given)


def _alarms(part: Part | None) -> Alarms | None:
    """Read a grid's alarms; a rule that is off is null."""
    if part is None:
        return None
    rules = {rule: part.part_or_none(rule) for rule in part.document}
    return {
        rule: None if limits is None else {key: _number(limits, key) for key in limits.document}
        for rule, limits in rules.items()
    }


def _number(part: Part, key: str) -> float:
    value = part.number_or(key, None)
    return part.refuse(key, "a number") if value is None else value


def _on_alarm(part: Part | None) -> OnAlarm | None:
    if part is None:
        return None
    run, rules = (_tuple(part.texts_or(key, None)) for key in ("run", "rules"))
    stop: Literal["run", "sweep"] | None = None
    if part.document.get("stop") is not None:
        stop = part.one_of("stop", ("run", "sweep"), "")
    return OnAlarm(run, stop, rules)


def _tuple(texts: list[str] | None) -> tuple[str, ...] | None:
    return None if texts is None else tuple(texts)


def _provenance(part: Part | None) -> Mapping[str, object] | None:
    if part is None:
        return None
    diff = part.part_or_none("diff")
    if diff is not None:
        diff.text("path")
    return part.document


def _carried(part: Part | None) -> Carried | None:
    if part is None:
        return None
    archive, digest = part.text("archive"), part.text("hash")
    packages = tuple(part.texts_or("packages", ()))
    return Carried(archive, digest, packages, part.texts_by_key("files"))
