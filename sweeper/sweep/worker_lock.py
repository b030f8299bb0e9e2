"""A kernel lock that a worker holds on its job's description, which shows other processes that it
is alive, across paths, mounts, users and process namespaces. Workers load this: few imports."""

import fcntl
import os
import time
from contextlib import suppress

_TRIES = 200
_PAUSE = 0.05


def hold(path: str) -> None:
    """Lock the file at `path` until this process ends. Copies of a job share the lock. A program
    executed from here, or a process that closes its descriptors, does not hold it."""
    try:
        # It may be a pipe. Keep it open: closing would release the lock.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    for _ in range(_TRIES):  # retry: a process that checks the lock holds it briefly
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE)
            continue
        except OSError:  # a disk without locks
            os.close(descriptor)
        return


def is_held(path: str) -> bool:
    """Return whether a living process holds the file; False also if that is unknown."""
    for mode in (os.O_RDWR, os.O_RDONLY):  # a network disk locks only files open for writing
        with suppress(OSError):
            descriptor = os.open(path, mode | os.O_NONBLOCK)  # it may be a pipe
            break
    else:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
