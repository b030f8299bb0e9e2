"""Reads users' requests to a sweep's launcher (the running launcher or the next one)."""

from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, AtLeast, Default


class Request(NamedTuple):
    """The author and the time of a request."""

    by: Annotated[str, Default("somebody")]
    time: Annotated[str, Default("")]

    def document(self, **more: object) -> dict[str, object]:
        """Return the JSON object to store."""
        return {"schema": SCHEMA, **self._asdict(), **more}


class Pause(NamedTuple):
    """A request to start no more runs. With `runs`, running runs are stopped too, and continue
    after the pause."""

    request: Request
    runs: bool = False

    def reason(self, sweep: str) -> str:
        """Return a sentence that says why no runs are started."""
        by, since = self.request
        return f"paused by {by} at {since}: `sweeper resume {sweep}` continues it"


def read_asked(document: object, place: str) -> Request:
    """Return the request in `document`, the content of the file `place`. Raises `StoreError`."""
    return codec.read(Request, document, place)


class _Pause(NamedTuple):
    on: bool = True
    runs: bool = False


def read_pause(document: object, place: str) -> Pause | None:
    """Return the pause in `document`, the content of the file `place`; None if the pause has ended.
    Raises `StoreError`."""
    pause = codec.read(_Pause, document, place)
    return Pause(read_asked(document, place), pause.runs) if pause.on else None


class _Parallel(NamedTuple):
    max_parallel: Annotated[int | None, AtLeast(1)]


def read_parallel(document: object, place: str) -> int | None:
    """Parse `document`, the content of the file `place`. Return the requested maximum number of
    jobs, or None if the plan's own limit is requested. Raises `StoreError`."""
    return codec.read(_Parallel, document, place).max_parallel
