"""Makes the text of a starter grid: YAML with comments."""

import os
import textwrap
from collections.abc import Iterator, Mapping
from typing import cast

from sweeper.commands.init_fields import Field, Guess, as_yaml, seed_field
from sweeper.fields.sections import Field as Option
from sweeper.fields.sections import Nested
from sweeper.recipe.reference import Recipe

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


def grid_text(
    name: str,
    recipe: Recipe,
    fields: list[Field],
    guess: Guess,
    *,
    given: Mapping[str, str | None],
    out: str,
) -> str:
    """Write the grid as YAML with comments; `given` has values for its section `launch`."""
    launch = {"max_parallel": 4} | {k: v for k, v in given.items() if v is not None}
    lines = [*_lines(name, recipe, fields, guess, out), *launch_section(launch), ""]
    return "\n".join(lines)


def head(name: str, program: str, out: str) -> Iterator[str]:
    """Write the first lines: what the grid is, and what to do with it."""
    schema = _schema_below(out)
    if schema:
        yield f"# yaml-language-server: $schema={schema}"
    shown = f"{name}.yaml" if out == "-" else out
    yield f"# A sweep of {program}."
    yield "#"
    width = len(shown) + len("sweeper launch ")
    for verb, what, why in (
        ("plan", shown, "what would run"),
        ("launch", shown, "run it"),
        ("analyze", name, "what won, and whether that can be believed"),
    ):
        yield f"#     {f'sweeper {verb} {what}':<{width}}    {why}"
    yield ""


def _lines(name: str, recipe: Recipe, fields: list[Field], guess: Guess, out: str) -> Iterator[str]:
    yield from head(name, recipe.reference, out)
    yield f"name: {as_yaml(name)}"
    yield f"recipe: {as_yaml(recipe.reference)}"
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
    types = {field.key: field.type for field in fields}
    for key in guess.needed:
        # Without a value, plan refuses the field; null may be the value of an optional one.
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
        yield "# No seeds: the recipe has no field for one, so nothing tells how sure a result is."
    else:
        yield "# Replicates of each cell: they tell how much of a difference is noise."
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
    yield "# What is to be beaten: a cell over base, or another sweep's winner. (Grids that go on"
    yield "# from each other's runs are `stages`; docs/grid.md tells of both.)"
    yield "# baseline: {cell: {}}"
    yield ""


def launch_section(given: Mapping[str, object]) -> Iterator[str]:
    """Write the section `launch`: the backend and the given values, the rest as comments; and the
    backend's own section."""
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
    """Write a declared field with its value; without one, as a comment with its default or an
    example."""
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
    if field.default is None and not field.required:
        about += " (its default is the recipe's to make)"
    yield from _folded(head, about)


def _folded(head: str, about: str) -> Iterator[str]:
    """Write a line with a comment to its right, folded over several lines if needed."""
    width = max(40, _WIDTH - max(len(head) + 2, _COLUMN) - 2)
    first, *rest = textwrap.wrap(about, width, break_long_words=False) or [""]
    yield f"{head:<{_COLUMN - 2}}  # {first}"
    for line in rest:
        yield f"  #{'':<{max(_COLUMN, len(head) + 2) - 3}}# {line}"


def _schema_below(out: str) -> str | None:
    """Return the path from the grid to the JSON Schema, if both are below the current folder: an
    editor then finds it on every machine that has the folder. Never a network address."""
    grid = os.path.realpath(out)
    if (
        out == "-"
        or not os.path.exists(SCHEMA)
        or not grid.startswith(os.path.realpath(".") + os.sep)
    ):
        return None
    return os.path.relpath(SCHEMA, os.path.dirname(grid))
