"""The fields of a recipe that a grid can set, and a guess of what a starter grid should set."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sweeper.common.json_values import table_of
from sweeper.fields.nodes import scalar
from sweeper.grid.overrides import flow
from sweeper.recipe.reference import Recipe, RunProcess, inspect

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./:-]*(?<!:)\Z")
_CHOICES = re.compile(r"Literal\[(.*)\]")
_PLACEHOLDERS: Mapping[str, object] = {"str": "FILL ME IN", "int": 1, "float": 0.1, "bool": False}


class Field(NamedTuple):
    """A field of a recipe's config by its dotted key. `default` is YAML, None if there is no plain
    one; `choices` are the values of a Literal."""

    key: str
    type: str
    default: str | None
    doc: str
    required: bool
    choices: tuple[object, ...]
    value: object


class Guess(NamedTuple):
    """The settings of a starter grid: an axis, and the fields that need a value, with values for a
    trial. `lacks` has sentences about what else the recipe needs."""

    axis: tuple[str, list[object]] | None
    needed: dict[str, object]
    lacks: list[str]


def fields_of(recipe: Recipe) -> list[Field]:
    """Return the fields that a grid can set, without those that sweeper sets itself."""
    ours = frozenset({recipe.log_path_field or "log_path", "behavior_if_log_dir_exists"})
    return list(_fields(recipe.takes, ours))


def _fields(
    takes: Mapping[str, Mapping[str, object]],
    ours: frozenset[str],
    above: str = "",
    needed: bool = True,
) -> Iterator[Field]:
    """Yield the fields without `ours`, those of nested configs by dotted keys. A required field of
    a nested config is required only if the config is (`needed`)."""
    for name, about in takes.items():
        key = f"{above}{name}"
        if key in ours:
            continue
        required = needed and bool(about.get("required"))
        inside = {key: table_of(one) for key, one in table_of(about.get("fields")).items()}
        if inside:
            yield from _fields(inside, ours, f"{key}.", required)
            continue
        default = flow(about["default"]) if "default" in about else None
        value = about.get("default")
        if isinstance(value, str):
            default = as_yaml(value)
        choices = _choices(str(about["type"]))
        doc = " ".join(str(about.get("doc", "")).split())
        yield Field(key, str(about["type"]), default, doc, required, choices, value)


def guess_settings(reference: str, fields: list[Field], python: str | None) -> Guess:
    """Guess which values to set; each is tried on the recipe."""
    needed: dict[str, object] = {}
    for field in fields:
        if field.required and field.key != seed_field(fields):
            value = field.choices[0] if field.choices else _PLACEHOLDERS.get(field.type)
            if value is not None:
                needed[field.key] = value
    candidates = [(f.key, values) for f in in_order(fields) if (values := values_of(f))][:12]
    tries = [(key, {**needed, key: value}) for key, values in candidates for value in values]
    configs = [needed, *(config for _, config in tries)]
    problems = inspect(reference, configs, RunProcess(python)).problems
    bad = {tries[p.number - 1][0] for p in problems if p.number}
    axis = next((candidate for candidate in candidates if candidate[0] not in bad), None)
    if axis is not None:
        needed.pop(axis[0], None)
    return Guess(axis, needed, [p.message for p in problems if not (p.number or p.lacking)])


def in_order(fields: list[Field]) -> list[Field]:
    """Sort fields by how likely they are to be swept."""

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
    """Return values of a field worth comparing, including its default; [] if there are none."""
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
    """Return the field that takes the seed."""
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
