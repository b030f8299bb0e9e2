"""Atomic writes: a file is complete or absent, even if its writer is killed. Each file is
written as `.tmp-<pid>-...` and renamed. `sweeper store gc` removes leftover temporary files.
Workers load this module, so it imports little."""

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

TEMPORARY = ".tmp-"
"""The prefix of the names of temporary files."""
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_AT_ONCE = 500
"""The largest number of parts written in one call. The system allows 1,024."""

Parts = bytes | Sequence[bytes | memoryview]


def atomic_write(path: str, data: Parts, *, mode: int = 0o644, durable: bool = False) -> None:
    """Create or replace a file. Readers see the old or the new content, never a mixture. If `path`
    is a link, the file replaces the link, and the link's target stays unchanged. `durable`: return
    after the content is on the disk. If `OSError` is raised, the old file is unchanged."""
    with replacing(path, durable=durable) as temporary:
        _write(temporary, data, mode, durable)


def atomic_create(path: str, data: Parts, *, mode: int = 0o644) -> None:
    """Create a file, and return after the content is on the disk. If several callers create the
    same file, only one succeeds. Raises `FileExistsError` if the path exists, and `OSError`."""
    temporary = _beside(path)
    try:
        _write(temporary, data, mode, durable=True)
        os.link(temporary, path)  # fails if the name exists, and never shows an incomplete file
    finally:
        with suppress(OSError):
            os.unlink(temporary)
    sync_folder(os.path.dirname(path))


@contextmanager
def replacing(path: str, *, durable: bool = False) -> Generator[str]:
    """Yield a temporary path, at which the block creates a file or link. If the block succeeds,
    move the file or link to `path`. If the block fails, remove the file or link."""
    temporary = _beside(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_folder(os.path.dirname(path))


def sync_folder(folder: str) -> None:
    """Write a folder's directory entries to the disk."""
    descriptor = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: str) -> str:
    name = f"{TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}"
    return os.path.join(os.path.dirname(path), name)


def _write(path: str, data: Parts, mode: int, durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        parts = [data] if isinstance(data, bytes) else data
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        if len(views) > _AT_ONCE:
            views = [memoryview(b"".join(views))]
        while views:
            several = len(views) > 1
            done = os.writev(descriptor, views) if several else os.write(descriptor, views[0])
            while views and done >= len(views[0]):
                done -= len(views.pop(0))
            if done:
                views[0] = views[0][done:]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def nearest_folder(folder: str) -> str:
    """Return the folder if it exists, else its nearest parent that exists."""
    while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder


def try_to_write(folder: str) -> None:
    """Check that a folder is writable. Write a byte to a nameless file (`O_TMPFILE`) or, on file
    systems without such files, create and remove a folder. Raises `OSError` if the folder is not
    writable."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"1")
        finally:
            os.close(descriptor)
        return
    except AttributeError:  # This system is not Linux.
        pass
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    import tempfile  # imported late: workers should not load it

    os.rmdir(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder))
