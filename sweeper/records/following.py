"""What runs record while one looks: new lines and nothing else, for one look at each file's stamp.

For a program that shows many runs as they go, where even the quickest reading of everything is too
much.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.metrics import Row, parse
from sweeper.records.runs import RecordedRun
from sweeper.tables.sources import Files, Source, Stamp

__all__ = ["Follower", "News"]

_TAIL = 65536
_EDGE = 512


class News(NamedTuple):
    """New rows of one run, as they were written: several of one step are not merged. `again`: its
    file was replaced, or a new attempt has begun, and these are all its rows."""

    run: RecordedRun
    rows: list[Row]
    again: bool


class _Place:
    """A run, the file of its newest attempt, and how far that has been read."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.attempt = 0
        self.path = ""
        self.full: str | None = None
        self.stamp: Stamp | None = None
        self.offset = 0
        self.edge = b""
        """The last bytes before that: while they are the same, so is what was read."""
        self.anew = False
        """The rows that are told next are all there are of it."""
        self.open(max(len(run.folders()), 1))

    def open(self, attempt: int) -> None:
        self.attempt = attempt
        self.path = self.run.metrics_paths()[0] if self.is_folder else self._attempts_path()
        self.full = self.run.store.local_path(self.path)
        self.stamp, self.offset, self.edge = None, 0, b""

    @property
    def is_folder(self) -> bool:
        """Whether it is no run of a sweep: then there are no attempts."""
        return self.run.files.prefix == ""

    def _attempts_path(self) -> str:
        return f"{self.run.layout.recorded(self.run.id, self.attempt)}/metrics.jsonl"

    def next(self) -> str:
        """The name of the folder that a further attempt would have."""
        return f"{self.run.id}.{self.attempt + 1}"


class Follower:
    """Follows the newest attempt of each run."""

    def __init__(self, runs: Sequence[RecordedRun]) -> None:
        self._places = [_Place(run) for run in runs]
        self._see(parse_rows=False)

    def poll(self) -> list[News]:
        """What was recorded since the last time (the first: since this was made). What cannot be
        read is for the next time; raises `StoreError` when there is nothing else to tell."""
        return self._see(parse_rows=True)

    def _see(self, *, parse_rows: bool) -> list[News]:
        listings: dict[tuple[str, str], tuple[Files, set[str]]] = {}
        found: list[News] = []
        trouble: StoreError | OSError | None = None
        for place in self._places:
            run = place.run
            key = (run.root, run.files.prefix)
            if key not in listings:
                files = Files(run.store, run.files.prefix)
                listings[key] = (files, set() if place.is_folder else _folders(files))
            files, folders = listings[key]
            while not place.is_folder and place.next() in folders:
                place.open(place.attempt + 1)
                place.anew = True
            try:
                news = _look(place, files, parse_rows)
            except (StoreError, OSError) as error:
                trouble = trouble or error
                place.anew |= not parse_rows
                continue
            if news is not None:
                found.append(news)
                place.anew = False
        if trouble is not None and parse_rows and not found:
            raise trouble
        return found


def _folders(files: Files) -> set[str]:
    """Names of the folders right below."""
    if files.local is not None:
        try:
            return set(os.listdir(files.local))
        except OSError:
            return set()
    start = len(files.prefix) + 1
    return {path[start:].partition("/")[0] for path in files.entries()}


def _look(place: _Place, files: Files, parse_rows: bool) -> News | None:
    if place.full is not None and place.stamp is not None:
        try:
            if Stamp.of(os.stat(place.full)) == place.stamp:
                return None
        except OSError:
            return None
    source = files.source(place.path)
    if source is None or source.stamp == place.stamp:
        return None
    known = place.stamp
    if known is not None and (
        source.stamp.size < place.offset or source.stamp.inode != known.inode
    ):
        place.offset, place.edge, place.anew = 0, b"", True
    try:
        stamp, start, data = _read(place, source, parse_rows)
    except NotFound:
        return None
    place.stamp = stamp
    whole = data[: data.rfind(b"\n") + 1]
    new = whole[max(0, place.offset - start) :]
    place.offset = start + len(whole)
    place.edge = whole[-_EDGE:]
    return News(place.run, parse(new).rows, place.anew) if new and parse_rows else None


def _read(place: _Place, source: Source, parse_rows: bool) -> tuple[Stamp, int, bytes]:
    """What is new, and before it the bytes that were last before: when they are others the file was
    written anew. What was there before the first look is not told: of that only the end of the last
    line is found, which tells where to go on."""
    start = place.offset - len(place.edge)
    if not parse_rows:
        start = max(start, source.stamp.size - _TAIL)
    stamp, data = source.read(start)
    if start > place.offset and b"\n" not in data:
        start = place.offset
        stamp, data = source.read(start)
    if parse_rows and not data.startswith(place.edge):
        start = place.offset = 0
        place.edge, place.anew = b"", True
        stamp, data = source.read(start)
    return stamp, start, data
