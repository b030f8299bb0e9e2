"""The section `launch`: the settings for executing runs. Each backend declares its own options; see
`sweeper.backends`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, get_type_hints

from sweeper.backends import backend_type, capabilities_at, every_backend, with_key
from sweeper.backends.base import BackendType
from sweeper.backends.configuration import defaults_of
from sweeper.common.gpus import VISIBLE
from sweeper.common.json_values import table_of
from sweeper.errors import UsageError
from sweeper.fields.kinds import Duration, Kind, Matching, Names, Number, Text
from sweeper.fields.nodes import Node, Place, Problems
from sweeper.fields.options import Option, kind_of
from sweeper.fields.options import field_of as option_field
from sweeper.fields.sections import Field, Nested, Reading, Section
from sweeper.grid.backends import BACKENDS, Entry, field_of
from sweeper.grid.dotted_keys import FIELD
from sweeper.sweep.launch_settings import Launch, Setting

MIN_LEASE_SECONDS = 15.0
"""The shortest lease: the time of three heartbeats. With a shorter lease, live workers would be
declared lost."""

_MIN_SYNC_SECONDS = 1.0
_MOST_PRIORITY = 1000.0
_DEFAULT = Launch()
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"

_KINDS: Mapping[str, Kind] = {
    "backend": Text(r"[a-z][a-z0-9-]*", "{} is not a backend"),
    "env": Names(
        "a mapping of names to strings", Matching(ENV_NAME, "a variable"), reserved=("SWEEPER_",)
    ),
    "lease_s": Duration(MIN_LEASE_SECONDS),
    "log_path_field": Text(FIELD, "{} is not a field's name"),
    "metrics_dir": Text(
        r"\{log_path\}(/(?!\.\.?(/|$))[A-Za-z0-9._+=,~-]{1,100}){1,8}",
        "write a folder inside the run's own, like '{log_path}/run'",
    ),
    "sync_s": Duration(_MIN_SYNC_SECONDS),
    "priority": Number(0, _MOST_PRIORITY, above=True),
}
"""The kinds of fields that accept only some values of their type."""


def _declared() -> Iterator[tuple[Field, Setting]]:
    for name, hint in get_type_hints(Launch, include_extras=True).items():
        for setting in hint.__metadata__:
            if isinstance(setting, Setting):
                kind = _KINDS.get(name) or kind_of(name, hint)
                option = Option(kind, setting.doc, setting.example)
                default = None if setting.example is not None else getattr(_DEFAULT, name)
                yield option_field(name, option, default), setting


_FIELDS = [*_declared()]
SECTION = Section(_FIELDS[0][0], BACKENDS, *(field for field, _ in _FIELDS[1:]))
# A stage's keys have no defaults, since a missing key has the sweep's value.
STAGE_SECTION = Section(
    *(field._replace(default=None) for field, setting in _FIELDS if setting.by_stage)
)
"""The keys that a stage may set for its own runs. The other keys belong to the launcher, the
service or the backend, and a sweep has only one of each."""

_OF_THE_SERVICE = ("TINKER_BASE_URL", "TINKER_API_KEY")


def backend_fields() -> Iterator[Field]:
    """Yield a field of `launch` for each backend that has options: the backend's section."""
    yield from filter(None, map(field_of, every_backend()))


def stage_backend_fields() -> Iterator[Field]:
    """Yield the sections of those backends whose options may differ between runs."""
    yield from filter(None, (field_of(kind) for kind in every_backend() if kind.by_run))


class StageLaunch(NamedTuple):
    """A stage's `launch`: values in the form of plans, and the position of each key in the file."""

    values: dict[str, object]
    places: dict[str, Place]


def read_stage_launch(node: Node, name: str, whole: Launch, problems: Problems) -> StageLaunch:
    """Read the section `launch` of a stage. `name` is the section's name in messages, `whole` is
    the sweep's section. Options of backends that the sweep does not use are read too."""
    section = STAGE_SECTION.extended(*stage_backend_fields())
    entries: dict[str, tuple[Place, Node]] = {}
    for key, (place, item) in (node.entries or {}).items():
        if key not in section.fields and (
            key in SECTION.fields or any(field.name == key for field in backend_fields())
        ):
            message = "applies to all stages: move it into `launch` next to `stages`"
            problems.add(place, f"{name}.{key} {message}")
        else:
            entries[key] = place, item
    read = node if node.entries is None else node._replace(value=entries)
    reading = section.read(read, name, problems)
    for variable in reading.values.get("env", {}):
        if variable in _OF_THE_SERVICE:
            message = f"{variable} belongs to the service, which all stages share"
            problems.add(reading.entries["env"][1].place, f"{name}.env: {message}")
    _check_stage_gpus(reading, name, whole)
    places = {key: item.place for key, (_, item) in reading.entries.items()}
    return StageLaunch({key: _over(whole, key, v) for key, v in reading.values.items()}, places)


def _over(whole: Launch, key: str, given: object) -> object:
    """Return a stage's value for `key`. A backend's options are merged into the sweep's options of
    the backend."""
    kind = None if key in Launch._fields else with_key(key)
    return given if kind is None else kind.merge(whole.options.get(key, {}), table_of(given))


