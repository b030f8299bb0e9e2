"""A worker's heartbeat and its contents."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from sweeper.common.document_reader import Part
from sweeper.sweep import usage
from sweeper.sweep.usage import NO_USAGE, Usage


class Paused(NamedTuple):
    """Why the service holds a run back (`rate_limit`, `capacity`, `quota`), and since when."""

    reason: str
    since: str


class Heartbeat(NamedTuple):
    """A heartbeat. `time` is the worker's clock, `up_s` the seconds that it has worked on the
    attempt, `paused_s` the seconds of these in which the service held it back. `usage` is the
    recipe's use of its service in this attempt. `document` is the whole document, with the
    machine's free disk space and memory."""

    time: str | None = None
    up_s: float | None = None
    paused: Paused | None = None
    paused_s: float = 0.0
    usage: Usage = NO_USAGE
    document: Mapping[str, object] = MappingProxyType({})


SILENT = Heartbeat()
"""The heartbeat of a worker that has not sent any."""


def read(document: object, place: str) -> Heartbeat:
    """Read the heartbeat in the file `place`. Raises `StoreError`."""
    body = Part(document, place)
    paused = body.part_or_none("paused")
    return Heartbeat(
        time=body.time_or("time", None),
        up_s=body.number_or("up_s", None),
        paused=paused and Paused(paused.text("reason"), paused.text_or("since", "")),
        paused_s=max(0.0, body.number_or("paused_s", 0.0)),
        usage=usage.read(body.part_or_none("usage")),
        document=body.document,
    )
