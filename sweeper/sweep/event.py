"""The body of an event: facts about the event's attempt."""

from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import Default, Sparse, Time, written
from sweeper.sweep.usage import NO_USAGE, Usage


class Paused(NamedTuple):
    """A period in which the service delayed an attempt: the reason (`rate_limit`, `capacity`,
    `quota`), the start, and the duration in seconds."""

    reason: str
    since: Annotated[str, Default("")]
    for_s: float = 0.0


class Outcome(NamedTuple):
    """The content of an attempt's event, such as the attempt's result. Unknown values are None.

    Every event has the `time` when it was written (`2026-01-31T12:01:03Z`). The worker ran from
    `started` to `ended`, for `wall_s` seconds. `code` is the recipe's exit code. If a signal ended
    the recipe, `signal` is the signal's name and `code` is None. `reason` is one word, `detail` a
    sentence. In a claim, `nonce` is a random value, and `submitted` is the number of the attempt
    for which the worker's job was submitted. Only in an intent (the event before a submission),
    `place` is the attempt's backend. `launch` is the id of the launch whose code ran. `program` is
    the digest of the recipe's source files, if the code was not copied. `gpus` are the attempt's
    devices (`0,1`). `usage` is the recipe's usage of the service, and `sessions` are the ids of its
    sessions on the service. All pauses together took `paused_s` seconds; `pauses` lists the longest
    in the order in which they began.
    """

    time: Sparse[Time | None] = None
    started: Sparse[Time | None] = None
    ended: Sparse[Time | None] = None
    wall_s: Sparse[float | None] = None
    paused_s: Sparse[float | None] = None
    code: Sparse[int | None] = None
    signal: Sparse[str | None] = None
    reason: Sparse[str | None] = None
    detail: Sparse[str | None] = None
    host: Sparse[str | None] = None
    max_rss_bytes: Sparse[int | None] = None
    unsynced: Sparse[str | None] = None
    nonce: Sparse[str | None] = None
    submitted: Sparse[int | None] = None
    place: Sparse[str | None] = None
    launch: Sparse[str | None] = None
    program: Sparse[str | None] = None
    gpus: Sparse[str | None] = None
    sessions: Sparse[tuple[str, ...]] = ()
    usage: Sparse[Usage] = NO_USAGE
    pauses: Sparse[tuple[Paused, ...]] = ()

    def document(self) -> dict[str, object]:
        """Return the JSON object to store, without unknown values."""
        return written(self)


NOTHING = Outcome()
"""The outcome of an attempt about which nothing is known. Compare with `is`: an outcome that was
read is never this object."""


def read(document: object, place: str) -> Outcome:
    """Check and convert `document`, the body of an event. `place` is its file, for messages.
    Raises `StoreError`."""
    return codec.read(Outcome, document, place)
