"""Documents that a launcher writes besides events: the place of the runs' environment, its
observations, and the attempts whose alarms are complete."""

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
    """The data of the last launch that runs need. `env_file` is the file on this machine with the
    runs' environment. `engine` is the address of the runs' engine, `home` the engine's home.
    `places` has the data for finding jobs, for each of the sweep's backends in order (empty: only
    the backend's name is known). `document` is the whole document."""

    env_file: str | None = None
    engine: str | None = None
    home: str | None = None
    places: tuple[_Place, ...] = ()
    document: Whole[Mapping[str, object]] = _NONE


class _OfOldVersion(NamedTuple):
    place: _Place | None


def read_service(document: object, place: str) -> Service:
    """Read `service.json`, the file `place`. A document without `env_file`, which every version
    has written, is damaged. Raises `StoreError`."""
    service = codec.read(Service, document, place)
    if "env_file" not in service.document:
        raise Damaged(f"{place}: env_file: should be a text, and is missing")
    if "places" in service.document or not service.document.get("place"):
        return service
    only = codec.read(_OfOldVersion, document, place).place
    return service if only is None else service._replace(places=(only,))


class Observations(NamedTuple):
    """The observations that a launcher last published: `observed` by run id, a text about
    everything that does not answer (`unreachable`), and the reason why no runs are started
    (`held`). `gave_up`: the launcher has ended for the reason in `held`. `paused`: a user has
    paused the sweep. `limit` is the number of jobs at once if it is below `max_parallel`, and
    `limit_by` the reason as one word. `usage` is the usage of the runs. `starting` is False for a
    launcher that only stops runs."""

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
"""Prefix of `held` until version 0.1, which had no `gave_up`."""


NO_OBSERVATIONS = Observations()
"""The observations if no launcher has published any."""


def read_observations(document: object, place: str) -> Observations:
    """Read `observations.json`, the file `place`. Raises `StoreError`."""
    published = codec.read(Observations, document, place)
    held = published.held or ""
    if held.startswith(_GAVE_UP):
        return published._replace(held=held.removeprefix(_GAVE_UP), gave_up=True)
    return published


class _Judged(NamedTuple):
    attempts: list[tuple[str, int]]


def read_judged(document: object, place: str) -> set[tuple[str, int]]:
    """Read `judged.json`, the file `place`: the attempts (run, attempt) whose alarms are all
    recorded. Raises `StoreError`."""
    return set(codec.read(_Judged, document, place).attempts)


def held_of(observations: Observations) -> str | None:
    """Return why no runs are started, or None if they are."""
    if observations.held is None or not observations.gave_up:
        return observations.held
    return f"the launcher gave up: {observations.held}"
