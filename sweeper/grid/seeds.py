"""The section `seeds`: the replicates of every cell."""

from typing import NamedTuple

from sweeper.fields.kinds import Shape, Text, wrong
from sweeper.fields.nodes import Node, Place, Problems, kind
from sweeper.fields.sections import Field, Section
from sweeper.grid.dotted_keys import FIELD

MAX_SEEDS = 10_000
_NO_FIELD = "none"
"""The value of `seeds.field` if no seed is set."""


class Seeds(NamedTuple):
    """The field that takes the seed, and its values. Without a field no seed is set: the runs
    differ by themselves, and the values only number them."""

    field: str | None
    values: tuple[int, ...]
    place: Place


def read_seeds(node: Node, where: str, problems: Problems) -> Seeds | None:
    """Read `3` (seeds 0, 1, 2), `[11, 12]`, or `{field: shuffle_seed, values: 3}`. With `field:
    none` no seed is set."""
    if node.entries is None:
        field, values = _SECTION.defaults()["field"], _read_values(node, where, problems)
    else:
        reading = _SECTION.read(node, where, problems)
        field, values = reading.value("field"), reading.value("values")
    return Seeds(None if field == _NO_FIELD else field, values, node.place) if values else None


def _read_values(node: Node, where: str, problems: Problems) -> tuple[int, ...]:
    del where
    if type(node.value) is int:
        if 1 <= node.value <= MAX_SEEDS:
            return tuple(range(node.value))
        problems.add(node.place, f"seeds is 1 to {MAX_SEEDS}, not {node.value}")
        return ()
    if node.items is None:
        wrong(node, "seeds", "a count or a list of integers", problems)
        return ()
    if not node.items:
        problems.add(node.place, "seeds is an empty list")
    values: dict[int, None] = {}
    for item in node.items[:MAX_SEEDS]:
        if type(item.value) is not int:
            problems.add(item.place, f"a seed is an integer, not {kind(item)}")
        elif item.value in values:
            problems.add(item.place, f"seed {item.value} given twice")
        else:
            values[item.value] = None
    if len(node.items) > MAX_SEEDS:
        problems.add(node.place, f"{len(node.items)} seeds; at most {MAX_SEEDS} are allowed")
    return tuple(values)


_INTEGERS = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
_VALUES: dict[str, list[dict[str, object]]] = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": MAX_SEEDS},
        {**_INTEGERS, "minItems": 1, "maxItems": MAX_SEEDS},
    ]
}
_SECTION = Section(
    Field(
        "field",
        Text(FIELD, "{} is not a field's name"),
        "The field that takes the seed; none where no seed is set, and the runs differ by"
        " themselves.",
        "seed",
    ),
    Field("values", Shape(_VALUES, _read_values), "How many, counted from 0; or which."),
    needs={"values": "values: how many, or a list"},
)
SEEDS = Field(
    "seeds",
    Shape(lambda: {"anyOf": [*_VALUES["anyOf"], _SECTION.schema()]}, read_seeds),
    "Replicates of every cell: 3, [11, 12] or {field: shuffle_seed, values: 3}.",
    examples=(3,),
)
WHOLE = {"if": {"type": "object"}, "then": _SECTION.whole()}
"""JSON Schema of `seeds` in a grid that extends no other."""
