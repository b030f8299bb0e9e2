"""Putting a launch on record: the environment that its runs get, the code that they run, the plan,
and what is told of the difference to the launch before."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sweeper import tracking
from sweeper.backends import Capabilities, capabilities_of, options_of
from sweeper.errors import NotFound, UsageError
from sweeper.launcher import environment, placing
from sweeper.launcher.staying import stay
from sweeper.launcher.trust import sealed
from sweeper.paths import home
from sweeper.planner.plan import repeats_by_default
from sweeper.provenance import facts as provenance
from sweeper.provenance import redaction, snapshot
from sweeper.states import OPEN
from sweeper.store.documents import SCHEMA, encode, timestamp
from sweeper.store.files import Store
from sweeper.store.layout import Layout
from sweeper.store.sweeps import read_plan, read_states

if TYPE_CHECKING:
    from sweeper.planner.plan import Plan

__all__ = ["hidden_values", "merge", "record", "secret_names", "write_environment"]

_SHORTEST = 8
"""Characters that a secret has at least: fewer stand in any text by chance."""


def record(
    store: Store,
    plan: "Plan",
    url: str | None,
    place: Mapping[str, str],
    *,
    live: bool,
    tell: Callable[[str], None],
) -> None:
    """Keep the environment and the code, write the plan. The caller holds the sweep's lock. Raises
    `UsageError` for a plan in which a secret's value stands, and where jobs of the sweep may be
    elsewhere than at `place`."""
    names = secret_names(plan.secrets, plan.service)
    document = plan.document()
    _refuse_secrets(document, names)
    terms = capabilities_of(plan.launch.backend, options_of(plan.launch.document()))
    write_environment(store, plan.name, plan.service, url, plan.launch.env, terms, place)
    made = snapshot.Made(None, "--live")
    if not live:
        recipe = plan.recipe
        values = hidden_values(names)
        made = snapshot.make(store, plan.name, recipe.cwd, recipe.file, secrets=values)
    placing.has_code(terms, plan.recipe.kind, plan.recipe.file, made, tell)
    code = _told_of(made)
    came = provenance.collect(
        store, plan.name, cwd=plan.recipe.cwd, python=plan.recipe.python, secrets=names, code=code
    )
    document |= {"created": timestamp(), "provenance": came, "snapshot": made.document}
    if document["wandb"] is not None:
        theirs = {**os.environ, **plan.launch.env}
        document["wandb"] = tracking.recorded(document["wandb"], theirs)
        if (missing := tracking.keyless(document["wandb"], theirs)) is not None:
            tell(missing)
    with suppress(NotFound):  # which is the case at the first launch
        before = read_plan(store, plan.name)
        document = merge(before, document)
        _tell_changes(store, before, document, tell)
        for warning in repeats_by_default(plan, before):
            tell(warning)
    if made.why is not None and not live and made.in_checkout:
        tell(f"runs use the code where it is, as it is when each starts: {made.why}")
    store.replace(Layout(plan.name).plan, encode(sealed(document)))


def _told_of(made: snapshot.Made) -> dict[str, Any]:
    """What provenance says of the copy of the code, or of why there is none."""
    return {
        "code": made.document["hash"] if made.document else None,
        "code_why": made.why,
        "code_linked": [os.fsencode(name).decode("utf-8", "replace") for name in made.linked[:20]],
    }


def write_environment(
    store: Store,
    sweep: str,
    service: str,
    url: str | None,
    env: Mapping[str, str],
    terms: Capabilities,
    place: Mapping[str, str],
) -> None:
    """Keep this process's environment for the workers of a sweep, and say where; and at which
    `place` its jobs are from now on. Raises `UsageError` where some may be elsewhere."""
    stay(store, sweep, place)
    extra = environment.service_environment(service, url, placing.engine_key(terms), env)
    shared = placing.shared_environment(terms, store, sweep)
    path = environment.write(f"{store.root}/{sweep}", extra, shared)
    document = {"schema": SCHEMA, "env_file": path, "engine": url, "place": dict(place)}
    document["home"] = home()
    store.replace(Layout(sweep).service, encode(document))


def secret_names(secrets: Sequence[str], service: str) -> list[str]:
    """The variables that a sweep cannot do without, and that nobody is to see."""
    return [*secrets, *(["TINKER_API_KEY"] if service == "tinker" else [])]


def secret_values(names: Sequence[str]) -> list[str]:
    """Their values here, but for those too short to be told from other text."""
    found = (os.environ.get(name, "") for name in names)
    return [value for value in found if len(value) >= _SHORTEST]


def hidden_values(names: Sequence[str]) -> list[str]:
    """What must not get into a copy of the code: these, and what else looks like a secret here."""
    return redaction.secret_values(os.environ, names)


def _refuse_secrets(document: dict[str, Any], names: Sequence[str]) -> None:
    """What is in the plan is on record, in the store: no place for a secret."""
    text = json.dumps(document)
    for name in names:
        for value in secret_values([name]):
            if json.dumps(value)[1:-1] in text:
                raise UsageError(
                    f"the value of the secret {name} stands in the grid or among the overrides: "
                    f"take it out; runs find it in the variable {name}"
                )


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The plan of a sweep that is launched again. Runs are matched by id and keep the name they
    are known by; those that the grid no longer has stay on record, retired."""
    names = {run["id"]: run["name"] for run in old["runs"]}
    taken = set(names.values())
    runs: list[dict[str, Any]] = []
    for run in new["runs"]:
        name = names.get(run["id"])
        if name is None:
            # A name that an earlier grid gave to another run gets a suffix.
            name = run["name"] if run["name"] not in taken else f"{run['name']}~{run['id'][:6]}"
        runs.append(run | {"name": name})
    kept = {run["id"] for run in runs}
    retired = [run | {"retired": True} for run in old["runs"] if run["id"] not in kept]
    launches = provenance.earlier(old)
    return new | {"created": old["created"], "launches": launches, "runs": runs + retired}


