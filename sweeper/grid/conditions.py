"""The section `when`: axes and values that exist only under a condition.

    when:
      - if: {optimizer: adam}          # all of these keys; a list means any of its values
        grid: {beta2: [0.95, 0.99]}    # and zip, random, base: as in the grid itself

An entry's condition is asked of each cell that the entries before it have left.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from sweeper.grid.blocks import (
    Block,
    Setting,
    Taken,
    check_overlap,
    read_axes,
    read_settings,
    read_zip,
)
from sweeper.grid.naming import canonical
from sweeper.grid.nodes import Node, Place, Problems, kind
from sweeper.grid.options import Section
from sweeper.grid.sampling import Random, read_random

__all__ = ["MAX_WHENS", "Condition", "When", "check_whens", "read_whens"]

MAX_WHENS = 100
_KEYS = ("if", "base", "grid", "zip", "random")


class Condition(NamedTuple):
    """What one key has to hold: one of `texts`, the canonical texts of `values`."""

    values: tuple[Any, ...]
    texts: frozenset[str]
    place: Place


class When(NamedTuple):
    """One entry of the section: its conditions by key, and what it gives where they all hold."""

    conditions: dict[str, Condition]
    base: dict[str, Setting]
    blocks: tuple[Block, ...]
    random: Random | None
    place: Place

    @property
    def keys(self) -> list[str]:
        """The keys that it gives values to, as written."""
        return [*self.base, *(key for block in self.blocks for key in block.axes)]


def read_whens(node: Node, problems: Problems) -> tuple[When, ...]:
    """Read the section."""
    if node.items is None:
        problems.add(node.place, f"when is {kind(node)}; it takes a list of mappings with an if")
        return ()
    if len(node.items) > MAX_WHENS:
        problems.add(node.place, f"when has {len(node.items)} entries; at most {MAX_WHENS}")
        return ()
    return tuple(_read_all(node.items, problems))


def _read_all(items: list[Node], problems: Problems) -> Iterator[When]:
    for item in items:
        section = Section(item, "when", _KEYS, problems)
        if item.entries is None:
            if item.value is None:
                problems.add(item.place, "when has nothing where a mapping is due")
            continue
        conditions = _read_conditions(section, problems)
        base, grid = section.node("base"), section.node("grid")
        zipped, random = section.node("zip"), section.node("random")
        if not any((base, grid, zipped, random)) and len(section.entries) == len(item.entries):
            problems.add(item.place, "when gives nothing: add grid, zip, random or base")
        blocks: list[Block] = []
        if grid is not None:
            blocks += read_axes(grid, problems, "when.grid")
        if zipped is not None:
            blocks += read_zip(zipped, problems, "when.zip")
        given = {} if base is None else read_settings(base, "when.base", problems)
        drawn = None if random is None else read_random(random, problems, "when.random")
        if conditions:
            yield When(conditions, given, tuple(blocks), drawn, item.place)


def _read_conditions(section: Section, problems: Problems) -> dict[str, Condition]:
    node = section.node("if")
    if node is None or node.entries == {}:
        problems.add(section.place, "when needs an if: the keys and values that it asks for")
        return {}
    found: dict[str, Condition] = {}
    for key, setting in read_settings(node, "if", problems).items():
        value = setting.value
        values = cast("list[Any]", value) if isinstance(value, list) else [value]
        if setting.refers:
            problems.add(setting.place, f"if: {key[:60]!r} is asked for by value, not by reference")
        elif not values:
            problems.add(setting.place, f"if: {key[:60]!r} has no value to ask for")
        texts = frozenset(map(canonical, values))
        found[key] = Condition(tuple(values), texts, setting.place)
    return found


def check_whens(whens: tuple[When, ...], blocks: tuple[Block, ...], problems: Problems) -> None:
    """Note keys that an entry gives twice, or that an axis of the whole grid gives already. Two
    entries may give the same key, if no cell has both."""
    outside = [key for block in blocks for key in block.axes]
    for when in whens:
        taken = Taken()
        for key in outside:
            taken.add(key)
        check_overlap(when.blocks, problems, taken)
        for key, setting in when.base.items():
            clash = taken.add(key)
            if clash is not None:
                other = "" if clash == key else f" by {clash[:60]!r}"
                problems.add(setting.place, f"when.base: {key[:60]!r} is an axis already{other}")
