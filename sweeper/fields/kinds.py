"""The types of fields, called kinds. A kind reads a node, notes a message for each mistake, and
returns the JSON Schema of its values. Messages begin with `where`, the path of the field
(`launch.max_parallel`)."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from sweeper.common.json_values import is_number
from sweeper.fields.nodes import Node, Problems, kind

MAX_HINTS = 10
COUNT = 1_000_000
"""Default maximum of an integer."""

_MAX_SECONDS = 1e9
_MAX_DURATION = 29
_DURATION = r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?"
_UNITS = (86400, 3600, 60, 1)


class Kind(Protocol):
    """The interface of every kind of field."""

    def read(self, node: Node, where: str, problems: Problems) -> object:
        """Return the value of `node`. If it is wrong, note the mistake and return None."""
        ...

    def schema(self) -> dict[str, object]:
        """Return the JSON Schema of the values."""
        ...


def nearest(word: str, words: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or "" if no candidate is close."""
    import difflib
    import itertools

    # The time of a comparison is the product of both lengths, so words too long for a typo are
    # skipped.
    candidates = itertools.islice((other for other in words if len(other) <= 60), 200)
    matches = difflib.get_close_matches(word[:60], list(candidates), n=1)
    return f"; did you mean '{matches[0]}'?" if matches else ""


def hint(word: str, words: Iterable[str], problems: Problems) -> str:
    """Return `nearest(word, words)`. If there are `MAX_HINTS` or more mistakes, return "", because
    searching takes time."""
    return nearest(word, words) if len(problems) < MAX_HINTS else ""


def wrong(node: Node, where: str, expected: str, problems: Problems) -> None:
    """Report a value of the wrong type."""
    problems.add(node.place, f"{where} is {kind(node)}; it takes {expected}")


def unread(node: Node, where: str, problems: Problems) -> Node:
    """Return the node itself. This function is the reader of a `Shape` whose value is read
    later."""
    del where, problems
    return node


def whole(pattern: str) -> str:
    """Anchor a pattern at both ends. Otherwise, in JSON Schema, it would match parts of a
    string."""
    return f"^{pattern}$"


class Text:
    """A kind of field: a nonempty string that matches `pattern`. `rule` is the message for a string
    that does not match; `{}` in the message stands for the string. With `numbers`, an integer is
    also accepted, and becomes a string."""

    def __init__(self, pattern: str = "", rule: str = "", *, numbers: bool = False) -> None:
        self._pattern, self._rule, self._numbers = pattern, rule, numbers

    def read(self, node: Node, where: str, problems: Problems) -> str | None:
        value = str(node.value) if self._numbers and type(node.value) is int else node.value
        if value == "":
            problems.add(node.place, f"{where} is empty")
        elif not isinstance(value, str):
            wrong(node, where, "a string", problems)
        elif self._pattern and not re.fullmatch(self._pattern, value):
            problems.add(node.place, f"{where}: {self._rule.replace('{}', repr(value[:60]))}")
        else:
            return value
        return None

    def schema(self) -> dict[str, object]:
        limit = {"pattern": whole(self._pattern)} if self._pattern else {"minLength": 1}
        return {"type": ["string", "integer"] if self._numbers else "string", **limit}


