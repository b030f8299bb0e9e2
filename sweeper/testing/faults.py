"""Stores and backends that fail at chosen calls. Wrapped stores and backends share a `Faults`,
which numbers their calls from 1, and decides which calls fail and how."""

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import NoReturn, TypeVar

from sweeper.backends.base import Backend, JobSpec, JobStatus
from sweeper.errors import NotFound, StoreError, Unreachable
from sweeper.store.base import Entry, Store

__all__ = ["Fault", "Faults", "FaultyBackend", "FaultyStore", "Killed"]

T = TypeVar("T")


class Killed(BaseException):
    """A simulated SIGKILL. The test then replaces all objects, as a new process would. `except
    Exception` does not catch a `Killed`, because the base class is `BaseException`."""


class Fault(Enum):
    """The ways in which a call fails."""

    FAIL = "fail"
    """The call raises (`StoreError`, `Unreachable`) without effect."""
    LOSE_REPLY = "lose_reply"
    """The call takes effect, but then raises, as if its answer was lost."""
    TWICE = "twice"
    """The call takes effect twice, as if the request was sent again. The caller gets the second
    answer. So an exclusive create finds its own file, and a job is started twice."""
    KILL = "kill"
    """The caller is killed before the call takes effect."""
    KILL_AFTER = "kill_after"
    """The caller is killed after the call has taken effect."""
    POWER = "power"
    """The caller is killed after the call has taken effect. The writes that a store may lose in a
    power cut are undone: appended bytes, and replacements with `durable=False`. For a backend,
    `POWER` is the same as `KILL_AFTER`."""


def _raise_killed() -> NoReturn:
    raise Killed


class Faults:
    """A selection of the calls that fail, with the fault of each call.

    `chosen` maps the numbers of calls to faults. `chosen` may also be a function that gets the
    number and the name of a call (`"store.create s/state/..."`, `"backend.find"`) and returns a
    fault or None. `kill` ends the caller. By default it raises `Killed`; a test with real processes
    may send SIGKILL instead. `calls` lists the names of all calls. `struck` lists the number, the
    fault and the name of each call that had a fault.
    """

    def __init__(
        self,
        chosen: Mapping[int, Fault] | Callable[[int, str], Fault | None] | None = None,
        *,
        kill: Callable[[], object] = _raise_killed,
    ) -> None:
        chosen = {} if chosen is None else chosen
        by_number: Callable[[int, str], Fault | None] = (
            chosen if callable(chosen) else lambda number, _: chosen.get(number)
        )
        self._choose = by_number
        self._kill = kill
        self.calls: list[str] = []
        self.struck: list[tuple[int, Fault, str]] = []

    def call(
        self,
        name: str,
        act: Callable[[], T],
        error: Callable[[str], Exception],
        cut: Callable[[], object] = lambda: None,
    ) -> T:
        """Call `act`, and simulate the fault that was chosen for this call, if any. `error` makes
        an exception from a message. `cut` undoes the writes that a power cut would lose."""
        self.calls.append(name)
        fault = self._choose(len(self.calls), name)
        if fault is None:
            return act()
        self.struck.append((len(self.calls), fault, name))
        if fault is Fault.FAIL:
            raise error(f"{name}: {os.strerror(errno.EIO)} (injected)")
        if fault is Fault.KILL:
            self._kill()
        try:
            return act() if fault is not Fault.TWICE else (act(), act())[1]
        finally:  # An error is an answer too, and may be lost.
            if fault is Fault.LOSE_REPLY:
                raise error(f"{name}: the reply was lost (injected)")
            if fault is Fault.POWER:
                cut()
            if fault is not Fault.TWICE:
                self._kill()


class FaultyStore:
    """A wrapper of `store` whose calls fail as `faults` decides. If `remote` is set, `is_remote` is
    True and `local_path` returns None."""

    def __init__(self, store: Store, faults: Faults, *, remote: bool = False) -> None:
        self.root = store.root
        self._store = store
        self._faults = faults
        self._remote = remote
        self._durable: dict[str, bytes | None] = {}  # contents after a power cut, by path

    @property
    def is_remote(self) -> bool:
        return self._remote or self._store.is_remote

    @property
    def at_once(self) -> int:
        return self._store.at_once

    def create(self, path: str, data: bytes) -> None:
        self._call("create", path, lambda: self._store.create(path, data))
        self._durable.pop(path, None)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if not durable:
            self._remember(path)
        self._call("replace", path, lambda: self._store.replace(path, data, durable=durable))
        if durable:
            self._durable.pop(path, None)

    def append(self, path: str, data: bytes) -> None:
        self._remember(path)
        self._call("append", path, lambda: self._store.append(path, data))

    def read(self, path: str) -> bytes:
        return self._call("read", path, lambda: self._store.read(path))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        return self._call("read_range", path, lambda: self._store.read_range(path, start, end))

    def exists(self, path: str) -> bool:
        return self._call("exists", path, lambda: self._store.exists(path))

    def list(self, prefix: str) -> Iterator[Entry]:
        return iter(self._call("list", prefix, lambda: tuple(self._store.list(prefix))))

    def names(self, prefix: str) -> Iterator[str]:
        return iter(self._call("names", prefix, lambda: tuple(self._store.names(prefix))))

    def folders_with(self, name: str) -> Iterator[str]:
        folders = self._call("folders_with", name, lambda: tuple(self._store.folders_with(name)))
        return iter(folders)

    def upload(self, path: str, source: str) -> None:
        self._call("upload", path, lambda: self._store.upload(path, source))
        self._durable.pop(path, None)

    def remove(self, paths: Iterable[str]) -> None:
        chosen = tuple(paths)
        self._call("remove", " ".join(chosen), lambda: self._store.remove(chosen))

    def local_path(self, path: str) -> str | None:
        return None if self._remote else self._store.local_path(path)

    def cut_power(self) -> None:
        """Undo every write through this object that is not durable yet."""
        for path, data in self._durable.items():
            local = self._store.local_path(path)
            if data is None and local is not None:
                with suppress(FileNotFoundError):
                    os.unlink(local)
            else:
                self._store.replace(path, data or b"")
        self._durable.clear()

    def _remember(self, path: str) -> None:
        if path in self._durable:
            return
        try:
            self._durable[path] = self._store.read(path)
        except NotFound:
            self._durable[path] = None

    def _call(self, name: str, path: str, act: Callable[[], T]) -> T:
        return self._faults.call(f"store.{name} {path}", act, StoreError, self.cut_power)


class FaultyBackend(Backend):
    """A wrapper of `backend`. `faults` decides which calls of `submit`, `find`, `poll`, `cancel`,
    `logs` and `room` fail. All other methods are the defaults of `Backend`."""

    def __init__(self, backend: Backend, faults: Faults) -> None:
        self.name = backend.name
        self._backend = backend
        self._faults = faults

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        self._call("submit", lambda: self._backend.submit(jobs))

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        return self._call("find", lambda: self._backend.find(tokens))

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        return self._call("poll", lambda: self._backend.poll(tokens))

    def cancel(self, tokens: Sequence[str]) -> Collection[str] | None:
        return self._call("cancel", lambda: self._backend.cancel(tokens))

    def logs(self, token: str) -> Iterator[str]:
        return iter(self._call("logs", lambda: tuple(self._backend.logs(token))))

    def room(self, resources: Mapping[str, object] | None = None) -> int | None:
        return self._call("room", lambda: self._backend.room(resources))

    def _call(self, name: str, act: Callable[[], T]) -> T:
        return self._faults.call(f"backend.{name}", act, Unreachable)
