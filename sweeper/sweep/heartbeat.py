"""A worker's heartbeat and its contents."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import Clamp, Default, Time, Whole
from sweeper.sweep.usage import NO_USAGE, Usage


class Paused(NamedTuple):
    """Why the service holds a run back (`rate_limit`, `capacity`, `quota`), and since when."""

    reason: str
    since: Annotated[str, Default("")]


class Heartbeat(NamedTuple):
    """A heartbeat. `time` is the worker's clock, `up_s` the seconds since it began the attempt,
    `paused_s` those during which the service held it back. `usage` is the recipe's use of its
    service in this attempt. `gpus` are the devices that it has (`0,1`), or `waiting`. `document`
    is the whole document, with the machine's free disk space and memory."""

    time: Time | None = None
    up_s: float | None = None
    paused: Paused | None = None
    paused_s: Annotated[float, Clamp(0.0)] = 0.0
    usage: Usage = NO_USAGE
    gpus: str | None = None
    document: Whole[Mapping[str, object]] = MappingProxyType({})


SILENT = Heartbeat()
"""The heartbeat of a worker that has not sent any."""


def read(document: object, place: str) -> Heartbeat:
    """Read the heartbeat in the file `place`. Raises `StoreError`."""
    return codec.read(Heartbeat, document, place)
