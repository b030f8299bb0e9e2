"""`from` of a stage: the runs of earlier stages that its own runs continue from."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sweeper.fields.kinds import wrong
from sweeper.fields.nodes import Node, Place, Problems
from sweeper.grid.blocks import exactly
from sweeper.sweep.stage_inputs import Source, Take

_MOST = 1000
_SOURCES = 20
_HOW = "best, best-cell, each, {top: 3} or a run's name"
_TAKE: dict[str, object] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        exactly(top={"type": "integer", "minimum": 1, "maximum": _MOST}),
    ]
}
_SOURCE: dict[str, list[dict[str, object]]] = {
    "anyOf": [
        exactly(stage={"type": "string"}, take=_TAKE),
        exactly(base={"const": True}),
        {
            "type": "object",
            "minProperties": 1,
            "properties": {"stage": False, "take": False, "base": False},
            "additionalProperties": _TAKE,
        },
    ]
}
FROM: dict[str, object] = {
    "anyOf": [*_SOURCE["anyOf"], {"type": "array", "minItems": 1, "items": _SOURCE}]
}
"""JSON Schema of `from`."""


class Taking(NamedTuple):
    """An entry of a stage's `from`, and the positions of the entry and its `takes` in the file."""

    source: Source
    place: Place
    places: tuple[Place, ...] = ()

    def placed_takes(self) -> Iterator[tuple[Take, Place]]:
        return zip(self.source.takes, self.places, strict=True)


def stages_before(takings: Iterable[Taking]) -> list[str]:
    """Return the names of the stages from which runs are taken."""
    return [take.stage for taking in takings for take in taking.source.takes]


def read_from(node: Node, where: str, problems: Problems) -> tuple[Taking, ...]:
    """Read the section `from` of a stage. It names the runs from which the stage's runs
    continue."""
    items = [node] if node.items is None else node.items
    if not items or len(items) > _SOURCES:
        problems.add(node.place, f"{where} names no stage" if not items else f"{where}: too many")
        return ()
    takings: dict[Source, Taking] = {}
    for item in items:
        taking = _read_source(item, where, problems)
        if taking is None:
            continue
        if taking.source in takings:
            problems.add(item.place, f"{where}: takes the same runs twice")
        takings.setdefault(taking.source, taking)
    return tuple(takings.values())


def _read_source(node: Node, where: str, problems: Problems) -> Taking | None:
    entries = node.entries
    if not entries:
        wrong(node, where, "{stage: ..., take: ...}, or a list of these", problems)
        return None
    if "base" in entries:
        if len(entries) > 1 or entries["base"][1].value is not True:
            problems.add(entries["base"][0], f"{where}: write {{base: true}} for the base model")
            return None
        return Taking(Source(base=True), node.place)
    if "stage" in entries or "take" in entries:
        return _read_one(node, entries, where, problems)
    takes = [
        (place, _read_take(name, item, where, problems)) for name, (place, item) in entries.items()
    ]
    good = [(place, take) for place, take in takes if take is not None]
    if len(good) < len(takes):
        return None
    return Taking(Source(tuple(t for _, t in good)), node.place, tuple(p for p, _ in good))


def _read_one(
    node: Node, entries: dict[str, tuple[Place, Node]], where: str, problems: Problems
) -> Taking | None:
    """Read `{stage: sft, take: best}`. Return None after a mistake."""
    good = True
    for key, (place, _) in entries.items():
        if key not in ("stage", "take"):
            problems.add(place, f"{where}: unknown key {key[:60]!r}; it takes stage and take")
            good = False
    for key, kind in (("stage", "the name of a stage"), ("take", _HOW)):
        if key not in entries or entries[key][1].value is None:
            problems.add(node.place, f"{where} needs a {key}: {kind}")
            good = False
    if not good:
        return None
    name = entries["stage"][1]
    if not isinstance(name.value, str):
        wrong(name, f"{where}.stage", "the name of a stage", problems)
        return None
    take = _read_take(name.value, entries["take"][1], where, problems)
    return None if take is None else Taking(Source((take,)), node.place, (name.place,))


def _read_take(stage: str, node: Node, where: str, problems: Problems) -> Take | None:
    if isinstance(node.value, str) and node.value:
        if node.value in ("best", "best-cell", "each"):
            return Take(stage, node.value)
        return Take(stage, "run", run=node.value)
    top = (node.entries or {}).get("top")
    if top is None or len(node.entries or {}) != 1:
        wrong(node, f"{where}: take", _HOW, problems)
        return None
    count = top[1].value
    if type(count) is not int or not 1 <= count <= _MOST:
        problems.add(top[1].place, f"{where}: top takes a number, 1 to {_MOST}")
        return None
    return Take(stage, "top", count)
