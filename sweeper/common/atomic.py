"""Files that are whole or not there, whenever their writer is killed.

A file is written under another name in the same folder, and then takes its own. A writer that is
killed may leave one called `.tmp-<pid>-...` behind: nothing reads it, and `sweeper store gc`
removes it.

Standard library only, and little of it: a worker loads this for every job.
"""

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

TEMPORARY = ".tmp-"
"""What the names of files begin with that are still being written."""
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_AT_ONCE = 500
"""Parts that are written in one call; the system takes 1,024 at most."""

Parts = bytes | Sequence[bytes | memoryview]


def atomic_write(path: str, data: Parts, *, mode: int = 0o644, durable: bool = False) -> None:
    """Write a file, new or not: a reader sees the old or the new content, never a mixture. A link
    of its name is replaced, not followed. `durable`: on the disk when this returns. Raises
    `OSError`, and nothing has changed."""
    with replacing(path, durable=durable) as temporary:
        _write(temporary, data, mode, durable)


def atomic_create(path: str, data: Parts, *, mode: int = 0o644) -> None:
    """Write a new file, durably. Raises `FileExistsError` when there is one, however close the
    race, and `OSError`."""
    temporary = _beside(path)
    try:
        _write(temporary, data, mode, durable=True)
        os.link(temporary, path)  # it fails when the name is taken, and never shows half a file
    finally:
        with suppress(OSError):
            os.unlink(temporary)
    sync_folder(os.path.dirname(path))


@contextmanager
def replacing(path: str, *, durable: bool = False) -> Generator[str]:
    """Yield a name to make a file or a link under, which takes the place of `path` when the block
    ends well, and is removed when it does not."""
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
    """See that the names in a folder are on the disk."""
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
            some = len(views) > 1
            done = os.writev(descriptor, views) if some else os.write(descriptor, views[0])
            while views and done >= len(views[0]):
                done -= len(views.pop(0))
            if done:
                views[0] = views[0][done:]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def nearest_folder(folder: str) -> str:
    """Return the folder, or where it would be made."""
    while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder


def try_to_write(folder: str) -> None:
    """See that something can be written in a folder: a file without a name, of a byte, where the
    file system has those; else a folder, for an instant. Raises `OSError`."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"1")
        finally:
            os.close(descriptor)
        return
    except AttributeError:  # not Linux
        pass
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    import tempfile  # a worker does without it

    os.rmdir(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder))
