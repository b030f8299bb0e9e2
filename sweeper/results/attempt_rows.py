"""Reads the rows that an attempt adds to its metrics: only new bytes, and at most so many at a
time.

An attempt that resumes starts with copies of the rows before it. They belong to its history, but
are marked as copies: the attempt that wrote them has had the alarms about them.
"""

from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import NotFound
from sweeper.metrics import Row, parse
from sweeper.results.follow import Growing
from sweeper.results.tables.sources import Files, Source
from sweeper.storage.base import Store
from sweeper.storage.layout import Layout

__all__ = ["Fresh", "Tail"]


class Fresh(NamedTuple):
    """New rows, each with whether it is a copy. `again`: the file was replaced, and these are its
    rows from the start. `more`: more can be read already. `size`: bytes read."""

    rows: list[tuple[Row, bool]]
    again: bool
    more: bool
    size: int


class Tail:
    """Follows the `metrics.jsonl` of one attempt."""

    def __init__(self, store: Store, layout: Layout, run: str, attempt: int) -> None:
        self._store = store
        self._file = Growing(store, f"{layout.recorded(run, attempt)}/metrics.jsonl")
        self._before = f"{layout.recorded(run, attempt - 1)}/metrics.jsonl"
        self._resumed = self._copying = attempt > 1

    def read(self, most: int) -> Fresh:
        """Read what was added since the last time, at most `most` bytes. Raises `StoreError`."""
        added = self._file.read(self._source, most)
        if added is None:
            return Fresh([], False, False, 0)
        if added.again:
            self._copying = self._resumed
        rows = self._rows(added.data, added.start)
        return Fresh(rows, added.again and bool(added.data), added.more, added.size)

    def _source(self, path: str) -> Source | None:
        """The file as a source. On a remote store its parts are listed first, which are few; the
        attempt's folder, where iterations may be many, only if there are none."""
        folder = path.rpartition("/")[0]
        if self._store.is_remote:
            parts = Files(self._store, f"{path}.parts").source(path)
            if parts is not None:
                return parts
        return Files(self._store, folder).source(path)

    def _rows(self, whole: bytes, start: int) -> list[tuple[Row, bool]]:
        copied = self._copied(whole, start) if self._copying and whole else 0
        rows = [(row, True) for row in parse(whole[:copied]).rows]
        return rows + [(row, False) for row in parse(whole[copied:]).rows]

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
