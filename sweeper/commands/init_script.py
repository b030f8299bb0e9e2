"""A starter grid for a script that is no recipe: its options are read from its source, without
running it."""

import ast
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from sweeper.commands.init_fields import Field, as_yaml, in_order, values_of
from sweeper.commands.init_text import comment_of, head, launch_section
from sweeper.common.json_values import list_of
from sweeper.metrics.files import METRICS

_FOLDERS = re.compile(
    r"((log|out|output|save|run|exp|result|results|checkpoint)_?(dir|path|folder)|out|output|logdir)\Z"
)
_TYPES = ("int", "float", "str", "bool")
_FLAGS = ("store_true", "store_false", "count")


class Option(NamedTuple):
    """An option of a script, as a field with the key that a grid gives it. `flag` is how the script
    takes it (`--lr`), "" for a positional argument."""

    flag: str
    field: Field


def options_of(path: str) -> list[Option] | None:
    """Return the options that a Python script declares with argparse or click, those that take no
    value left out; of another script none. None for a script that uses chz or has syntax errors:
    its interpreter says more about it."""
    if not path.endswith(".py"):
        return []
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return None
    nodes = list(ast.walk(tree))
    if any(name.partition(".")[0] == "chz" for node in nodes for name in _imported(node)):
        return None
    declared = (_option(node) for node in nodes if isinstance(node, ast.Call))
    options = {one.field.key: one for one in declared if one is not None}
    return list(options.values())


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def _option(call: ast.Call) -> Option | None:
    """Read `add_argument(...)`, `@click.option(...)` or `@click.argument(...)`."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    texts = [text for text in map(_literal, call.args) if isinstance(text, str)]
    if name not in ("add_argument", "option", "argument") or not texts:
        return None
    given = {keyword.arg or "": keyword.value for keyword in call.keywords}
    no_value = _literal(given.get("is_flag")) or _literal(given.get("action")) in _FLAGS
    long = [text for text in texts if text.startswith("--")]
    flag = next(iter(long), "") if texts[0].startswith("-") else ""
    if no_value or (texts[0].startswith("-") and not flag) or "/" in flag:
        return None
    dest = _literal(given.get("dest")) or (flag or texts[0]).lstrip("-")
    key = re.sub(r"\W", "_", str(dest))
    return Option(flag, _field(key, given, needed=not flag)) if key[:1].isalpha() else None


def _field(key: str, given: Mapping[str, ast.expr], *, needed: bool) -> Field:
    default, choices = _literal(given.get("default")), _literal(given.get("choices"))
    kind = getattr(given.get("type"), "id", "") or type(default).__name__
    known = default is not None and type(default).__name__ in _TYPES
    if known and kind == "float":
        default = float(str(default))
    listed = list_of(list(cast("tuple[object]", choices)) if type(choices) is tuple else choices)
    optional = _literal(given.get("nargs")) in ("?", "*") or "default" in given
    return Field(
        key=key,
        type=kind if kind in _TYPES else "str",
        default=as_yaml(default) if known else None,
        doc=" ".join(str(_literal(given.get("help")) or "").split()),
        required=bool(_literal(given.get("required"))) or (needed and not optional),
        choices=tuple(one for one in listed if isinstance(one, str | int)),
        value=default if known else None,
    )


def _literal(node: ast.expr | None) -> object:
    """Return the value of an expression that is plain data, else None."""
    try:
        return None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


class _Parts(NamedTuple):
    """The options of a script by what they are for: the run's folder, its seed, the axis that is
    compared, those that need a value, and the others."""

    folder: Option | None
    seed: Option | None
    axis: Option | None
    needed: list[Option]
    others: list[Option]


def _parts(options: list[Option]) -> _Parts:
    folder = next((one for one in options if _FOLDERS.match(one.field.key)), None)
    seed = next((one for one in options if one.field.key.endswith("seed")), None)
    values = {one.field: one for one in options if one not in (folder, seed)}
    first = next((field for field in in_order(list(values)) if values_of(field)), None)
    axis = None if first is None else values[first]
    left = [one for one in values.values() if one is not axis]
    needed = [one for one in left if one.field.required]
    return _Parts(folder, seed, axis, needed, [one for one in left if one not in needed])


def script_text(
    name: str, script: str, options: list[Option], given: Mapping[str, str | None], out: str
) -> tuple[str, list[str]]:
    """Write a grid whose runs execute a script. Values that the script needs are left out, with a
    comment, so that the grid plans only when they are filled in. Return it with their keys."""
    parts = _parts(options)
    lines = [
        *head(name, script, out),
        f"name: {as_yaml(name)}",
        *_command(script, parts, given.get("python")),
        "service: none   # or local, tinker: the program trains by the Tinker SDK",
        "",
        *_values(parts),
        *launch_section({"max_parallel": 4, "backend": given.get("backend")}),
        "",
    ]
    return "\n".join(lines), [option.field.key for option in parts.needed]


def _command(script: str, parts: _Parts, python: str | None) -> Iterator[str]:
    yield "# What each run executes: {key} stands for a value below. Add the options that you set."
    yield "command:"
    interpreter = python or next(filter(shutil.which, ("python", "python3")), "python3")
    start = [interpreter, script] if script.endswith(".py") else [os.path.join(".", script)]
    yield from (f"  - {as_yaml(word)}" for word in start)
    for option in [*parts.needed, *([] if parts.axis is None else [parts.axis])]:
        yield from _words(option.flag, option.field.key)
    if parts.seed is not None:
        yield from _words(parts.seed.flag, "seed")
    if parts.folder is not None:
        yield from _words(parts.folder.flag, "log_path")
    else:
        yield f"  # No option of the script takes a folder: let it write {METRICS}, one JSON"
        yield "  # object with a `step` per line, to the folder in the variable SWEEPER_RUN_DIR."


def _values(parts: _Parts) -> Iterator[str]:
    yield "# What all runs share."
    yield "base:"
    for option in parts.needed:
        field = option.field
        about = f"{field.type}, needed, no default: {field.doc}".removesuffix(": ")
        yield f"  # {field.key}: ...  # FILL IN: {about}"
    for option in parts.others:
        yield from comment_of(option.field)
    yield ""
    yield "# What is compared: every combination is a cell."
    if parts.axis is None:
        yield "# grid:"
        yield "#   some_option: [1, 2, 3]   # and {some_option} in the command"
    else:
        field = parts.axis.field
        yield "grid:"
        yield from comment_of(field)
        yield f"  {field.key}: [{', '.join(map(as_yaml, values_of(field)))}]"
    yield ""
    if parts.seed is None:
        yield "# No seeds: the script has no option for one. A program may read SWEEPER_SEED."
        yield "# seeds: 3"
    else:
        yield "# Replicates of each cell: they tell how much of a difference is noise."
        yield "seeds: 3"
    yield ""
    yield "# What decides: a key of the program's metrics."
    yield "# metric: {name: loss, goal: minimize, at: last}  # at: last | best | auto"
    yield ""


def _words(flag: str, key: str) -> Iterator[str]:
    if flag:
        yield f"  - {flag}"
    yield f'  - "{{{key}}}"'
