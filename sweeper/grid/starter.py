"""Makes a starter grid for a recipe: chooses which of the recipe's fields the grid sets, and
writes the grid as YAML with comments."""

import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from sweeper.common.json_values import table_of
from sweeper.fields.nodes import scalar
from sweeper.fields.sections import Field as Option
from sweeper.fields.sections import Nested
from sweeper.grid.overrides import flow
from sweeper.recipe.reference import Recipe, RunProcess, inspect

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./:-]*(?<!:)\Z")
_CHOICES = re.compile(r"Literal\[(.*)\]")
_PLACEHOLDERS: Mapping[str, object] = {"str": "FILL ME IN", "int": 1, "float": 0.1, "bool": False}


class Field(NamedTuple):
    """A field of a recipe's config. `key` is dotted. `default` is YAML, or None if the default is
    unknown. `choices` are the values of a Literal. `section` is the key of the innermost optional
    config around the field that has required fields; "" without such a config."""

    key: str
    type: str
    default: str | None
    doc: str
    required: bool
    choices: tuple[object, ...]
    value: object
    section: str = ""


class Guess(NamedTuple):
    """The settings of a starter grid: an axis or None, and a trial value for each field that needs
    a value. `lacks` has sentences about what else the recipe needs."""

    axis: tuple[str, list[object]] | None
    needed: dict[str, object]
    lacks: list[str]


def fields_of(recipe: Recipe) -> list[Field]:
    """Return the fields that a grid can set, except the fields that sweeper sets itself."""
    filled = frozenset({recipe.log_path_field or "log_path", "behavior_if_log_dir_exists"})
    return list(_fields(recipe.takes, filled))


def _fields(
    takes: Mapping[str, Mapping[str, object]],
    filled: frozenset[str],
    above: str = "",
    needed: bool = True,
    section: str = "",
) -> Iterator[Field]:
    """Yield all fields in `takes` except `filled`. Fields of nested configs have dotted keys. If
    `needed` is False, `takes` describes an optional config, and no field is required. `section` is
    as in `Field`."""
    for name, about in takes.items():
        key = f"{above}{name}"
        if key in filled:
            continue
        required = needed and bool(about.get("required"))
        inside = {
            key: table_of(value_of_field)
            for key, value_of_field in table_of(about.get("fields")).items()
        }
        if inside:
            optional = not required and any(
                value_of_field.get("required") for value_of_field in inside.values()
            )
            within = key if optional else section
            yield from _fields(inside, filled, f"{key}.", required, within)
            continue
        default = flow(about["default"]) if "default" in about else None
        value = about.get("default")
        if isinstance(value, str):
            default = as_yaml(value)
        choices = _choices(str(about["type"]))
        doc = " ".join(str(about.get("doc", "")).split())
        yield Field(key, str(about["type"]), default, doc, required, choices, value, section)


def guess_settings(reference: str, fields: list[Field], python: str | None) -> Guess:
    """Guess which values to set. The recipe checks each guess."""
    needed: dict[str, object] = {}
    for field in fields:
        if field.required and field.key != seed_field(fields):
            value = field.choices[0] if field.choices else _PLACEHOLDERS.get(field.type)
            if value is not None:
                needed[field.key] = value
    alone = [field for field in in_order(fields) if not field.section]
    candidates = [(field.key, values) for field in alone if (values := values_of(field))][:12]
    tries = [(key, {**needed, key: value}) for key, values in candidates for value in values]
    configs = [needed, *(config for _, config in tries)]
    problems = inspect(reference, configs, RunProcess(python)).problems
    bad = {tries[p.number - 1][0] for p in problems if p.number}
    axis = next((candidate for candidate in candidates if candidate[0] not in bad), None)
    if axis is not None:
        needed.pop(axis[0], None)
    return Guess(axis, needed, [p.message for p in problems if not (p.number or p.lacking)])


def in_order(fields: list[Field]) -> list[Field]:
    """Sort fields by how likely they are to be swept. The seed is left out."""

    def rank(field: Field) -> tuple[int, int]:
        last = field.key.rpartition(".")[2]
        named = ("learning_rate", "lr")
        order = 0 if last in named else 1 if last.endswith(named) else 2
        kinds = ("float", "int")
        kind = 3 if field.choices else 4 if field.type not in kinds else kinds.index(field.type)
        return order, kind

    seed = seed_field(fields)
    return sorted((field for field in fields if field.key != seed), key=rank)


