"""The section `launch`: how runs are executed. Each backend declares its own options; see
`sweeper.backends`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sweeper.backends import backend_type, every_backend, with_key
from sweeper.backends.base import BackendType
from sweeper.backends.configuration import defaults_of
from sweeper.common.gpus import MOST_PER_GPU, VISIBLE
from sweeper.common.json_values import table_of
from sweeper.errors import UsageError
from sweeper.fields.kinds import Choice, Duration, Flag, Integer, Matching, Names, Number, Text
from sweeper.fields.nodes import Node, Place, Problems
from sweeper.fields.sections import Field, Nested, Reading, Section
from sweeper.grid.backends import BACKENDS, Entry, field_of
from sweeper.grid.dotted_keys import FIELD
from sweeper.sweep.launch import Launch

MIN_LEASE_SECONDS = 15.0
"""Three heartbeats of a worker. With a shorter lease, a live worker would be declared lost."""

_MIN_SYNC_SECONDS = 1.0
_MOST_PRIORITY = 1000.0
_DEFAULT = Launch()
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"

SECTION = Section(
    Field(
        "backend",
        Text(r"[a-z][a-z0-9-]*", "{} is not a backend"),
        "Where jobs execute.",
        _DEFAULT.backend,
    ),
    BACKENDS,
    Field("max_parallel", Integer(1), "The most jobs at once.", _DEFAULT.max_parallel),
    Field("retries", Integer(0), "How many times a failed run is retried.", _DEFAULT.retries),
    Field(
        "timeout",
        Duration(),
        "An attempt that takes longer is stopped.",
        examples=("2h",),
        key="timeout_s",
    ),
    Field(
        "python",
        Text(),
        "The recipe's interpreter: a command, or a path relative to the folder where you run"
        " `sweeper launch`.",
        examples=(".venv/bin/python",),
    ),
    Field(
        "gpus",
        Integer(0),
        "GPUs of each run, which sees only these. Runs wait until enough are free.",
        examples=(1,),
    ),
    Field(
        "per_gpu",
        Integer(1, MOST_PER_GPU),
        "How many runs may share a GPU, with gpus: 1.",
        _DEFAULT.per_gpu,
    ),
    Field(
        "requirements",
        Text(),
        "A file of requirements, relative to the folder where you run `sweeper launch`: the "
        "packages of recipes on machines that do not see this machine's folders. Default: "
        "their image has them, and sweeper.",
        examples=("requirements.txt",),
    ),
    Field(
        "cwd",
        Text(),
        "The folder that the recipe runs in, relative to the folder where you run `sweeper "
        "launch`.",
        examples=(".",),
    ),
    Field(
        "env",
        Names(
            "a mapping of names to strings",
            Matching(ENV_NAME, "a variable"),
            reserved=("SWEEPER_",),
        ),
        "Environment variables of the runs.",
        examples=({"HF_HUB_OFFLINE": "1"},),
    ),
    Field(
        "resume",
        Choice("auto", "always", "never"),
        "Whether an attempt starts from the last one's files; auto: if that had a checkpoint.",
        _DEFAULT.resume,
    ),
    Field(
        "lease",
        Duration(MIN_LEASE_SECONDS),
        "Seconds without a heartbeat before a worker counts as lost; at least 15s.",
        f"{_DEFAULT.lease_s:g}s",
        key="lease_s",
    ),
    Field(
        "grace",
        Duration(),
        "Seconds between the request to stop (SIGTERM) and SIGKILL.",
        f"{_DEFAULT.grace_s:g}s",
        key="grace_s",
    ),
    Field(
        "log_path_field",
        Text(FIELD, "{} is not a field's name"),
        "The field that takes the run's folder, if it is not log_path.",
        examples=("log_dir",),
    ),
    Field(
        "metrics_dir",
        Text(
            r"\{log_path\}(/(?!\.\.?(/|$))[A-Za-z0-9._+=,~-]{1,100}){1,8}",
            "write a folder inside the run's own, like '{log_path}/run'",
        ),
        "The folder of the metrics, if it is not the run's folder: '{log_path}/run'. A "
        "recipe then needs no log_path field.",
        examples=("{log_path}/run",),
    ),
    Field(
        "window",
        Text(),
        'Runs with the same text share a window, as in "{lora_rank}".',
        examples=("{lora_rank}",),
    ),
    Field(
        "sync",
        Duration(_MIN_SYNC_SECONDS),
        "How often files of runs are uploaded to a remote store; at least 1s.",
        f"{_DEFAULT.sync_s:g}s",
        key="sync_s",
    ),
    Field(
        "priority",
        Number(0, _MOST_PRIORITY, above=True),
        "The sweep's weight when an account's slots are divided among sweeps: 2 gets twice "
        "as much as 1.",
        _DEFAULT.priority,
    ),
    Field(
        "warm",
        Flag(),
        "Whether runs on this machine may be forked from a process that has already imported "
        "their modules.",
        _DEFAULT.warm,
    ),
)

_IN_STAGE = (
    *("max_parallel", "retries", "timeout", "grace", "resume", "python", "cwd", "env"),
    "requirements",
    *("log_path_field", "window", "warm"),
)
STAGE_SECTION = Section(  # without defaults, since the sweep's values are used for missing keys
    *(SECTION.fields[name]._replace(default=None) for name in _IN_STAGE)
)
"""The keys that a stage may set for its own runs. The other keys belong to the launcher, the
service or the backend, and a sweep has only one of each."""

_OF_THE_SERVICE = ("TINKER_BASE_URL", "TINKER_API_KEY")


def backend_fields() -> Iterator[Field]:
    """Yield the fields of every backend."""
    yield from filter(None, map(field_of, every_backend()))


def stage_backend_fields() -> Iterator[Field]:
    """Yield the fields of the backends whose options may differ between runs."""
    yield from filter(None, (field_of(kind) for kind in every_backend() if kind.by_run))


class StageLaunch(NamedTuple):
    """What a stage sets for its own runs, in the form of `Stage.launch`, and the place of each
    key."""

    values: dict[str, object]
    places: dict[str, Place]


def read_stage_launch(node: Node, name: str, whole: Launch, problems: Problems) -> StageLaunch:
    """Read the section of a stage. `name` is its name in messages, `whole` is the sweep's section.
    Options of a backend that the sweep does not use are read too, as in the sweep's own
    section."""
    section = STAGE_SECTION.extended(*stage_backend_fields())
    entries: dict[str, tuple[Place, Node]] = {}
    for key, (place, item) in (node.entries or {}).items():
        if key not in section.fields and _is_of_all(key):
            message = "applies to all stages: move it into launch next to stages"
            problems.add(place, f"{name}.{key} {message}")
        else:
            entries[key] = place, item
    read = node if node.entries is None else node._replace(value=entries)
    reading = section.read(read, name, problems)
    for variable in reading.values.get("env", {}):
        if variable in _OF_THE_SERVICE:
            message = f"{variable} belongs to the service, which all stages share"
            problems.add(reading.entries["env"][1].place, f"{name}.env: {message}")
    places = {key: item.place for key, (_, item) in reading.entries.items()}
    return StageLaunch({key: _over(whole, key, v) for key, v in reading.values.items()}, places)


def _over(whole: Launch, key: str, given: object) -> object:
    """Return a stage's value. Options of a backend are merged over those of the sweep."""
    kind = None if key in Launch._fields else with_key(key)
    return given if kind is None else kind.merge(whole.options.get(key, {}), table_of(given))


