"""Connects runs to trackers by environment variables. With `wandb:` in the grid, every
`wandb.init` in an attempt joins the run's one W&B run. `track` names other trackers. This module
imports no tracker."""

import hashlib
import json
from collections.abc import Mapping

from sweeper.sweep.plan import Plan, Run, Wandb

NAMES = (
    *("WANDB_CONFIG", "WANDB_DIR", "WANDB_LAUNCH", "WANDB_NAME", "WANDB_PROJECT", "WANDB_RESUME"),
    *("WANDB_RUN_GROUP", "WANDB_RUN_ID", "WANDB_SYMLINK"),
)
"""Variables that every run of a sweep with `wandb:` gets."""

SECTION = {
    "WANDB_PROJECT": "project",
    "WANDB_ENTITY": "entity",
    "WANDB_MODE": "mode",
    "WANDB_RUN_GROUP": "group",
    "WANDB_TAGS": "tags",
}
"""Variables that are set from a key of `wandb:`."""

PACKAGES = {"wandb": "wandb", "trackio": "trackio", "tensorboard": "tensorboardX"}
"""The trackers that `track` accepts, and for each the module that recipes import."""

TRACK, TRACK_PROJECT, TRACK_NAME = ("SWEEPER_TRACK", "SWEEPER_TRACK_PROJECT", "SWEEPER_TRACK_NAME")
"""Variables of a run with trackers other than W&B: the trackers' names, the project, the run's
name."""

_HERE_ONLY = ("offline", "disabled", "dryrun")
_API, _APP = "https://api.wandb.ai", "https://wandb.ai"
_LONGEST = 100_000
"""A longer configuration is not passed in a variable, because Linux limits variables to 128 KiB."""


def recorded(section: Wandb, environment: Mapping[str, str]) -> Wandb:
    """Return the section `wandb` to record in `sweep.json`. A missing entity or mode is taken from
    `environment`, the runs' environment. `app` is set to the address of W&B's web pages."""
    api = (environment.get("WANDB_BASE_URL") or _API).rstrip("/")
    return section._replace(
        entity=section.entity or environment.get("WANDB_ENTITY") or None,
        mode=section.mode or environment.get("WANDB_MODE") or None,
        app=environment.get("WANDB_APP_URL") or (_APP if api == _API else api),
    )


def run_id(plan: Plan, run: str) -> str:
    """Return W&B's id for the run with the id `run` in this plan's sweep."""
    sweep = f"{plan.name}\n{plan.created}"
    return f"{run}-{hashlib.sha256(sweep.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def variables(plan: Plan, run: Run) -> dict[str, str]:
    """Return the environment variables for a run's trackers; {} if the grid has neither `wandb:`
    nor `track`."""
    variables_of_run = _wandb_variables(plan, run)
    others = [name for name in plan.track if name != "wandb"]
    if others:
        variables_of_run |= {
            TRACK: ",".join(others),
            TRACK_PROJECT: _project(plan),
            TRACK_NAME: run.name,
        }
    return variables_of_run


def _project(plan: Plan) -> str:
    return plan.name if plan.wandb is None else plan.wandb.project


def _wandb_variables(plan: Plan, run: Run) -> dict[str, str]:
    """Return the variables with which `wandb.init` joins the run's W&B run. The worker adds
    WANDB_DIR. If `track` lists Trackio and there is no `wandb:`, the variables disable W&B, because
    tinker-cookbook's programs log to both."""
    section = plan.wandb
    if section is None:
        return {"WANDB_MODE": "disabled"} if "trackio" in plan.track else {}
    values = {
        "WANDB_PROJECT": section.project,
        "WANDB_RUN_GROUP": section.group or plan.name,
        "WANDB_NAME": run.name,
        "WANDB_RUN_ID": run_id(plan, run.id),
        "WANDB_RESUME": "allow",
        # With a link, copies and syncs of a run would include its files twice.
        "WANDB_SYMLINK": "false",
    }
    if section.entity:
        values["WANDB_ENTITY"] = section.entity
    if section.mode:
        values["WANDB_MODE"] = section.mode
    if section.tags:
        values["WANDB_TAGS"] = ",".join(section.tags)
    about = {"sweep": plan.name, "run": run.id, "cell": run.cell, "seed": run.seed}
    text = json.dumps(run.config | {"sweeper": about})
    if len(text) <= _LONGEST:
        # W&B's own jobs get their configuration this way. No other way works from outside a
        # program.
        values |= {"WANDB_LAUNCH": "true", "WANDB_CONFIG": text}
    return values


def fields(plan: Plan, run: Run) -> dict[str, str]:
    """Return the fields `wandb_project` and `wandb_name` to add to a recipe's configuration. Leave
    out a field that the grid sets, or that is not a string field of the recipe. Return {} if the
    grid uses neither W&B nor Trackio. Recipes of sweeper and tinker-cookbook log to W&B only if
    `wandb_project` is set."""
    if plan.wandb is None and "trackio" not in plan.track:
        return {}
    takes = plan.recipe.takes
    values = {"wandb_project": _project(plan), "wandb_name": run.name}
    return {
        key: value
        for key, value in values.items()
        if "str" in str(takes.get(key, {}).get("type", "")) and key not in run.config
    }


def link(plan: Plan, run: str) -> str | None:
    """Return the W&B address of the run with the id `run`. Return None without `wandb:`, in an
    offline mode, or if the project's owner (`entity`) is unknown."""
    section = plan.wandb
    if section is None or section.mode in _HERE_ONLY or not section.entity:
        return None
    from urllib.parse import quote  # imported late: few grids have `wandb:`

    names = (section.entity, section.project)
    entity, project = (quote(name, safe="", errors="replace") for name in names)
    app = (section.app or _APP).rstrip("/")
    return f"{app}/{entity}/{project}/runs/{run_id(plan, run)}"


def keyless(section: Wandb, environment: Mapping[str, str]) -> str | None:
    """Return a warning if the runs need a W&B key and would find none in this environment;
    otherwise None."""
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
            continue  # W&B cannot read this file either.
    return (
        f"no W&B key for {host}: run `export WANDB_API_KEY=...` (and name it in secrets) or "
        "`wandb login`, or set `wandb: {mode: offline}`"
    )
