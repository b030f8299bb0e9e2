"""Translates multiruns of Hydra: commands with overrides, and configurations with
`hydra.sweeper.params`."""

import os
import re
from collections.abc import Iterable, Iterator

from sweeper.common.json_values import is_list, is_number
from sweeper.fields.nodes import Node, plain, scalar
from sweeper.grid.translation import slurm
from sweeper.grid.translation.draft import (
    Draft,
    Untranslatable,
    braced,
    entries_of,
    interpreter,
    number_or_text,
    sweep_name,
)

_OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w./@-]*)(?:=(.*))?\Z", re.DOTALL)
_CALL = re.compile(
    r"(choice|range|interval|glob|tag|sort|shuffle|int|float|str)\((.*)\)\Z", re.DOTALL
)
_MULTIRUN = ("-m", "--multirun")
_FOLDER = "hydra.run.dir={log_path}"
_SUBMITIT = {
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint",
    "cpus_per_task": "cpus-per-task", "gpus_per_node": "gpus-per-node", "nodes": "nodes",
    "tasks_per_node": "ntasks-per-node", "gres": "gres",
}  # fmt: skip
_SWEEPER_KEYS = ("hydra.sweeper.n_trials", "hydra.sweeper.max_trials", "hydra.sweeper.n_jobs")


def is_hydra(root: Node) -> bool:
    """Return whether a YAML file is a configuration of Hydra."""
    return bool({"hydra", "defaults"} & set(root.entries or {}))


def is_multirun(words: list[str]) -> bool:
    """Return whether a command is a multirun of Hydra."""
    overrides = [word for word in words if "=" in word and _OVERRIDE.match(word)]
    return "--multirun" in words or (
        bool(overrides) and any(flag == "-m" for flag in words[2:] if flag == "-m")
    )


def from_config(root: Node, source: str, program: str | None) -> Draft:
    """Translate a configuration of Hydra. Raises `Untranslatable`."""
    draft = Draft(source, "a configuration of Hydra")
    draft.name = sweep_name("", source)
    hydra = entries_of(root).get("hydra", (0, None))[1]
    overrides = list(_overrides(hydra, "hydra"))
    if not any(text.startswith("hydra.sweeper.params.") for _, text in overrides):
        raise Untranslatable(
            "hydra.sweeper.params gives no values to vary; give a multirun command instead"
        )
    script = program or _program(source)
    if script is None:
        raise Untranslatable("the file names no program: use `sweeper init PROGRAM --from FILE`")
    config = [] if program is None and _is_default(script, source) else _config_words(source)
    words = [interpreter(), script, *config]
    if config:
        draft.note(0, f"the command has {' '.join(config)}: check that the program finds this file")
    draft.command = [braced(word) for word in words]
    _apply(draft, overrides)
    return draft


def apply_multirun(draft: Draft, words: list[str], line: int, holes: Iterable[str]) -> None:
    """Translate the command of a multirun. `holes` are the placeholders in `words`. Words with a
    placeholder are copied unchanged; in other words, braces are doubled."""
    draft.kind = "a multirun of Hydra"
    overrides: list[tuple[int, str]] = []
    for index, word in enumerate(words):
        if word in _MULTIRUN and index >= 2:
            continue
        if index and "=" in word and not word.startswith("-") and _OVERRIDE.match(word):
            overrides.append((line, word))
        elif word.startswith("~") and _OVERRIDE.match(word):
            draft.command.append(word)
        else:
            draft.command.append(word if any(hole in word for hole in holes) else braced(word))
    _apply(draft, overrides)


def _overrides(node: Node | None, above: str) -> Iterator[tuple[int, str]]:
    """Yield the values of a section as overrides (`key=value`), each with its line."""
    if above.endswith(".search_space"):
        return
    for key, (line, item) in entries_of(node).items():
        if item.entries:
            yield from _overrides(item, f"{above}.{key}")
        else:
            value = plain(item)
            shown = value if isinstance(value, str) else _written(value)
            yield line, f"{above}.{key}={item.text or shown}"


def _written(value: object) -> str:
    from sweeper.grid.overrides import flow

    return flow(value)


def _apply(draft: Draft, overrides: list[tuple[int, str]]) -> None:
    """Add overrides to the command, and Hydra's own settings to other sections of the grid."""
    for line, text in overrides:
        match = _OVERRIDE.match(text.removeprefix("hydra.sweeper.params."))
        sign, name, value = match.groups() if match else ("", text, "")
        if name.startswith(("hydra.", "hydra/")):
            _hydra_setting(draft, line, name, value or "")
            continue
        _vary(draft, line, name, value or "")
        draft.command.append(f"{sign}{name}={draft.hole(name)}")
    _draw_all(draft)
    if not any("hydra.run.dir" in word for word in draft.command):
        draft.command.append(_FOLDER)
        draft.note(
            0, "hydra.run.dir is each run's folder in the store; the multirun's folder is not used"
        )


def _draw_all(draft: Draft) -> None:
    """If the grid has random axes, turn the axes with lists of values into random axes too. A range
    stays an axis."""
    axes = draft.mapping("grid") if draft.draws else {}
    for key, values in list(axes.items()):
        if is_list(values):
            draft.draws[key] = {"choice": axes.pop(key)}
        else:
            draft.note(0, f"{key}: the range stays an axis, though other values are drawn")


