"""Records a launch: the environment of its runs, their code, and the plan. Reports the
differences from the previous launch."""

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from sweeper.backends import Capabilities
from sweeper.common import redaction
from sweeper.common.codec import SCHEMA
from sweeper.engine.lifecycle import hub_environment
from sweeper.errors import NotFound, UsageError
from sweeper.launcher import preflight
from sweeper.launcher.placement_guard import Located, refuse_moved_sweep
from sweeper.paths import home
from sweeper.planner.plan import repeats_by_default
from sweeper.recipe import launch_record, provenance, snapshot
from sweeper.results.origins import Launches, differences
from sweeper.store.documents import encode, timestamp
from sweeper.sweep import environment_file, tracking
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.labels import first_of, plural
from sweeper.sweep.metric import Metric
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.race import raced
from sweeper.sweep.states import OPEN, RunState, State
from sweeper.sweep.sweep_requests import asked_parallel, forget
from sweeper.sweep.trust import sealed

_SHORTEST = 8
"""Minimum length of a secret's value to search for. Any text may contain a shorter value by
chance."""


class Offer(NamedTuple):
    """The properties of a launch: the address of its engine (None: no engine), the capabilities and
    places of its backends, and whether the option `--live` is set."""

    url: str | None
    capabilities: Capabilities
    places: Located
    live: bool = False


def record(
    folder: SweepFolder,
    plan: Plan,
    offered: Offer,
    tell: Callable[[str], None],
) -> None:
    """Save the environment and the code, and write the plan. The written plan also has the runs
    that the sweep has already chosen for later stages or race rounds. The caller holds the sweep's
    lock. Raises `UsageError` if the plan contains a secret's value, or if the sweep may have jobs
    at a place that is not in `offered`."""
    plan = folder.with_chosen(plan)
    refuse_secrets(plan, secret_names(plan.secrets, plan.service))
    write_environment(folder, plan, offered.url, offered.capabilities, offered.places, tell)
    now = with_code(folder, plan, offered, tell)
    with suppress(NotFound):  # at the first launch
        before = folder.read_plan()
        now = merged(folder, before, now)
        tell_changes(folder, before, now, tell)
        for warning in repeats_by_default(plan, before):
            tell(warning)
    folder.store.replace(folder.plan, encode(sealed(now.document())))
    if (parallel := asked_parallel(folder)) not in (
        None,
        plan.launch.max_parallel,
    ):
        tell(
            f"max_parallel is now {plan.launch.max_parallel}, as in the grid; the earlier "
            f"setting of {parallel} no longer applies"
        )
    forget(folder, "plan", "parallel", "stop", "cancel")


def with_code(folder: SweepFolder, plan: Plan, offered: Offer, tell: Callable[[str], None]) -> Plan:
    """Save the code that the plan's runs will execute. Return the plan with the fields that
    describe this launch, such as its time, code and provenance. Raises `UsageError` if the plan
    contains a secret's value, or if jobs cannot get the code."""
    names = secret_names(plan.secrets, plan.service)
    refuse_secrets(plan, names)
    capabilities, live = offered.capabilities, offered.live
    code = snapshot.CodeCopy(None, "--live")
    if not live:
        values = hidden_values(names)
        file = next((part.recipe.file for part in plan.parts if part.recipe.file), None)
        code = snapshot.make(folder, plan.recipe.cwd, file, secrets=values)
    for part in plan.parts:
        preflight.has_code(capabilities, part.recipe.kind, part.recipe.file, code, tell)
    origin = provenance.collect(
        folder,
        cwd=plan.recipe.cwd,
        python=plan.recipe.python,
        secrets=names,
        code=_code_record(code),
    )
    origin = launch_record.keep(folder, plan, origin, code)
    now = plan._replace(
        created=timestamp(), provenance=origin, snapshot=code.snapshot, carried=None
    )
    if not capabilities.files:
        # Imported late: only jobs that cannot read this machine's files need it.
        from sweeper.recipe.job_bundle import carry

        now = now._replace(carried=carry(folder, plan, code))
    if now.wandb is not None:
        variables = {**os.environ, **plan.launch.env}
        wandb = tracking.recorded(now.wandb, variables)
        now = now._replace(wandb=wandb)
        if (missing := tracking.keyless(wandb, variables)) is not None:
            tell(missing)
    # Other jobs do not get these files, which `has_code` reports.
    if code.live and capabilities.files:
        tell(
            "some files are not in the copy of the code, so runs see later changes of them: "
            f"{first_of(code.live, 3)}"
        )
    if code.why is not None and not live and code.in_checkout:
        tell(
            f"the code is not copied, so each run uses it as it is when the run starts: {code.why}"
        )
    return now