def read_launch(node: Node, where: str, problems: Problems) -> Launch:
    """Read the section `launch`. Report an unknown backend, and mistakes in the user's defaults
    for the chosen backend."""

    def other(key: str) -> Field | None:
        try:
            kind = with_key(key)
        except UsageError as error:
            problems.add(node.place, f"{where}.{key}: {error}")
            return Field(key, Nested(Section()))
        return None if kind is None else field_of(kind)

    def backend_keys() -> Iterable[str]:
        return (field.name for field in backend_fields())

    reading = SECTION.read(node, where, problems, others=other, known=backend_keys)
    given = dict(reading.values)
    keys = [key for key in given if key not in Launch._fields]
    options: dict[str, Mapping[str, object]] = {key: given.pop(key) for key in keys}
    places: list[Entry] | None = given.pop("backends", None)
    if "backends" in reading.entries and reading.given("backends") is not None:
        _check_alone(reading, keys)
        chosen = [entry.kind for entry in places or ()]
        options = {entry.kind.key: entry.options for entry in places or () if entry.options}
        given |= _together(places or [], given.get("max_parallel"))
    else:
        backend = _chosen(reading, problems)
        chosen = [] if backend is None else [backend]
    if not chosen:
        given.pop("backend", None)
    _check_gpus(reading, "launch", chosen)
    for kind in chosen:
        if kind.records_defaults and kind.section.fields:
            defaults = defaults_of(kind, problems)
            if defaults or kind.key in options:
                options[kind.key] = kind.merge(defaults, options.get(kind.key, {}))
    return Launch(**given, options=options)


def _check_gpus(reading: Reading, where: str, chosen: Iterable[BackendType]) -> None:
    """Report backends that do not support `gpus`, and keys that contradict `gpus`."""
    gpus, shared = reading.values.get("gpus", 0), reading.values.get("per_gpu", 1)
    if shared > 1 and gpus != 1:
        reading.problem("per_gpu", f"{where}.per_gpu needs `gpus: 1`: runs share one GPU")
    if not gpus:
        return
    pinning = [kind.name for kind in every_backend() if kind.pins_gpus]
    for kind in chosen:
        if not kind.pins_gpus:
            message = f"{where}.gpus works only with {', '.join(pinning)}: {kind.name} assigns GPUs"
            reading.problem("gpus", f"{message} itself, so use launch.{kind.key}")
    if VISIBLE in reading.values.get("env", {}):
        reading.problem("env", f"{where}.env: {VISIBLE} is set by `gpus`: remove one of them")


def _check_stage_gpus(reading: Reading, where: str, whole: Launch) -> None:
    """Report settings that contradict `gpus` or `per_gpu` in a stage's `launch`."""
    key = next((key for key in ("gpus", "per_gpu") if key in reading.values), None)
    if key is None:
        return
    if whole.gpus:
        message = (
            f"{where}.{key}: launch.gpus applies to all stages: remove it to give stages their own"
        )
        reading.problem(key, message)
        return
    kinds = [backend_type(place) for place in whole.places]
    _check_gpus(reading, where, kinds)
    for kind in kinds:
        if kind.pins_gpus and not capabilities_at(whole, kind.name).here:
            message = f"{where}.{key}: with {kind.name}, use launch.gpus for all stages instead"
            reading.problem(key, message)
    if VISIBLE in whole.env:
        reading.problem(key, f"{where}.{key}: launch.env sets {VISIBLE}: remove one of them")


def _check_alone(reading: Reading, sections: Iterable[str]) -> None:
    """Report keys that contradict `backends`: `backend`, and the sections of backends."""
    if reading.given("backend") is not None:
        reading.problem("backend", "launch has both backend and backends: remove one")
    for key in sections:
        message = f"launch.{key}: write these options into the backend's entry in launch.backends"
        reading.problem(key, message)


def _together(places: list[Entry], most: int | None) -> dict[str, object]:
    """Return the sweep's backends and `max_parallel`; {} without backends. `max_parallel` is `most`
    if set, else the sum of the backends' limits. If there is only one backend, it is returned as
    `backend`, and its own limit also applies."""
    shares = tuple(entry.share for entry in places)
    if not shares:
        return {}
    if most is None:
        most = sum(share.max_parallel or _DEFAULT.max_parallel for share in shares)
    if len(shares) == 1:
        share = shares[0]
        return {"backend": share.backend, "max_parallel": min(most, share.max_parallel or most)}
    named = "+".join(share.backend for share in shares)
    return {"backend": named, "backends": shares, "max_parallel": most}


def _chosen(reading: Reading, problems: Problems) -> BackendType | None:
    """Return the grid's backend. If it is unknown, report that and return None."""
    name = reading.values.get("backend", _DEFAULT.backend)
    try:
        return backend_type(name)
    except UsageError as error:
        place: Place = reading.entries["backend"][1].place
        problems.add(place, f"launch.backend: {error}")
        return None