def _hydra_setting(draft: Draft, line: int, name: str, value: str) -> None:
    """Translate one of Hydra's own settings."""
    last = name.rpartition(".")[2]
    if name.startswith("hydra.launcher.") and last in _SUBMITIT:
        slurm.add_option(draft, line, _SUBMITIT[last], scalar(value))
    elif name == "hydra.launcher.timeout_min" and value.isdigit():
        slurm.add_option(draft, line, "time", value)
    elif name == "hydra.launcher.mem_gb" and value.isdigit():
        slurm.add_option(draft, line, "mem", f"{value}G")
    elif name == "hydra.launcher.array_parallelism" and value.isdigit():
        draft.mapping("launch")["max_parallel"] = int(value)
    elif name == "hydra/launcher" and value == "submitit_slurm":
        draft.mapping("launch")["backend"] = "slurm"
    elif name in _SWEEPER_KEYS and value.isdigit():
        if last == "n_jobs":
            draft.mapping("launch")["max_parallel"] = int(value)
        else:
            draft.samples = int(value)
    elif name == "hydra.sweeper.direction":
        draft.note(line, f"{name}={value}: write metric: {{name: ..., goal: {value}}}")
    elif name == "hydra.mode" and value == "MULTIRUN":
        return
    else:
        draft.note(line, f"{name}={value} has no counterpart")


def _vary(draft: Draft, line: int, name: str, value: str) -> None:
    """Give a key the values of an override: one value, a list, a range, or drawn values."""
    call = _CALL.match(value)
    parts = split_commas(value)
    if call is None:
        draft.axis(name, [number_or_text(part) for part in parts])
        return
    kind, inside = call.groups()
    arguments = split_commas(inside)
    values = [number_or_text(part.partition("=")[2] if "=" in part else part) for part in arguments]
    plain_values = [v for part, v in zip(arguments, values, strict=True) if "=" not in part]
    if kind == "choice":
        draft.axis(name, values)
    elif kind == "range" and (numbers := _range(arguments)) is not None:
        draft.axis(name, {"range": numbers})
    elif kind == "interval" and len(values) == 2:
        draft.draw(name, {"uniform": values})
        if draft.samples is None:
            draft.note(
                line, f"{name}: values are drawn from the interval; random.samples is their number"
            )
    elif kind == "tag" and (inner := _tagged(arguments)) is not None:
        log, rest = inner
        bounds = _CALL.match(rest)
        if log and bounds and bounds[1] == "interval":
            draft.draw(
                name, {"log_uniform": [number_or_text(part) for part in split_commas(bounds[2])]}
            )
        else:
            draft.note(line, f"{name}: tags have no counterpart")
            _vary(draft, line, name, rest)
    elif kind in ("int", "float", "str") and len(values) == 1:
        draft.axis(name, values)
    else:
        shown = value if len(value) < 60 else f"{value[:57]}..."
        draft.note(line, f"{name}={shown} has no counterpart; the values are {plain_values}")
        draft.axis(name, plain_values or [value])


def _tagged(arguments: list[str]) -> tuple[bool, str] | None:
    """Return two parts of `tag(log, interval(1, 9))`: whether a tag is `log`, and the tagged value.
    Return None if there are no arguments."""
    return (any(part == "log" for part in arguments[:-1]), arguments[-1]) if arguments else None


def _range(arguments: list[str]) -> list[float] | None:
    """Return start, end and step (if not 1) of `range(1,9,2)` or `range(stop=9)`. Return None if an
    argument is not a number."""
    texts = {"start": "0", "step": "1"}
    places = [part for part in arguments if "=" not in part]
    order = ("stop",) if len(places) == 1 else ("start", "stop", "step")
    texts |= dict(zip(order, places, strict=False))
    for part in arguments:
        key, sign, text = part.partition("=")
        texts |= {key.strip(): text} if sign else {}
    bounds = [number_or_text(texts.get(key, "")) for key in ("start", "stop", "step")]
    numbers: list[float] = [number for number in bounds if is_number(number)]
    if len(numbers) < 3:
        return None
    return numbers[:2] if numbers[2] == 1 else numbers


def split_commas(text: str) -> list[str]:
    """Split a text at commas outside brackets and quotes."""
    parts: list[str] = []
    depth, quote, begun = 0, "", 0
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[begun:index].strip())
            begun = index + 1
    return [*parts, text[begun:].strip()]


def _program(source: str) -> str | None:
    """Return the program with `@hydra.main` in the folder of the configuration `source`, or else in
    one of the two folders above. Return None if there is no such program."""
    folder = os.path.dirname(source) or "."
    for place in (folder, os.path.join(folder, ".."), os.path.join(folder, "..", "..")):
        try:
            names = sorted(name for name in os.listdir(place) if name.endswith(".py"))
        except OSError:
            continue
        for name in names:
            path = os.path.normpath(os.path.join(place, name))
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    if "hydra.main(" in file.read(1_000_000):
                        return path
            except OSError:
                continue
    return None


def _is_default(script: str, source: str) -> bool:
    """Return whether the program `script` names the configuration `source` in its code."""
    stem = os.path.splitext(os.path.basename(source))[0]
    with open(script, encoding="utf-8", errors="replace") as file:
        return (
            re.search(rf"config_name\s*=\s*[\"']{re.escape(stem)}", file.read(1_000_000))
            is not None
        )


def _config_words(source: str) -> list[str]:
    stem = os.path.splitext(os.path.basename(source))[0]
    return ["--config-name", stem]
