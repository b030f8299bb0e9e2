"""Fills placeholders in commands: `{key}` becomes a value, `{key*}` an argument for each item of a
list, and `{{` and `}}` become braces. Uses only the standard library, since workers import it."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sweeper.common.json_values import is_list
from sweeper.errors import RecipeError

if TYPE_CHECKING:
    from sweeper.sweep.plan import Run

RUN_KEYS = ("log_path", "seed", "run", "attempt")
"""Placeholders that a command may have in addition to the keys of the run's configuration."""

HOLE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_SPREAD = re.compile(r"\{([^{}]+)\*\}")


def with_log_path(env: Mapping[str, str], log_path: str) -> dict[str, str]:
    """Return the variables `env`, with the path `log_path` in place of `{log_path}`."""
    return {name: value.replace("{log_path}", log_path) for name, value in env.items()}


def placeholders(command: Sequence[str]) -> list[str]:
    """Return the keys in a command's template. Raises `RecipeError` for a stray brace."""
    keys: dict[str, None] = {}
    for element in command:
        spread = _SPREAD.fullmatch(element)
        if spread:
            keys[spread.group(1)] = None
            continue
        for match in HOLE.finditer(element):
            if match.group() in ("{", "}") or match.group() == "{}":
                raise RecipeError(
                    "command", (f"command: stray brace in {element[:60]!r}; write {{{{ for a brace")
                )
            if match.group(1):
                keys[match.group(1)] = None
    return list(keys)


def spread_keys(command: Sequence[str]) -> list[str]:
    """Return the keys of the placeholders `{key*}`, whose values are lists."""
    return [match.group(1) for match in map(_SPREAD.fullmatch, command) if match]


def render_command(command: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """Fill a template: `{key}` becomes the value of `key`, `{{` and `}}` become braces.

    A string is inserted unchanged, any other value as JSON (`true`, `null`, `0.0001`, `[1, 2]`).
    Each element of the template becomes one argument, except `{key*}`: this element becomes
    several arguments, the items of a list. Raises `RecipeError` for a key without a value."""
    words: list[str] = []
    for element in command:
        spread = _SPREAD.fullmatch(element)
        if spread is None:
            words.append(_filled(element, values))
            continue
        items = values.get(spread.group(1))
        if not is_list(items):
            raise RecipeError("command", f"command: {element[:60]} needs a list")
        words += map(_word, items)
    return words


def _filled(element: str, values: Mapping[str, object]) -> str:
    def fill(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return match.group()[0]
        if match.group(1) not in values:
            raise RecipeError("command", f"command: no value for {match.group()[:60]}")
        return _word(values[match.group(1)])

    return HOLE.sub(fill, element)


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_OPTION = re.compile(r"-[^mc-].*")
"""Options of Python, except -m and -c, which name the program."""


def with_pdb(command: Sequence[str]) -> list[str]:
    """Change a command so that its Python program runs under pdb. Raises `RecipeError` if the
    command does not run a Python program."""
    name, *rest = command
    if re.fullmatch(r"python[0-9.]*", os.path.basename(name)):
        options = next((n for n, word in enumerate(rest) if not _OPTION.fullmatch(word)), len(rest))
        if rest[options:] and not rest[options].startswith("-c"):
            return [name, *rest[:options], "-m", "pdb", *rest[options:]]
    raise RecipeError(
        "command",
        f"--debug needs a command that runs a Python program, not {' '.join(command)[:80]!r}: "
        "use `python FILE ...` or `python -m MODULE ...`",
    )


def render_window(template: str | None, sweep: str, run: "Run", attempt: int) -> str | None:
    """Fill the template of `launch.window` for an attempt of a run. Return None if there is no
    template. In tmux, runs with the same result share a window."""
    if template is None:
        return None
    about_run = {"name": run.name, "cell": run.cell, "seed": run.seed, "run": run.id}
    return _filled(template, run.config | about_run | {"sweep": sweep, "attempt": attempt})