def values_of(field: Field) -> list[object]:
    """Return values of a field that are worth comparing, including its default; [] if there are
    none."""
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
    """Return the values of `Literal['a', 'b']`, read as data; () for another type."""
    from ast import literal_eval

    match = _CHOICES.search(annotation)
    if match is None:
        return ()
    try:
        choices = literal_eval(f"({match.group(1)},)")
    except (ValueError, SyntaxError):
        return ()
    return tuple(choices) if all(type(v) in (str, int, bool) for v in choices) else ()


def seed_field(fields: list[Field]) -> str | None:
    """Return the key of the field for the seed, or None."""
    integers = [field.key for field in fields if field.type in ("int", "int | None")]
    if "seed" in integers:
        return "seed"
    return next((key for key in integers if key.endswith("_seed")), None)


def as_yaml(value: object) -> str:
    """Write a value as YAML, with quotes only where a string needs them."""
    if isinstance(value, str) and _PLAIN.match(value) and scalar(value) == value:
        return value
    if isinstance(value, float) and 0 < abs(value) < 1e-2:
        mantissa, _, exponent = f"{value:e}".partition("e")
        short = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
        return short if float(short) == value else flow(value)
    return flow(value)


SCHEMA = "grid.schema.json"
"""If the schema is in this file (`sweeper init --schema > grid.schema.json`), the grid names it
for editors."""

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


def starter_text(
    name: str, reference: str, given: Mapping[str, str | None], out: str
) -> tuple[str, list[str]]:
    """Return the text of a grid for a recipe, and sentences about what the grid still lacks.
    `given` has the recipe's `python` and the `backend`. Raises `UsageError`."""
    recipe = inspect(reference, [], RunProcess(given.get("python")), deep=True).recipe
    fields = fields_of(recipe)
    guess = guess_settings(reference, fields, given.get("python"))
    text = grid_text(name, recipe, fields, guess, given=given, out=out)
    return text, guess.lacks or ([f"fill in {', '.join(guess.needed)}"] if guess.needed else [])


def recipe_names() -> dict[str, str]:
    """Return a dict from the short names of recipes to modules."""
    from importlib import metadata

    points = metadata.entry_points(group="sweeper.recipes")
    return {point.name: point.value for point in sorted(points, key=lambda point: point.name)}


def grid_text(
    name: str,
    recipe: Recipe,
    fields: list[Field],
    guess: Guess,
    *,
    given: Mapping[str, str | None],
    out: str,
) -> str:
    """Write the grid as YAML with comments; `given` has values for the section `launch`."""
    launch = {"max_parallel": 4} | {k: v for k, v in given.items() if v is not None}
    lines = [*_lines(name, recipe, fields, guess, out), *launch_section(launch), ""]
    return "\n".join(lines)


def head(name: str, program: str, out: str) -> Iterator[str]:
    """Write the first lines: a description of the grid, and the commands that use the grid."""
    schema = _schema_below(out)
    if schema:
        yield f"# yaml-language-server: $schema={schema}"
    shown = f"{name}.yaml" if out == "-" else out
    yield f"# A sweep of {program}."
    yield "#"
    width = len(shown) + len("sweeper launch ")
    for verb, argument, why in (
        ("plan", shown, "what would run"),
        ("launch", shown, "run it"),
        ("analyze", name, "what won, and how certain that is"),
    ):
        yield f"#     {f'sweeper {verb} {argument}':<{width}}    {why}"
    yield ""


