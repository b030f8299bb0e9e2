"""Identifies processes across machines, and detects processes of this machine that have ended, so
that no process waits for a dead launcher's lease to expire."""

import os
from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import Check


class Who(NamedTuple):
    """A process, for example the holder of a sweep's lease: its machine (see `machine`), its id,
    and when it began (see `began`)."""

    host: str
    pid: Annotated[int, Check(lambda number: 0 < number < 2**31, "a process number")]
    began: str | None


def read_who(document: object, place: str) -> Who:
    """Check and convert `document` to a process. `place` is its file, for messages. Raises
    `StoreError`."""
    return codec.read(Who, document, place)


def this_process() -> Who:
    """Return the identity of this process, for other processes to check."""
    return Who(machine(), os.getpid(), began(os.getpid()))


def is_gone(who: Who) -> bool:
    """Return whether the process ran on this machine and has ended. Return False for a process
    on another machine, and for a process that /proc hides from this user."""
    return who.host == machine() and began(who.pid) != who.began and not _is_hidden(who.pid)


def _is_hidden(pid: int) -> bool:
    """Return whether the process exists, but is another user's and hidden in /proc (`hidepid`)."""
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
    """Return a name for the process ids of this machine: it differs between boots and between
    containers, whose process ids are independent. Without /proc, each call returns another name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        space = os.readlink("/proc/self/ns/pid")  # A container has its own process ids.
    except OSError:
        return f"{os.uname().nodename}#{os.urandom(8).hex()}"  # An unknown machine equals no other.
    return f"{os.uname().nodename}/{boot}/{space}"


def began(pid: int) -> str | None:
    """Return when a process was started, in clock ticks since boot. Return None if there is no such
    process, or if the process is a zombie or hidden from this user."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