class Choice:
    """A kind of field: one of the given strings."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def read(self, node: Node, where: str, problems: Problems) -> str | None:
        if node.value == "":
            problems.add(node.place, f"{where} is empty")
        elif not isinstance(node.value, str):
            wrong(node, where, " or ".join(self.choices), problems)
        elif node.value not in self.choices:
            choices = ", ".join(self.choices)
            similar = nearest(node.value, self.choices)
            problems.add(
                node.place, f"{where}: {node.value[:60]!r} is not one of {choices}{similar}"
            )
        else:
            return node.value
        return None

    def schema(self) -> dict[str, object]:
        return {"enum": list(self.choices)}


class Flag:
    """A kind of field: true or false."""

    def read(self, node: Node, where: str, problems: Problems) -> bool | None:
        if isinstance(node.value, bool):
            return node.value
        wrong(node, where, "true or false", problems)
        return None

    def schema(self) -> dict[str, object]:
        return {"type": "boolean"}


class Integer:
    """A kind of field: an integer with inclusive bounds. None means no bound."""

    def __init__(self, least: int | None = None, most: int | None = COUNT) -> None:
        self._least, self._most = least, most

    def read(self, node: Node, where: str, problems: Problems) -> int | None:
        value = node.value
        if type(value) is not int:
            wrong(node, where, "an integer", problems)
        elif (self._least is not None and value < self._least) or (
            self._most is not None and value > self._most
        ):
            message = f"{where} must be {self._least} to {self._most}, not {str(value)[:40]}"
            problems.add(node.place, message)
        else:
            return value
        return None

    def schema(self) -> dict[str, object]:
        bounds = {"minimum": self._least, "maximum": self._most}
        return {"type": "integer", **{k: v for k, v in bounds.items() if v is not None}}


class Number:
    """A kind of field: a finite number from `least` (excluded if `above`) to `most`."""

    def __init__(self, least: float, most: float, *, above: bool = False) -> None:
        self._least, self._most, self._above = least, most, above

    def read(self, node: Node, where: str, problems: Problems) -> float | None:
        value = node.value
        number = is_number(value)
        if is_number(value) and self._fits(value):
            return float(value)
        shown = (
            f"{value:.6g}" if type(value) is float else str(value)[:40] if number else kind(node)
        )
        bounds = f"from {self._least:g} to {self._most:g}"
        if self._above:
            bounds = f"above {self._least:g}, at most {self._most:g}"
        problems.add(node.place, f"{where} is {shown}; it takes a number {bounds}")
        return None

    def _fits(self, value: float) -> bool:
        low = value > self._least if self._above else value >= self._least
        return low and value <= self._most and math.isfinite(value)

    def schema(self) -> dict[str, object]:
        low = "exclusiveMinimum" if self._above else "minimum"
        return {"type": "number", low: self._least, "maximum": self._most}


class Duration:
    """A kind of field: a duration in seconds, at least `least`. The node is a number, or a string
    such as 90s, 30m, 2h, 1h30m or 1d; if `unit` is set, only a string."""

    def __init__(self, least: float = 0.0, *, unit: bool = False) -> None:
        self._least, self._unit = least, unit

    def read(self, node: Node, where: str, problems: Problems) -> float | None:
        if self._unit and type(node.value) in (int, float):
            expected = f"a duration with its unit: {node.value}m or {node.value}s"
            wrong(node, where, expected, problems)
            return None
        duration = seconds(node.value)
        if duration is None:
            message = f"{where} takes a duration such as 90s, 30m, 2h or 1h30m"
            problems.add(node.place, message)
        elif duration < self._least:
            problems.add(node.place, f"{where} must be at least {self._least:g}s")
            return None
        return duration

    def schema(self) -> dict[str, object]:
        text = {"type": "string", "minLength": 1, "maxLength": _MAX_DURATION}
        written: dict[str, object] = {**text, "pattern": whole(_DURATION)}
        if self._unit:
            return written
        number = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": _MAX_SECONDS}
        return {"anyOf": [number, written]}


def seconds(value: object) -> float | None:
    """Return the seconds of a duration (a number, or text such as 1h30m); None if it is invalid."""
    total: float | None = None
    if is_number(value):
        total = float(value) if abs(value) < _MAX_SECONDS else None
    elif isinstance(value, str) and 0 < len(value) <= _MAX_DURATION:
        match = re.fullmatch(_DURATION, value)
        if match:
            parts = [float(part or 0) for part in match.groups()]
            total = sum(n * u for n, u in zip(parts, _UNITS, strict=True))
    return total if total is not None and 0 < total < _MAX_SECONDS else None


def duration_text(duration: float) -> str:
    """Format seconds as in a grid: 2m, 24h, 7d."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if duration % size == 0 and duration > (size if unit == "d" else 0):
            return f"{duration / size:g}{unit}"
    return f"{duration:g}s"


class Item(NamedTuple):
    """The rules for a string in a list. `wrong_with` returns the message for a wrong string, and
    None for a correct one. With `numbers`, an integer is also accepted, and becomes a string."""

    schema: Mapping[str, object]
    wrong_with: Callable[[str], str | None] = lambda _: None
    numbers: bool = False


