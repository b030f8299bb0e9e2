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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType

    from sweeper.recipe.documents import Answer, Estimates, Told

    Estimate = Mapping[object, Mapping[str, float]]
    """Of each model the tokens of each kind, as a recipe says them."""

_KINDS = ("prefill", "cached", "sample", "train")
_MOST = 20
"""Lines of each kind."""
_ESTIMATING = 2.0
"""Seconds for which a recipe is asked what its runs will use; nothing is known of the others."""

Config = dict[str, object]
Configs = list[Config]


def ask(module: ModuleType, configs: Configs) -> Answer:
    """All that it says."""
    notes, problems = _notes(module, configs)
    estimates = _estimates(module, configs)
    return {"lacks": _lacks(module, configs), "notes": notes, "problems": problems,
            "estimates": estimates}  # fmt: skip


def _lacks(module: ModuleType, configs: Configs) -> list[str]:
    """What the recipe says that this machine lacks, of all configurations together."""
    function: Callable[[Config], Iterable[object]] | None = getattr(module, "lacks", None)
    found: dict[str, None] = {}
    if not callable(function):
        return []
    for config in configs:
        try:
            found.update(dict.fromkeys(str(line) for line in function(config)))
        except (Exception, SystemExit):  # noqa: BLE001  (its run tells what is wrong)
            break
        if len(found) > _MOST:
            break
    return list(found)[:_MOST]


def _notes(module: ModuleType, configs: Configs) -> tuple[list[str], list[Told]]:
    """What the recipe tells of all configurations together, and what it finds wrong with them."""
    function: Callable[[Config], Iterable[object]] | None = getattr(module, "notes", None)
    if not callable(function):
        return [], []
    found: dict[str, None] = {}
    problems: dict[str, Told] = {}
    for number, config in enumerate(configs):
        try:
            found.update(dict.fromkeys(str(line) for line in function(config)))
        except ValueError as error:
            told = str(error).strip().split("\n")[0]
            key = told.partition("=")[0]
            problems.setdefault(told, (number, key if key in config else None, told))
        except Exception:  # noqa: BLE001  (as with what it lacks)
            break
        if len(problems) > _MOST:
            break
    return list(found)[:_MOST], list(problems.values())


def _estimates(module: ModuleType, configs: Configs) -> Estimates:
    """What the recipe says that runs will use: `said`, each once, and `of` each configuration its
    number there, null where it says nothing."""
    function: Callable[[Config], Estimate] | None = getattr(module, "estimate", None)
    if not callable(function):
        return {"said": [], "of": [None] * len(configs)}
    said: dict[str, int] = {}
    numbers: list[int | None] = []
    deadline = time.monotonic() + _ESTIMATING
    for config in configs:
        text = None
        if time.monotonic() < deadline:
            try:
                text = json.dumps(_tokens(function(config)), sort_keys=True)
            except (Exception, SystemExit):  # noqa: BLE001  (nothing depends on it)
                deadline = 0.0
        numbers.append(None if text is None else said.setdefault(text, len(said)))
    return {"said": [{"models": json.loads(text)} for text in said], "of": numbers}


def _tokens(found: Estimate) -> dict[str, dict[str, int]]:
    """The counts that a recipe returned."""
    return {
        str(model): {kind: max(0, round(counts[kind])) for kind in _KINDS if kind in counts}
        for model, counts in found.items()
    }
