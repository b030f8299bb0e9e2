"""What a store is: the place where a sweep's state and results lie. Every write is whole or did not
happen.

Durable when a call returns: `create` and `replace` (file and directory entry synced to disk).
Not durable until the operating system gets round to it: `append`, and `replace(durable=False)`,
which is for heartbeats.

The stores are in `local.py` and `remote.py`; `opening.py` chooses between them.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol


class Entry(NamedTuple):
    """A file in a listing: its path relative to the root, bytes, and a stamp that changes with
    its content (nanoseconds of modification time on a local store)."""

    path: str
    size: int
    stamp: int


class Store(Protocol):
    """What sweeper asks of a place to keep things. Paths are relative, with `/`.

    Raises `StoreError` when the place does not answer or refuses.
    """

    root: str

    @property
    def is_remote(self) -> bool:
        """Whether it is elsewhere: not on this machine's disk, so that each look at it costs."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; `AlreadyExists` when there is one, however close the race."""
        ...

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, new or not; a reader sees the old or the new content, never a mixture."""
        ...

    def append(self, path: str, data: bytes) -> None:
        """Add to the end of a file, made when missing. One writer a file."""
        ...

    def read(self, path: str) -> bytes:
        """Return the whole file; `NotFound` when there is none."""
        ...

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` (exclusive), fewer where the file is shorter."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder at `path`."""
        ...

    def list(self, prefix: str) -> Iterator[Entry]:
        """Return every file below the folder `prefix`, at any depth, in no order; none when
        missing."""
        ...

    def names(self, prefix: str) -> Iterator[str]:
        """Return paths of every file below the folder `prefix`, as `list` without a look at
        each."""
        ...

    def folders_with(self, name: str) -> Iterator[str]:
        """Name of the folders right below the root that hold a file called `name`, or of which
        that cannot be told: one that may not be looked into, a link to a disk that is away."""
        ...

    def upload(self, path: str, source: str) -> None:
        """`replace` with what the file `source` of this machine holds; `NotFound` without it."""
        ...

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files. Missing files are ignored."""
        ...

    def local_path(self, path: str) -> str | None:
        """Return where the path lies on this machine's disk, for programs that need a real one;
        None on a store that is elsewhere."""
        ...
