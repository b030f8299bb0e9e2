"""Reads users' requests to a sweep's launcher, the running one or the next."""

from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, AtLeast, Default


class Request(NamedTuple):
    """The author and the time of a request."""

    by: Annotated[str, Default("somebody")]
    time: Annotated[str, Default("")]

    def document(self, **more: object) -> dict[str, object]:
        """Return the object as written in the store."""
        return {"schema": SCHEMA, **self._asdict(), **more}


class Pause(NamedTuple):
    """A request to start no more runs. With `runs`, running runs stop, and continue later."""

    request: Request
    runs: bool = False

    def reason(self, sweep: str) -> str:
        """Return the reason why no runs are started, for people."""
        by, since = self.request
        return f"paused by {by} at {since}: `sweeper resume {sweep}` continues it"


def read_asked(document: object, place: str) -> Request:
    """Read the request in the file `place`. Raises `StoreError`."""
    return codec.read(Request, document, place)


class _Pause(NamedTuple):
    on: bool = True
    runs: bool = False


def read_pause(document: object, place: str) -> Pause | None:
    """Read a pause; None if it was ended. Raises `StoreError`."""
    pause = codec.read(_Pause, document, place)
    return Pause(read_asked(document, place), pause.runs) if pause.on else None


class _Parallel(NamedTuple):
    max_parallel: Annotated[int | None, AtLeast(1)]


def read_parallel(document: object, place: str) -> int | None:
    """Read the requested number of jobs at once; None for the plan's own number. Raises
    `StoreError`."""
    return codec.read(_Parallel, document, place).max_parallel
