"""The rows that an attempt adds to its metrics, as it adds them: only new bytes, so many at a time.

An attempt that resumes starts with copies of the rows before it. They belong to its history, and
are marked: what was wrong with them was said of the attempt that wrote them.
"""

from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import NotFound
from sweeper.metrics import Row, parse
from sweeper.store.files import Store
from sweeper.store.layout import Layout
from sweeper.tables.sources import Files, Source, Stamp

__all__ = ["Fresh", "Tail"]


class Fresh(NamedTuple):
    """What is new: rows, each with whether it is a copy. `again`: the file was replaced, and these
    are its rows from the start. `more`: there is more to read already. `size`: bytes read."""

    rows: list[tuple[Row, bool]]
    again: bool
    more: bool
    size: int


_EDGE = 512


class Tail:
    """Follows the `metrics.jsonl` of one attempt. While the last bytes before what is new are as
    they were, so is what was read: a program may write its file anew in place, as long or longer.
    (What lies elsewhere is made of objects that nobody writes to.)"""

    def __init__(self, store: Store, layout: Layout, run: str, attempt: int) -> None:
        self._store = store
        self._path = f"{layout.recorded(run, attempt)}/metrics.jsonl"
        self._before = f"{layout.recorded(run, attempt - 1)}/metrics.jsonl"
        self._resumed = attempt > 1
        self._start()

    def _start(self) -> None:
        self._offset = 0
        self._edge = b""
        self._stamp: Stamp | None = None
        self._copying = self._resumed

    def read(self, most: int) -> Fresh:
        """What was added since the last time, at most so many bytes of it. Raises `StoreError`."""
        source = self._source(self._path)
        if source is None or source.stamp == self._stamp:
            return Fresh([], False, False, 0)
        again = self._stamp is not None and (
            source.stamp.size < self._offset or source.stamp.inode != self._stamp.inode
        )
        if again:
            self._start()
        try:
            edge = len(self._edge)
            data = self._bytes(source, self._offset - edge, most + edge)
            if not data.startswith(self._edge):
                again, edge = True, 0
                self._start()
                data = self._bytes(source, 0, most)
        except NotFound:
            return Fresh([], again, False, 0)
        data = data[edge:]
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) >= most:
            whole = data  # no line of metrics is so long: what is left of it will be no JSON
        rows = self._rows(whole)
        self._offset += len(whole)
        if self._store.local_path("") is not None:
            self._edge = (self._edge + whole)[-_EDGE:]
        more = len(data) >= most
        self._stamp = source.stamp._replace(time=-1) if more else source.stamp
        return Fresh(rows, again, more, len(data))

    def _bytes(self, source: Source, start: int, most: int) -> bytes:
        if not self._store.is_remote:
            return self._store.read_range(source.name, start, start + most)
        return source.read(start)[1][:most]

    def _source(self, path: str) -> Source | None:
        """The file. On a store that is elsewhere a listing of its parts, which are few, and only
        without any one of the attempt's folder, in which iterations may be many."""
        folder = path.rpartition("/")[0]
        if self._store.is_remote:
            parts = Files(self._store, f"{path}.parts").source(path)
            if parts is not None:
                return parts
        return Files(self._store, folder).source(path)

    def _rows(self, whole: bytes) -> list[tuple[Row, bool]]:
        copied = self._copied(whole) if self._copying and whole else 0
        rows = [(row, True) for row in parse(whole[:copied]).rows]
        return rows + [(row, False) for row in parse(whole[copied:]).rows]

    def _copied(self, whole: bytes) -> int:
        """How many of these bytes are lines that the attempt before has at the same place."""
        before = b""
        source = self._source(self._before)
        if source is not None:
            with suppress(NotFound):  # it is being replaced: its rows are told once more
                before = self._bytes(source, self._offset, len(whole))
        size = 0
        for line in whole.splitlines(keepends=True):
            if before[size : size + len(line)] != line:
                self._copying = False
                break
            size += len(line)
        return size
