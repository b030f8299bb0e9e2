"""Which process of which machine holds something, and whether it is gone: then nobody on that
machine has to wait for a lease to run out."""

import os

from sweeper.sweep.launcher import Who


def this_process() -> Who:
    """This process, as others may look for it."""
    return Who(machine(), os.getpid(), began(os.getpid()))


def is_gone(who: Who) -> bool:
    """Return whether the process ran here and has ended. False for other machines and for hidden
    processes."""
    return who.host == machine() and began(who.pid) != who.began and not _is_hidden(who.pid)


def _is_hidden(pid: int) -> bool:
    """Return whether there is such a process of another user, of which /proc shows nothing
    (`hidepid`)."""
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
    """Identify this machine since it was booted, when process numbers begin anew."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        space = os.readlink("/proc/self/ns/pid")  # a container has numbers of its own
    except OSError:
        return f"{os.uname().nodename}#{os.urandom(8).hex()}"  # cannot be told: nobody's
    return f"{os.uname().nodename}/{boot}/{space}"


def began(pid: int) -> str | None:
    """Return when a process was started, in ticks; None if there is none (a zombie counts as
    none)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
