"""Identifies processes across machines, and detects processes of this machine that have ended, so
that no process waits for a dead launcher's lease to expire."""

import os
from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import Check


class Who(NamedTuple):
    """The identity of a process, for example of the holder of a sweep's lease. `host` is the result
    of `machine()`, and `began` is the result of the function `began`."""

    host: str
    pid: Annotated[int, Check(lambda number: 0 < number < 2**31, "a process number")]
    began: str | None


def read_who(document: object, place: str) -> Who:
    """Return the process in `document`, the content of the file `place`. Raises `StoreError`."""
    return codec.read(Who, document, place)


def this_process() -> Who:
    """Return the identity of this process."""
    return Who(machine(), os.getpid(), began(os.getpid()))


def is_gone(who: Who) -> bool:
    """Return whether the process ran on this machine and has ended. Return False for a process
    on another machine, and for a process that /proc hides from this user."""
    return who.host == machine() and began(who.pid) != who.began and not _is_hidden(who.pid)


def _is_hidden(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb"):
            return False
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def machine() -> str:
    """Return a name for the PID namespace of this machine or container. The name changes when the
    machine boots. Without /proc, each call returns a different name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        space = os.readlink("/proc/self/ns/pid")  # A container has its own process ids.
    except OSError:
        return f"{os.uname().nodename}#{os.urandom(8).hex()}"  # An unknown machine equals no other.
    return f"{os.uname().nodename}/{boot}/{space}"


def began(pid: int) -> str | None:
    """Return the start time of a process as text, in clock ticks since boot. Return None if there
    is no such process, or if the process is a zombie or hidden from this user."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
