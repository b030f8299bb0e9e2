"""What a launcher writes beside events: where the runs' environment is, what it observes, of which
attempts it has judged all, who it is."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from sweeper.model.document_reader import Part
from sweeper.model.observation import Observation, read_all
from sweeper.model.usage import SweepUsage, read_of_sweep

__all__ = [
    "NO_OBSERVATIONS",
    "Observations",
    "Service",
    "Who",
    "read_judged",
    "read_observations",
    "read_service",
    "read_who",
]

_NONE: Mapping[str, str] = MappingProxyType({})


class Service(NamedTuple):
    """`env_file` is where this machine keeps the runs' environment, `engine` the address of the one
    they use and `home` whose it is, `places` what tells where jobs wait, for each of the sweep's
    places in their order (none: only the backend's name is known); `document` is all of it."""

    env_file: str | None = None
    engine: str | None = None
    home: str | None = None
    places: tuple[Mapping[str, str], ...] = ()
    document: Mapping[str, object] = _NONE


def read_service(document: object, place: str) -> Service:
    """`service.json`, the file `place`. Every version has written its `env_file`, so that one
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
    """Of a sweep with one place, and of those from before there could be several, it is `place`."""
    if "places" in top.document:
        return tuple(_place(one) for one in top.parts("places"))
    return (_place(top.part("place")),) if top.table("place") else ()


def _place(part: Part) -> Mapping[str, str]:
    return {"backend": part.text("backend"), **{key: part.text(key) for key in part.document}}


class Observations(NamedTuple):
    """What the launcher last published: `observed` (by run id), what does not answer
    (`unreachable`), why nothing is started (`held`; `gave_up`: the launcher has ended by it;
    `paused`: a user wants it), how many jobs there may be at once (`limit`, where that is less than
    `max_parallel`) and why (`limit_by`, a word); what the runs use (`usage`); `starting` is False
    for one that only stops runs."""

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
"""As it was published in words, until version 0.1."""

NO_OBSERVATIONS = Observations()
"""Where no launcher has published anything."""


def read_observations(document: object, place: str) -> Observations:
    """`observations.json`, the file `place`. Raises `StoreError`."""
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
        usage=read_of_sweep(top.part_or_none("usage")),
        starting=top.flag_or("starting", True),
        pid=top.integer_or("pid", None),
    )


def read_judged(document: object, place: str) -> set[tuple[str, int]]:
    """`judged.json`, the file `place`: the attempts (run, attempt) whose alarms have all been said.
    Raises `StoreError`."""
    top = Part(document, place)
    found: set[tuple[str, int]] = set()
    for number, pair in enumerate(top.items("attempts")):
        match pair:
            case [str(run), int(attempt)]:
                found.add((run, attempt))
            case _:
                top.refuse(f"attempts[{number}]", "a run's id and an attempt")
    return found


class Who(NamedTuple):
    """Who holds the lease of a sweep: a process of a machine, and when it began there."""

    host: str
    pid: int
    began: str | None


def read_who(document: object, place: str) -> Who:
    """An epoch of a lease, the file `place`. Raises `StoreError`."""
    top = Part(document, place)
    pid = top.integer_or("pid", None)
    if pid is None or not 0 < pid < 2**31:
        top.refuse("pid", "a process number")
    return Who(top.text("host"), pid, top.text_or("began", None))
