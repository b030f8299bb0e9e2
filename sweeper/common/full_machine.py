"""What an error says of this machine's limits: that there is no room now for another process,
thread or file. It says nothing against whoever asked, and passes. Standard library only."""

import errno
from collections.abc import Callable
from time import sleep
from typing import TypeVar

T = TypeVar("T")

_PROCESSES = "no more processes or threads (`ulimit -u`, or what its container may have)"
_LACKING = {
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: "no more memory",
    errno.EMFILE: "no more open files for one process (`ulimit -n`)",
    errno.ENFILE: "no more open files",
}
_TAKES_NOTHING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between tries: those that take the room are often about to end."""


def lacking(error: BaseException | None) -> str | None:
    """Return what this machine has too little of, where an error (or what it came from) says so:
    `this machine has no more memory`."""
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
    """Return the same, or that a disk is full or takes nothing any more: in the error's own words,
    which say where that is."""
    lack, at = lacking(error), error
    while lack is None and at is not None:
        if isinstance(at, OSError) and at.errno in _TAKES_NOTHING:
            lack = str(error)
        at = at.__cause__
    return lack


def when_there_is_room(start: Callable[[], T]) -> T:
    """Start something; again, a few times, as long as only room is missing for it."""
    for pause in _PAUSES:
        try:
            return start()
        except (OSError, RuntimeError) as error:
            if lacking(error) is None:
                raise
        sleep(pause)
    return start()
