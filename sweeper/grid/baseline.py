"""The section `baseline`: what the best is compared with in the end."""

from typing import NamedTuple

from sweeper.fields.kinds import Shape
from sweeper.fields.nodes import Node, Place, Problems, kind
from sweeper.fields.sections import Field
from sweeper.grid.blocks import VALUES, Setting, read_settings

__all__ = ["BASELINE", "GridBaseline"]

_SWEEP = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z][A-Za-z0-9_]{0,39})?$"
_TAKES = "{cell: {...}}, {sweep: NAME} or base"
_CELL: dict[str, object] = {**VALUES, "type": "object"}
_SCHEMA: dict[str, object] = {
    "anyOf": [
        {"const": "base"},
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["cell"],
            "properties": {"cell": _CELL},
        },
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["sweep"],
            "properties": {"sweep": {"type": "string", "pattern": _SWEEP}},
        },
    ]
}


class GridBaseline(NamedTuple):
    """What stands there: the values of a `cell` over the grid's base, another `sweep`, or, with
    neither, the base model."""

    place: Place
    cell: dict[str, Setting] | None = None
    sweep: str | None = None


def _read(node: Node, where: str, problems: Problems) -> GridBaseline | None:
    import re

    entries = node.entries
    if node.value == "base":
        return GridBaseline(node.place)
    if entries is None or len(entries) != 1 or not entries.keys() <= {"cell", "sweep"}:
        problems.add(node.place, f"{where} is {kind(node)}; it takes {_TAKES}")
        return None
    [(key, (_, item))] = entries.items()
    if key == "sweep":
        if not isinstance(item.value, str) or not re.match(_SWEEP, item.value):
            problems.add(item.place, f"{where}.sweep takes the name of a sweep, or sweep/stage")
            return None
        return GridBaseline(node.place, sweep=item.value)
    if item.entries is None:
        problems.add(item.place, f"{where}.cell is {kind(item)}; it takes values over base")
        return None
    return GridBaseline(node.place, read_settings(item, f"{where}.cell", problems))


BASELINE = Field(
    "baseline",
    Shape(_SCHEMA, _read),
    "What the best is compared with: a cell over base, run once beside the others; another sweep's"
    " winner; or, in a stage, the base model.",
)
