"""The section `when`: axes and values that exist only under a condition. The condition is checked
for each cell that earlier entries have made."""

from typing import NamedTuple, cast

from sweeper.fields.kinds import Shape, wrong
from sweeper.fields.nodes import Node, Place, Problems
from sweeper.fields.sections import Field, Section
from sweeper.grid.blocks import (
    AXES,
    NONEMPTY,
    VALUES,
    ZIP,
    Block,
    Setting,
    check_overlap,
    read_axes,
    read_settings,
    read_zip,
)
from sweeper.grid.dotted_keys import Taken
from sweeper.grid.naming import canonical
from sweeper.grid.sampling import RANDOM, WHOLE, Random, read_random

MAX_WHENS = 100


class Condition(NamedTuple):
    """The condition on a key: the key's value is one of `values`. `texts` are the canonical
    texts of these values."""

    values: tuple[object, ...]
    texts: frozenset[str]
    place: Place


class When(NamedTuple):
    """One entry of the section `when`: its conditions by key, and the values and axes for cells
    that meet all conditions."""

    conditions: dict[str, Condition]
    base: dict[str, Setting]
    blocks: tuple[Block, ...]
    random: Random | None
    place: Place

    @property
    def keys(self) -> list[str]:
        """The keys in the entry's `base`, `grid` and `zip`, as written."""
        return [*self.base, *(key for block in self.blocks for key in block.axes)]


def read_whens(node: Node, where: str, problems: Problems) -> tuple[When, ...]:
    """Read the section `when`."""
    if node.items is None:
        wrong(node, where, "a list of mappings, each with the key `if`", problems)
        return ()
    if len(node.items) > MAX_WHENS:
        problems.add(
            node.place, f"{where} has {len(node.items)} entries; at most {MAX_WHENS} are allowed"
        )
        return ()
    return tuple(filter(None, (_read_one(item, problems) for item in node.items)))


def _read_one(item: Node, problems: Problems) -> When | None:
    if item.value is None:
        problems.add(item.place, "when is empty; it takes a list of mappings")
        return None
    reading = _ENTRY.read(item, "when", problems)
    if item.entries is None:
        return None
    gives = any(reading.given(key) for key in _GIVES)
    if not gives and len(reading.entries) == len(item.entries):
        problems.add(item.place, "when gives nothing: add grid, zip, random or base")
    values = reading.values
    if not values.get("if"):
        return None
    return When(
        values["if"],
        values.get("base", {}),
        (*values.get("grid", ()), *values.get("zip", ())),
        values.get("random"),
        item.place,
    )


def _read_conditions(node: Node, where: str, problems: Problems) -> dict[str, Condition]:
    del where
    if node.entries == {}:
        problems.add(node.place, f"when needs {_NEEDS}")
    conditions: dict[str, Condition] = {}
    for key, setting in read_settings(node, "if", problems).items():
        value = setting.value
        values = cast("list[object]", value) if isinstance(value, list) else [value]
        if setting.refers:
            problems.add(setting.place, f"if: {key[:60]!r} needs a value, not a reference")
        elif not values:
            problems.add(setting.place, f"if: {key[:60]!r} has no value")
        conditions[key] = Condition(tuple(values), frozenset(map(canonical, values)), setting.place)
    return conditions


def check_whens(whens: tuple[When, ...], blocks: tuple[Block, ...], problems: Problems) -> None:
    """Report keys that an entry sets twice, or that are already axes of the whole grid."""
    outside = [key for block in blocks for key in block.axes]
    for when in whens:
        taken = Taken()
        for key in outside:
            taken.add(key)
        check_overlap(when.blocks, problems, taken)
        for key, setting in when.base.items():
            clash = taken.add(key)
            if clash is not None:
                other = "" if clash == key else f", as {clash[:60]!r}"
                problems.add(setting.place, f"when.base: {key[:60]!r} is an axis already{other}")


_NEEDS = "`if: {KEY: VALUE}`, which selects cells"
_IF = {**NONEMPTY, "additionalProperties": {"not": {"type": "array", "maxItems": 0}}}
_GIVES = ("base", "grid", "zip", "random")
_ENTRY = Section(
    Field(
        "if",
        Shape(_IF, _read_conditions),
        "The keys and values of the cells; a list stands for any one of its values.",
    ),
    Field("base", Shape(VALUES, read_settings), "Values for these cells."),
    Field("grid", Shape(AXES, read_axes), "Axes for these cells."),
    Field("zip", Shape(ZIP, read_zip), "Axes that vary together."),
    RANDOM._replace(kind=Shape(lambda: {"allOf": [RANDOM.schema(), WHOLE]}, read_random)),
    needs={"if": _NEEDS},
    more={"required": ["if"], "anyOf": [{"required": [key]} for key in _GIVES]},
)
WHEN = Field(
    "when",
    Shape(lambda: {"type": "array", "maxItems": MAX_WHENS, "items": _ENTRY.schema()}, read_whens),
    "Axes and values that exist only under a condition.",
)
