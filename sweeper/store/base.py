"""The interface of a store, which holds the state and results of sweeps. A write happens completely
or not at all. `create` and `replace` are durable when they return; `append` and
`replace(durable=False)` become durable later."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

S = TypeVar("S")
T = TypeVar("T")

AT_ONCE = 32
"""Maximum number of simultaneous requests to a remote store. The store's client has as many
connections."""


class Entry(NamedTuple):
    """A file in a listing: its path relative to the root, its size in bytes, and a stamp that
    changes with its content (on a local store, the modification time in nanoseconds)."""

    path: str
    size: int
    stamp: int


class Store(Protocol):
    """A store of files. Paths are relative to the store's root and use `/`.

    All methods raise `StoreError` if the store does not answer or refuses a request.
    """

    root: str

    @property
    def at_once(self) -> int:
        """The maximum number of simultaneous requests. See `each`."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether the store is remote (not a folder on this machine), so that access is slow."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write a new file. Raises `AlreadyExists` if the file exists. If several callers race,
        only one succeeds."""
        ...

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create or overwrite a file. Readers see the old or the new content, never a mixture."""
        ...

    def append(self, path: str, data: bytes) -> None:
        """Append to a file. The file is created if it is missing, and must have only one writer."""
        ...

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises `NotFound` if the file does not exist."""
        ...

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` (exclusive), fewer if the file is shorter."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is a file at `path`. On a local store a folder counts too."""
        ...

    def list(self, prefix: str) -> Iterator[Entry]:
        """Return every file below the folder `prefix`, at any depth, in any order. Return nothing
        if there is no such folder."""
        ...

    def names(self, prefix: str) -> Iterator[str]:
        """Return the paths of all files below the folder `prefix`. This method may be faster than
        `list`, since it needs neither sizes nor stamps."""
        ...

    def folders_with(self, name: str) -> Iterator[str]:
        """Return the folders directly below the root that contain a file called `name`. On a local
        store, a folder that cannot be checked (no permission, or a link to an unmounted disk) is
        included."""
        ...

    def upload(self, path: str, source: str) -> None:
        """Copy the local file `source` to `path`, and overwrite an existing file there. Raises
        `NotFound` if `source` does not exist."""
        ...

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files. Missing files are ignored."""
        ...

    def local_path(self, path: str) -> str | None:
        """Return the local path of a file, for programs that need a real file. Return None for a
        remote store."""
        ...


@runtime_checkable
class FarStore(Store, Protocol):
    """A remote store. Single requests are slow, so `read_many` reads many files in parallel."""

    def children(self) -> Iterator[Entry]:
        """Return the files and folders directly in the root. The paths of folders end with `/`."""
        ...

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of files by their paths. Files that cannot be read are left out; use
        `read` to get their errors."""
        ...


def each(store: Store, action: Callable[[S], T], over: Iterable[S]) -> list[T]:
    """Call `action` for each element of `over`, and return the results in order. On a remote store,
    several calls run in parallel. If a call fails, calls that have not started are skipped, and the
    error is raised after the running calls have ended."""
    chosen = list(over)
    if store.at_once < 2 or len(chosen) < 2:
        return [action(item) for item in chosen]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(store.at_once, len(chosen))) as pool:
        return list(pool.map(action, chosen))
