"""The sections of a grid that give values to keys: base, axes, zipped axes, include, exclude.
Mappings are stored as dotted keys."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sweeper.fields.kinds import nearest, wrong
from sweeper.fields.nodes import MAX_DEPTH, Node, Place, Problems, plain
from sweeper.grid.dotted_keys import FIELD, Taken, is_key, leaves
from sweeper.grid.naming import canonical
from sweeper.grid.ranges import RANGES, is_range, values_of_range
from sweeper.grid.ranges import SCHEMA as RANGE
from sweeper.grid.references import faults, refers

MAX_ENTRIES = 10_000
DRAWN = ("uniform", "log_uniform", "integers", "log_integers", "choice")
"""The ways in which an axis of `random` can be drawn."""
NAMES = {"pattern": f"^{FIELD}$"}
VALUES: dict[str, object] = {"type": ["object", "null"], "propertyNames": NAMES}
AXIS: dict[str, object] = {"anyOf": [{"type": "array", "minItems": 1, "uniqueItems": True}, RANGE]}
AXES: dict[str, object] = {**VALUES, "additionalProperties": AXIS}
_ZIPPED: dict[str, object] = {"anyOf": [{"type": "array", "minItems": 1}, RANGE]}
NONEMPTY: dict[str, object] = {"type": "object", "propertyNames": NAMES, "minProperties": 1}
ZIP: dict[str, object] = {
    "type": ["array", "null"],
    "items": {**NONEMPTY, "additionalProperties": _ZIPPED},
}
ENTRIES: dict[str, object] = {"type": ["array", "null"], "items": NONEMPTY}
"""JSON Schemas of the sections."""


def exactly(**properties: object) -> dict[str, object]:
    """Return the JSON Schema of a mapping that has all of these keys and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


class Setting(NamedTuple):
    """One value that a grid gives to a key. `given` maps dotted keys (`opt.lr` for `opt: {lr: 1}`)
    to values, and `places` maps the same keys to positions. `refers` says whether `value` has
    references to other keys. `text` is the YAML text of a float, if known."""

    value: object
    given: dict[str, object]
    places: dict[str, Place]
    place: Place
    refers: bool = False
    text: str | None = None


class Block(NamedTuple):
    """Axes that vary together: key -> settings. All keys have the same number of settings, at
    least one. A plain axis is a block with one key."""

    axes: dict[str, tuple[Setting, ...]]

    @property
    def size(self) -> int:
        """The number of settings of each axis."""
        return len(next(iter(self.axes.values())))


def read_settings(node: Node, section: str, problems: Problems) -> dict[str, Setting]:
    """Read `{key: value}` into one setting for each dotted key."""
    settings: dict[str, Setting] = {}
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
            settings[leaf] = Setting(
                value, {leaf: value}, {leaf: where}, where, refers(value), text
            )
    return settings


def read_entries(node: Node, section: str, problems: Problems) -> list[dict[str, Setting]]:
    """Read a list of mappings (`include`, `exclude`). Return the settings of each mapping."""
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
            problems.add(item.place, f"{section} is empty; it takes a mapping")
    if len(entries) > MAX_ENTRIES:
        problems.add(node.place, f"{section} has more than {MAX_ENTRIES} entries")
    return entries[:MAX_ENTRIES]


def read_axes(node: Node, section: str, problems: Problems) -> list[Block]:
    """Read the section `grid` into one block for each axis."""
    axes = {
        key: read_axis(key, place, item, problems)
        for key, place, item in fields(node, section, problems)
    }
    return [Block({key: settings}) for key, settings in axes.items() if settings]


def read_zip(node: Node, section: str, problems: Problems) -> list[Block]:
    """Read the section `zip` into one block for each mapping. The axes of a mapping must have
    equal lengths."""
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
            problems.add(item.place, f"zipped axes need equally many values: {shown}")
        elif axes:
            blocks.append(Block(axes))
        elif item.value is None or item.entries == {}:
            problems.add(item.place, f"{section} has a block without axes")
    return blocks


def read_axis(
    key: str, place: Place, node: Node, problems: Problems, *, unique: bool = True
) -> tuple[Setting, ...]:
    """Read the values of one axis: a list or a range. If `unique` is set, duplicates are a mistake.
    Return an empty tuple if the axis has no values."""
    if is_range(node):
        values = values_of_range(key, node, problems)
        if values is None:
            return ()
        node = values
    if node.items is None:
        entries = node.entries or {}
        takes = "a list (a single value belongs in base)"
        if len(entries) == 1 and next(iter(entries)) in DRAWN:
            takes = (
                f"a list; write random: {{samples: 20, axes: {{{key[:60]}: ...}}}} to draw its"
                " values"
            )
        elif "values" in entries:
            takes = f"the list itself, as in {key[:60]}: [...]"
        elif len(entries) == 1 and (similar := nearest(next(iter(entries)), RANGES)):
            takes = f"a list, or one of {', '.join(RANGES)}{similar}"
        wrong(node, f"axis {key!r}", takes, problems)
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
    """Report two axes for the same key, and an axis whose key is below the key of another axis. The
    keys in `taken` count as axes too. Add the keys of the axes to `taken`."""
    taken = Taken() if taken is None else taken
    for block in blocks:
        for key, settings in block.axes.items():
            clash = taken.add(key)
            if clash == key:
                problems.add(settings[0].place, f"axis {key[:60]!r} is given twice")
            elif clash is not None:
                problems.add(settings[0].place, f"axes {clash[:60]!r} and {key[:60]!r} overlap")


def fields(node: Node, section: str, problems: Problems) -> Iterator[tuple[str, Place, Node]]:
    """Yield each key of a mapping that is a valid key of a configuration, with its place and
    node."""
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
