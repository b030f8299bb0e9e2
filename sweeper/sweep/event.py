"""The body of an event: what it records about its attempt."""

from typing import NamedTuple

from sweeper.common.document_reader import Part
from sweeper.sweep import usage
from sweeper.sweep.usage import NO_USAGE, Usage


class Outcome(NamedTuple):
    """The result of an attempt according to its latest event. Unknown values are None.

    `code` is the recipe's exit code, or `signal` the name of the signal that ended it. `reason` is
    one word, `detail` a sentence. `time` is when the event was written, `started` and `ended` when
    the worker was (UTC), `wall_s` is in seconds. `nonce` distinguishes claims, `submitted` is the
    attempt whose job made the claim. `place` is the backend that an attempt is submitted to; only
    an intent has it. `launch` is the id of the launch whose code and packages the attempt ran, and
    `program` the digest of its source files if it ran them in place, without a copy. `usage` is
    the recipe's use of its service.
    """

    time: str | None = None
    started: str | None = None
    ended: str | None = None
    wall_s: float | None = None
    paused_s: float | None = None
    code: int | None = None
    signal: str | None = None
    reason: str | None = None
    detail: str | None = None
    host: str | None = None
    max_rss_bytes: int | None = None
    unsynced: str | None = None
    nonce: str | None = None
    submitted: int | None = None
    place: str | None = None
    launch: str | None = None
    program: str | None = None
    usage: Usage = NO_USAGE

    def document(self) -> dict[str, object]:
        """Return the known values, by key."""
        known: dict[str, object] = {
            key: value for key, value in self._asdict().items() if value is not None
        }
        del known["usage"]
        if self.usage != NO_USAGE:
            known["usage"] = self.usage.document()
        return known


NOTHING = Outcome()
"""The outcome of an attempt about which nothing is known. No outcome that was read `is` this
one."""


def read(document: object, place: str) -> Outcome:
    """Read the body of the event in the file `place`. Raises `StoreError`."""
    body = Part(document, place)
    return Outcome(
        time=body.time_or("time", None),
        started=body.time_or("started", None),
        ended=body.time_or("ended", None),
        wall_s=body.number_or("wall_s", None),
        paused_s=body.number_or("paused_s", None),
        code=body.integer_or("code", None),
        signal=body.text_or("signal", None),
        reason=body.text_or("reason", None),
        detail=body.text_or("detail", None),
        host=body.text_or("host", None),
        max_rss_bytes=body.integer_or("max_rss_bytes", None),
        unsynced=body.text_or("unsynced", None),
        nonce=body.text_or("nonce", None),
        submitted=body.integer_or("submitted", None),
        place=body.text_or("place", None),
        launch=body.text_or("launch", None),
        program=body.text_or("program", None),
        usage=usage.read(body.part_or_none("usage")),
    )