def _code_record(code: snapshot.CodeCopy) -> dict[str, object]:
    """Return the provenance fields about the copy of the code. If there is no copy, `code_why` has
    the reason."""
    return {
        "code": code.snapshot and code.snapshot.hash,
        "code_why": code.why,
        "code_linked": [os.fsencode(name).decode("utf-8", "replace") for name in code.linked[:20]],
    }


def write_environment(
    folder: SweepFolder,
    plan: Plan,
    url: str | None,
    capabilities: Capabilities,
    places: Located,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Save this process's environment for the workers of a sweep. Record the path of the
    environment file, the engine's `url`, and the `places` where jobs run from now on. Tell the user
    if the previous record is damaged. Raises `UsageError` if the sweep may have jobs at a place
    that is not in `places`."""
    refuse_moved_sweep(folder, places, tell)
    is_first = not folder.store.exists(folder.plan)
    path = keep_environment(folder, plan, url, capabilities)
    document: dict[str, object] = {"schema": SCHEMA, "env_file": path, "engine": url}
    document |= {"place": dict(places[0]), "home": home()}
    if len(places) > 1:
        # An older version, which supports one place only, must conclude that the sweep's jobs are
        # at another place.
        document["place"] = {"backend": plan.launch.backend}
        document["places"] = [dict(place) for place in places]
    try:
        folder.store.replace(folder.service, encode(document))
    except BaseException:
        if is_first:  # Otherwise the next launch would assume that the sweep's disk is unmounted.
            environment_file.forget(path)
        raise


def keep_environment(
    folder: SweepFolder, plan: Plan, url: str | None, capabilities: Capabilities
) -> str:
    """Save this process's environment for the workers of a sweep. Return the file's path."""
    key = preflight.engine_key(capabilities)
    extra = _service_environment(plan.service, url, key, plan.launch.env)
    shared = preflight.shared_environment(capabilities, folder)
    needed = secret_names(plan.secrets, plan.service)
    without = [name for name in capabilities.credentials if name not in needed]
    return environment_file.write(f"{folder.address}", extra, shared, without)


def secret_names(secrets: Sequence[str], service: str) -> list[str]:
    """Return the names of the secrets that a sweep needs, including `TINKER_API_KEY` if the service
    is Tinker."""
    return [*secrets, *(["TINKER_API_KEY"] if service == "tinker" else [])]


def secret_values(names: Sequence[str]) -> list[str]:
    """Return the values of the secrets `names` in this process's environment. Leave out values of
    less than 8 characters, which any text may contain by chance."""
    values = (os.environ.get(name, "") for name in names)
    return [value for value in values if len(value) >= _SHORTEST]


def hidden_values(names: Sequence[str]) -> list[str]:
    """Return the values that no copy of the code may contain: the values of the secrets `names`,
    and of the environment variables whose names look like names of secrets."""
    return redaction.secret_values(os.environ, names)


def refuse_secrets(plan: Plan, names: Sequence[str]) -> None:
    """Raise `UsageError` if the plan contains a secret's value, since the plan is recorded in the
    store."""
    text = json.dumps(plan.document())
    for name in names:
        for value in secret_values([name]):
            if json.dumps(value)[1:-1] in text:
                raise UsageError(
                    f"the grid or an override contains the value of the secret {name}: "
                    f"remove it, since runs get it as the variable {name}"
                )


def merged(folder: SweepFolder, old: Plan, new: Plan) -> Plan:
    """Merge the recorded plan of a sweep with a new plan: see `merge`."""
    states = folder.read_states()
    return merge(old, new, [run.id for run in old.runs if _is_nothing(states.get(run.id))])


def _seeds(plan: Plan) -> int:
    """Return the largest number of runs in a cell."""
    cells = Counter((run.stage, run.cell) for run in plan.runs if not run.retired)
    return max(cells.values(), default=0)


def _is_nothing(state: RunState | None) -> bool:
    """Return whether a run has no result and no job that could still produce a result."""
    return state is None or state.state in (State.PLANNED, State.FAILED, State.CANCELLED)


def merge(old: Plan, new: Plan, free: Collection[str] = ()) -> Plan:
    """Merge the recorded plan of a sweep with a new plan. Runs are matched by id and keep their
    recorded names. Runs that the grid no longer has stay recorded as retired. `free` has the ids of
    recorded runs without a result. If the grid no longer has such a run, a new run may take its
    name."""
    names = {run.id: run.name for run in old.runs}
    holders = {name: run for run, name in names.items()}
    planned = {run.id for run in new.runs}
    runs: list[Run] = []
    for run in new.runs:
        name = names.get(run.id)
        if name is None:
            name, holder = run.name, holders.get(run.name)
            if holder is not None and holder in free and holder not in planned:
                names[holder] = f"{name}~{holder[:6]}"
            elif holder is not None:
                name = f"{name}~{run.id[:6]}"
        runs.append(run._replace(name=name))
    gone = [run for run in old.runs if run.id not in planned]
    # Seeds that a sweep already had stay when it becomes a race.
    later = set[str]() if new.race is None else {run.id for run in new.race.runs}
    runs += [
        run._replace(retired=run.retired or run.id not in later, name=names[run.id]) for run in gone
    ]
    latest, *before = provenance.earlier(old.provenance or {}, old.launches)
    # The report judges leads more strictly if they appear after seeds were added.
    launches = ({**latest, "seeds": _seeds(old)}, *before)
    return raced(new._replace(created=old.created, launches=launches, runs=tuple(runs)), new.rounds)


def tell_changes(folder: SweepFolder, old: Plan, new: Plan, tell: Callable[[str], None]) -> None:
    """Tell the user what a launch changes: the runs, the settings, the code and the metric."""
    states = folder.read_states()
    at_work = sum(state.state in OPEN for state in states.values())
    retired = [states[run.id] for run in new.runs if run.retired and run.id in states]
    if retired:
        running = sum(state.state in OPEN for state in retired)
        still = f"; {running} still running (left to continue)" if running else ""
        gone = plural(len(retired), "run")
        tell(f"launched before, but no longer in the grid: {gone}{still}")
    planned = {run.id for run in old.runs if not run.retired}
    added = sum(run.id not in planned and not run.retired for run in new.runs)
    if added:
        tell(f"new in the grid: {plural(added, 'run')}")
    for line in changes(old, new):
        jobs = plural(at_work, "running job keeps its", "running jobs keep their")
        note = f"; {jobs} settings" if at_work else ""
        tell(f"{line}{note}")
    changed = code_change(folder, old, new)
    if changed is not None:
        tell(changed)
    if old.metric != new.metric:
        tell(
            f"the metric was {_metric(old.metric)} and is now {_metric(new.metric)}, also for "
            "old runs"
        )


def changes(old: Plan, new: Plan) -> list[str]:
    """Return one line for each change that affects future attempts."""
    before, after = _options(old), _options(new)
    changed = [
        key
        if key.rpartition(".")[2] == "env"
        else f"{key.removesuffix('_s')} {_shown(before.get(key))} -> {_shown(after.get(key))}"
        for key in dict.fromkeys((*after, *before))
        if before.get(key) != after.get(key)
    ]
    lines = [f"launch options have changed ({', '.join(changed)})"] if changed else []
    if old.budget != new.budget:
        lines.append(f"the budget was {_budget(old)} and is now {_budget(new)}")
    if old.notify != new.notify:
        lines.append("the notification settings have changed")
    if old.wandb != new.wandb:
        lines.append("the grid's W&B settings have changed")
    if old.track != new.track:
        lines.append("the grid's list of trackers has changed")
    return lines


def code_change(folder: SweepFolder, old: Plan, new: Plan) -> str | None:
    """Return a sentence about a change of the code since the last launch; None if there is none."""
    launches = (Launches(folder, plan).latest for plan in (old, new))
    changes = differences(launches)
    code = next((each for each in changes if each.kind == "code"), None)
    if code is None:
        return None
    return f"the code has changed{code.title[4:]}: attempts from now on use the new code"


def _budget(plan: Plan) -> str:
    limits = {} if plan.budget is None else plan.budget.document()
    return ", ".join(f"{key} {_shown(value)}" for key, value in limits.items()) or "without limit"


def _options(plan: Plan) -> dict[str, object]:
    """Return the launch options without empty backend sections. An option of a stage has the key
    `<stage>.<option>`."""
    of_stages = {f"{stage.name}.{k}": v for stage in plan.stages for k, v in stage.launch.items()}
    return {k: v for k, v in (plan.launch.document() | of_stages).items() if v != {}}


def _metric(metric: Metric | None) -> str:
    return "none" if metric is None else f"{metric.goal} {metric.name} ({metric.at})"


def _shown(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _service_environment(
    service: str, engine_url: str | None, key: str, grids: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables with which runs reach the local engine and find tokenizers;
    {} for another `service`. `key` is the engine's key. `grids` has the variables that the grid
    sets, such as `HF_HOME`. Raises `EngineError`."""
    if service == "local" and engine_url is not None:
        variables = hub_environment(environ={**os.environ, **grids})
        return {"TINKER_BASE_URL": engine_url, "TINKER_API_KEY": key, **variables}
    return {}