class Texts:
    """A kind of field: a list of strings. With `unique`, duplicates are removed. `example`
    describes a correct list in messages."""

    def __init__(
        self,
        item: Item,
        *,
        least: int = 0,
        most: int = 100,
        unique: bool = False,
        example: str = "",
    ) -> None:
        self._item = item
        self._least, self._most, self._example = least, most, example
        self._unique = unique

    def read(self, node: Node, where: str, problems: Problems) -> list[str] | None:
        items = node.items
        if items == [] and self._least:
            problems.add(node.place, f"{where} is an empty list")
            return None
        if items is None or len(items) > self._most:
            expected = self._example or f"a list of strings, at most {self._most}"
            wrong(node, where, expected, problems)
            return None
        texts: list[str] = []
        for item in items:
            value = item.value
            text = str(value) if self._item.numbers and type(value) is int else value
            if not isinstance(text, str):
                message = f"{kind(item)} in the list; quote it"
                message += "" if self._item.numbers else " to make it a string"
            else:
                message = self._item.wrong_with(text)
            if message is not None:
                problems.add(item.place, f"{where}: {message}")
            elif isinstance(text, str):
                texts.append(text)
        return list(dict.fromkeys(texts)) if self._unique else texts

    def schema(self) -> dict[str, object]:
        item: dict[str, object] = {"type": "string", **self._item.schema}
        if self._item.numbers:
            item = {"anyOf": [{"type": "integer"}, item]}
        schema = {"type": "array", "minItems": self._least, "maxItems": self._most, "items": item}
        return {key: value for key, value in schema.items() if value != 0}


class Matching(NamedTuple):
    """A pattern that whole strings must match. `called` describes a matching string in messages."""

    pattern: str
    called: str


class Names:
    """A kind of field: a mapping of names to strings. `what` describes a correct mapping in
    messages. `reserved` are the prefixes of names that sweeper sets itself. Messages do not show
    values, because a value may be secret. If `values` is None, a value is any string or integer."""

    def __init__(
        self,
        what: str,
        names: Matching,
        *,
        reserved: Collection[str] = (),
        values: Matching | None = None,
        most: int | None = None,
    ) -> None:
        self._what, self._names, self._values = what, names, values
        self._reserved, self._most = tuple(reserved), most

    def read(self, node: Node, where: str, problems: Problems) -> dict[str, str] | None:
        entries = node.entries
        if entries is None or (self._most is not None and len(entries) > self._most):
            wrong(node, where, self._what, problems)
            return None
        names: dict[str, str] = {}
        for name, (place, item) in entries.items():
            value, shown = item.value, name[:60]
            if not re.fullmatch(self._names.pattern, name):
                problems.add(place, f"{where}: {shown!r} cannot name {self._names.called}")
            elif name.startswith(self._reserved):
                problems.add(place, f"{where}: {shown} is set by sweeper")
            elif self._values:
                if isinstance(value, str) and re.fullmatch(self._values.pattern, value):
                    names[name] = value
                else:
                    problems.add(item.place, f"{where}.{shown} takes {self._values.called}")
            elif type(value) in (str, int):
                names[name] = str(value)
            else:
                message = f"{where}.{shown} is {kind(item)}; quote it to make it a string"
                problems.add(item.place, message)
        return names

    def schema(self) -> dict[str, object]:
        names: dict[str, object] = {"pattern": whole(self._names.pattern)}
        if self._reserved:
            names["not"] = {"pattern": f"^({'|'.join(self._reserved)})"}
        value: dict[str, object] = {"type": ["string", "integer"]}
        if self._values:
            value = {"type": "string", "pattern": whole(self._values.pattern)}
        limit = {} if self._most is None else {"maxProperties": self._most}
        return {"type": "object", "propertyNames": names, "additionalProperties": value, **limit}


class Amounts:
    """A kind of field: a mapping of names to numbers, each above 0 and at most `most`."""

    def __init__(self, most: float) -> None:
        self._amount = Number(0, most, above=True)

    def read(self, node: Node, where: str, problems: Problems) -> dict[str, float] | None:
        if node.entries is None:
            wrong(node, where, "a mapping of names to amounts", problems)
            return None
        amounts = {
            name: self._amount.read(item, f"{where}.{name[:60]}", problems)
            for name, (_, item) in node.entries.items()
        }
        return {name: value for name, value in amounts.items() if value is not None}

    def schema(self) -> dict[str, object]:
        return {"type": "object", "additionalProperties": self._amount.schema()}


class Shape:
    """A kind of field whose value is read by the function `read`. `schema` may be a function, which
    is called when the JSON Schema is needed."""

    def __init__(
        self,
        schema: Mapping[str, object] | Callable[[], Mapping[str, object]],
        read: Callable[[Node, str, Problems], object],
    ) -> None:
        self._schema, self._read = schema, read

    def read(self, node: Node, where: str, problems: Problems) -> object:
        return self._read(node, where, problems)

    def schema(self) -> dict[str, object]:
        return dict(self._schema() if callable(self._schema) else self._schema)
