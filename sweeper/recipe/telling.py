"""What a recipe itself says of its runs, by functions of its module that get the values of one.
Like inspection.py in the recipe's interpreter; standard library only.

    lacks(values)       lines about what this machine lacks for such a run
    notes(values)       lines about what else people should know of it; a ValueError is a problem of
                        the configuration, by the key that its message begins with
    estimate(values)    tokens that it will use of its service, by model and kind

In the answer are "lacks", "notes" and "problems" of all configurations together; "estimates" are
what was returned, each once, and its number there for each configuration.
"""

from __future__ import annotations

import json
import time
from typing import Any, cast

_KINDS = ("prefill", "cached", "sample", "train")
_MOST = 20
"""Lines of each kind."""
_ESTIMATING = 2.0
"""Seconds for which a recipe is asked what its runs will use; nothing is known of the others."""

Configs = list[dict[str, object]]


def ask(module: object, configs: Configs) -> dict[str, object]:
    """All that it says."""
    notes, problems = _notes(module, configs)
    estimates = _estimates(module, configs)
    return {"lacks": _lacks(module, configs), "notes": notes, "problems": problems,
            "estimates": estimates}  # fmt: skip


def _lacks(module: Any, configs: Configs) -> list[str]:
    """What the recipe says that this machine lacks, of all configurations together."""
    function = getattr(module, "lacks", None)
    found: dict[str, None] = {}
    for config in configs if callable(function) else ():
        try:
            said: Any = cast(Any, function)(config)
            found.update(dict.fromkeys(str(line) for line in said))
        except (Exception, SystemExit):  # noqa: BLE001  (its run tells what is wrong)
            break
        if len(found) > _MOST:
            break
    return list(found)[:_MOST]


def _notes(module: Any, configs: Configs) -> tuple[list[str], list[tuple[int, str | None, str]]]:
    """What the recipe tells of all configurations together, and what it finds wrong with them."""
    function = getattr(module, "notes", None)
    found: dict[str, None] = {}
    problems: dict[str, tuple[int, str | None, str]] = {}
    for number, config in enumerate(configs if callable(function) else ()):
        try:
            said: Any = cast(Any, function)(config)
            found.update(dict.fromkeys(str(line) for line in said))
        except ValueError as error:
            told = str(error).strip().split("\n")[0]
            key = told.partition("=")[0]
            problems.setdefault(told, (number, key if key in config else None, told))
        except Exception:  # noqa: BLE001  (as with what it lacks)
            break
        if len(problems) > _MOST:
            break
    return list(found)[:_MOST], list(problems.values())


def _estimates(module: Any, configs: Configs) -> dict[str, Any]:
    """What the recipe says that runs will use: `said`, each once, and `of` each configuration its
    number there, null where it says nothing."""
    function = getattr(module, "estimate", None)
    said: dict[str, int] = {}
    numbers: list[int | None] = []
    deadline = time.monotonic() + _ESTIMATING
    for config in configs if callable(function) else ():
        text = None
        if time.monotonic() < deadline:
            try:
                text = json.dumps(_tokens(cast(Any, function)(config)), sort_keys=True)
            except (Exception, SystemExit):  # noqa: BLE001  (nothing depends on it)
                deadline = 0.0
        numbers.append(None if text is None else said.setdefault(text, len(said)))
    return {"said": [{"models": json.loads(text)} for text in said], "of": numbers}


def _tokens(found: Any) -> dict[str, dict[str, int]]:
    """The counts that a recipe returned."""
    return {
        str(model): {kind: max(0, round(counts[kind])) for kind in _KINDS if kind in counts}
        for model, counts in found.items()
    }
