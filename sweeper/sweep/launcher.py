"""Documents that a launcher writes besides events: where the runs' environment is, the
launcher's observations, and the attempts whose alarms are all recorded."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import Parse, Whole
from sweeper.errors import Damaged
from sweeper.sweep.observation import Published
from sweeper.sweep.usage import SweepUsage

_NONE: Mapping[str, str] = MappingProxyType({})


class _Backend(NamedTuple):
    backend: str


def _place(value: Any) -> dict[str, str]:
    codec.value_of(_Backend, value)
    return codec.value_of(dict[str, str], value)


_Place = Annotated[Mapping[str, str], Parse(_place)]


class Service(NamedTuple):
    """The environment, the engine and the backends of the last launch. `env_file` is the file on
    this machine with the runs' environment variables. `engine` is the address of the runs' local
    engine, and `home` the folder of its files. `places` has one entry per backend of the sweep,
    with data for finding the backend's jobs (empty: only the backends' names are known). `document`
    is the whole JSON object."""

    env_file: str | None = None
    engine: str | None = None
    home: str | None = None
    places: tuple[_Place, ...] = ()
    document: Whole[Mapping[str, object]] = _NONE


class _OfOldVersion(NamedTuple):
    place: _Place | None


def read_service(document: object, place: str) -> Service:
    """Check and convert `document`, the content of `service.json`. Error messages name the path
    `place`. A document without `env_file` is damaged, because every version writes that key. Raises
    `StoreError`."""
    service = codec.read(Service, document, place)
    if "env_file" not in service.document:
        raise Damaged(f"{place}: env_file: should be a string, but is missing")
    if "places" in service.document or not service.document.get("place"):
        return service
    only = codec.read(_OfOldVersion, document, place).place
    return service if only is None else service._replace(places=(only,))


class Observations(NamedTuple):
    """The observations that a launcher last published. `observed` maps run ids to observations.
    `unreachable` has the error messages about services that do not answer. `held` is the reason why
    no runs are started. With `gave_up`, the launcher has ended because of `held`. With `paused`, a
    user has paused the sweep. `limit` is the current limit on jobs if it differs from the plan's
    `max_parallel`, and `limit_by` is the reason, a key of `labels.LOWERED`. `usage` is the usage of
    all runs. `starting` is False for a launcher that only stops runs."""

    observed: Mapping[str, Published] = MappingProxyType({})
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
"""Prefix of `held` in documents of version 0.1 and older, which have no `gave_up`."""


NO_OBSERVATIONS = Observations()
"""The observations if no launcher has published any."""


def read_observations(document: object, place: str) -> Observations:
    """Check and convert `document`, the content of `observations.json`. Error messages name the
    path `place`. Raises `StoreError`."""
    published = codec.read(Observations, document, place)
    held = published.held or ""
    if held.startswith(_GAVE_UP):
        return published._replace(held=held.removeprefix(_GAVE_UP), gave_up=True)
    return published


class _Judged(NamedTuple):
    attempts: list[tuple[str, int]]


def read_judged(document: object, place: str) -> set[tuple[str, int]]:
    """Return the attempts in `document`, the content of `judged.json`, as (run, attempt). All
    alarms about these attempts are recorded. Error messages name the path `place`. Raises
    `StoreError`."""
    return set(codec.read(_Judged, document, place).attempts)


def held_of(observations: Observations) -> str | None:
    """Return the reason why no runs are started; None if runs are started."""
    if observations.held is None or not observations.gave_up:
        return observations.held
    return f"the launcher gave up: {observations.held}"
