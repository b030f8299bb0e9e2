"""The section `seeds`: the replicates of every cell."""

import re
from typing import NamedTuple

from sweeper.fields.kinds import Shape, Text, wrong
from sweeper.fields.nodes import Node, Place, Problems, kind
from sweeper.fields.sections import Field, Reading, Section
from sweeper.grid.dotted_keys import FIELD
from sweeper.sweep.metric import Metric

MAX_SEEDS = 10_000
_NO_FIELD = "none"
"""The value of `seeds.field` if no seed is set."""


class Seeds(NamedTuple):
    """The recipe's field for the seed, and the seeds. If `field` is None, the recipe gets no seed,
    and seeds only tell the runs of a cell apart. If `least` is set, this is a race: every cell gets
    the first `least` seeds, and only cells that may still be the best get the other seeds."""

    field: str | None
    values: tuple[int, ...]
    place: Place
    least: int | None = None


def read_seeds(node: Node, where: str, problems: Problems) -> Seeds | None:
    """Read `3` (seeds 0, 1, 2), `[11, 12]`, `{field: shuffle_seed, values: 3}` or `{race: 3..10}`.
    Return None if no seeds are given. With `field: none`, the recipe gets no seed."""
    race = None
    if node.entries is None:
        field, values = _SECTION.defaults()["field"], _read_values(node, where, problems)
    else:
        reading = _SECTION.read(node, where, problems)
        field, values, race = (reading.value(key) for key in ("field", "values", "race"))
    field = None if field == _NO_FIELD else field
    if race is not None:
        least, most = race
        return Seeds(field, tuple(range(most)), node.place, least)
    return Seeds(field, values, node.place) if values else None


def _read_race(node: Node, where: str, problems: Problems) -> tuple[int, int] | None:
    """Read `3..10`, the least and the most seeds of a cell. Return None after a mistake."""
    match = re.fullmatch(_RACE, node.value) if isinstance(node.value, str) else None
    if match is None:
        example = "the fewest and the most seeds of a cell, such as 3..10"
        if isinstance(node.value, str):
            problems.add(node.place, f"{where} is {node.value[:40]!r}; it takes {example}")
        else:
            wrong(node, where, example, problems)
        return None
    least, most = int(match[1]), int(match[2])
    if least < 2:
        problems.add(node.place, f"{where}: a cell needs 2 seeds or more to show its noise")
    elif least >= most:
        problems.add(node.place, f"{where}: {least}..{most}: the second number must be larger")
    elif most > MAX_SEEDS:
        problems.add(node.place, f"{where}: at most {MAX_SEEDS} seeds, not {most}")
    else:
        return least, most
    return None


def check_race(seeds: Seeds | None, metric: Metric | None, problems: Problems) -> None:
    """Report a race without a metric, or with `metric.by`, which asks for several best cells."""
    if seeds is None or seeds.least is None:
        return
    if metric is None:
        problems.add(seeds.place, "seeds.race needs a metric (its name and goal) to judge cells by")
    elif metric.by is not None:
        message = f"seeds.race looks for one best cell, but metric.by for one per {metric.by}"
        problems.add(
            seeds.place, f"{message}: give every cell the same number of seeds, as in seeds: 3"
        )


def _read_values(node: Node, where: str, problems: Problems) -> tuple[int, ...]:
    del where
    if type(node.value) is int:
        if 1 <= node.value <= MAX_SEEDS:
            return tuple(range(node.value))
        problems.add(node.place, f"seeds must be 1 to {MAX_SEEDS}, not {node.value}")
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
            problems.add(item.place, f"seed {item.value} is given twice")
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
_RACE = r"([0-9]{1,6})\.\.([0-9]{1,6})"


def _check(reading: Reading) -> None:
    """Report an error if neither or both of `values` and `race` are set."""
    values, race = reading.given("values"), reading.given("race")
    if values is None and race is None:
        message = f"{reading.name} needs `values: 3`, `values: [11, 12]` or `race: 3..10`"
        reading.problems.add(reading.place, message)
    elif values is not None and race is not None:
        reading.problem("race", f"{reading.path('race')}: give values or race, not both")


_SECTION = Section(
    Field(
        "field",
        Text(FIELD, "{} is not a field's name"),
        "The field that takes the seed; none if the recipe sets no seed and its runs vary "
        "without one.",
        "seed",
    ),
    Field(
        "values",
        Shape(_VALUES, _read_values),
        "The number of seeds, counted from 0, or a list of seeds.",
    ),
    Field(
        "race",
        Shape({"type": "string", "pattern": f"^{_RACE}$"}, _read_race),
        "LEAST..MOST: every cell gets LEAST seeds, and cells that may be the best get up to MOST.",
        examples=("3..10",),
    ),
    check=_check,
)
SEEDS = Field(
    "seeds",
    Shape(lambda: {"anyOf": [*_VALUES["anyOf"], _SECTION.schema()]}, read_seeds),
    "Replicates of every cell: 3, [11, 12], {field: shuffle_seed, values: 3} or {race: 3..10}.",
    examples=(3,),
)
WHOLE: dict[str, object] = {
    "if": {"type": "object"},
    "then": {
        "oneOf": [
            {"required": [key], "properties": {key: {"not": {"type": "null"}}}}
            for key in ("values", "race")
        ]
    },
}
"""JSON Schema of `seeds` in a grid that extends no other grid."""
