"""Checks that the model service has the models of a plan, before runs fail one by one."""

import os
import re
from collections.abc import Collection, Mapping

from sweeper.engine.model_aliases import STAND_INS
from sweeper.errors import EnvironmentFailure, GridError, NotFound
from sweeper.sweep.hint import hint
from sweeper.sweep.plan import MODEL_KEYS, Plan

_SECONDS = 10.0
_PATH = re.compile(r"://|\$\{|^[./~]")
"""Characters at the start of a value that is not a model's name but a checkpoint, a folder, or not
known yet."""


def models_of(plan: Plan) -> set[str]:
    """Return the names of the models that a plan's runs ask a service for."""
    return {text for key, text in _texts(plan) if key in MODEL_KEYS and not _PATH.search(text)}


def texts_of(plan: Plan) -> set[str]:
    """Return all texts in the configurations of a plan, and in the defaults of its recipes."""
    return {text for _, text in _texts(plan)}


def missing_at_engine(plan: Plan, offered: Collection[str]) -> list[str]:
    """Return a warning for each model that an engine with the models `offered` lacks. Raises
    `GridError` instead, unless the grid says `check_models: false` or has a command."""
    trained = [model for model in offered if model not in STAND_INS]
    return _refused(
        plan,
        {
            name: f"the engine has no model {name}, only {', '.join(trained)} and "
            "stand-ins for Qwen "
            "models: use one of these, or `sweeper engine stop`, then "
            f"`{hint('engine', 'start', '--alias', f'{name}={trained[0]}')}`"
            for name in sorted(models_of(plan) - set(offered))
            if trained
        },
    )


def missing_at_service(plan: Plan) -> list[str]:
    """Return a warning for each model that the hosted service does not list, or one warning if its
    list is unknown. Raises `GridError` as `missing_at_engine` does."""
    from sweeper.fields.kinds import nearest
    from sweeper.results.service_models import offered
    from sweeper.results.service_requests import hosted

    wanted = models_of(plan)
    if not wanted or not os.environ.get("TINKER_API_KEY"):
        return []  # A launch needs the key anyway.
    try:
        names = [model.model_name for model in offered(hosted(), _SECONDS)]
    except (EnvironmentFailure, NotFound) as error:
        return [f"the models of this grid were not checked: {error}"]
    return _refused(
        plan,
        {
            name: f"the service has no model {name} (`sweeper doctor --service` lists its models)"
            f"{nearest(name, names)}"
            for name in sorted(wanted - set(names))
        },
    )


def _refused(plan: Plan, missing: Mapping[str, str]) -> list[str]:
    """Raise `GridError` with a line for each missing model, with its place in the grid. Return the
    lines as warnings if the runs may work all the same, since a command may not use the model of
    its config."""
    if not missing or not plan.launch.check_models or plan.has_commands:
        return list(missing.values())
    places = plan.model_places
    raise GridError(
        [
            f"{places.get(name) or plan.grid_path or plan.name}: {line}; "
            "`launch: {check_models: false}` starts the runs anyway"
            for name, line in missing.items()
        ]
    )


def _texts(plan: Plan) -> set[tuple[str, str]]:
    """Return the texts in the configurations of a plan, with their keys, and in the defaults of
    its recipes."""
    given = {
        (key, value)
        for run in plan.runs
        for key, value in run.config.items()
        if isinstance(value, str)
    }
    for part in plan.parts:
        for key, about in part.recipe.takes.items():
            default = about.get("default")
            if isinstance(default, str) and any(key not in run.config for run in part.runs):
                given.add((key, default))
    return given
