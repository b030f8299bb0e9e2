"""`sweeper init`: writes a commented grid for a recipe or a script. The fields of a recipe come
from the recipe's interpreter. The options of a script are read from its source."""

import argparse
import ast
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from sweeper.commands import arguments as shared
from sweeper.common.atomic import atomic_create
from sweeper.common.full_machine import crowding
from sweeper.common.json_values import list_of
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.grid.starter import (
    Field,
    as_yaml,
    comment_of,
    head,
    in_order,
    launch_section,
    recipe_names,
    starter_text,
    values_of,
)
from sweeper.metrics.files import METRICS
from sweeper.sweep.hint import hint
from sweeper.sweep.names import is_sweep_name

_FOLDERS = re.compile(
    r"((log|out|output|save|run|exp|result|results|checkpoint)_?(dir|path|folder)|out|output|logdir)\Z"
)
_MOST = 128 * 1024
_TYPES = ("int", "float", "str", "bool")
_FLAGS = ("store_true", "store_false", "count")


class Option(NamedTuple):
    """An option of a script, and its key in a grid. `flag` is the name on the command line
    (`--lr`), or "" for a positional argument."""

    flag: str
    field: Field


def options_of(path: str) -> list[Option] | None:
    """Return the options that a Python script declares with argparse or click. Skip options that
    take no value or have no long name. Return [] if the path does not end in `.py`. Return None for
    a script that uses chz, cannot be read or has syntax errors."""
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
    return list({option.field.key: option for option in declared if option is not None}.values())


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def _option(call: ast.Call) -> Option | None:
    """Return the option that a call declares: `add_argument(...)`, `@click.option(...)` or
    `@click.argument(...)`. None for other calls, and for options that take no value or have no long
    name."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    texts = [text for text in map(_literal, call.args) if isinstance(text, str)]
    if name not in ("add_argument", "option", "argument") or not texts:
        return None
    keywords = {keyword.arg or "": keyword.value for keyword in call.keywords}
    no_value = _literal(keywords.get("is_flag")) or _literal(keywords.get("action")) in _FLAGS
    long = [text for text in texts if text.startswith("--")]
    flag = next(iter(long), "") if texts[0].startswith("-") else ""
    if no_value or (texts[0].startswith("-") and not flag) or "/" in flag:
        return None
    dest = _literal(keywords.get("dest")) or (flag or texts[0]).lstrip("-")
    key = re.sub(r"\W", "_", str(dest))
    return Option(flag, _field(key, keywords, needed=not flag)) if key[:1].isalpha() else None


def _field(key: str, keywords: Mapping[str, ast.expr], *, needed: bool) -> Field:
    default, choices = _literal(keywords.get("default")), _literal(keywords.get("choices"))
    kind = getattr(keywords.get("type"), "id", "") or type(default).__name__
    has_default = default is not None and type(default).__name__ in _TYPES
    if has_default and kind == "float":
        default = float(str(default))
    listed = list_of(list(cast("tuple[object]", choices)) if type(choices) is tuple else choices)
    optional = _literal(keywords.get("nargs")) in ("?", "*") or "default" in keywords
    return Field(
        key=key,
        type=kind if kind in _TYPES else "str",
        default=as_yaml(default) if has_default else None,
        doc=" ".join(str(_literal(keywords.get("help")) or "").split()),
        required=bool(_literal(keywords.get("required"))) or (needed and not optional),
        choices=tuple(option for option in listed if isinstance(option, str | int)),
        value=default if has_default else None,
    )


def _literal(node: ast.expr | None) -> object:
    """Return the value of a literal expression, or None for other expressions."""
    try:
        return None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


class _Parts(NamedTuple):
    """The options of a script by purpose: the option for the run's folder, the seed, the option
    that becomes the grid's axis, required options, and all others."""

    folder: Option | None
    seed: Option | None
    axis: Option | None
    needed: list[Option]
    others: list[Option]


def _parts(options: list[Option]) -> _Parts:
    folder = next((option for option in options if _FOLDERS.match(option.field.key)), None)
    seed = next((option for option in options if option.field.key.endswith("seed")), None)
    values = {option.field: option for option in options if option not in (folder, seed)}
    first = next((field for field in in_order(list(values)) if values_of(field)), None)
    axis = None if first is None else values[first]
    remaining = [option for option in values.values() if option is not axis]
    needed = [option for option in remaining if option.field.required]
    others = [option for option in remaining if option not in needed]
    return _Parts(folder, seed, axis, needed, others)


def script_text(
    name: str, script: str, options: list[Option], settings: Mapping[str, str | None], out: str
) -> tuple[str, list[str]]:
    """Return the text of a grid whose runs execute a script. Also return the keys that the user
    must fill in, which are commented out in the text."""
    parts = _parts(options)
    lines = [
        *head(name, script, out),
        f"name: {as_yaml(name)}",
        *_command(script, parts, settings.get("python")),
        "service: none   # or local, tinker, if the program uses the Tinker SDK",
        "",
        *_values(parts),
        *launch_section({"max_parallel": 4, "backend": settings.get("backend")}),
        "",
    ]
    return "\n".join(lines), [option.field.key for option in parts.needed]


def _command(script: str, parts: _Parts, python: str | None) -> Iterator[str]:
    yield (
        "# What each run executes. {key} is replaced by a value below. Add the options that you "
        "set."
    )
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
        yield f"  # No option of the script takes a folder. Make it write {METRICS}, one JSON"
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
    yield "# What is compared. Every combination is a cell."
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
        yield "# Replicates of each cell. They show how much of a difference is noise."
        yield "seeds: 3"
    yield ""
    yield "# The key of the program's metrics that runs are compared by."
    yield "# metric: {name: loss, goal: minimize, at: last}  # at: last | best | auto"
    yield ""


