"""Finds or starts the engine that a launch gives its runs."""

import os
import re
import subprocess
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from sweeper.backends import Capabilities, capabilities_together
from sweeper.engine.model_aliases import STAND_INS, TEACHER, TINY
from sweeper.launcher import preflight
from sweeper.sweep.hint import hint
from sweeper.sweep.plan import Plan

if TYPE_CHECKING:
    from sweeper.engine.lifecycle import EngineInfo

_ENGINE_SECONDS = 60.0
_MODEL_KEYS = ("model_name", "base_model")  # the names in tinker-cookbook and in the SDK
_PATH = re.compile(r"://|\$\{|^[./~]")
"""Marks of a checkpoint, a folder, or a value that is not known yet, in place of a model's name."""
_CREDENTIALS = ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD", "TINKER_BASE_URL")


def engine_for(plan: Plan, capabilities: Capabilities, tell: Callable[[str], None]) -> str:
    """Find or start the engine for a plan, and return its address. Reports to `tell` the plan's
    models that the engine replaces by others or does not have. Raises as `ensure_engine` does."""
    url = preflight.engine_url(capabilities)
    if url is not None:
        return url
    info = ensure_engine(plan.launch.places)
    for name in sorted({text for _, text in _texts(plan)} & info.aliases.keys()):
        tell(f"{info.aliases[name]} stands in for {name}: a rehearsal, which says nothing of it")
    for line in _missing_models(plan, info.models):
        tell(line)
    return info.url


def service_warnings(plan: Plan) -> list[str]:
    """Return warnings about the service of a plan's models: that there is none, or that the engine
    of this machine does not have a model. Starts no engine."""
    if not capabilities_together(plan.launch).here:
        return []
    if plan.service == "local":
        from sweeper.engine import lifecycle

        engine = lifecycle.find()
        offered = [TINY, TEACHER, *STAND_INS]
        return _missing_models(plan, offered if engine is None else engine.models)
    lacking = plan.service == "none" and any(map(_needs_service, plan.parts))
    if not lacking or os.path.exists(os.path.expanduser("~/.tinker/credentials.json")):
        return []
    return [
        "the recipe asks a model service, and there is none: write `service: local` in the grid for"
        " an engine on this machine, or `service: tinker` and set TINKER_API_KEY"
    ]


def _needs_service(plan: Plan) -> bool:
    """Whether runs of a recipe would ask the hosted service without a key."""
    if not {"base_url", "model_name"} <= plan.recipe.takes.keys():
        return False
    if any(os.environ.get(name) or name in plan.launch.env for name in _CREDENTIALS):
        return False
    return any(run.config.get("base_url") is None for run in plan.runs)


def _missing_models(plan: Plan, offered: Collection[str]) -> list[str]:
    """Return a line for each model of a plan that an engine with these models does not have."""
    own = [model for model in offered if model not in STAND_INS]
    asked = {text for key, text in _texts(plan) if key in _MODEL_KEYS and not _PATH.search(text)}
    return [
        f"the engine has no model {name}, only {', '.join(own)} and stand-ins for Qwen models: name"
        f" one of these, or `sweeper engine stop`, then"
        f" `{hint('engine', 'start', '--alias', f'{name}={own[0]}')}`"
        for name in sorted(asked - set(offered))
        if own
    ]


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


def ensure_engine(places: Collection[str]) -> "EngineInfo":
    """Find this user's engine, or start one, in a tmux window if jobs execute in tmux. Raises
    `EngineError` if it does not start, `EnvironmentFailure` if its home cannot be written."""
    from sweeper import paths
    from sweeper.engine import lifecycle

    found = lifecycle.find()
    if found is not None:
        return found
    lifecycle.check_home()
    if "tmux" in places:
        from sweeper.backends.tmux.server import TmuxServer

        # The engine of another home on the same tmux server has its own session.
        command = lifecycle.command(paths.home())
        TmuxServer().ensure_window("engine", paths.engine(), "engine", command)
    else:
        null = subprocess.DEVNULL  # it writes its own log
        subprocess.Popen(
            lifecycle.command(paths.home()),
            stdin=null, stdout=null, stderr=null, start_new_session=True,
        )  # fmt: skip
    return lifecycle.wait(timeout=_ENGINE_SECONDS)
