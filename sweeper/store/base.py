"""The interface of a store: the place of sweeps' state and results. A write happens completely or
not at all. `create` and `replace` are durable on return, `append` and `replace(durable=False)`
later."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

S = TypeVar("S")
T = TypeVar("T")

AT_ONCE = 32
"""The most requests at once to a remote store, equal to the number of its client's connections."""


class Entry(NamedTuple):
    """A file in a listing: its path relative to the root, bytes, and a stamp that changes with
    its content (nanoseconds of modification time on a local store)."""

    path: str
    size: int
    stamp: int


class Store(Protocol):
    """A place for files. Paths are relative and use `/`.

    All methods raise `StoreError` if the place does not answer or refuses.
    """

    root: str

    @property
    def at_once(self) -> int:
        """How many requests may be under way at once. See `each`."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether the store is not on this machine's disk, so that each access is slow."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write a new file. Raises `AlreadyExists` if there is one, even if two callers race."""
        ...

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, new or not. A reader sees the old or the new content, never a mixture."""
        ...

    def append(self, path: str, data: bytes) -> None:
        """Add to the end of a file, which is created if it is missing. A file has one writer."""
        ...

    def read(self, path: str) -> bytes:
        """Return the whole file. Raises `NotFound` if there is none."""
        ...

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` (exclusive), fewer if the file is shorter."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is a file at `path`. On a local store a folder counts too."""
        ...

    def list(self, prefix: str) -> Iterator[Entry]:
        """Return every file below the folder `prefix`, at any depth, in no order. Return nothing if
        there is no such folder."""
        ...

    def names(self, prefix: str) -> Iterator[str]:
        """Return the paths of all files below the folder `prefix`, like `list`, without reading
        their properties."""
        ...

    def folders_with(self, name: str) -> Iterator[str]:
        """Return the folders directly below the root that hold a file called `name`, and those
        where this cannot be determined (no permission, or a link to an unmounted disk)."""
        ...

    def upload(self, path: str, source: str) -> None:
        """Write the local file `source` to `path`, like `replace`. Raises `NotFound` if there is
        none."""
        ...

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files. Missing files are ignored."""
        ...

    def local_path(self, path: str) -> str | None:
        """Return where the path is on this machine's disk, for programs that need a real file.
        Return None for a remote store."""
        ...


@runtime_checkable
class FarStore(Store, Protocol):
    """A store that is slow to answer, and so reads many files at once."""

    def children(self) -> Iterator[Entry]:
        """Return the files directly in the root, and its folders, whose paths end with `/`."""
        ...

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of files by their paths. Files that cannot be read are left out; use
        `read` to get their errors."""
        ...


def each(store: Store, action: Callable[[S], T], over: Iterable[S]) -> list[T]:
    """Return the results of `action` for each element, in order. A remote store gets several
    requests at once, so that a slow one delays only itself. All are finished before an error is
    raised."""
    chosen = list(over)
    if store.at_once < 2 or len(chosen) < 2:
        return [action(item) for item in chosen]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(store.at_once, len(chosen))) as pool:
        return list(pool.map(action, chosen))
