"""Recognition of errors that mean that this machine is temporarily out of memory, processes,
threads or open files. Uses only the standard library."""

import errno
from collections.abc import Callable
from typing import TypeVar

from sweeper.common.backoff import delays, retried

T = TypeVar("T")

_PROCESSES = "no more processes or threads (`ulimit -u`, or the limit of the container)"
_LACKING = {
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: "no more memory",
    errno.EMFILE: "no more open files for one process (`ulimit -n`)",
    errno.ENFILE: "no more open files",
}
_TAKES_NOTHING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def lacking(error: BaseException | None) -> str | None:
    """Return which resource this machine lacks, such as `this machine has no more memory`. The
    causes of the error are examined too. Return None for other errors."""
    while error is not None:
        lack: str | None = None
        if isinstance(error, OSError):
            lack = _LACKING.get(error.errno or 0)
        elif isinstance(error, RuntimeError) and "start new thread" in str(error):
            lack = _PROCESSES
        if lack is not None:
            return f"this machine has {lack}"
        error = error.__cause__
    return None


def crowding(error: BaseException | None) -> str | None:
    """Return which resource this machine lacks, as `lacking` does. For a full or read-only disk,
    return the error's message. Return None for other errors."""
    lack, at = lacking(error), error
    while lack is None and at is not None:
        if isinstance(at, OSError) and at.errno in _TAKES_NOTHING:
            lack = str(error)
        at = at.__cause__
    return lack


def when_there_is_room(start: Callable[[], T], sleep: Callable[[float], None] | None = None) -> T:
    """Return the result of `start`. If this machine lacks resources, retry up to five times within
    about 3 seconds."""
    return retried(
        start, delays(0.1, times=5), lambda error: lacking(error) is not None, sleep=sleep
    )
