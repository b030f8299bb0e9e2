"""Weights & Biases, as a sweep whose grid has `wandb:` deals with it: which W&B run each of its
runs is, the variables by which any `wandb.init` takes that up, and where W&B shows it. Pure: never
loads W&B.

A run has one W&B run through all its attempts. Its id is made of the sweep, the time when that was
first launched, and the run: the same for every attempt and every launch, and another one for a
sweep that was removed and made again.
"""

import hashlib
import json
from collections.abc import Mapping

from sweeper.model.plan import Plan, Run, Wandb

__all__ = ["NAMES", "fields", "keyless", "link", "recorded", "run_id", "variables"]

NAMES = (
    *("WANDB_CONFIG", "WANDB_DIR", "WANDB_LAUNCH", "WANDB_NAME", "WANDB_PROJECT", "WANDB_RESUME"),
    *("WANDB_RUN_GROUP", "WANDB_RUN_ID", "WANDB_SYMLINK"),
)
"""Variables that every run of such a sweep gets."""

SECTION = {
    "WANDB_PROJECT": "project",
    "WANDB_ENTITY": "entity",
    "WANDB_MODE": "mode",
    "WANDB_RUN_GROUP": "group",
    "WANDB_TAGS": "tags",
}
"""Variables that a key of `wandb:` stands for."""

_HERE_ONLY = ("offline", "disabled", "dryrun")
_API, _APP = "https://api.wandb.ai", "https://wandb.ai"
_LONGEST = 100_000
"""Bytes of configuration that go into a variable: of one, Linux takes 128 KiB."""


def recorded(section: Wandb, environment: Mapping[str, str]) -> Wandb:
    """The section as `sweep.json` keeps it: with what the runs' environment says of the rest, so
    that others can tell later where W&B shows them (`app`, an address)."""
    api = (environment.get("WANDB_BASE_URL") or _API).rstrip("/")
    return section._replace(
        entity=section.entity or environment.get("WANDB_ENTITY") or None,
        mode=section.mode or environment.get("WANDB_MODE") or None,
        app=environment.get("WANDB_APP_URL") or (_APP if api == _API else api),
    )


def run_id(plan: Plan, run: str) -> str:
    """W&B's id of the run with the id `run` of the sweep with this plan."""
    sweep = f"{plan.name}\n{plan.created}"
    return f"{run}-{hashlib.sha256(sweep.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def variables(plan: Plan, run: Run) -> dict[str, str]:
    """What makes `wandb.init` in a run take up its W&B run; empty for a grid without `wandb:`.
    WANDB_DIR is for the worker to add."""
    section = plan.wandb
    if section is None:
        return {}
    found = {
        "WANDB_PROJECT": section.project,
        "WANDB_RUN_GROUP": section.group or plan.name,
        "WANDB_NAME": run.name,
        "WANDB_RUN_ID": run_id(plan, run.id),
        "WANDB_RESUME": "allow",
        # What is copied or synced with a run would be there twice.
        "WANDB_SYMLINK": "false",
    }
    if section.entity:
        found["WANDB_ENTITY"] = section.entity
    if section.mode:
        found["WANDB_MODE"] = section.mode
    if section.tags:
        found["WANDB_TAGS"] = ",".join(section.tags)
    about = {"sweep": plan.name, "run": run.id, "cell": run.cell, "seed": run.seed}
    config = run.config | {"sweeper": about}
    text = json.dumps(config)
    if len(text) <= _LONGEST:
        # How W&B's own jobs are told their configuration; the only way from outside a program.
        found |= {"WANDB_LAUNCH": "true", "WANDB_CONFIG": text}
    return found


def fields(plan: Plan, run: Run) -> dict[str, str]:
    """What a recipe gets in its configuration: tinker-cookbook's, and ours, log to W&B only when
    their `wandb_project` says so, and some make up a `wandb_name`. Those that the grid does not
    give, where the recipe has them and they take a text."""
    if plan.wandb is None:
        return {}
    takes = plan.recipe.takes
    given = {"wandb_project": plan.wandb.project, "wandb_name": run.name}
    return {
        key: value
        for key, value in given.items()
        if "str" in str(takes.get(key, {}).get("type", "")) and key not in run.config
    }


def link(plan: Plan, run: str) -> str | None:
    """Where W&B shows the run with the id `run`; None where it does not (no `wandb:`, or what is
    recorded stays on this machine), and where nobody said whose project it is (`entity`)."""
    section = plan.wandb
    if section is None or section.mode in _HERE_ONLY or not section.entity:
        return None
    from urllib.parse import quote  # few grids have `wandb:`

    names = (section.entity, section.project)
    entity, project = (quote(name, safe="", errors="replace") for name in names)
    app = (section.app or _APP).rstrip("/")
    return f"{app}/{entity}/{project}/runs/{run_id(plan, run)}"


def keyless(section: Wandb, environment: Mapping[str, str]) -> str | None:
    """A sentence for a user whose runs would find no key for W&B in this environment; None where
    they need none, or where there is one."""
    if section.mode in _HERE_ONLY or environment.get("WANDB_API_KEY"):
        return None
    import netrc
    import os
    from urllib.parse import urlsplit

    home = environment.get("HOME") or os.path.expanduser("~")
    host = urlsplit(environment.get("WANDB_BASE_URL") or _API).hostname or ""
    for path in filter(None, (environment.get("NETRC"), f"{home}/.netrc", f"{home}/_netrc")):
        try:
            if netrc.netrc(path).authenticators(host) is not None:
                return None
        except (OSError, netrc.NetrcParseError):
            continue  # W&B will not find it there either
    return (
        f"W&B has no key here for {host}: `export WANDB_API_KEY=...` (and name it in secrets), "
        "`wandb login`, or `wandb: {mode: offline}`"
    )
