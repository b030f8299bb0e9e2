"""A remote store, reached through a process that all workers and commands of this machine share
(serving.py). If that process cannot be used, a client reaches the store directly. Imports only the
standard library."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sweeper import paths
from sweeper.common.daemon import (
    OF_A_TERMINAL,
    Daemon,
    digest,
    is_possible,
    of_this_process,
    private_folder,
)
from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.store.base import AT_ONCE, Entry, Store
from sweeper.store.opening import open_store
from sweeper.store.serving import direct, receive, send

if TYPE_CHECKING:
    import socket

_SECONDS = 300.0
"""Timeout of a request. The shared process has shorter timeouts of its own."""
_SETTINGS = (
    *("~/.aws/config", "~/.aws/credentials", "~/.config/fsspec/conf.json"),
    *("~/.config/gcloud/application_default_credentials.json", "~/.azure/azureProfile.json"),
)
_OF_A_RUN = ("SWEEPER_", "TMUX", "TINKER_TAGS", "WANDB_")
_ERRORS = {kind.__name__: kind for kind in (AlreadyExists, NotFound, StoreError)}


class _NotSent(ConnectionError):
    """The error that a request was not sent completely, so that the shared process did not execute
    the request."""


def open_shared(root: str) -> Store:
    """Return the store at `root`. If possible, a remote store is reached through one process that
    all workers and commands of this machine share. Raises `StoreError`."""
    daemon = _daemon(root)
    return open_store(root) if daemon is None else SharedStore(root, daemon)


def start_shared(root: str) -> None:
    """Start the process of `open_shared` before the first workers of a launch need it. Return
    without waiting for the process to load the store's client."""
    daemon = _daemon(root)
    if daemon is not None:
        with suppress(OSError), daemon.connect() as connection:
            send(connection, {"method": "address", "arguments": ()})


def _daemon(root: str) -> Daemon | None:
    """Return a client of the shared process for the store at `root`; None if the store is local or
    no process can be shared."""
    if "://" not in root or root.startswith(("file://", "memory://")) or not is_possible():
        return None
    folder = paths.stores()
    if not private_folder(folder):
        return None
    shared = {k: v for k, v in os.environ.items() if not k.startswith((*_OF_A_RUN, *OF_A_TERMINAL))}
    shown = [root, sys.executable, sorted(shared.items()), *_settings(), *of_this_process()]
    name = digest(shown)
    argv = [sys.executable, "-P", "-m", "sweeper.store.serving", root]
    return Daemon(folder, name, argv, shared, _SECONDS)


def _settings() -> Iterator[object]:
    """Yield the path, modification time and size of each configuration file of the stores' clients.
    These values are part of the shared process's name, so a changed file leads to a new process."""
    for path in map(os.path.expanduser, _SETTINGS):
        with suppress(OSError):
            status = os.stat(path)
            yield path, status.st_mtime_ns, status.st_size


class SharedStore:
    """A remote store (see `sweeper.store.base.Store`), reached through a shared process.
    Thread-safe."""

    is_remote = True
    at_once = AT_ONCE

    def __init__(self, root: str, daemon: Daemon) -> None:
        self._daemon = daemon
        self._idle: list[socket.socket] = []
        self._direct: Store | None = None
        self.root = root
        self.root = str(self._call("address")[0])

    def create(self, path: str, data: bytes) -> None:
        self._call("create", path, data=data, again=False)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        del durable
        self._call("replace", path, data=data)

    def append(self, path: str, data: bytes) -> None:
        self._call("append", path, data=data, again=False)

    def read(self, path: str) -> bytes:
        return self._call("read", path)[1]

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        sizes, data = self._call("read_many", [*paths])
        contents: dict[str, bytes] = {}
        start = 0
        for path, size in sizes:
            contents[path] = data[start : start + size]
            start += size
        return contents

    def read_range(self, path: str, start: int, end: int) -> bytes:
        return self._call("read_range", path, start, end)[1]

    def exists(self, path: str) -> bool:
        return bool(self._call("exists", path)[0])

    def list(self, prefix: str) -> Iterator[Entry]:
        return (Entry(*entry) for entry in self._call("list", prefix)[0])

    def children(self) -> Iterator[Entry]:
        return (Entry(*entry) for entry in self._call("children")[0])

    def names(self, prefix: str) -> Iterator[str]:
        return iter(self._call("names", prefix)[0])

    def folders_with(self, name: str) -> Iterator[str]:
        return iter(self._call("folders_with", name)[0])

    def upload(self, path: str, source: str) -> None:
        self._call("upload", path, os.path.abspath(source))

    def remove(self, paths: Iterable[str]) -> None:
        self._call("remove", [*paths])

    def local_path(self, path: str) -> str | None:
        del path
        return None

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections to the shared process."""
        with suppress(IndexError):  # another thread took the last one
            while True:
                self._idle.pop().close()

    def _call(
        self, method: str, *arguments: object, data: bytes = b"", again: bool = True
    ) -> tuple[Any, bytes]:
        """Send a request to the shared process, or to the store if there is no such process. Return
        the answer. With `again`, a request without an answer is sent a second time."""
        for _ in range(2):  # The second time, a new process is started.
            if self._direct is not None:
                break
            try:
                return self._ask(method, arguments, data)
            except OSError as error:
                self.close()
                if not (again or isinstance(error, _NotSent)):
                    raise StoreError(
                        f"the process that connects to {self.root} does not answer ({error})"
                    ) from error
        if self._direct is None:
            self._direct = open_store(self.root)
        return direct(self._direct, method, arguments, data)

    def _ask(self, method: str, arguments: tuple[object, ...], data: bytes) -> tuple[Any, bytes]:
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._daemon.connect()
        except OSError as error:
            raise _NotSent(str(error)) from error
        try:
            try:
                send(connection, {"method": method, "arguments": arguments}, data)
            except OSError as error:
                raise _NotSent(str(error)) from error
            answer, content = receive(connection)
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if "error" in answer:
            raise _ERRORS.get(str(answer["error"]), StoreError)(str(answer["text"]))
        return answer["result"], content
