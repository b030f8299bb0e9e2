"""What a launcher observes of a run that is no state: a kind, a reason, a time. Words for people
are made where they are shown (`sweeper.labels`)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from sweeper.model.document_reader import Part

__all__ = ["Kind", "Observation", "read_all"]


class Kind(StrEnum):
    """Of a run at work, and then of one that is still to be started."""

    QUEUED = "queued"  # the backend has the job and has not begun it
    STALE = "stale"  # no heartbeat for longer than `launch.lease`
    STOPPING = "stopping"  # asked to stop, and not over
    PAUSED = "paused"  # held back by the service: `rate_limit`, `capacity`, `quota`
    STALLED = "stalled"  # no step for too long
    HELD = "held"  # nothing is started any more
    LATER = "later"  # the next attempt is to start at `time`
    ENGINE = "engine"  # waits until the engine answers
    DOUBTED = "doubted"  # waits for the first runs, which failed alike, to be tried again
    PARENT = "parent"  # waits until the run that it goes on from has succeeded
    ORPHAN = "orphan"  # that run will not succeed unless somebody does something
    OTHER = "other"  # what another version observed, in its words


class Observation(NamedTuple):
    """`time` is since when, or until when, in UTC."""

    kind: Kind
    reason: str | None = None
    time: str | None = None

    def document(self) -> dict[str, str]:
        """As `observations.json` has it."""
        found = {"kind": self.kind.value, "reason": self.reason, "time": self.time}
        return {key: value for key, value in found.items() if value is not None}


def read_all(top: Part, key: str) -> dict[str, Observation]:
    """The observations under `key`, by the run's id. Raises `StoreError`."""
    found = top.part_or_none(key)
    names: Mapping[str, object] = {} if found is None else found.document
    return {name: _read(found, name) for name in names if found is not None}


def _read(found: Part, name: str) -> Observation:
    if isinstance(found.document[name], str):
        return _of_words(found.text(name))
    one = found.part(name)
    kind, reason = one.text("kind"), one.text_or("reason", None)
    if kind in set(Kind):
        return Observation(Kind(kind), reason, one.text_or("time", None))
    return Observation(Kind.OTHER, ": ".join(filter(None, (kind, reason))))


_OF_WORDS = {
    "queued": Kind.QUEUED,
    "stale": Kind.STALE,
    "stopping": Kind.STOPPING,
    "paused": Kind.PAUSED,
    "stalled": Kind.STALLED,
    "held back": Kind.HELD,
    "waits for the engine": Kind.ENGINE,
    "waits": Kind.DOUBTED,
}


def _of_words(text: str) -> Observation:
    """What was published in words, until version 0.1: a launcher of that time may be at work."""
    begins, _, reason = text.partition(": ")
    if begins.startswith("next attempt at "):
        return Observation(Kind.LATER, None, begins.rpartition(" ")[2])
    kind = _OF_WORDS.get(begins)
    if kind is None:
        return Observation(Kind.OTHER, text)
    return Observation(kind, None if kind is Kind.DOUBTED else reason or None)