def _lines(name: str, recipe: Recipe, fields: list[Field], guess: Guess, out: str) -> Iterator[str]:
    yield from head(name, recipe.reference, out)
    yield f"name: {as_yaml(name)}"
    yield f"recipe: {as_yaml(recipe.reference)}"
    keys = {field.key for field in fields}
    if {"base_url", "model_name"} & keys:
        yield "service: local  # an engine on this machine; tinker: the hosted service"
    else:
        yield "service: none   # or local, tinker, if the recipe uses the Tinker SDK"
    yield ""
    yield "# Values that all runs share. Comments show every other field, with its default."
    yield "base:"
    axis = guess.axis[0] if guess.axis else None
    chosen = next((field for field in fields if field.key == axis), None)
    types = {field.key: field.type for field in fields}
    for key in guess.needed:
        # Without a value, plan refuses the field. Null may be the value of an optional field.
        sign = "# " if "None" in types[key] else ""
        yield f"  {sign}{key}:  # FILL IN: {types[key]}, needed, no default"
    for field in fields:
        if field.key not in guess.needed and field.key != axis and field.key != seed_field(fields):
            yield from comment_of(field)
    yield ""
    yield "# What is compared: every combination is a cell."
    if guess.axis is None or chosen is None:
        yield "# grid:"
        yield "#   some_field: [1, 2, 3]"
    else:
        yield "grid:"
        yield from comment_of(chosen)
        yield f"  {guess.axis[0]}: [{', '.join(map(as_yaml, guess.axis[1]))}]"
    yield ""
    yield from _ending(recipe, fields)


def _ending(recipe: Recipe, fields: list[Field]) -> Iterator[str]:
    seed = seed_field(fields)
    if seed is None:
        yield "# No seeds: the recipe has no field for one, so the noise of results is unknown."
    else:
        yield "# Replicates of each cell: they show how much of a difference is noise."
        doc = next(field.doc for field in fields if field.key == seed)
        text = f"The recipe's field {seed}: {doc}" if doc else f"The recipe's field is {seed}."
        yield from textwrap.wrap(text, initial_indent="# ", subsequent_indent="# ", width=_WIDTH)
        yield "seeds: 3" if seed == "seed" else f"seeds: {{field: {seed}, values: 3}}"
    yield ""
    yield "# What decides: a key of the recipe's metrics."
    metric = _METRICS.get(recipe.module or "")
    yield (
        f"metric: {metric}"
        if metric
        else "# metric: {name: test/nll, goal: minimize, at: last}  # at: last | best | auto"
    )
    yield ""
    yield "# Compare the best cell with another cell, or with the best cell of another sweep."
    yield "# (A grid can also have `stages` that continue from each other. See docs/grid.md.)"
    yield "# baseline: {cell: {}}"
    yield ""


def launch_section(given: Mapping[str, object]) -> Iterator[str]:
    """Write the section `launch`: the backend and the `given` values, and all other keys as
    comments. Then write the backend's own section."""
    from sweeper.backends import backend_names, backend_type
    from sweeper.grid.backends import field_of
    from sweeper.grid.launch import SECTION

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
    """Write a declared field with its value, or as a comment with its default or an example."""
    shown = value if value is not None else option.default
    shown = next(iter(option.examples), None) if shown is None else shown
    text = "..." if shown is None else as_yaml(shown)
    sign = "# " if value is None else ""
    yield from _folded(f"{indent}{sign}{option.name}: {text}", about)


def comment_of(field: Field) -> Iterator[str]:
    """Write a field as a comment, folded if it is long: `# lora_rank: 16 # int: rank of the
    adapter`."""
    value = field.default
    if value is None:
        value = "..."
    head = f"  # {field.key}: {value}"
    about = f"{field.type}: {field.doc}" if field.doc else field.type
    if field.default is None and field.section:
        about += f" (needed with any other of {field.section})"
    elif field.default is None and not field.required:
        about += " (the recipe computes its default)"
    yield from _folded(head, about)


def _folded(head: str, about: str) -> Iterator[str]:
    """Write a line with a comment to its right, folded over several lines if needed."""
    width = max(40, _WIDTH - max(len(head) + 2, _COLUMN) - 2)
    first, *rest = textwrap.wrap(about, width, break_long_words=False) or [""]
    yield f"{head:<{_COLUMN - 2}}  # {first}"
    for line in rest:
        yield f"  #{'':<{max(_COLUMN, len(head) + 2) - 3}}# {line}"


def _schema_below(out: str) -> str | None:
    """Return the path of the JSON Schema, relative to the grid's folder. Return None if there is no
    schema, or if the grid is not below the current folder."""
    grid = os.path.realpath(out)
    if (
        out == "-"
        or not os.path.exists(SCHEMA)
        or not grid.startswith(os.path.realpath(".") + os.sep)
    ):
        return None
    return os.path.relpath(SCHEMA, os.path.dirname(grid))
