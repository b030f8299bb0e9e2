"""Lets others see that a worker lives. From before its claim to its end, however it ends, a worker
holds a kernel lock on its job's description. The lock belongs to the file, not to its name, so it
does not matter by which path, mount, home, user or process namespace either side comes. On a disk
without locks nothing is known.

Standard library only, and little of it: the worker loads this for every job.
"""

import fcntl
import os
import time
from contextlib import suppress

_TRIES = 200
_PAUSE = 0.05


def hold(path: str) -> None:
    """Hold the file at `path` until this process ends. Copies of a job hold it together. A program
    executed from here, or a process that closes its descriptors, does not hold it."""
    try:
        # It may be a pipe. It stays open: closing it would let go.
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
    """Return whether a living process holds the file; False also if that cannot be known."""
    for mode in (os.O_RDWR, os.O_RDONLY):  # a network disk wants to write where it locks
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
