"""A launcher's observations of runs: a kind, a reason and a time. An observation is not a state.
`sweeper.sweep.labels` describes observations in words."""

from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from sweeper.common.codec import Parse, Sparse, value_of, written


class Kind(StrEnum):
    """Kinds of observations. `QUEUED` to `STALLED` are about submitted attempts, `HELD` to `ORPHAN`
    about runs that are not started."""

    QUEUED = "queued"  # The backend has the job but has not started it.
    STALE = "stale"  # no heartbeat for longer than `launch.lease`
    STOPPING = "stopping"  # asked to stop, and not ended
    PAUSED = "paused"  # delayed by the service: `rate_limit`, `capacity`, `quota`
    STALLED = "stalled"  # There was no progress for too long.
    HELD = "held"  # No runs are started any more.
    LATER = "later"  # the next attempt starts at `time`
    ENGINE = "engine"  # waits until the engine answers
    # The run waits because the first runs failed with the same error and are retried.
    DOUBTED = "doubted"
    PARENT = "parent"  # A parent has not succeeded yet.
    ORPHAN = "orphan"  # the parent cannot succeed without a user's action
    OTHER = "other"  # An observation of another version, in its words.


class Observation(NamedTuple):
    """A launcher's observation of a run. `time` (UTC) is when the observed situation began. Only
    for `LATER`, `time` is when the next attempt starts."""

    kind: Kind
    reason: Sparse[str | None] = None
    time: Sparse[str | None] = None

    def document(self) -> dict[str, str]:
        """Return the JSON object for `observations.json`."""
        return written(self)


class _OfAnyVersion(NamedTuple):
    kind: str
    reason: str | None
    time: str | None


def _read(value: Any) -> Observation:
    if isinstance(value, str):
        return _of_words(value)
    kind, reason, time = value_of(_OfAnyVersion, value)
    if kind in set(Kind):
        return Observation(Kind(kind), reason, time)
    return Observation(Kind.OTHER, ": ".join(filter(None, (kind, reason))))


Published = Annotated[Observation, Parse(_read)]
"""An observation in `observations.json`."""


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
    """Convert an observation that a launcher of version 0.1 or older has published as text."""
    begins, _, reason = text.partition(": ")
    if begins.startswith("next attempt at "):
        return Observation(Kind.LATER, None, begins.rpartition(" ")[2])
    kind = _OF_WORDS.get(begins)
    if kind is None:
        return Observation(Kind.OTHER, text)
    return Observation(kind, None if kind is Kind.DOUBTED else reason or None)
