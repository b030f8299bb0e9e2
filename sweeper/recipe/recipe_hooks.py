"""Calls the functions with which a recipe's module describes its runs, in the recipe's interpreter.
Each function gets the values of one run. Uses only the standard library."""

# lacks(values)     lines about what this machine lacks for such a run; a line that begins with
#                   `key=` or `key:` is about the value of that key
# notes(values)     other lines for people; a ValueError is a problem of the configuration, of the
#                   key that its message begins with
# estimate(values)  tokens that the run will use of its service, by model and kind
# examples(values, n)  the first n examples that the run would train on (documents.py: Examples)
# samples(values, n, checkpoint)  the same, each with samples of a checkpoint and their rewards

from __future__ import annotations

import json
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType

    from sweeper.recipe.documents import Answer, Estimates, Examples, Problem

    Estimate = Mapping[object, Mapping[str, float]]
    """Tokens by model and kind, as a recipe returns them."""

_KINDS = ("prefill", "cached", "sample", "train")
_MOST = 20
"""The maximum number of lines of each kind."""
_ESTIMATING = 2.0
"""Seconds that a recipe may take to estimate all configurations. After that, the remaining ones
have no estimate."""

Config = dict[str, object]
Configs = list[Config]


def ask(module: ModuleType, configs: Configs) -> Answer:
    """Call the recipe's functions `notes`, `estimate` and `lacks`, and return their results."""
    notes, problems = _notes(module, configs)
    estimates = _estimates(module, configs)
    return {"lacks": _lacks(module, configs), "notes": notes, "problems": problems,
            "estimates": estimates}  # fmt: skip


def examples(
    module: ModuleType, config: Config, count: int, checkpoint: str | None = None
) -> Answer:
    """Return the first examples of a run, or the recipe's error, as an `Answer`. `examples` is None
    if the recipe does not show examples. With a checkpoint, the examples also have samples from it,
    if the recipe can sample."""
    sampling: Callable[[Config, int, str], Examples] | None = getattr(module, "samples", None)
    function: Callable[[Config, int], Examples] | None = getattr(module, "examples", None)
    if not callable(function):
        return {"examples": None}
    try:
        if checkpoint is not None and callable(sampling):
            return {"examples": sampling(config, count, checkpoint)}
        return {"examples": function(config, count)}
    except Exception as error:  # noqa: BLE001  (it is somebody else's code)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return {"error": ("examples", lines[0][:300])}


def _lacks(module: ModuleType, configs: Configs) -> list[Problem]:
    """Return (index, key, line) for each different line about what this machine lacks. If the line
    starts with a key, `key` is this key and `index` is the first configuration with the line.
    Otherwise both are None."""
    function: Callable[[Config], Iterable[object]] | None = getattr(module, "lacks", None)
    lacking: dict[str, Problem] = {}
    if not callable(function):
        return []
    for number, config in enumerate(configs):
        try:
            for line in map(str, function(config)):
                key = line.partition("=")[0].partition(":")[0]
                has_key = key in config
                lacking.setdefault(
                    line, (number if has_key else None, key if has_key else None, line)
                )
        except (Exception, SystemExit):  # noqa: BLE001  (its run tells what is wrong)
            break
        if len(lacking) > _MOST:
            break
    return list(lacking.values())[:_MOST]


def _notes(module: ModuleType, configs: Configs) -> tuple[list[str], list[Problem]]:
    """Return the recipe's notes on all configurations, and the problems that it finds."""
    function: Callable[[Config], Iterable[object]] | None = getattr(module, "notes", None)
    if not callable(function):
        return [], []
    notes: dict[str, None] = {}
    problems: dict[str, Problem] = {}
    for number, config in enumerate(configs):
        try:
            notes.update(dict.fromkeys(str(line) for line in function(config)))
        except ValueError as error:
            reason = str(error).strip().split("\n")[0]
            key = reason.partition("=")[0]
            problems.setdefault(reason, (number, key if key in config else None, reason))
        except Exception:  # noqa: BLE001  (as with what it lacks)
            break
        if len(problems) > _MOST:
            break
    return list(notes)[:_MOST], list(problems.values())


def _estimates(module: ModuleType, configs: Configs) -> Estimates:
    """Return the recipe's estimates: `distinct` has each estimate once, and `of` has the index of
    each configuration's estimate, or None."""
    function: Callable[[Config], Estimate] | None = getattr(module, "estimate", None)
    if not callable(function):
        return {"distinct": [], "of": [None] * len(configs)}
    amounts: dict[str, int] = {}
    numbers: list[int | None] = []
    deadline = time.monotonic() + _ESTIMATING
    for config in configs:
        text = None
        if time.monotonic() < deadline:
            try:
                tokens = _tokens(function(config))
                # A recipe that cannot estimate returns no tokens at all.
                if any(any(counts.values()) for counts in tokens.values()):
                    text = json.dumps(tokens, sort_keys=True)
            except (Exception, SystemExit):  # noqa: BLE001  (nothing depends on it)
                deadline = 0.0
        numbers.append(None if text is None else amounts.setdefault(text, len(amounts)))
    return {"distinct": [{"models": json.loads(text)} for text in amounts], "of": numbers}


def _tokens(estimate: Estimate) -> dict[str, dict[str, int]]:
    """Return a recipe's estimate with whole numbers of tokens."""
    return {
        str(model): {kind: max(0, round(counts[kind])) for kind in _KINDS if kind in counts}
        for model, counts in estimate.items()
    }
