"""A kernel lock that a worker holds on its `job.json`. The lock shows other processes that the
worker is alive, across paths, mounts, users and process namespaces. Workers load this module, so it
imports little."""

import fcntl
import os
import time
from contextlib import suppress

_TRIES = 200
_PAUSE = 0.05


def hold(path: str) -> None:
    """Lock the file at `path` until this process ends or executes another program. If the file
    cannot be locked, do nothing. Several workers of the same job share the lock. A forked child
    holds the lock too, until it closes its descriptors."""
    try:
        # The file may be a pipe. The descriptor stays open, since closing it releases the lock.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    for _ in range(_TRIES):  # retry: a process that checks the lock holds it briefly
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE)
            continue
        except OSError:  # This disk has no locks.
            os.close(descriptor)
        return


def is_held(path: str) -> bool:
    """Return whether a live process holds the file's lock; False if the lock cannot be checked."""
    # A network disk locks only files that are open for writing.
    for mode in (os.O_RDWR, os.O_RDONLY):
        with suppress(OSError):
            descriptor = os.open(path, mode | os.O_NONBLOCK)  # The file may be a pipe.
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
