"""Commands whose words hold placeholders: `{key}` stands for a value, `{{` and `}}` for a brace.

The worker loads this for every job. Standard library only.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sweeper.errors import RecipeError

if TYPE_CHECKING:
    from sweeper.model.plan import Run

__all__ = ["HOLE", "RUN_KEYS", "placeholders", "render_command", "render_window", "with_log_path"]

RUN_KEYS = ("log_path", "seed", "run", "attempt")
"""What a command may hold beside the keys of its configuration."""

HOLE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def with_log_path(env: Mapping[str, str], log_path: str) -> dict[str, str]:
    """`launch.env` with `{log_path}` for the folder of a run, wherever it stands."""
    return {name: value.replace("{log_path}", log_path) for name, value in env.items()}


def placeholders(command: Sequence[str]) -> list[str]:
    """The keys in a command's template. Raises `RecipeError` for a stray brace."""
    keys: dict[str, None] = {}
    for element in command:
        for match in HOLE.finditer(element):
            if match.group() in ("{", "}") or match.group() == "{}":
                raise RecipeError(
                    "command", f"command: stray brace in {element[:60]!r}; {{{{ stands for a brace"
                )
            if match.group(1):
                keys[match.group(1)] = None
    return list(keys)


def render_command(command: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """The argv that a template gives: `{key}` is the value of `key`, `{{` and `}}` a brace.

    A string stands as it is, anything else as JSON (`true`, `null`, `0.0001`, `[1, 2]`); each
    element stays one argument whatever its value holds. Raises `RecipeError` for a key that there
    is no value for.
    """

    def fill(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return match.group()[0]
        if match.group(1) not in values:
            raise RecipeError("command", f"command: there is no value for {match.group()[:60]}")
        value = values[match.group(1)]
        return value if isinstance(value, str) else json.dumps(value)

    return [HOLE.sub(fill, element) for element in command]


def render_window(template: str | None, sweep: str, run: "Run", attempt: int) -> str | None:
    """What `launch.window` says of a run: runs with the same text are
    shown together. None without a template."""
    if template is None:
        return None
    known = {"name": run.name, "cell": run.cell, "seed": run.seed, "run": run.id}
    values = run.config | known | {"sweep": sweep, "attempt": attempt}
    return render_command([template], values)[0]
