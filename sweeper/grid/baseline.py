"""The section `baseline`: the cell or model that the best cell is compared with."""

import re
from typing import NamedTuple

from sweeper.fields.kinds import Shape, whole, wrong
from sweeper.fields.nodes import Node, Place, Problems
from sweeper.fields.sections import Field
from sweeper.grid.blocks import VALUES, Setting, exactly, read_settings
from sweeper.sweep.names import STAGE_NAME, SWEEP_NAME

_SWEEP = f"{SWEEP_NAME}(/{STAGE_NAME})?"
_TAKES = "{cell: {...}}, {sweep: NAME} or base"
_CELL: dict[str, object] = {**VALUES, "type": "object"}
_SCHEMA: dict[str, object] = {
    "anyOf": [
        {"const": "base"},
        exactly(cell=_CELL),
        exactly(sweep={"type": "string", "pattern": whole(_SWEEP)}),
    ]
}


class GridBaseline(NamedTuple):
    """The baseline of a grid. `cell` has values that override the grid's base. `sweep` names
    another sweep, whose best cell is the baseline. If both are None, the base model is the
    baseline."""

    place: Place
    cell: dict[str, Setting] | None = None
    sweep: str | None = None

    @property
    def is_base_model(self) -> bool:
        return self.cell is None and self.sweep is None


def _read(node: Node, where: str, problems: Problems) -> GridBaseline | None:
    entries = node.entries
    if node.value == "base":
        return GridBaseline(node.place)
    if entries is None or len(entries) != 1 or not entries.keys() <= {"cell", "sweep"}:
        wrong(node, where, _TAKES, problems)
        return None
    [(key, (_, item))] = entries.items()
    if key == "sweep":
        if not isinstance(item.value, str) or not re.fullmatch(_SWEEP, item.value):
            problems.add(item.place, f"{where}.sweep takes the name of a sweep, or sweep/stage")
            return None
        return GridBaseline(node.place, sweep=item.value)
    if item.entries is None:
        wrong(item, f"{where}.cell", "values that override base", problems)
        return None
    return GridBaseline(node.place, read_settings(item, f"{where}.cell", problems))


BASELINE = Field(
    "baseline",
    Shape(_SCHEMA, _read),
    "What the best cell is compared with: a cell, given by values that override base; the best "
    "cell of another sweep; or, in a stage, the base model.",
)
