"""A store that is a folder, and functions that open its files.

Every worker imports this module, so it imports little, and only from the standard library.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress

from sweeper.common.atomic import TEMPORARY, atomic_create, atomic_write, sync_folder
from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.paths import is_utf8
from sweeper.store.base import Entry

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class LocalStore:
    """A folder on a local disk, or on a shared disk with hard links and atomic renames.

    A killed writer may leave a file `.tmp-...` behind. The store never lists such a file.
    """

    is_remote = False
    at_once = 1

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)  # Links to the same folder give the same root.
        if not is_utf8(self.root):
            raise StoreError(
                f"{self.root}: this path is not UTF-8: rename the folder, or use another"
            )
        self._inode = 0

    def _full(self, path: str) -> str:
        self._see_root()
        return self._inside(path)

    def _inside(self, path: str) -> str:
        full = os.path.normpath(os.path.join(self.root, path))
        if full != self.root and not full.startswith(self.root + os.sep):
            raise StoreError(f"{path} is outside the store {self.root}")
        if "\0" in full:  # A document contains a name that no file can have.
            raise NotFound(f"{path!r} is not a valid file name")
        return full

    def _for_writing(self, path: str, *, itself: bool = False) -> str:
        """Return the local path of a file to write or remove. Raises `StoreError` if a folder
        between the sweep's folder and the file is a symbolic link. With `itself`, also raises
        `StoreError` if the file is a link."""
        full = self._full(path)
        sweep, _, inside = full[len(self.root) + 1 :].partition(os.sep)
        if inside:
            refuse_links(os.path.join(self.root, sweep), full if itself else os.path.dirname(full))
        return full

    def _see_root(self) -> None:
        """Raise `StoreError` if the root existed at an earlier check and is now missing or empty,
        probably because its disk was unmounted."""
        # Read first: another thread may create the root after `stat` missed it.
        before = self._inode
        try:
            inode = os.stat(self.root).st_ino
        except OSError as error:
            if before:
                raise StoreError(f"{self.root} is gone ({error.strerror})") from error
            return
        if inode != before:
            if before and not os.listdir(self.root):
                raise StoreError(
                    f"{self.root} is empty now, but had files before: check that its disk "
                    "is mounted"
                )
            self._inode = inode

    def create(self, path: str, data: bytes) -> None:
        full = self._for_writing(path)
        try:
            _make_folder(os.path.dirname(full))
            atomic_create(full, data)
        except FileExistsError as error:
            raise AlreadyExists(f"{full} already exists") from error
        except OSError as error:
            # Only errors of `os.link` have a second file name.
            if error.errno in _NO_LINKS and error.filename2 is not None:
                raise StoreError(
                    f"{full}: this disk has no hard links, which sweeper needs to create "
                    "files exclusively: choose a folder on another disk (--root)"
                ) from error
            raise _store_error(full, error) from error

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        full = self._for_writing(path)
        try:
            _make_folder(os.path.dirname(full))
            atomic_write(full, data, durable=durable)
        except OSError as error:
            raise _store_error(full, error) from error

    def append(self, path: str, data: bytes) -> None:
        full = self._for_writing(path, itself=True)
        try:
            _make_folder(os.path.dirname(full))
            descriptor = open_regular(full, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                try:
                    _write_all(descriptor, data)
                except OSError:
                    os.ftruncate(descriptor, size)  # Undo a partial write, as on a full disk.
                    raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _store_error(full, error) from error

    def read(self, path: str) -> bytes:
        return _content(self._full(path))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        return _content(self._full(path), start, end - start)

    def exists(self, path: str) -> bool:
        full = self._full(path)
        try:
            os.stat(full)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _store_error(full, error) from error
        return True

    def list(self, prefix: str) -> Iterator[Entry]:
        for item, path in self._walk(prefix):
            try:
                status = item.stat()
            except FileNotFoundError:
                continue  # The file was removed or replaced after `scandir` listed it.
            except OSError as error:
                raise _store_error(item.path, error) from error
            yield Entry(path, status.st_size, status.st_mtime_ns)

    def names(self, prefix: str) -> Iterator[str]:
        return (path for _, path in self._walk(prefix))

    def _walk(self, prefix: str) -> Iterator[tuple["os.DirEntry[str]", str]]:
        start = self._full(prefix)
        pending = [(start, os.path.relpath(start, self.root).replace(os.sep, "/"))]
        while pending:
            folder, relative = pending.pop()
            try:
                entries = os.scandir(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _store_error(folder, error) from error
            with entries:
                for item in entries:
                    path = item.name if relative == "." else f"{relative}/{item.name}"
                    if item.is_dir(follow_symlinks=False):
                        pending.append((item.path, path))
                    elif not item.name.startswith(TEMPORARY):
                        yield item, path

    def folders_with(self, name: str) -> Iterator[str]:
        try:
            entries = os.scandir(self.root)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _store_error(self.root, error) from error
        with entries:
            for item in entries:
                if _may_hold(item, name):
                    yield item.name

    def upload(self, path: str, source: str) -> None:
        self.replace(path, _content(source))

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            full = self._for_writing(path)
            try:
                with suppress(FileNotFoundError):
                    os.unlink(full)
            except OSError as error:
                raise _store_error(full, error) from error

    def local_path(self, path: str) -> str | None:
        return self._inside(path)


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor. Can be used as `open(...,
    opener=open_regular)`. Refuses pipes, which could block forever, and devices, which may have no
    end. Raises `OSError`."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "is a pipe or a device, not a regular file", path)


def refuse_links(top: str, path: str) -> None:
    """Raise `StoreError` if `path`, or a folder between `top` and `path`, is a symbolic link."""
    at = top
    for part in path[len(top) + 1 :].split(os.sep):
        at = os.path.join(at, part)
        if os.path.islink(at):
            raise StoreError(
                f"{at} is a symbolic link, and sweeper does not write or remove files through "
                "links: replace it with a folder or a mount"
            )


def _may_hold(item: "os.DirEntry[str]", name: str) -> bool:
    try:
        if not item.is_dir():
            hidden = item.name.startswith(".")
            return item.is_symlink() and not hidden and not os.path.exists(item.path)
        os.stat(os.path.join(item.path, name))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _make_folder(folder: str) -> None:
    """Make a folder and its parents, durably."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make_folder(parent)
    try:
        os.mkdir(folder)
    except FileExistsError as error:
        if not os.path.isdir(folder):  # A file is in the way, so this is not a lost race.
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
    sync_folder(parent)


def _content(full: str, start: int = 0, size: int = -1) -> bytes:
    """Return `size` bytes of a file from `start` on; all remaining bytes by default."""
    try:
        # `open` is not used, since creating its object takes longer than reading a small file.
        descriptor = open_regular(full)
        try:
            wanted = max(os.fstat(descriptor).st_size - start, 0) if size < 0 else size
            data = os.pread(descriptor, wanted, start)
            while len(data) < wanted and (
                more := os.pread(descriptor, wanted - len(data), start + len(data))
            ):
                data += more
        finally:
            os.close(descriptor)
        return data
    except FileNotFoundError as error:
        raise NotFound(f"{full}: no such file") from error
    except OSError as error:
        raise _store_error(full, error) from error


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _store_error(full: str, error: OSError) -> StoreError:
    return StoreError(f"{full}: {error.strerror or error}")
