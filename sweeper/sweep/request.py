"""A user's requests to a sweep's launcher, the running one or the next."""

from typing import NamedTuple

from sweeper.common.document_reader import SCHEMA, Part


class Asked(NamedTuple):
    """Who asks, and since when."""

    by: str
    time: str

    def document(self, **more: object) -> dict[str, object]:
        """Return the value in its stored form."""
        return {"schema": SCHEMA, **self._asdict(), **more}


class Pause(NamedTuple):
    """A request to start nothing new. With `runs`, running runs are stopped, and continue
    later."""

    asked: Asked
    runs: bool = False

    def told(self, sweep: str) -> str:
        """Return the reason why nothing is started, for people."""
        by, since = self.asked
        return f"paused by {by} at {since}: `sweeper resume {sweep}` goes on"


def read_asked(document: object, place: str) -> Asked:
    """Read the request in the file `place`. Raises `StoreError`."""
    top = Part(document, place)
    return Asked(top.text_or("by", "somebody"), top.text_or("time", ""))


def read_pause(document: object, place: str) -> Pause | None:
    """Read a pause; None if it was ended. Raises `StoreError`."""
    top = Part(document, place)
    if not top.flag_or("on", True):
        return None
    return Pause(read_asked(document, place), top.flag_or("runs", False))


def read_parallel(document: object, place: str) -> int | None:
    """Read the most jobs at once; None for the plan's own limit. Raises `StoreError`."""
    top = Part(document, place)
    count = top.integer_or("max_parallel", None)
    if count is not None and count < 1:
        top.refuse("max_parallel", "1 or more")
    return count