def _is_of_all(key: str) -> bool:
    return key in SECTION.fields or any(field.name == key for field in backend_fields())


def read_launch(node: Node, where: str, problems: Problems) -> Launch:
    """Read the section. Note an unknown backend, and mistakes in the defaults of the chosen one."""

    def other(key: str) -> Field | None:
        try:
            kind = with_key(key)
        except UsageError as error:
            problems.add(node.place, f"{where}.{key}: {error}")
            return Field(key, Nested(Section()))
        return None if kind is None else field_of(kind)

    def known() -> Iterable[str]:
        return (field.name for field in backend_fields())

    reading = SECTION.read(node, where, problems, others=other, known=known)
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
        one = _chosen(reading, problems)
        chosen = [] if one is None else [one]
    if not chosen:
        given.pop("backend", None)
    _check_gpus(reading, chosen)
    for kind in chosen:
        if kind.records_defaults and kind.section.fields:
            defaults = defaults_of(kind, problems)
            if defaults or kind.key in options:
                options[kind.key] = kind.merge(defaults, options.get(kind.key, {}))
    return Launch(**given, options=options)


def _check_gpus(reading: Reading, chosen: Iterable[BackendType]) -> None:
    """Note a backend that does not pin GPUs, and keys that contradict `gpus`."""
    gpus, shared = reading.values.get("gpus", 0), reading.values.get("per_gpu", 1)
    if shared > 1 and gpus != 1:
        reading.problem("per_gpu", "launch.per_gpu needs `gpus: 1`: runs share one GPU")
    if not gpus:
        return
    pinning = [kind.name for kind in every_backend() if kind.pins_gpus]
    for kind in chosen:
        if not kind.pins_gpus:
            message = f"launch.gpus is for {', '.join(pinning)}: {kind.name} assigns GPUs itself, "
            reading.problem("gpus", f"{message}as its own options say")
    if VISIBLE in reading.values.get("env", {}):
        reading.problem("env", f"launch.env: {VISIBLE} is set by `gpus`: remove one of them")


def _check_alone(reading: Reading, sections: Iterable[str]) -> None:
    """Note keys that contradict `backends`: another backend, or options of one."""
    if reading.given("backend") is not None:
        reading.problem("backend", "launch has both backend and backends: remove one")
    for key in sections:
        message = f"launch.{key}: with backends, write a backend's options in its entry there"
        reading.problem(key, message)


def _together(places: list[Entry], most: int | None) -> dict[str, object]:
    """Return the values for the whole sweep. Its `max_parallel` is the sum over its backends
    unless the sweep gives one. A list of one backend is the same as `backend`."""
    shares = tuple(entry.share for entry in places)
    if not shares:
        return {}
    if most is None:
        most = sum(share.max_parallel or _DEFAULT.max_parallel for share in shares)
    if len(shares) == 1:
        one = shares[0]
        return {"backend": one.backend, "max_parallel": min(most, one.max_parallel or most)}
    named = "+".join(share.backend for share in shares)
    return {"backend": named, "backends": shares, "max_parallel": most}


def _chosen(reading: Reading, problems: Problems) -> BackendType | None:
    """Return the grid's backend. If it is unknown, note that and return None."""
    name = reading.values.get("backend", _DEFAULT.backend)
    try:
        return backend_type(name)
    except UsageError as error:
        place: Place = reading.entries["backend"][1].place
        problems.add(place, f"launch.backend: {error}")
        return None
