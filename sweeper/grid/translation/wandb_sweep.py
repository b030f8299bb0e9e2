"""Translates YAML files of W&B sweeps."""

import math
import re
from collections.abc import Callable, Mapping

from sweeper.common.json_values import is_list, is_number, list_of
from sweeper.fields.nodes import Node, plain
from sweeper.grid.translation.draft import (
    Draft,
    Untranslatable,
    braced,
    entries_of,
    interpreter,
    sweep_name,
)

_MOST_VALUES = 1000
_DEFAULT = ("${env}", "${interpreter}", "${program}", "${args}")
_HANDLED = ("program", "method", "parameters", "command", "name", "description", "metric",
            "project", "entity", "run_cap")  # fmt: skip
_VARIABLE = re.compile(r"\$\{envvar:(\w+)\}\Z")


def is_wandb(root: Node) -> bool:
    """Return whether a YAML file is a W&B sweep."""
    keys = set(root.entries or {})
    return "parameters" in keys and bool(keys & {"method", "program", "command"})


def from_wandb(root: Node, source: str, program: str | None) -> Draft:
    """Translate a W&B sweep. Raises `Untranslatable`."""
    draft = Draft(source, "a W&B sweep")
    top = entries_of(root)
    settings = {key: plain(node) for key, (_, node) in top.items()}
    draft.name = sweep_name(str(settings.get("name") or ""), source)
    method = str(settings.get("method") or "grid")
    if method not in ("grid", "random"):
        text = f"method {method} chooses values by earlier results; here they are drawn at random"
        draft.note(top["method"][0], text)
    cap = settings.get("run_cap")
    if type(cap) is int:
        draft.samples = cap
        if method == "grid":
            draft.note(
                top["run_cap"][0],
                "run_cap: a grid cannot limit the number of its runs; remove values",
            )
    elif method != "grid":
        draft.note(
            top.get("method", (0,))[0],
            "there is no run_cap: random.samples is 20; change it if needed",
        )
    parameters = _Parameters(draft, drawn=method != "grid")
    parameters.read(top["parameters"][1], "")
    if not parameters.names:
        raise Untranslatable("parameters is empty")
    _write_command(draft, top, program, parameters)
    _sections(draft, top, settings)
    for key, (line, _) in top.items():
        if key == "early_terminate":
            draft.note(
                line,
                "early_terminate: a grid does not stop runs by rank; see `race` in docs/grid.md",
            )
        elif key not in _HANDLED:
            draft.note(line, f"{key} has no counterpart")
    return draft


def _sections(
    draft: Draft, top: Mapping[str, tuple[int, Node]], given: Mapping[str, object]
) -> None:
    """Translate the metric, and W&B's project and entity."""
    metric = entries_of(top["metric"][1]) if "metric" in top else {}
    name = plain(metric["name"][1]) if "name" in metric else None
    if isinstance(name, str) and name:
        goal = plain(metric["goal"][1]) if "goal" in metric else "minimize"
        draft.mapping("metric").update({"name": name, "goal": str(goal)})
    for key, (line, _) in metric.items():
        if key not in ("name", "goal"):
            draft.note(line, f"metric.{key} has no counterpart")
    if isinstance(given.get("project"), str):
        keys = ("project", "entity")
        draft.mapping("wandb").update({k: given[k] for k in keys if isinstance(given.get(k), str)})
    elif "entity" in top:
        draft.note(top["entity"][0], "entity: the section wandb also needs a project")


class _Parameters:
    """The translation of `parameters`. If `drawn` is False, lists of values become axes, not random
    axes. `booleans` has the values of each boolean parameter."""

    def __init__(self, draft: Draft, *, drawn: bool) -> None:
        self.draft, self.drawn = draft, drawn
        self.names: list[str] = []
        self.booleans: dict[str, list[object]] = {}

    def read(self, node: Node, above: str) -> None:
        """Read a mapping of parameters. Nested parameters get dotted names."""
        for key, (line, item) in entries_of(node).items():
            name = f"{above}{key}"
            inside = entries_of(item)
            if "parameters" in inside:
                text = (
                    f"{name}: W&B passes it as one value, but the grid passes each key separately"
                )
                self.draft.note(line, text)
                self.read(inside["parameters"][1], f"{name}.")
                continue
            about = {key: plain(inner) for key, (_, inner) in inside.items()}
            if self._add(name, line, about):
                self.names.append(name)

    def _add(self, name: str, line: int, about: dict[str, object]) -> bool:
        draft = self.draft
        if "value" in about:
            draft.fix(name, self._word(name, about["value"]))
            return True
        values = about.get("values")
        if is_list(values) and values:
            if "probabilities" in about:
                draft.note(
                    line, f"{name}: probabilities are not used; all values are equally likely here"
                )
            words = [self._word(name, value) for value in values]
            if self.drawn and len(words) > 1:
                draft.draw(name, {"choice": words})
            else:
                draft.axis(name, words)
            return True
        distribution = str(about.get("distribution") or _implied(about))
        how = _drawing(distribution, about)
        if how is None:
            text = f"{name}: distribution {distribution} {_shown(about)} has no counterpart; it is"
            value = about.get("mu", about.get("min", 0))
            draft.note(line, f"{text} {value!r} in all runs")
            draft.fix(name, value)
            return True
        self._vary(name, line, distribution, how)
        return True

    def _vary(self, name: str, line: int, distribution: str, how: dict[str, object]) -> None:
        """Add a parameter with a distribution. The parameter becomes an axis if `drawn` is False
        and its values can be listed, otherwise a random axis."""
        draft = self.draft
        ((kind, values),) = how.items()
        if kind == "choice" and not self.drawn:
            draft.axis(name, values)
        elif kind == "integers" and not self.drawn:
            low, high = (number for number in list_of(values) if isinstance(number, int))
            draft.axis(name, {"range": [low, high + 1]})
        else:
            if not self.drawn:
                draft.note(
                    line,
                    f"{name}: {distribution} has no list of values, so values are drawn at random",
                )
            if distribution.startswith("q_log"):
                draft.note(line, f"{name}: {distribution} is rounded to integers, not to q")
            draft.draw(name, how)

    def _word(self, name: str, value: object) -> object:
        """Return a value as W&B's agent writes it on the command line: `True`, `None`."""
        if isinstance(value, bool):
            self.booleans.setdefault(name, []).append(value)
        return str(value) if value is None or isinstance(value, bool) else value


