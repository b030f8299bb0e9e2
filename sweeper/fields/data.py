"""Makes nodes from Python data, with the same limits as for text."""

from collections.abc import Mapping, Sequence
from typing import cast

from sweeper.fields.nodes import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_NODES,
    Node,
    Place,
    Problems,
    Stop,
    check_text,
    shown,
)


def from_python(value: object, path: str, problems: Problems) -> Node:
    """Return the node of `value`. A node's place is the path of keys that leads to it (`base.lr`).
    Tuples become lists. A number of another library, such as NumPy, is converted by its method
    `item`."""
    try:
        return _FromPython(problems).node(value, path, 0)
    except Stop:
        return Node(None, Place(path or "grid"))


class _FromPython:
    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.count = 0

    def node(self, value: object, path: str, depth: int) -> Node:
        """Make the node of `value`. Recursion is bounded by MAX_DEPTH."""
        place = Place(path or "grid")
        self._spend(place)
        if depth > MAX_DEPTH:
            self.problems.add(place, f"nested more than {MAX_DEPTH} deep")
            raise Stop
        if isinstance(value, Mapping):
            return Node(self._entries(cast("Mapping[object, object]", value), path, depth), place)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
            items = enumerate(cast("Sequence[object]", value))
            return Node([self.node(v, f"{path}[{i}]", depth + 1) for i, v in items], place)
        return Node(_python_scalar(value, place, self.problems), place)

    def _entries(
        self, mapping: Mapping[object, object], path: str, depth: int
    ) -> dict[str, tuple[Place, Node]]:
        entries: dict[str, tuple[Place, Node]] = {}
        for key, item in mapping.items():
            if not isinstance(key, str):
                self.problems.add(Place(path or "grid"), f"key {shown(key)} is not a string")
                continue
            below = f"{path}.{key}" if path else key
            check_text(key, Place(below), self.problems)
            self._spend(Place(below))
            entries[key] = (Place(below), self.node(item, below, depth + 1))
        return entries

    def _spend(self, place: Place) -> None:
        self.count += 1
        if self.count > MAX_NODES:
            self.problems.add(place, f"more than {MAX_NODES} values, shared ones counted in full")
            raise Stop


def _python_scalar(value: object, place: Place, problems: Problems) -> object:
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        value = item()
    if isinstance(value, str):
        value = str.__str__(value)  # the text itself, also for an Enum
        check_text(value, place, problems)
    elif isinstance(value, int) and not isinstance(value, bool):
        value = int(value)
        if abs(value) >= 10**MAX_DIGITS:
            problems.add(place, f"an integer of more than {MAX_DIGITS} digits")
    elif isinstance(value, float):
        value = float(value)
    elif value is not None and not isinstance(value, bool):
        problems.add(
            place, f"{type(value).__name__} is not data: use strings, numbers, lists, mappings"
        )
        return None
    return value
