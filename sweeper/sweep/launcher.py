"""Documents that a launcher writes in addition to events: where the runs' environment is, its
observations, the attempts whose alarms are complete, and its own identity."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from sweeper.common import codec
from sweeper.common.document_reader import Part
from sweeper.sweep.observation import Observation, read_all
from sweeper.sweep.usage import SweepUsage

_NONE: Mapping[str, str] = MappingProxyType({})


class Service(NamedTuple):
    """`env_file` is where this machine keeps the runs' environment. `engine` is the address of the
    runs' engine, `home` the engine's home. `places` has the data for finding jobs, for each of the
    sweep's backends in order (empty: only the backend's name is known). `document` is the whole
    document."""

    env_file: str | None = None
    engine: str | None = None
    home: str | None = None
    places: tuple[Mapping[str, str], ...] = ()
    document: Mapping[str, object] = _NONE


def read_service(document: object, place: str) -> Service:
    """Read `service.json`, the file `place`. Every version has written `env_file`, so a document
    without it is damaged. Raises `StoreError`."""
    top = Part(document, place)
    if "env_file" not in top.document:
        top.refuse("env_file", "a text")
    return Service(
        env_file=top.text_or("env_file", None),
        engine=top.text_or("engine", None),
        home=top.text_or("home", None),
        places=_places(top),
        document=top.document,
    )


def _places(top: Part) -> tuple[Mapping[str, str], ...]:
    """Read `places`, or `place`: the key for a single backend, and the only key of old
    versions."""
    if "places" in top.document:
        return tuple(_place(one) for one in top.parts("places"))
    return (_place(top.part("place")),) if top.table("place") else ()


def _place(part: Part) -> Mapping[str, str]:
    return {"backend": part.text("backend"), **{key: part.text(key) for key in part.document}}


class Observations(NamedTuple):
    """The launcher's last published observations: `observed` (by run id), what does not answer
    (`unreachable`), why nothing is started (`held`). `gave_up` says that the launcher has ended
    for this reason, `paused` that a user has paused the sweep. `limit` is the number of jobs at
    once if it is below `max_parallel`, `limit_by` the reason in a word. `usage` is the use by the
    runs. `starting` is False for a launcher that only stops runs."""

    observed: Mapping[str, Observation] = MappingProxyType({})
    unreachable: str | None = None
    held: str | None = None
    gave_up: bool = False
    paused: bool = False
    limit: int | None = None
    limit_by: str | None = None
    usage: SweepUsage | None = None
    starting: bool = True
    pid: int | None = None


_GAVE_UP = "the launcher gave up: "
"""Prefix of `held` until version 0.1, which had no `gave_up`."""


class _Used(NamedTuple):
    usage: SweepUsage | None


NO_OBSERVATIONS = Observations()
"""The value if no launcher has published anything."""


def read_observations(document: object, place: str) -> Observations:
    """Read `observations.json`, the file `place`. Raises `StoreError`."""
    top = Part(document, place)
    held, gave_up = top.text_or("held", None), top.flag_or("gave_up", False)
    if held is not None and held.startswith(_GAVE_UP):
        held, gave_up = held.removeprefix(_GAVE_UP), True
    return Observations(
        observed=read_all(top, "observed"),
        unreachable=top.text_or("unreachable", None),
        held=held,
        gave_up=gave_up,
        paused=top.flag_or("paused", False),
        limit=top.integer_or("limit", None),
        limit_by=top.text_or("limit_by", None),
        usage=codec.read(_Used, document, place).usage,
        starting=top.flag_or("starting", True),
        pid=top.integer_or("pid", None),
    )


def read_judged(document: object, place: str) -> set[tuple[str, int]]:
    """Read `judged.json`, the file `place`: the attempts (run, attempt) whose alarms are all
    recorded. Raises `StoreError`."""
    top = Part(document, place)
    judged: set[tuple[str, int]] = set()
    for number, pair in enumerate(top.items("attempts")):
        match pair:
            case [str(run), int(attempt)]:
                judged.add((run, attempt))
            case _:
                top.refuse(f"attempts[{number}]", "a run's id and an attempt")
    return judged


class Who(NamedTuple):
    """The holder of a sweep's lease: a process on a host, and when it began there."""

    host: str
    pid: int
    began: str | None


def read_who(document: object, place: str) -> Who:
    """Read an epoch of a lease, the file `place`. Raises `StoreError`."""
    top = Part(document, place)
    pid = top.integer_or("pid", None)
    if pid is None or not 0 < pid < 2**31:
        top.refuse("pid", "a process number")
    return Who(top.text("host"), pid, top.text_or("began", None))