def _implied(about: Mapping[str, object]) -> str:
    whole = type(about.get("min")) is int and type(about.get("max")) is int
    return "int_uniform" if whole else "uniform"


def _shown(about: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in about.items() if key != "distribution")


def _drawing(distribution: str, about: Mapping[str, object]) -> dict[str, object] | None:
    """Return a distribution in the form of `random.axes`, or None if it has no counterpart."""
    low, high, step = about.get("min"), about.get("max"), about.get("q", 1)
    if not (is_number(low) and is_number(high) and is_number(step) and low < high):
        return None
    make = _DISTRIBUTIONS.get(distribution)
    return None if make is None else make(low, high, step)


def _quantized(low: float, high: float, step: float) -> dict[str, object] | None:
    if step <= 0 or (high - low) / step > _MOST_VALUES:
        return None
    count = math.floor((high - low) / step + 1e-9) + 1
    values = [float(f"{low + number * step:.12g}") for number in range(count)]
    whole = all(value.is_integer() for value in values) and isinstance(step, int)
    return {"choice": [int(value) for value in values] if whole else values}


_DISTRIBUTIONS: dict[str, Callable[[float, float, float], dict[str, object] | None]] = {
    "uniform": lambda low, high, _: {"uniform": [low, high]},
    "int_uniform": lambda low, high, _: {"integers": [int(low), int(high)]},
    "q_uniform": _quantized,
    "log_uniform_values": lambda low, high, _: {"log_uniform": [low, high]} if low > 0 else None,
    "log_uniform": lambda low, high, _: {
        "log_uniform": [float(f"{math.exp(low):.6g}"), float(f"{math.exp(high):.6g}")]
    },
    "q_log_uniform_values": lambda low, high, _: (
        {"log_integers": [math.ceil(low), math.floor(high)]} if low > 0 else None
    ),
}


def _write_command(
    draft: Draft,
    top: Mapping[str, tuple[int, Node]],
    program: str | None,
    parameters: _Parameters,
) -> None:
    """Translate the command and its macros."""
    line, node = top.get("command", (0, None))
    command = _DEFAULT if node is None else [str(item.value) for item in node.items or [node]]
    named = plain(top["program"][1]) if "program" in top else None
    script = program or (named if isinstance(named, str) else None)
    if script is None and "${program}" in command:
        raise Untranslatable("the file names no program: use `sweeper init PROGRAM --from FILE`")
    for word in command:
        variable = _VARIABLE.match(word)
        if word in ("${interpreter}", "${program}"):
            draft.command.append(interpreter() if word == "${interpreter}" else str(script))
        elif word in _ARGUMENTS:
            draft.command += _ARGUMENTS[word](draft, parameters)
        elif variable is not None:
            draft.command.append(f"{{{draft.key(variable[1])}}}")
            draft.fix_variable(line, variable[1])
        elif word.startswith("${") and word != "${env}":
            draft.note(line, f"command: {word} has no counterpart and is left out")
        elif word != "${env}":
            draft.command.append(braced(word))
    if not draft.command[0].endswith(".py"):
        return
    draft.command.insert(0, interpreter())


def _hyphens(draft: Draft, parameters: _Parameters) -> list[str]:
    return [f"--{name}={draft.hole(name)}" for name in parameters.names]


def _no_hyphens(draft: Draft, parameters: _Parameters) -> list[str]:
    return [f"{name}={draft.hole(name)}" for name in parameters.names]


def _flags(draft: Draft, parameters: _Parameters) -> list[str]:
    """Return the options of the command. A boolean parameter becomes `--name` if it is true, and
    nothing if it is false."""
    words: list[str] = []
    for name in parameters.names:
        if name not in parameters.booleans:
            words.append(f"--{name}={draft.hole(name)}")
            continue
        key, base = draft.key(name), draft.mapping("base")
        if key in base:
            words += [f"--{name}"] if base.pop(key) == "True" else []
            continue
        flag = f"{key}_flag"
        base[flag] = []
        draft.items("when").append({"if": {key: "True"}, "base": {flag: [f"--{name}"]}})
        words.append(f"{{{flag}*}}")
    return words


_ARGUMENTS: dict[str, Callable[[Draft, _Parameters], list[str]]] = {
    "${args}": _hyphens,
    "${args_no_hyphens}": _no_hyphens,
    "${args_no_boolean_flags}": _flags,
}
