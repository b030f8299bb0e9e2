"""`sweeper init`: writes a commented grid for a recipe, to start from.

It plans as it stands, unless the recipe needs a value that nobody can guess. The recipe's own
interpreter says its fields with their types, defaults and docs.
"""

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from sweeper.atomic import atomic_create
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.fields.nodes import scalar
from sweeper.fields.sections import Field as Option
from sweeper.fields.sections import Nested
from sweeper.grid.overrides import flow
from sweeper.limits import crowding
from sweeper.model.json_values import table_of
from sweeper.model.names import is_sweep_name
from sweeper.recipe.reference import Recipe, RunProcess, inspect

__all__ = ["SCHEMA", "Field", "add_arguments", "fields_of", "grid_text", "run"]

SCHEMA = "grid.schema.json"
"""If the schema lies here (`sweeper init --schema > grid.schema.json`), the grid names it for
editors."""

_WIDTH = 100
_COLUMN = 34
_METRICS = {
    "sweeper.recipes.sft": "{name: test/nll, goal: minimize, at: last}",
    "sweeper.recipes.rl": "{name: env/all/reward/total, goal: maximize, at: last}",
    "sweeper.recipes.dpo": "{name: test/preference_accuracy, goal: maximize, at: last}",
    "sweeper.recipes.reward": "{name: test/preference_accuracy, goal: maximize, at: last}",
    "sweeper.recipes.distill": "{name: test/accuracy, goal: maximize, at: last}",
    "sweeper.recipes.eval": "{name: test/accuracy, goal: maximize, at: last}",
}
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./:-]*(?<!:)\Z")
_CHOICES = re.compile(r"Literal\[(.*)\]")
_PLACEHOLDERS: Mapping[str, object] = {"str": "FILL ME IN", "int": 1, "float": 0.1, "bool": False}


class Field(NamedTuple):
    """A field of a recipe's config by its dotted key. `default` is YAML, None where there is no
    plain one; `choices` are the values of a Literal."""

    key: str
    type: str
    default: str | None
    doc: str
    required: bool
    choices: tuple[object, ...]
    value: object


