"""Parses command-line overrides of a grid: `key=value`, `key=a,b` or `'key=[a,b]'` (an axis),
`~key`. Values that begin with `[`, `{`, `"` or `'` are YAML; any other value is one scalar as
written."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, cast

from sweeper.fields.data import from_python
from sweeper.fields.nodes import FORBIDDEN, Node, Place, Problems, read_yaml, scalar, shown
from sweeper.grid.dotted_keys import is_key
from sweeper.grid.ranges import is_range

_LISTED = re.compile(r"[^\s,]+(,[^\s,]+)+\Z")


class Override(NamedTuple):
    """An override of `key`. `node` has the new value, or the list or range of an axis. If the
    override removes the key (`drop`), the node's value is None."""

    action: Literal["value", "axis", "drop"]
    key: str
    node: Node
    place: Place


def override_texts(overrides: Mapping[str, object] | Sequence[str]) -> tuple[str, ...]:
    """Return overrides from Python in the form of the command line: `{"lr": [1, 2]}` -> `lr=[1,
    2]`. A string is one override.

    Raises `GridError` for a value that is not plain data.
    """
    if isinstance(overrides, str):
        return (overrides,)
    if not isinstance(overrides, Mapping):
        return tuple(overrides)
    problems = Problems()
    for key, value in overrides.items():
        from_python(value, str(key), problems)
    problems.raise_any()
    return tuple(f"{key}={flow(value)}" for key, value in overrides.items())


def flow(value: object) -> str:
    """Return Python data as YAML on one line. `read_yaml` reads it back unchanged."""
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, object]", value)
        # "? " marks a key of any length; a long key without it would not be parsed as a key.
        pairs = (f"{'? ' * (len(k) > 100)}{_quoted(k)}: {flow(v)}" for k, v in entries.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(flow, cast('Sequence[object]', value)))}]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}[str(float(value))]
    item = getattr(value, "item", None)  # such as a number of numpy
    return json.dumps(item() if callable(item) else value)


def _quoted(text: str) -> str:
    """Return a string in double quotes, with characters that YAML forbids escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    return FORBIDDEN.sub(lambda match: f"\\u{ord(match.group()):04x}", quoted)


def read_overrides(texts: Sequence[str], problems: Problems) -> list[Override]:
    """Return the valid overrides, and report mistakes in the other overrides."""
    overrides: list[Override] = []
    seen: set[str] = set()
    for text in texts:
        place = Place(f"override {shown(text)}")
        drop = text.startswith("~")
        key, separator, value = text.removeprefix("~").partition("=")
        if drop == bool(separator):
            problems.add(place, "write key=value, 'key=[a,b]' for an axis, or ~key")
        elif not is_key(key):
            problems.add(place, f"{key[:60]!r} cannot name a field")
        elif key in seen:
            problems.add(place, f"{key[:60]!r} is overridden twice")
        else:
            seen.add(key)
            node = Node(None, place) if drop else _given(key, value, place, problems)
            if node is not None:
                axis = node.items is not None or is_range(node)
                action = "drop" if drop else "axis" if axis else "value"
                overrides.append(Override(action, key, node, place))
    return overrides


def _given(key: str, text: str, place: Place, problems: Problems) -> Node | None:
    """Return the node of an override's value; None if it cannot be read. Under `launch`, `a,b` is
    one text; elsewhere it becomes a list."""
    if text[:1] in ("[", "{", '"', "'") or not _LISTED.match(text) or key.startswith("launch."):
        return _value(text, place, problems)
    items = [_value(part, place, problems) for part in text.split(",")]
    return Node([item for item in items if item is not None], place)


def _value(text: str, place: Place, problems: Problems) -> Node | None:
    if text[:1] in ("[", "{", '"', "'") and text:
        return read_yaml(text, place.source, problems, fixed=place)
    if not text:
        return Node("", place)
    try:
        value = scalar(text)
    except ValueError as error:
        problems.add(place, str(error))
        return None
    if isinstance(value, str):
        return from_python(value, place.source, problems)
    return Node(value, place)
