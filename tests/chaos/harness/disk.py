"""A disk that keeps only synced data.

It replaces `os` in `sweeper.store.local` while it is installed. Real files are written, and the
disk also records the state that POSIX guarantees after a power failure: a file's bytes as of its
last fsync (none without one), a folder's entries as of the last fsync of the folder. At the chosen
call the power fails: the caller is killed, and `restart` puts the folder into that state.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sweeper.common.atomic
import sweeper.store.local
from sweeper.testing import Killed


class File:
    """The durable state of a file: its bytes when it was last synced."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable


class Folder:
    """The durable state of a folder: its entries when it was last synced."""

    def __init__(self) -> None:
        self.durable: dict[str, File | Folder] = {}


class Disk:
    """The folder `root`, on a disk whose power fails at the call numbered `cut_at`, from 1, among
    calls that write, sync, link, rename, remove or make something."""

    def __init__(self, root: str, cut_at: int | None = None) -> None:
        self.root = root
        self.cut_at = cut_at
        self.calls = 0
        self.off = False
        self._now: dict[str, File | Folder] = {}
        self._open: dict[int, str] = {}
        self._scan()

    def _scan(self) -> None:
        """Record all present files as durable."""
        self._now = {self.root: Folder()}
        for folder, folders, files in os.walk(self.root):
            for name in folders:
                self._now[os.path.join(folder, name)] = Folder()
            for name in files:
                path = os.path.join(folder, name)
                self._now[path] = File(Path(path).read_bytes())
        for path, node in self._now.items():
            if isinstance(node, Folder):
                node.durable = self._entries(path)

    def _entries(self, folder: str) -> "dict[str, File | Folder]":
        start = folder + os.sep
        names = [path for path in self._now if path.startswith(start)]
        return {p[len(start) :]: self._now[p] for p in names if os.sep not in p[len(start) :]}

    def restart(self) -> None:
        """Restore the durable state, as after the power returns."""
        durable = self._now[self.root]
        for entry in os.scandir(self.root):
            if entry.is_dir():
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        assert isinstance(durable, Folder)
        _write(self.root, durable)
        self.off, self.cut_at = False, None
        self._open.clear()
        self._scan()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Make the store use this disk during the block."""
        sweeper.store.local.os = sweeper.common.atomic.os = self  # type: ignore[assignment]
        try:
            yield
        finally:
            sweeper.store.local.os = sweeper.common.atomic.os = os

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _count(self) -> None:
        if not self.off:
            self.calls += 1
            self.off = self.calls == self.cut_at
        if self.off:
            raise Killed

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            self._count()
        descriptor = os.open(path, flags, mode)
        self._now.setdefault(path, Folder() if os.path.isdir(path) else File())
        self._open[descriptor] = path
        return descriptor

    def close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        os.close(descriptor)

    def write(self, descriptor: int, data: Any) -> int:
        self._count()
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self._count()
        path = self._open[descriptor]
        node = self._now[path]
        if isinstance(node, Folder):
            node.durable = self._entries(path)
        else:
            node.durable = Path(path).read_bytes()

    fdatasync = fsync

    def link(self, source: str, target: str) -> None:
        self._both(os.link, source, target)
        self._now[target] = self._now[source]

    def replace(self, source: str, target: str) -> None:
        self._both(os.replace, source, target)
        self._now[target] = self._now.pop(source)

    rename = replace

    def _both(self, act: Callable[[str, str], None], source: str, target: str) -> None:
        self._count()
        act(source, target)

    def unlink(self, path: str) -> None:
        self._count()
        os.unlink(path)
        del self._now[path]

    remove = unlink

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self._count()
        os.mkdir(path, mode)
        self._now[path] = Folder()


def _write(path: str, folder: Folder) -> None:
    for name, node in folder.durable.items():
        inner = os.path.join(path, name)
        if isinstance(node, Folder):
            os.makedirs(inner, exist_ok=True)
            _write(inner, node)
        else:
            Path(inner).write_bytes(node.durable)
