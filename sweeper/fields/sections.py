"""A mapping whose fields are declared: one reader, one JSON Schema and one set of words for
each."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sweeper.fields.kinds import Kind, hint, wrong
from sweeper.fields.nodes import Node, Place, Problems
from sweeper.model.json_values import list_of

__all__ = ["Field", "Nested", "Reading", "Section", "or_null"]


class Field(NamedTuple):
    """One key. `doc` is a sentence for people. `default` holds where the key is missing; it is
    written as in a grid (`2m`). `examples` are worth showing where there is no default. `key` is
    what a document calls the field, where that is another name (`timeout_s`)."""

    name: str
    kind: Kind
    doc: str = ""
    default: object = None
    examples: tuple[object, ...] = ()
    key: str = ""

    def schema(self) -> dict[str, object]:
        """What may stand there; null is the same as nothing."""
        about: dict[str, object] = {"description": self.doc} if self.doc else {}
        if self.default is not None:
            about["default"] = self.default
        if self.examples:
            about["examples"] = list(self.examples)
        return about | or_null(self.kind.schema())


class Reading:
    """What one mapping gave: `values` by what a document calls them. What is wrong, missing or null
    is not among them."""

    def __init__(self, section: "Section", node: Node, name: str, problems: Problems) -> None:
        self.section, self.node, self.name, self.problems = section, node, name, problems
        self.place = node.place
        self.entries: dict[str, tuple[Place, Node]] = {}
        self.values: dict[str, Any] = {}

    def value(self, key: str) -> Any:
        """The value of a field, by its name in a document, or its default where none was given."""
        return self.values[key] if key in self.values else self.section.defaults().get(key)

    def path(self, key: str) -> str:
        """What messages call a key: `launch.slurm.mem`."""
        return f"{self.name}.{key}" if self.name else key

    def given(self, key: str) -> Node | None:
        """What stands under a key; None when that is missing or null."""
        entry = self.entries.get(key)
        return None if entry is None or entry[1].value is None else entry[1]

    def problem(self, key: str, message: str) -> None:
        """Note a mistake about the value of a key that is given."""
        self.problems.add(self.entries[key][1].place, message)


class Section:
    """Declared fields. `needs` are the names of those that cannot be missing, each with what is
    said of it beside its name; `check` notes what is wrong with several together. `more` is JSON
    Schema that says the same as `check`."""

    def __init__(
        self,
        *fields: Field,
        needs: Mapping[str, str] | None = None,
        check: Callable[[Reading], None] | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        self.fields = {field.name: field for field in fields}
        self.check = check
        self._needs, self._more = dict(needs or {}), dict(more or {})

    def extended(self, *fields: Field) -> "Section":
        """The section with further fields."""
        return Section(*self, *fields, needs=self._needs, check=self.check, more=self._more)

    def defaults(self) -> dict[str, Any]:
        """The declared defaults, by name and in shape as a document has them (`2m` is 120.0)."""
        nowhere = Place("default")
        return {
            field.key or field.name: field.kind.read(
                Node(field.default, nowhere), field.name, Problems()
            )
            for field in self
            if field.default is not None
        }

    def with_defaults(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, by name and as a document has it, and the defaults where nothing is. None
        is the same as nothing."""
        return {**self.defaults(), **{k: v for k, v in given.items() if v is not None}}

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
        """Read a mapping. `name` is its path, "" for the grid itself. `others` knows fields that
        are declared elsewhere; `known` names them, for who has mistyped one."""
        reading = Reading(self, node, name, problems)
        if node.entries is None:
            if node.value is not None:
                wrong(node, name, "a mapping", problems)
            return reading
        for key, (place, item) in node.entries.items():
            field = self.fields.get(key) or others(key)
            if field is None:
                inside = f" in {name}" if name else ""
                near = hint(key, [*self.fields, *known()], problems)
                problems.add(place, f"unknown key {key[:100]!r}{inside}{near}")
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
        """The keys that it takes, those of sections in it with dots (`slurm.mem`)."""
        for field in self:
            yield f"{above}{field.name}"
            if isinstance(field.kind, Nested):
                yield from field.kind.section.keys(f"{above}{field.name}.")

    def schema(self) -> dict[str, object]:
        """The section as a JSON Schema. What it needs is said by `whole`."""
        properties = {field.name: field.schema() for field in self}
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": properties,
            **self._more,
        }

    def whole(self) -> dict[str, object]:
        """A JSON Schema of what it needs, for grids that do not start from another one."""
        needed = {key: {"not": {"type": "null"}} for key in self._needs}
        return {"required": list(self._needs), "properties": needed}


def or_null(schema: Mapping[str, object]) -> dict[str, object]:
    """The same, or null."""
    if "type" in schema:
        given = schema["type"]
        types = list_of(given) or [given]
        return {**schema, "type": list(dict.fromkeys([*types, "null"]))}
    if "enum" in schema:
        return {**schema, "enum": [*list_of(schema["enum"]), None]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*list_of(schema["anyOf"]), {"type": "null"}]}
    return dict(schema)


class Nested:
    """A section as what a field of another one takes. Where it is given, even empty, so is the
    field."""

    def __init__(self, section: Section) -> None:
        self.section = section

    def read(self, node: Node, where: str, problems: Problems) -> dict[str, object] | None:
        """What was given, as a document has it."""
        reading = self.section.read(node, where, problems)
        return None if node.entries is None else reading.values

    def schema(self) -> dict[str, object]:
        """The section's."""
        return self.section.schema()
