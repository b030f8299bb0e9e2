"""Finds out what a recipe's process is doing: the stacks of its threads, if it is a recipe in
Python that sweeper started, else the state of its processes. Linux only."""

import os
import time
from contextlib import suppress

from sweeper.recipe.stack_signal import number
from sweeper.worker.kernel_files import text_of

_WAIT_SECONDS = 3.0
_POLL_SECONDS = 0.05


def stacks_of(group: int, path: str) -> str:
    """Return what the processes of a group are doing. Its leader writes its stacks to the file at
    `path` when it gets the signal."""
    if _catches(group):
        before = _size(path)
        with suppress(ProcessLookupError):
            os.kill(group, number())
        if text := _written(path, before):
            return text
    lines = [line for pid in _members(group) if (line := _state(pid))]
    return "\n".join(["its stacks cannot be read; its processes:", *lines])


def _catches(pid: int) -> bool:
    """Return whether the process has a handler for our signal, which would end it otherwise."""
    for line in text_of(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number() - 1) & 1)
    return False


def _written(path: str, before: int) -> str:
    """Wait until the file has grown and stays the same. Return what was added."""
    deadline, size = time.monotonic() + _WAIT_SECONDS, before
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        now = _size(path)
        if now == size > before:
            break
        size = now
    with suppress(OSError), open(path, "rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace")
    return ""


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _members(group: int) -> list[int]:
    members: list[int] = []
    with suppress(OSError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(ProcessLookupError, PermissionError):
                if os.getpgid(int(name)) == group:
                    members.append(int(name))
    return sorted(members)


def _state(pid: int) -> str | None:
    """Return a line about a process: its state, the kernel function it waits in, its name."""
    status = dict(
        line.split(":", 1) for line in text_of(f"/proc/{pid}/status").splitlines() if ":" in line
    )
    if not status:
        return None
    waits = text_of(f"/proc/{pid}/wchan").strip("0\n")
    state = status.get("State", "").strip()
    return f"{pid} {status.get('Name', '').strip()}: {state}{f', in {waits}' if waits else ''}"
