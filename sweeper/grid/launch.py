"""The section `launch`: how the runs are executed. What it says to a backend is the backend's own
to declare; see `sweeper.backends`."""

from collections.abc import Iterable, Iterator
from typing import Any

from sweeper.backends import backend_type, every_backend, with_key
from sweeper.backends.base import BackendType
from sweeper.backends.configuration import defaults_of
from sweeper.errors import UsageError
from sweeper.fields.kinds import Choice, Duration, Flag, Integer, Matching, Names, Number, Text
from sweeper.fields.nodes import Node, Place, Problems
from sweeper.fields.sections import Field, Nested, Reading, Section
from sweeper.grid.by_run import overrides_of
from sweeper.grid.keys import FIELD
from sweeper.model.plan import Launch

__all__ = ["MIN_LEASE_SECONDS", "SECTION", "backend_fields", "field_of", "read_launch"]

MIN_LEASE_SECONDS = 15.0
"""Three beats of a worker: with less, a worker that lives would be declared lost."""

_MIN_SYNC_SECONDS = 1.0
_MOST_PRIORITY = 1000.0
_DEFAULT = Launch()
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"

SECTION = Section(
    Field(
        "backend",
        Text(r"[a-z][a-z0-9-]*", "{} is not a backend's name"),
        "Where jobs execute.",
        _DEFAULT.backend,
    ),
    Field("max_parallel", Integer(1), "Most jobs at once.", _DEFAULT.max_parallel),
    Field("retries", Integer(0), "How many failures of a run are made good for.", _DEFAULT.retries),
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
        "The recipe's interpreter: a path, counted from where launch is typed, or a command.",
        examples=(".venv/bin/python",),
    ),
    Field(
        "cwd",
        Text(),
        "The folder that the recipe runs in, counted from where launch is typed.",
        examples=(".",),
    ),
    Field(
        "env",
        Names(
            "a mapping of names to strings",
            Matching(ENV_NAME, "a variable"),
            reserved=("SWEEPER_",),
        ),
        "Variables that runs find set.",
        examples=({"HF_HUB_OFFLINE": "1"},),
    ),
    Field(
        "resume",
        Choice("auto", "always", "never"),
        "Whether an attempt starts from the last one's files; auto: where that had a checkpoint.",
        _DEFAULT.resume,
    ),
    Field(
        "lease",
        Duration(MIN_LEASE_SECONDS),
        "How long a worker may be silent before it is looked for; at least 15s.",
        f"{_DEFAULT.lease_s:g}s",
        key="lease_s",
    ),
    Field(
        "grace",
        Duration(),
        "How long a recipe that is told to stop has for it.",
        f"{_DEFAULT.grace_s:g}s",
        key="grace_s",
    ),
    Field(
        "log_path_field",
        Text(FIELD, "{} is not a field's name"),
        "The field that takes the folder, where it is not log_path.",
        examples=("log_dir",),
    ),
    Field(
        "metrics_dir",
        Text(
            r"\{log_path\}(/(?!\.\.?(/|$))[A-Za-z0-9._+=,~-]{1,100}){1,8}",
            "write a folder in the run's own, like '{log_path}/run'",
        ),
        "Where the metrics lie, where that is not the run's folder itself: '{log_path}/run'. A"
        " recipe then needs no log_path field.",
        examples=("{log_path}/run",),
    ),
    Field(
        "window",
        Text(),
        'What groups runs into windows, as in "{lora_rank}".',
        examples=("{lora_rank}",),
    ),
    Field(
        "sync",
        Duration(_MIN_SYNC_SECONDS),
        "How often what runs write is brought into a store that is elsewhere; at least 1s.",
        f"{_DEFAULT.sync_s:g}s",
        key="sync_s",
    ),
    Field(
        "priority",
        Number(0, _MOST_PRIORITY, above=True),
        "The sweep's share of an account's slots, beside those of other sweeps: 2 is twice that of"
        " one with 1.",
        _DEFAULT.priority,
    ),
    Field(
        "warm",
        Flag(),
        "Whether runs on this machine may be forked from a process that has imported what they"
        " import.",
        _DEFAULT.warm,
    ),
)


def field_of(kind: BackendType) -> Field | None:
    """A backend's section as a field of `launch`; None for one without options."""
    field = kind.field()
    if field is None or not kind.by_run:
        return field
    return field._replace(kind=Nested(kind.section.extended(overrides_of(kind.section))))


def backend_fields() -> Iterator[Field]:
    """Those of every backend."""
    yield from filter(None, map(field_of, every_backend()))


def read_launch(node: Node, problems: Problems) -> Launch:
    """The section. A backend that there is not is told here, and so is a mistake in the defaults
    of the one that is chosen."""

    def other(key: str) -> Field | None:
        try:
            kind = with_key(key)
        except UsageError as error:
            problems.add(node.place, f"launch.{key}: {error}")
            return Field(key, Nested(Section()))
        return None if kind is None else field_of(kind)

    def known() -> Iterable[str]:
        return (field.name for field in backend_fields())

    reading = SECTION.read(node, "launch", problems, others=other, known=known)
    given = dict(reading.values)
    keys = [key for key in given if key not in Launch._fields]
    options: dict[str, Any] = {key: given.pop(key) for key in keys}
    chosen = _chosen(reading, problems)
    if chosen is None:
        given.pop("backend", None)
    elif chosen.records_defaults and chosen.section.fields:
        defaults = defaults_of(chosen, problems)
        if defaults or chosen.key in options:
            options[chosen.key] = chosen.merge(defaults, options.get(chosen.key, {}))
    return Launch(**given, options=options)


def _chosen(reading: Reading, problems: Problems) -> BackendType | None:
    """The backend of the grid; None for one that there is not, which is noted."""
    name = reading.values.get("backend", _DEFAULT.backend)
    try:
        return backend_type(name)
    except UsageError as error:
        place: Place = reading.entries["backend"][1].place
        problems.add(place, f"launch.backend: {error}")
        return None
