"""Mappings with declared fields. The reader, the JSON Schema and the messages use the same
declaration."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sweeper.common.json_values import list_of
from sweeper.fields.kinds import Kind, hint, wrong
from sweeper.fields.nodes import Node, Place, Problems


class Field(NamedTuple):
    """One field of a section. `doc` is a sentence about the field. `default` is used if the key is
    missing; it is written as in a grid (`2m`). Without a default, starter grids show the first of
    `examples`. `key` is the field's name in plans (`timeout_s`); "" means `name`."""

    name: str
    kind: Kind
    doc: str = ""
    default: object = None
    examples: tuple[object, ...] = ()
    key: str = ""

    def schema(self) -> dict[str, object]:
        """Return the JSON Schema of the value. Null is valid, and means that the key is missing."""
        about: dict[str, object] = {"description": self.doc} if self.doc else {}
        if self.default is not None:
            about["default"] = self.default
        if self.examples:
            about["examples"] = list(self.examples)
        return about | or_null(self.kind.schema())


class Reading:
    """The result of reading one mapping. `values` maps each field's name in plans to its value, if
    the value is valid and not null."""

    def __init__(self, section: "Section", node: Node, name: str, problems: Problems) -> None:
        self.section, self.node, self.name, self.problems = section, node, name, problems
        self.place = node.place
        self.entries: dict[str, tuple[Place, Node]] = {}
        self.values: dict[str, Any] = {}

    def value(self, key: str) -> Any:
        """Return a field's value, its default or None. `key` is the field's name in plans."""
        return self.values[key] if key in self.values else self.section.defaults().get(key)

    def path(self, key: str) -> str:
        """Return a key's path for messages, such as `launch.slurm.mem`."""
        return f"{self.name}.{key}" if self.name else key

    def given(self, key: str) -> Node | None:
        """Return the node of a key; None if it is missing or null."""
        entry = self.entries.get(key)
        return None if entry is None or entry[1].value is None else entry[1]

    def problem(self, key: str, message: str) -> None:
        """Note a mistake in the value of `key`, which must be in the mapping."""
        self.problems.add(self.entries[key][1].place, message)


class Section:
    """The declared fields of a mapping. `needs` maps each required field to its name in messages.
    `check` notes mistakes in combinations of fields, and `more` states these rules in JSON Schema.
    `elsewhere` returns a hint for the message about an unknown key, or ""."""

    def __init__(
        self,
        *fields: Field,
        needs: Mapping[str, str] | None = None,
        check: Callable[[Reading], None] | None = None,
        more: Mapping[str, object] | None = None,
        elsewhere: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.fields = {field.name: field for field in fields}
        self.check = check
        self._elsewhere = elsewhere
        self._needs, self._more = dict(needs or {}), dict(more or {})

    def extended(self, *fields: Field, elsewhere: Callable[[str], str] | None = None) -> "Section":
        """Return the section with additional fields."""
        return Section(
            *self,
            *fields,
            needs=self._needs,
            check=self.check,
            more=self._more,
            elsewhere=elsewhere or self._elsewhere,
        )

    def defaults(self) -> dict[str, Any]:
        """Return the defaults of the fields, with names and values as in plans (`2m` is 120.0)."""
        nowhere = Place("default")
        return {
            field.key or field.name: field.kind.read(
                Node(field.default, nowhere), field.name, Problems()
            )
            for field in self
            if field.default is not None
        }

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields.values())

    def read(
        self,
        node: Node,
        name: str,
        problems: Problems,
        *,
        others: Callable[[str], Field | None] = lambda _: None,
        known: Callable[[], Iterable[str]] = lambda: (),
    ) -> Reading:
        """Read a mapping. `name` is the mapping's path in messages, "" for the grid itself.
        `others` returns the field of a key that is not declared here, or None. `known` returns more
        names to suggest after a typo."""
        reading = Reading(self, node, name, problems)
        if node.entries is None:
            if node.value is not None:
                wrong(node, name, "a mapping", problems)
            return reading
        for key, (place, item) in node.entries.items():
            field = self.fields.get(key) or others(key)
            if field is None:
                inside = f" in {name}" if name else ""
                suggestion = self._elsewhere(key) or hint(key, [*self.fields, *known()], problems)
                problems.add(place, f"unknown key {key[:100]!r}{inside}{suggestion}")
                continue
            reading.entries[key] = (place, item)
            if item.value is not None:
                value = field.kind.read(item, reading.path(key), problems)
                if value is not None:
                    reading.values[field.key or key] = value
        for key, about in self._needs.items():
            if reading.given(key) is None:
                problems.add(node.place, f"{name} needs {about}")
        if self.check is not None:
            self.check(reading)
        return reading

    def keys(self, above: str = "") -> Iterator[str]:
        """Yield the names of the fields. Fields of nested sections have dotted names
        (`slurm.mem`)."""
        for field in self:
            yield f"{above}{field.name}"
            if isinstance(field.kind, Nested):
                yield from field.kind.section.keys(f"{above}{field.name}.")

    def schema(self) -> dict[str, object]:
        """Return the JSON Schema of the fields. Required fields may be missing (see `whole`)."""
        properties = {field.name: field.schema() for field in self}
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": properties,
            **self._more,
        }

    def whole(self) -> dict[str, object]:
        """Return the JSON Schema that demands the required fields, for grids without `extends`."""
        needed = {key: {"not": {"type": "null"}} for key in self._needs}
        return {"required": list(self._needs), "properties": needed}


def or_null(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the schema, extended to allow null."""
    if "type" in schema:
        declared = schema["type"]
        types = list_of(declared) or [declared]
        return {**schema, "type": list(dict.fromkeys([*types, "null"]))}
    if "enum" in schema:
        return {**schema, "enum": [*list_of(schema["enum"]), None]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*list_of(schema["anyOf"]), {"type": "null"}]}
    return dict(schema)


class Nested:
    """A kind of field whose value is a section. An empty mapping is a valid value."""

    def __init__(self, section: Section) -> None:
        self.section = section

    def read(self, node: Node, where: str, problems: Problems) -> dict[str, object] | None:
        """Return the valid values by their names in plans; None if the node is no mapping."""
        reading = self.section.read(node, where, problems)
        return None if node.entries is None else reading.values

    def schema(self) -> dict[str, object]:
        return self.section.schema()