def _tell_changes(
    store: Store, old: dict[str, Any], new: dict[str, Any], tell: Callable[[str], None]
) -> None:
    """Say what is different from the launch before, and what becomes of what it started."""
    states = read_states(store, new["name"])
    at_work = sum(state.state in OPEN for state in states.values())
    known = [states[r["id"]] for r in new["runs"] if r.get("retired") and r["id"] in states]
    if known:
        running = sum(state.state in OPEN for state in known)
        still = f"; {running} still running, and left to end" if running else ""
        tell(f"{len(known)} runs that were launched before are no longer in the grid{still}")
    planned = {run["id"] for run in old["runs"] if not run.get("retired")}
    added = sum(run["id"] not in planned and not run.get("retired") for run in new["runs"])
    if added:
        tell(f"{added} runs are new in the grid")
    for line in changes(old, new):
        kept = f"; the {at_work} at work keep what they were started with" if at_work else ""
        tell(f"{line}{kept}")
    if old.get("metric") != new.get("metric"):
        tell(f"the metric is now {_metric(new)}, and was {_metric(old)}: old runs are judged by it")


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """A line for each thing that attempts from now on get otherwise."""
    before: dict[str, Any] = old.get("launch") or {}
    changed = [
        key
        if key == "env"
        else f"{key.removesuffix('_s')} {_shown(before.get(key))} -> {_shown(value)}"
        for key, value in new["launch"].items()
        if before.get(key) != value
    ]
    lines = [f"launch options have changed ({', '.join(changed)})"] if changed else []
    if old.get("wandb") != new.get("wandb"):
        lines.append("what the grid says of W&B has changed")
    codes: list[dict[str, str] | None] = [document.get("snapshot") for document in (old, new)]
    if codes[0] and codes[1] and codes[0]["hash"] != codes[1]["hash"]:
        lines.append("the code has changed: attempts from now on run it as it is now")
    return lines


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _metric(document: dict[str, Any]) -> str:
    metric: dict[str, str] | None = document.get("metric")
    return "none" if metric is None else f"{metric['goal']} {metric['name']} ({metric['at']})"
