"""The setting `thinking`: whether a model writes thoughts before answers. The setting controls a
switch of the chat template. The setting is recorded with checkpoints, and runs that start from a
checkpoint use the same setting."""

import copy
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from . import rundir
from .service import RecipeError, Service, service_error

KEY = "thinking"
"""The key of the setting in a checkpoint's record, and in the metadata of a training run at the
service."""

_SWITCHES = re.compile(
    r"(?<![\w.'\"<|\[])(?:enable_thinking|thinking)\b(?=\s*(?:is\b|and\b|or\b|==|\)|\||-?%\}))"
)
"""Matches the name of the variable for thoughts where a chat template tests it."""


def resolved(connection: Service | None, config: Any, last: Mapping[str, Any]) -> str | None:
    """Return the setting `thinking` of a run: "on", "off" or None (the template's default). `last`
    is the record of the run's last checkpoint, empty for a new run. Raises RecipeError if the
    configured setting differs from the setting of the initial weights."""
    start = config.load_checkpoint_path
    if KEY in last or start is None:
        return last.get(KEY, config.thinking)
    before = _of_checkpoint(connection, start)
    if before is not None and config.thinking not in (None, before):
        raise RecipeError(
            f"thinking={config.thinking}, but {start} was trained with thinking={before}: leave "
            "thinking out, or start from other weights"
        )
    return before or config.thinking


def _of_checkpoint(connection: Service | None, checkpoint: str) -> str | None:
    """Return the setting that was recorded with a checkpoint; None if no setting was recorded, or
    if the record cannot be read. `checkpoint` is a run's directory or an address."""
    if not checkpoint.startswith("tinker://"):
        return rundir.last_state(checkpoint).get(KEY)
    if connection is None:
        return None
    import tinker

    rest = tinker.RestClient(base_url=connection.url or None, api_key=connection.key)
    try:
        about = connection.wait(rest.get_training_run_by_tinker_path(checkpoint))
    except Exception as error:
        if service_error(error) is None:
            raise
        return None  # such as another user's weights, whose metadata the service does not return
    return (about.user_metadata or {}).get(KEY)


def applied(tokenizer: Any, thinking: str | None, model_name: str) -> Any:
    """Return a copy of the tokenizer that renders chats with thoughts "on" or "off". Return the
    tokenizer itself if `thinking` is None. Raises RecipeError if the template cannot do this."""
    if thinking is None:
        return tokenizer
    switches = set(_SWITCHES.findall(str(tokenizer.chat_template)))
    if not switches:
        raise RecipeError(
            f"thinking={thinking}: the chat template of {model_name} has no switch "
            "enable_thinking: leave thinking out"
        )
    switched = copy.copy(tokenizer)
    values = dict.fromkeys(switches, thinking == "on")
    switched.apply_chat_template = partial(tokenizer.apply_chat_template, **values)
    return switched
