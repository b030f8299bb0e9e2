"""Settings of trials of the package `harbor`, for the recipes harbor and harbor_rl. They are in
a separate module, because the module of a recipe may have only one class of settings."""

import json
from typing import Any

import chz

from . import settings

TERMINUS = "terminus-2"


@chz.chz
class Agents(settings.Tasks):
    """Settings of trials: the agent and the environment."""

    agent: str = chz.field(
        default=TERMINUS, doc="harbor's name of an agent, or the import path of a class (a.b:C)"
    )
    agent_options: str = chz.field(default="{}", doc="JSON object: further arguments of the agent")
    environment: str = chz.field(
        default="bubblewrap", doc="bubblewrap, one of harbor's types, or the import path of a class"
    )
    n_parallel_envs: int = chz.field(default=4, doc="trials at once")
    environment_retries: int = chz.field(
        default=2, doc="how often to repeat a trial whose environment died"
    )
    timeout_multiplier: float = chz.field(default=1.0, doc="factor of all time limits of tasks")
    max_turns: int = chz.field(default=50, doc="terminus-2: turns of a trial")
    context_limit: int = chz.field(default=32000, doc="terminus-2: longest prompt, in tokens")
    summarise: bool = chz.field(
        default=False, doc="terminus-2: summarise near context_limit, and continue from the summary"
    )
    summary_margin: int = chz.field(
        default=8000, doc="terminus-2: summarise this many tokens before context_limit"
    )
    renderer_name: str | None = chz.field(
        default=None, doc="terminus-2: renderer of tinker-cookbook; default: by the model"
    )


def check_agents(config: Agents) -> None:
    """Raise ValueError for invalid settings of trials; see `settings.check_problems`."""
    settings.check_at_least(config, n_parallel_envs=1, environment_retries=0)
    settings.check_at_least(config, max_turns=1, context_limit=2, summary_margin=0)
    settings.check_positive(config, "timeout_multiplier")
    options_of(config.agent_options)


def options_of(text: str) -> dict[str, Any]:
    """Parse the setting `agent_options`. Raises ValueError if `text` is not a JSON object."""
    try:
        options: Any = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise ValueError(f"agent_options is not a JSON object: {text[:80]}")
    return options
