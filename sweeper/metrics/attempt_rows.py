"""Reads the rows that an attempt adds to its metrics: only new bytes, and at most so many at a
time.

An attempt that resumes starts with copies of the rows before it. They belong to its history, but
are marked as copies: the attempt that wrote them has had the alarms about them.
"""

from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import NotFound
from sweeper.metrics.follow import Growing
from sweeper.metrics.rows import Parsed, Row, describe_malformed, parse
from sweeper.metrics.tables.sources import Files, Source
from sweeper.sweep.folder import SweepFolder


class Fresh(NamedTuple):
    """New rows, each with whether it is a copy. `again`: the file was replaced, and these are its
    rows from the start. `more`: more can be read already. `size`: bytes read. `malformed` counts
    the lines that are no JSON objects, and `unlike` describes them."""

    rows: list[tuple[Row, bool]]
    again: bool
    more: bool
    size: int
    malformed: int = 0
    unlike: str = ""


class Tail:
    """Follows the `metrics.jsonl` of one attempt."""

    def __init__(self, folder: SweepFolder, run: str, attempt: int) -> None:
        self._store = folder.store
        self._file = Growing(folder.store, f"{folder.recorded(run, attempt)}/metrics.jsonl")
        self._before = f"{folder.recorded(run, attempt - 1)}/metrics.jsonl"
        self._resumed = self._copying = attempt > 1

    def read(self, most: int) -> Fresh:
        """Read what was added since the last time, at most `most` bytes. Raises `StoreError`."""
        added = self._file.read(self._source, most)
        if added is None:
            return Fresh([], False, False, 0)
        if added.again:
            self._copying = self._resumed
        copied, own = self._parsed(added.data, added.start)
        rows = [*((row, True) for row in copied.rows), *((row, False) for row in own.rows)]
        malformed = copied.malformed + own.malformed
        unlike = describe_malformed(added.data) if malformed else ""
        again = added.again and bool(added.data)
        return Fresh(rows, again, added.more, added.size, malformed, unlike)

    def _source(self, path: str) -> Source | None:
        """The file as a source. On a remote store its parts are listed first, which are few; the
        attempt's folder, where iterations may be many, only if there are none."""
        folder = path.rpartition("/")[0]
        if self._store.is_remote:
            parts = Files(self._store, f"{path}.parts").source(path)
            if parts is not None:
                return parts
        return Files(self._store, folder).source(path)

    def _parsed(self, whole: bytes, start: int) -> tuple[Parsed, Parsed]:
        """The copied lines, and those that the attempt wrote itself."""
        copied = self._copied(whole, start) if self._copying and whole else 0
        return parse(whole[:copied]), parse(whole[copied:])

    def _copied(self, whole: bytes, start: int) -> int:
        """How many of these bytes are lines that the attempt before has at the same place."""
        before = b""
        source = self._source(self._before)
        if source is not None:
            with suppress(NotFound):  # it is being replaced: its rows count as new
                before = source.read(start, len(whole))[1]
        size = 0
        for line in whole.splitlines(keepends=True):
            if before[size : size + len(line)] != line:
                self._copying = False
                break
            size += len(line)
        return size