class Guess(NamedTuple):
    """What a starter grid sets: an axis, and what the recipe needs. `lacks` are sentences about
    what else it needs."""

    axis: tuple[str, list[object]] | None
    needed: dict[str, object]
    lacks: list[str]


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of `sweeper init`."""
    verb.add_argument(
        "recipe", nargs="?", help="a short name, module, module:Class or file.py (default: sft)"
    )
    verb.add_argument("--out", help="the file to write (default: <recipe>.yaml; -: print it)")
    verb.add_argument("--python", help="the recipe's interpreter (default: sweeper's own)")
    verb.add_argument("--backend", help="where jobs execute: its options are written as comments")
    verb.add_argument("--list", action="store_true", help="the short names of recipes")
    verb.add_argument(
        "--study",
        action="store_true",
        help="write notes/plan.md too: the question, the baseline, what would count as success",
    )
    verb.add_argument("--schema", action="store_true", help="print the JSON Schema of grids")


def run(arguments: argparse.Namespace) -> int:
    """Write a starter grid, or print the names of recipes, or the JSON Schema of grids."""
    from sweeper.terminal import warn

    if arguments.schema:
        import json

        from sweeper.grid.json_schema import grid_schema

        print(json.dumps(grid_schema(), indent=2))
        return 0
    if arguments.list:
        from importlib import metadata

        for point in sorted(metadata.entry_points(group="sweeper.recipes")):
            print(f"{point.name}  {point.value}")
        return 0
    reference = arguments.recipe or "sft"
    name = _name(reference)
    if arguments.study:
        _write_study()
    out = arguments.out or f"{name}.yaml"
    if out != "-" and os.path.lexists(out):  # before the recipe is imported, which takes a while
        raise UsageError(f"{out} is there already: choose another file with --out")
    recipe = inspect(reference, [], RunProcess(arguments.python), deep=True).recipe
    fields = list(fields_of(recipe.takes, _ours(recipe)))
    guess = _guess(reference, fields, arguments.python)
    given = {"backend": arguments.backend, "python": arguments.python}
    text = grid_text(name, recipe, fields, guess, given=given, out=out)
    for sentence in guess.lacks:
        warn(f"warning: the grid does not plan yet: {sentence}")
    if out == "-":
        sys.stdout.write(text)
        return 0
    try:
        _create(out, text)
    except FileExistsError:
        raise UsageError(f"{out} is there already: choose another file with --out") from None
    print(f"wrote {out}; look at it with `sweeper plan {out}`")
    return 0


def _write_study() -> None:
    """Write the plan of a study, unless there is one: what is written in it stays."""
    from sweeper.analysis.criterion import TEMPLATE
    from sweeper.analysis.notebook import FOLDER, PLAN

    path = os.path.join(FOLDER, PLAN)
    try:
        os.makedirs(FOLDER, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {FOLDER}: {error.strerror}") from error
    try:
        _create(path, TEMPLATE)
    except FileExistsError:
        print(f"{path} is there, and stays as it is")
    else:
        print(f"wrote {path}; `sweeper analyze` judges the criterion that you write there")


def _create(path: str, text: str) -> None:
    """Write a new file, whole or not at all. Raises `FileExistsError`, `EnvironmentFailure` where
    the disk takes nothing, and `UsageError` where the path is to blame."""
    try:
        atomic_create(path, text.encode())
    except FileExistsError:
        raise
    except OSError as error:
        kind = UsageError if crowding(error) is None else EnvironmentFailure
        raise kind(f"cannot write {path}: {error.strerror}") from error


def fields_of(
    takes: Mapping[str, Mapping[str, object]],
    ours: frozenset[str],
    above: str = "",
    needed: bool = True,
) -> Iterator[Field]:
    """Yield the fields that a grid can set, those of nested configs by dotted keys, without `ours`.
    What a nested config needs is required where that config is (`needed`)."""
    for name, about in takes.items():
        key = f"{above}{name}"
        if key in ours:
            continue
        required = needed and bool(about.get("required"))
        inside = {key: table_of(one) for key, one in table_of(about.get("fields")).items()}
        if inside:
            yield from fields_of(inside, ours, f"{key}.", required)
            continue
        default = flow(about["default"]) if "default" in about else None
        value = about.get("default")
        if isinstance(value, str):
            default = _yaml(value)
        choices = _choices(str(about["type"]))
        doc = " ".join(str(about.get("doc", "")).split())
        yield Field(key, str(about["type"]), default, doc, required, choices, value)


def grid_text(
    name: str,
    recipe: Recipe,
    fields: list[Field],
    guess: Guess,
    *,
    given: Mapping[str, str | None],
    out: str,
) -> str:
    """Write the grid as YAML with comments; `given` are values for its section `launch`."""
    launch = {"max_parallel": 4} | {k: v for k, v in given.items() if v is not None}
    lines = [*_lines(name, recipe, fields, guess, out), *_launch(launch), ""]
    return "\n".join(lines)


def _lines(name: str, recipe: Recipe, fields: list[Field], guess: Guess, out: str) -> Iterator[str]:
    schema = _schema_below(out)
    if schema:
        yield f"# yaml-language-server: $schema={schema}"
    shown = f"{name}.yaml" if out == "-" else out
    yield f"# A sweep of {recipe.reference}."
    yield "#"
    width = len(shown) + len("sweeper launch ")
    for verb, what, why in (
        ("plan", shown, "what would run"),
        ("launch", shown, "run it"),
        ("analyze", name, "what won, and whether that can be believed"),
    ):
        yield f"#     {f'sweeper {verb} {what}':<{width}}    {why}"
    yield ""
    yield f"name: {_yaml(name)}"
    yield f"recipe: {_yaml(recipe.reference)}"
    known = {field.key for field in fields}
    if {"base_url", "model_name"} & known:
        yield "service: local  # an engine on this machine; tinker: the hosted service"
    else:
        yield "service: none   # or local, tinker: the recipe trains by the Tinker SDK"
    yield ""
    yield "# What all runs share. As comments: every other field, with its default."
    yield "base:"
    axis = guess.axis[0] if guess.axis else None
    chosen = next((field for field in fields if field.key == axis), None)
    for key, value in guess.needed.items():
        yield f"  {key}: {_yaml(value)}  # needed, no default"
    for field in fields:
        if field.key not in guess.needed and field.key != axis and field.key != _seed(fields):
            yield from _comment(field)
    yield ""
    yield "# What is compared: every combination is a cell."
    if guess.axis is None or chosen is None:
        yield "# grid:"
        yield "#   some_field: [1, 2, 3]"
    else:
        yield "grid:"
        yield from _comment(chosen)
        yield f"  {guess.axis[0]}: [{', '.join(map(_yaml, guess.axis[1]))}]"
    yield ""
    yield from _ending(recipe, fields)


def _ending(recipe: Recipe, fields: list[Field]) -> Iterator[str]:
    seed = _seed(fields)
    if seed is None:
        yield "# No seeds: the recipe has no field for one, so nothing tells how sure a result is."
    else:
        yield "# Replicates of each cell: they tell how much of a difference is noise."
        doc = next(field.doc for field in fields if field.key == seed)
        text = f"The recipe's field {seed}: {doc}" if doc else f"The recipe's field is {seed}."
        yield from textwrap.wrap(text, initial_indent="# ", subsequent_indent="# ", width=_WIDTH)
        yield "seeds: 3" if seed == "seed" else f"seeds: {{field: {seed}, values: 3}}"
    yield ""
    yield "# What decides: a key of the recipe's metrics.jsonl."
    metric = _METRICS.get(recipe.module or "")
    yield (
        f"metric: {metric}"
        if metric
        else "# metric: {name: test/nll, goal: minimize, at: last}  # at: last | best | auto"
    )
    yield ""
    yield "# What is to be beaten: a cell over base, or another sweep's winner. (Grids that go on"
    yield "# from each other's runs are `stages`; docs/grid.md tells of both.)"
    yield "# baseline: {cell: {}}"
    yield ""


def _launch(given: Mapping[str, object]) -> Iterator[str]:
    """Write the section `launch`: the backend and what is given, the rest as comments; and the
    backend's own section."""
    from sweeper.backends import backend_names, backend_type
    from sweeper.grid.launch import SECTION, field_of

    backend = backend_type(str(given.get("backend") or SECTION.fields["backend"].default))
    given = {**given, "backend": backend.name}
    yield "launch:"
    for option in SECTION:
        about = option.doc
        if option.name == "backend":
            about = f"{about[:-1]}: {', '.join(backend_names())}."
        yield from _option(option, given.get(option.name), about, "  ")
    if (field := field_of(backend)) is not None:
        yield from _folded(f"  {field.name}:", field.doc)
        for option in cast(Nested, field.kind).section:
            yield from _option(option, None, option.doc, "    ")


