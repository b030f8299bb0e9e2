"""The parts of a grid that give values to keys: base, axes, zipped axes, include, exclude.

Mappings are kept as dotted keys, so `base: {opt: {lr: 1}}` and an axis `opt.lr` speak of the
same value. A mapping that is empty, or has a key that could not be part of a dotted one, stays a
value as a whole.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sweeper.fields.kinds import wrong
from sweeper.fields.nodes import MAX_DEPTH, Node, Place, Problems, plain
from sweeper.grid.dotted_keys import FIELD, Taken, is_key, leaves
from sweeper.grid.naming import canonical
from sweeper.grid.references import faults, refers

__all__ = [
    "AXES",
    "AXIS",
    "ENTRIES",
    "MAX_ENTRIES",
    "NAMES",
    "VALUES",
    "ZIP",
    "Block",
    "Setting",
    "check_overlap",
    "fields",
    "read_axes",
    "read_axis",
    "read_entries",
    "read_settings",
    "read_zip",
]

MAX_ENTRIES = 10_000
NAMES = {"pattern": f"^{FIELD}$"}
VALUES: dict[str, object] = {"type": ["object", "null"], "propertyNames": NAMES}
AXIS: dict[str, object] = {"type": "array", "minItems": 1, "uniqueItems": True}
AXES: dict[str, object] = {**VALUES, "additionalProperties": AXIS}
_ZIPPED = {"type": "array", "minItems": 1}
ZIP: dict[str, object] = {
    "type": ["array", "null"],
    "items": {
        "type": "object",
        "propertyNames": NAMES,
        "minProperties": 1,
        "additionalProperties": _ZIPPED,
    },
}
ENTRIES: dict[str, object] = {
    "type": ["array", "null"],
    "items": {"type": "object", "propertyNames": NAMES, "minProperties": 1},
}
"""What the sections may hold, as JSON Schemas."""


class Setting(NamedTuple):
    """One value given to one key. `value` is as written, `given` the same as dotted keys,
    `places` where each of those stands; `refers`: it holds references to other keys; `text`: how a
    number was written, where that is known."""

    value: object
    given: dict[str, object]
    places: dict[str, Place]
    place: Place
    refers: bool = False
    text: str | None = None


class Block(NamedTuple):
    """Axes that move together: key -> settings, as many for each, at least one. A plain axis is
    a block of one key."""

    axes: dict[str, tuple[Setting, ...]]

    @property
    def size(self) -> int:
        """How many choices the block offers."""
        return len(next(iter(self.axes.values())))


def read_settings(node: Node, section: str, problems: Problems) -> dict[str, Setting]:
    """`{key: value}`, one setting for each dotted key at the end of a path."""
    found: dict[str, Setting] = {}
    taken = Taken()
    for key, place, item in fields(node, section, problems):
        setting = _setting(key, item, problems)
        for leaf, value in setting.given.items():
            clash = taken.add(leaf)
            if clash is not None:
                other = "" if clash == leaf else f", also as {clash[:60]!r}"
                problems.add(place, f"{section}: {leaf[:60]!r} is given twice{other}")
                break
            where = setting.places[leaf]
            text = setting.text if leaf == key else None
            found[leaf] = Setting(value, {leaf: value}, {leaf: where}, where, refers(value), text)
    return found


def read_entries(node: Node, section: str, problems: Problems) -> list[dict[str, Setting]]:
    """A list of such mappings (`include`, `exclude`)."""
    if node.items is None:
        wrong(node, section, "a list of mappings", problems)
    entries: list[dict[str, Setting]] = []
    for item in node.items or ():
        entry = read_settings(item, section, problems)
        if entry:
            entries.append(entry)
        elif item.entries is not None and not item.entries:
            problems.add(item.place, f"{section} has an empty mapping")
        elif item.value is None:
            problems.add(item.place, f"{section} has nothing where a mapping is due")
    if len(entries) > MAX_ENTRIES:
        problems.add(node.place, f"{section} has more than {MAX_ENTRIES} entries")
    return entries[:MAX_ENTRIES]


def read_axes(node: Node, section: str, problems: Problems) -> list[Block]:
    """The `grid` section: a block for each axis."""
    axes = {
        key: read_axis(key, place, item, problems)
        for key, place, item in fields(node, section, problems)
    }
    return [Block({key: settings}) for key, settings in axes.items() if settings]


def read_zip(node: Node, section: str, problems: Problems) -> list[Block]:
    """The `zip` section: a block for each mapping, its axes of one length."""
    if node.items is None:
        wrong(node, section, "a list of mappings of axes", problems)
    blocks: list[Block] = []
    for item in node.items or ():
        axes: dict[str, tuple[Setting, ...]] = {}
        for key, place, values in fields(item, section, problems):
            settings = read_axis(key, place, values, problems, unique=False)
            if settings:
                axes[key] = settings
        sizes = {key: len(settings) for key, settings in axes.items()}
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"{key[:60]} has {size}" for key, size in sizes.items())
            problems.add(item.place, f"zipped axes have as many values each: {shown}")
        elif axes:
            blocks.append(Block(axes))
        elif item.value is None or item.entries == {}:
            problems.add(item.place, f"{section} has a block without axes")
    return blocks


def read_axis(
    key: str, place: Place, node: Node, problems: Problems, *, unique: bool = True
) -> tuple[Setting, ...]:
    """The values of one axis, none twice if they are to be `unique`; empty when something is
    wrong with it."""
    if node.items is None:
        wrong(node, f"axis {key!r}", "a list (one value: put it in base)", problems)
        return ()
    if not node.items:
        problems.add(place, f"axis {key!r} has no values")
    settings = tuple(_setting(key, item, problems) for item in node.items)
    seen: dict[str, Place] = {}
    for setting in settings if unique else ():
        text = canonical(setting.value)
        if text in seen:
            first = seen[text]
            where = f" (first at {first.line}:{first.column})" if first.line else ""
            problems.add(setting.place, f"axis {key!r} has the value {text[:60]} twice{where}")
        seen[text] = setting.place
    return settings


def check_overlap(
    blocks: Iterable[Block], problems: Problems, taken: "Taken | None" = None
) -> None:
    """Note axes of one key in two blocks, and axes one of which reaches into the other; and into
    what is `taken` already, which the axes are added to."""
    taken = Taken() if taken is None else taken
    for block in blocks:
        for key, settings in block.axes.items():
            clash = taken.add(key)
            if clash == key:
                problems.add(settings[0].place, f"axis {key[:60]!r} is given twice")
            elif clash is not None:
                problems.add(settings[0].place, f"axes {clash[:60]!r} and {key[:60]!r} overlap")


def fields(node: Node, section: str, problems: Problems) -> Iterator[tuple[str, Place, Node]]:
    """The keys of a mapping that can be a configuration's, each with its place and node."""
    if node.value is None:
        return
    if node.entries is None:
        wrong(node, section, "a mapping", problems)
        return
    for key, (place, item) in node.entries.items():
        if is_key(key):
            if key.count(".") < MAX_DEPTH:
                yield key, place, item
            else:
                problems.add(place, f"{section}: {key[:60]!r} has more than {MAX_DEPTH} parts")
        elif key == "<<":
            problems.add(place, f"{section}: merge keys (<<) are not part of YAML 1.2")
        else:
            problems.add(
                place,
                f"{section}: {key[:60]!r} cannot name a field (letters, digits, _ and -, with dots"
                " between the parts)",
            )


def _setting(key: str, node: Node, problems: Problems) -> Setting:
    given: dict[str, object] = {}
    places: dict[str, Place] = {}
    taken = Taken()
    for leaf, item in leaves(key, node):
        if leaf.count(".") >= MAX_DEPTH:
            problems.add(item.place, f"{leaf[:60]!r} has more than {MAX_DEPTH} parts")
            continue
        clash = taken.add(leaf)
        if clash is not None:
            other = "" if clash == leaf else f", also as {clash[:60]!r}"
            problems.add(item.place, f"{leaf[:60]!r} is given twice{other}")
            continue
        given[leaf] = plain(item)
        places[leaf] = item.place
    for place, message in faults(node):
        problems.add(place, f"{key[:60]!r}: {message}")
    refers_on = any(map(refers, given.values()))
    return Setting(plain(node), given, places, node.place, refers_on, node.text)
