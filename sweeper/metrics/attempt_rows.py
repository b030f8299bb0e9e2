"""Follows the metrics of one attempt or folder. A read returns only new bytes, and at most a
given number of them. Rows that a resumed attempt copied from the previous attempt are marked as
copies, since alarms were raised for them already."""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import NotFound
from sweeper.metrics.files import MetricsFile, paths_in
from sweeper.metrics.follow import Added, Find, Growing
from sweeper.metrics.rows import Parsed, Row
from sweeper.metrics.sources import Files, ListedOnce, Source
from sweeper.store.base import Store
from sweeper.sweep.folder import SweepFolder


class GrowingMetrics:
    """A follower of the metrics file in `folder`. The file may have any name in `files.NAMES`."""

    def __init__(self, store: Store, folder: str) -> None:
        self._folder = folder
        self._growing = Growing(store, next(paths_in(folder)))
        self.file = MetricsFile(self._growing.path)

    @property
    def begun_path(self) -> str | None:
        """The path of the file that is being followed; None if nothing was read yet."""
        return self.file.path if self._growing.has_begun else None

    def open(self, folder: str) -> None:
        """Follow the metrics file of another folder, from the file's beginning."""
        self._folder = folder
        self._open(next(paths_in(folder)))

    def _open(self, path: str) -> None:
        self._growing.open(path, again=True)
        self.file = MetricsFile(path)

    def skip(self, find: Find) -> None:
        """Skip to the end of the last complete line. Raises `StoreError`."""
        self._choose(find)
        self._growing.skip(find)

    def read(self, find: Find, most: int | None = None) -> Added | None:
        """Choose the file and read its new bytes with `Growing.read`. Raises `StoreError`."""
        self._choose(find)
        return self._growing.read(find, most)

    def _choose(self, find: Find) -> None:
        """Follow the existing file whose name comes first in `files.NAMES`. The choice may change,
        since a program may create several metrics files."""
        for path in paths_in(self._folder):
            if path == self.begun_path:
                return
            if find(path) is not None:
                if path != self.file.path:
                    self._open(path)
                return


class Fresh(NamedTuple):
    """New rows of an attempt. `rows` has pairs of a row and a bool: True if the row is a copy of a
    row of the previous attempt. `again` is True if the file was replaced and `rows` are from the
    start of the new file. `more` is True if more bytes can be read immediately. `size` bytes were
    read. `malformed` counts lines that are not rows, and `unlike` gives the reason."""

    rows: list[tuple[Row, bool]]
    again: bool
    more: bool
    size: int
    malformed: int = 0
    unlike: str = ""


class Tail:
    """A follower of the metrics of one attempt."""

    def __init__(
        self, folder: SweepFolder, run: str, attempt: int, listed: ListedOnce | None = None
    ) -> None:
        self._store = folder.store
        self._listed = listed or ListedOnce(folder.store)
        self._folder = folder.recorded(run, attempt)
        self._metrics = GrowingMetrics(folder.store, self._folder)
        self._before = folder.recorded(run, attempt - 1)
        self._resumed = self._copying = attempt > 1

    def read(self, most: int, *, ended: bool = False) -> Fresh:
        """Read at most `most` bytes, and return the rows added since the last call. Set `ended` if
        the attempt has an outcome, since its files then no longer change. Raises `StoreError`."""
        find = self._finder(ended)
        added = self._metrics.read(find, most)
        if added is None:
            return Fresh([], False, False, 0)
        if added.again:
            self._copying = self._resumed
        copies, written = self._parsed(added.data, added.start, find)
        rows = [*((row, True) for row in copies.rows), *((row, False) for row in written.rows)]
        malformed = copies.malformed + written.malformed
        file = self._metrics.file
        unlike = file.describe_malformed(added.data, added.start) if malformed else ""
        again = added.again and bool(added.data)
        return Fresh(rows, again, added.more, added.size, malformed, unlike)

    def _finder(self, ended: bool) -> Find:
        """Return a function that takes a path and returns the `Source` of the file there, or None
        if the file is missing.

        On a remote store, the followed file may be stored in parts: the function lists these first.
        It lists the attempt's folder only if it must and at most once, because the folder may
        contain many iteration folders.
        """
        files = self._listed.files(self._folder, ended=ended)
        begun = self._metrics.begun_path if self._store.is_remote else None

        def find(path: str) -> Source | None:
            parts = None
            if path == begun:
                parts = Files(self._store, f"{path}.parts").source(path)
            return parts or files.source(path)

        return find

    def _parsed(
        self, data: bytes, start: int, find: Callable[[str], Source | None]
    ) -> tuple[Parsed, Parsed]:
        copied = self._copied(data, start) if self._copying and data else 0
        parse = self._metrics.file.parse
        return parse(data[:copied], start, find), parse(data[copied:], start + copied, find)

    def _copied(self, data: bytes, start: int) -> int:
        """Return the size in bytes of those lines at the beginning of `data` (offset `start`) that
        the previous attempt's file has at the same offset."""
        before = b""
        name = self._metrics.file.path.rpartition("/")[2]
        source = Files(self._store, self._before).source(f"{self._before}/{name}")
        if source is not None:
            with suppress(NotFound):  # the file is being replaced, so its rows count as new
                before = source.read(start, len(data))[1]
        size = 0
        for line in data.splitlines(keepends=True):
            if before[size : size + len(line)] != line:
                self._copying = False
                break
            size += len(line)
        return size
