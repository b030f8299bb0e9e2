"""Follows one growing file and reads only new bytes. The file may be missing, truncated,
replaced or rewritten in place, or be stored in parts on a remote store. If the last bytes before
the new ones are unchanged, all earlier bytes are assumed to be unchanged."""

import os
from collections.abc import Callable
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.metrics.sources import Source, Stamp, begins_with
from sweeper.store.base import Store

_EDGE = 512
_TAIL = 65_536

Find = Callable[[str], Source | None]
"""A function that finds the current file at a path, such as `Files.source`."""


class Added(NamedTuple):
    """New bytes of a file. `data` starts at offset `start` of the file. `size` bytes were read; an
    incomplete last line may be missing in `data`. `again` is True if the file was replaced and is
    read from the start, and `more` is True if more bytes can be read immediately."""

    data: bytes
    start: int
    again: bool
    more: bool
    size: int


class Growing:
    """A follower of the file at `path`. If `lines` is True, `read` returns only complete lines,
    except that it returns a line in pieces if the line is longer than the argument `most`."""

    def __init__(self, store: Store, path: str, *, lines: bool = True) -> None:
        self._store, self._lines = store, lines
        self.open(path)

    def open(self, path: str, *, again: bool = False) -> None:
        """Follow another file from its beginning. With `again`, the next read reports that the file
        was replaced."""
        self.path = path
        self._full = self._store.local_path(path)
        self._begin()
        self._again = again

    def _begin(self) -> None:
        self.offset = 0
        """The offset of the next byte to return."""
        self._edge = b""
        self._stamp: Stamp | None = None
        self._pieces: list[list[int]] = []
        self._again = True

    def seek(self, offset: int) -> None:
        """Continue at an offset, which may be within a line."""
        self.offset, self._edge, self._pieces, self._stamp = offset, b"", [], None

    def skip(self, find: Find) -> None:
        """Skip to the end of the last complete line. Raises `StoreError`."""
        source = find(self.path)
        if source is None:
            return
        start = max(0, source.stamp.size - _TAIL)
        try:
            stamp, data = source.read(start)
            if start and b"\n" not in data:
                start = 0
                stamp, data = source.read(start)
        except NotFound:
            return
        self._take(data[: data.rfind(b"\n") + 1], start, stamp, source)
        self._again = False

    def read(self, find: Find, most: int | None = None) -> Added | None:
        """Read the bytes added since the last call, at most `most` bytes; None if the file is
        missing or has not changed. Raises `StoreError`."""
        if self._is_as_it_was():
            return None
        source = find(self.path)
        if source is None or source.stamp == self._stamp:
            return None
        if self._is_another(source):
            self._begin()
        try:
            stamp, data = self._new(source, most)
        except NotFound:
            return None  # removed, or the parts were joined: the next poll reads the file
        more = most is not None and len(data) >= most
        lines = data
        # Data without a newline is taken whole, because otherwise a very long line would stop all
        # progress. sweeper and its recipes write no such lines.
        if self._lines and not (more and b"\n" not in data):
            lines = data[: data.rfind(b"\n") + 1]
        start, again = self.offset, self._again
        self._take(lines, start, stamp._replace(time=-1) if more else stamp, source)
        self._again = again and not lines
        return Added(lines, start, again, more, len(data))

    @property
    def has_begun(self) -> bool:
        """Whether `read` or `skip` has found the file."""
        return self._stamp is not None

    def _is_as_it_was(self) -> bool:
        """Return whether a local file is unchanged, according to its stamp."""
        if self._full is None or self._stamp is None:
            return False
        try:
            return Stamp.of(os.stat(self._full)) == self._stamp
        except (FileNotFoundError, NotADirectoryError):
            return False  # removed, or stored in parts
        except OSError as error:
            raise StoreError(f"{self._full}: {error.strerror or error}") from error

    def _is_another(self, source: Source) -> bool:
        stamp = self._stamp
        if stamp is None:
            return False
        parts = source.pieces or self._pieces  # parts have no inode
        return source.stamp.size < self.offset or (not parts and source.stamp.inode != stamp.inode)

    def _new(self, source: Source, most: int | None) -> tuple[Stamp, bytes]:
        """Return the file's stamp, and at most `most` bytes from `self.offset` on. If the bytes
        before `self.offset` have changed, return the bytes from the beginning of the file."""
        edge = b"" if begins_with(source, self._pieces) else self._edge
        room = None if most is None else most + len(edge)
        stamp, data = source.read(self.offset - len(edge), room)
        if data.startswith(edge):
            return stamp, data[len(edge) :]
        self._begin()
        return source.read(0, most)

    def _take(self, data: bytes, start: int, stamp: Stamp, source: Source) -> None:
        self.offset = start + len(data)
        self._edge = (self._edge + data)[-_EDGE:]
        self._stamp, self._pieces = stamp, source.pieces