def _words(flag: str, key: str) -> Iterator[str]:
    if flag:
        yield f"  - {flag}"
    yield f'  - "{{{key}}}"'


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of `sweeper init`."""
    recipe = shared.group(verb, "the recipe")
    recipe.add_argument(
        "recipe",
        nargs="?",
        metavar="RECIPE",
        help="a recipe's short name, module, module:Class or file.py, or any script (default: sft)",
    )
    recipe.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        help="make the grid from a sweep of W&B, Hydra or SEML, a shell loop, or the options of a "
        "script",
    )
    recipe.add_argument("--python", help="the recipe's interpreter (default: sweeper's own)")
    grid = shared.group(verb, "the grid")
    grid.add_argument("--out", help="the file to write (default: <recipe>.yaml; -: print it)")
    grid.add_argument("--backend", help="write the options of this backend as comments")
    shared.flag(
        grid,
        "--study",
        "also write notes/plan.md: the question, the baseline, the criterion of success",
    )
    output = shared.group(verb, shared.OUTPUT)
    shared.flag(output, "--list", "list the short names of recipes")
    shared.flag(output, "--schema", "print the JSON Schema of grids")


def run(arguments: argparse.Namespace) -> int:
    """Write a starter grid, or print the names of recipes or the JSON Schema of grids."""
    from sweeper.terminal import warn

    if arguments.schema:
        import json

        from sweeper.grid.json_schema import grid_schema

        print(json.dumps(grid_schema(), indent=2))
        return 0
    if arguments.list:
        for short, module in recipe_names().items():
            print(f"{short}  {module}")
        return 0
    if (file := arguments.recipe or "").endswith((".yaml", ".yml")):
        raise UsageError(
            f"{file} is not a recipe: --from {file} translates this file, --out {file} writes a "
            "grid to it"
        )
    reference = arguments.source or arguments.recipe or "sft"
    name = _name(reference)
    if arguments.study:
        _write_study()
    out = arguments.out or f"{name}.yaml"
    if arguments.source and not arguments.out and os.path.exists(out):
        out = f"{name}_grid.yaml"  # the file itself may be named like a short name
    if out != "-" and os.path.lexists(out):  # check this before the recipe's slow import
        raise UsageError(f"{out} exists already: choose another file with --out")
    settings = {"backend": arguments.backend, "python": arguments.python}
    if arguments.source:
        text, lacks = _translated(arguments), []
    else:
        text, lacks = _text(name, reference, settings, out)
    for sentence in lacks:
        warn(f"warning: this grid is not ready for `sweeper plan`: {sentence}")
    if out == "-":
        sys.stdout.write(text)
        return 0
    try:
        _create(out, text)
    except FileExistsError:
        raise UsageError(f"{out} exists already: choose another file with --out") from None
    print(f"wrote {out}; look at it with `{hint('plan', out)}`")
    return 0


def _text(
    name: str, reference: str, settings: Mapping[str, str | None], out: str
) -> tuple[str, list[str]]:
    """Return the text of a grid for a recipe or a script, and sentences about values that the
    user must fill in."""
    options = options_of(reference) if os.path.isfile(reference) else None
    if options is None:
        return starter_text(name, reference, settings, out)
    text, needed = script_text(name, reference, options, settings, out)
    return text, [f"fill in {', '.join(needed)}"] if needed else []


def _translated(arguments: argparse.Namespace) -> str:
    """Return the grid for a sweep file of another program, and print which parts could not be
    translated."""
    from sweeper.grid.translation.reading import translated
    from sweeper.grid.translation.script import Argument, from_script
    from sweeper.terminal import warn

    source = arguments.source
    options = options_of(source) if source.endswith(".py") else None
    if options is None:
        draft = translated(_contents(source), source, arguments.recipe)
    else:
        draft = from_script(source, [
            Argument(
                flag, field.key, field.value, values_of(field), needed=field.required,
                folder=bool(_FOLDERS.match(field.key)),
            )
            for flag, field in options
        ])  # fmt: skip
    for remark in draft.remarks:
        warn(draft.place(remark))
    return draft.yaml()


def _contents(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_MOST + 1)[:_MOST]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text") from error


def _write_study() -> None:
    """Write notes/plan.md, a template for the plan of a study, unless it exists."""
    from sweeper.analysis.page.notebook import FOLDER, PLAN
    from sweeper.analysis.reading.criterion import TEMPLATE

    path = os.path.join(FOLDER, PLAN)
    try:
        os.makedirs(FOLDER, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {FOLDER}: {error.strerror}") from error
    try:
        _create(path, TEMPLATE)
    except FileExistsError:
        print(f"{path} exists and is unchanged")
    else:
        print(f"wrote {path}; `sweeper analyze` judges the criterion that you write there")


def _create(path: str, text: str) -> None:
    """Write a new file, completely or not at all. Raises `FileExistsError`, `EnvironmentFailure`
    if the disk is full, and `UsageError` for other problems."""
    try:
        atomic_create(path, text.encode())
    except FileExistsError:
        raise
    except OSError as error:
        kind = UsageError if crowding(error) is None else EnvironmentFailure
        raise kind(f"cannot write {path}: {error.strerror}") from error


def _name(reference: str) -> str:
    """Derive the sweep's name from the recipe: `pkg.train:Config` -> `train`, `path/to/toy.py`
    -> `toy`. If the result is not a valid name, return `sweep`."""
    head = reference.partition(":")[0]
    if head.endswith(".py") or "/" in head or os.path.isfile(head):
        name = os.path.splitext(os.path.basename(head))[0]
    else:
        name = head.rpartition(".")[2]
    return name if is_sweep_name(name) else "sweep"
