"""Finds or starts the engine that a launch gives its runs."""

import subprocess
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from sweeper.backends import Capabilities
from sweeper.launcher import preflight
from sweeper.model.plan import Plan

if TYPE_CHECKING:
    from sweeper.engine.lifecycle import EngineInfo

__all__ = ["engine_for", "ensure_engine"]

_ENGINE_SECONDS = 60.0
_MODEL_KEYS = ("model_name", "base_model")  # the names in tinker-cookbook and in the SDK


def engine_for(plan: Plan, capabilities: Capabilities, tell: Callable[[str], None]) -> str:
    """Find or start the engine for a plan, and return its address. Reports to `tell` the plan's
    models that the engine replaces by others or does not have. Raises as `ensure_engine` does."""
    url = preflight.engine_url(capabilities)
    if url is not None:
        return url
    info = ensure_engine(plan.launch.places)
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
    for name in sorted({text for _, text in given} & info.aliases.keys()):
        tell(f"{info.aliases[name]} stands in for {name}: a rehearsal, which says nothing of it")
    asked = {text for key, text in given if key in _MODEL_KEYS}
    for name in sorted(asked - set(info.models)) if info.models else ():
        again = f"sweeper engine start --alias {name}={info.models[0]}"
        tell(f"the engine has no model {name}: `sweeper engine stop`, then `{again}`")
    return info.url


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
        from sweeper.backends.tmux.backend import TmuxServer

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