def _option(option: Option, value: object, about: str, indent: str) -> Iterator[str]:
    """Write a declared field with its value; else as a comment with its default or an example."""
    shown = value if value is not None else option.default
    shown = next(iter(option.examples), None) if shown is None else shown
    text = "..." if shown is None else _yaml(shown)
    sign = "# " if value is None else ""
    yield from _folded(f"{indent}{sign}{option.name}: {text}", about)


def _comment(field: Field) -> Iterator[str]:
    """Write a field as a comment, folded where it is long: `# lora_rank: 16 # int: rank of the
    adapter`."""
    value = field.default
    if value is None:
        value = "..."
    head = f"  # {field.key}: {value}"
    about = f"{field.type}: {field.doc}" if field.doc else field.type
    if field.default is None and not field.required:
        about += " (its default is the recipe's to make)"
    yield from _folded(head, about)


def _folded(head: str, about: str) -> Iterator[str]:
    """Write a line with a comment beside it, on as many lines as that takes."""
    width = max(40, _WIDTH - max(len(head) + 2, _COLUMN) - 2)
    first, *rest = textwrap.wrap(about, width, break_long_words=False) or [""]
    yield f"{head:<{_COLUMN - 2}}  # {first}"
    for line in rest:
        yield f"  #{'':<{max(_COLUMN, len(head) + 2) - 3}}# {line}"


