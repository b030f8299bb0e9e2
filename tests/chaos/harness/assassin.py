"""`assassin.py PID KIND SECONDS DIARY TOKEN`: waits, interferes with a worker, and records that it
did. Standard library only.

    worker      SIGKILL for the worker alone
    both        SIGKILL for its recipe's process group and for the worker
    recipe      SIGKILL for the recipe's process group
    preempt     SIGTERM for the worker
    stop        SIGSTOP for the worker; SIGCONT after three more seconds
"""

import os
import signal
import sys
import time
from contextlib import suppress


def main(pid: int, kind: str, seconds: float, diary: str, token: str) -> None:
    time.sleep(seconds)
    groups = recipes(pid)
    while kind == "recipe" and not groups and os.getppid() == pid:
        time.sleep(0.01)  # on a busy machine the recipe has not started yet
        groups = recipes(pid)
    if os.getppid() != pid:
        return  # the worker has ended already
    if kind in ("both", "recipe"):
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
    if kind in ("worker", "both"):
        os.kill(pid, signal.SIGKILL)
    elif kind == "preempt":
        os.kill(pid, signal.SIGTERM)
    elif kind == "stop":
        os.kill(pid, signal.SIGSTOP)
        write(diary, f"{token} {kind}\n")
        time.sleep(3)
        os.kill(pid, signal.SIGCONT)
        return
    write(diary, f"{token} {kind}\n")


def recipes(pid: int) -> list[int]:
    """Return the process groups of a worker's recipe: one, or none."""
    with suppress(OSError):
        return [child for child in children(pid) if os.getpgid(child) == child]
    return []


def children(pid: int) -> list[int]:
    """Return the recipe, but not this process nor the worker's guard, which shares its command
    line."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        pids = [int(word) for word in file.read().split()]
    ours = read(pid)
    return [child for child in pids if child != os.getpid() and read(child) not in (ours, b"")]


def read(pid: int) -> bytes:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""


def write(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, line.encode())
    os.close(descriptor)


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4], sys.argv[5])
