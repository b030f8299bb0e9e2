"""`launch.backends`: several backends for one sweep, each with its share of the jobs and its
options."""

from collections.abc import Iterable
from typing import NamedTuple

from sweeper.backends import backend_type, every_backend
from sweeper.backends.base import BackendType
from sweeper.errors import UsageError
from sweeper.fields.kinds import Integer, wrong
from sweeper.fields.nodes import Node, Problems, kind
from sweeper.fields.sections import Field, Nested, Section, or_null
from sweeper.grid.run_overrides import overrides_of
from sweeper.sweep.launch_settings import Share

SHARE = "max_parallel"
_SHARE = Field(SHARE, Integer(1), "The largest number of jobs at the same time on this backend.")
_EXPECTED = "it takes a list of backends: NAME, or {NAME: {max_parallel: 8, OPTION: VALUE}}"


class Entry(NamedTuple):
    """One entry of `launch.backends`: a backend, its share of the jobs, and its options."""

    kind: BackendType
    share: Share
    options: dict[str, object]


def field_of(kind: BackendType) -> Field | None:
    """Return a backend's section as a field of `launch`; None for a backend without options."""
    field = kind.field()
    if field is None or not kind.by_run:
        return field
    return field._replace(kind=Nested(kind.section.extended(overrides_of(kind.section))))


def _section(kind: BackendType) -> Section:
    """Return the section that an entry may have: the backend's options, and its share."""
    field = field_of(kind)
    given = (
        field.kind.section if field is not None and isinstance(field.kind, Nested) else Section()
    )
    return given.extended(_SHARE)


class Places:
    """A kind of field: a list of distinct backends."""

    def read(self, node: Node, where: str, problems: Problems) -> list[Entry] | None:
        """Return the valid entries, and report the others. Return None if the value is an empty
        list or not a list."""
        if node.items is None or not node.items:
            shown = "an empty list" if node.items is not None else kind(node)
            problems.add(node.place, f"{where} is {shown}; {_EXPECTED}")
            return None
        entries: dict[str, Entry] = {}
        for number, item in enumerate(node.items):
            entry = _entry(item, f"{where}[{number}]", problems)
            if entry is None:
                continue
            name = entry.kind.name
            if name in entries:
                message = f"{where}[{number}]: {name} is given twice"
                problems.add(item.place, message)
            entries.setdefault(name, entry)
        return list(entries.values())

    def schema(self) -> dict[str, object]:
        """Return the JSON Schema of the field. The field is a list; each entry is the name of a
        backend, or a mapping from one name to the backend's options."""
        kinds = list(every_backend())
        entry = {
            "type": "object",
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
            "properties": {kind.key: or_null(_section(kind).schema()) for kind in kinds},
        }
        names = {"enum": [kind.name for kind in kinds]}
        return {"type": "array", "minItems": 1, "items": {"anyOf": [names, entry]}}


def _entry(item: Node, where: str, problems: Problems) -> Entry | None:
    """Read `slurm` or `{slurm: {partition: spot}}`. Return None for anything else."""
    if isinstance(item.value, str):
        name, inner = item.value, Node({}, item.place)
    elif item.entries is not None and len(item.entries) == 1:
        ((name, (_, inner)),) = item.entries.items()
        inner = Node({}, item.place) if inner.value is None else inner
    else:
        wrong(item, where, "one backend: NAME, or {NAME: {OPTION: VALUE}}", problems)
        return None
    try:
        backend = backend_type(name.replace("_", "-"))
    except UsageError as error:
        problems.add(item.place, f"{where}: {error}")
        return None
    section, path = _section(backend), f"{where}.{name}"
    for key in (inner.entries or {}).keys() - section.fields.keys():
        if owners := [owner.name for owner in _having(key) if owner.name != backend.name]:
            others = " and ".join(owners)
            message = f"{path}: {key[:60]!r} is not an option of {backend.name}, but of {others}"
            problems.add(item.place, message)
            inner = Node({k: v for k, v in (inner.entries or {}).items() if k != key}, inner.place)
    options = section.read(inner, path, problems).values
    return Entry(backend, Share(backend.name, options.pop(SHARE, None)), options)


def _having(key: str) -> Iterable[BackendType]:
    """Yield the backends that have an option of this name."""
    return (kind for kind in every_backend() if key in kind.section.fields)


BACKENDS = Field(
    "backends",
    Places(),
    "Several backends for one sweep (instead of `backend`), in the order in which they get jobs. "
    "Each backend may have options, and max_parallel as its limit.",
    examples=([{"local": {"max_parallel": 4}}],),
)