def _guess(reference: str, fields: list[Field], python: str | None) -> Guess:
    """Guess what to set; each value is tried on the recipe."""
    needed: dict[str, object] = {}
    for field in fields:
        if field.required and field.key != _seed(fields):
            value = field.choices[0] if field.choices else _PLACEHOLDERS.get(field.type)
            if value is not None:
                needed[field.key] = value
    candidates = [(f.key, values) for f in _in_order(fields) if (values := _values(f))][:12]
    tries = [(key, {**needed, key: value}) for key, values in candidates for value in values]
    configs = [needed, *(config for _, config in tries)]
    problems = inspect(reference, configs, RunProcess(python)).problems
    bad = {tries[p.number - 1][0] for p in problems if p.number}
    axis = next((found for found in candidates if found[0] not in bad), None)
    if axis is not None:
        needed.pop(axis[0], None)
    return Guess(axis, needed, [p.message for p in problems if not (p.number or p.lacking)])


def _in_order(fields: list[Field]) -> list[Field]:
    """Sort fields by how likely they are to be swept."""

    def rank(field: Field) -> tuple[int, int]:
        last = field.key.rpartition(".")[2]
        named = ("learning_rate", "lr")
        order = 0 if last in named else 1 if last.endswith(named) else 2
        kinds = ("float", "int")
        kind = 3 if field.choices else 4 if field.type not in kinds else kinds.index(field.type)
        return order, kind

    seed = _seed(fields)
    return sorted((field for field in fields if field.key != seed), key=rank)


def _values(field: Field) -> list[object]:
    """Values of a field worth comparing, its default among them; none for a field without any."""
    value = field.value
    if len(field.choices) > 1:
        return list(field.choices)
    if field.type == "bool":
        return [False, True]
    if type(value) is float and value > 0:
        return [float(f"{value / 3:.1g}"), value, float(f"{value * 3:.1g}")]
    if type(value) is int and value > 1:
        return [value, 2 * value]
    return []


def _choices(annotation: str) -> tuple[object, ...]:
    """The values of `Literal['a', 'b']`, read as data; none for another type."""
    from ast import literal_eval

    match = _CHOICES.search(annotation)
    if match is None:
        return ()
    try:
        found = literal_eval(f"({match.group(1)},)")
    except (ValueError, SyntaxError):
        return ()
    return tuple(found) if all(type(v) in (str, int, bool) for v in found) else ()


def _seed(fields: list[Field]) -> str | None:
    """The field that takes the seed."""
    integers = [field.key for field in fields if field.type in ("int", "int | None")]
    if "seed" in integers:
        return "seed"
    return next((key for key in integers if key.endswith("_seed")), None)


def _ours(recipe: Recipe) -> frozenset[str]:
    return frozenset({recipe.log_path_field or "log_path", "behavior_if_log_dir_exists"})


def _name(reference: str) -> str:
    """Name the sweep: `pkg.train:Config` -> train, `path/to/toy.py` -> toy; `sweep` if that cannot
    name one."""
    head = reference.partition(":")[0]
    if head.endswith(".py") or "/" in head:
        name = os.path.splitext(os.path.basename(head))[0]
    else:
        name = head.rpartition(".")[2]
    return name if is_sweep_name(name) else "sweep"


def _schema_below(out: str) -> str | None:
    """The path from the grid to the JSON Schema, if both lie below the current folder: an editor
    then finds it on every machine that has the folder. Never an address on the network."""
    grid = os.path.realpath(out)
    if (
        out == "-"
        or not os.path.exists(SCHEMA)
        or not grid.startswith(os.path.realpath(".") + os.sep)
    ):
        return None
    return os.path.relpath(SCHEMA, os.path.dirname(grid))


def _yaml(value: object) -> str:
    """Write a value as YAML, strings without quotes where they need none."""
    if isinstance(value, str) and _PLAIN.match(value) and scalar(value) == value:
        return value
    if isinstance(value, float) and 0 < abs(value) < 1e-2:
        mantissa, _, exponent = f"{value:e}".partition("e")
        short = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
        return short if float(short) == value else flow(value)
    return flow(value)
