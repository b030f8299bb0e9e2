"""Makes a recipe's process write the stacks of its threads to a file when it gets a signal.
bootstrap.py loads this file by path. Standard library only."""

from __future__ import annotations

import os
import signal

_files: list[object] = []
"""The file that the handler writes to, kept open."""


def number() -> int:
    """Return the number of the signal for writing stacks, or 0 if the platform has no real-time
    signals. Other programs hardly ever use this signal."""
    last = getattr(signal, "SIGRTMAX", None)
    return 0 if last is None else int(last) - 1


def write_stacks_to(path: str) -> None:
    """Install a handler of the signal `number()` that appends the stacks of all threads to the file
    at `path`. Do nothing if the signal does not exist or the file cannot be opened."""
    if not number():
        return
    import faulthandler

    try:
        file = open(path, "ab", buffering=0)  # noqa: SIM115  (stays open until the process ends)
    except OSError:
        return
    _files.append(file)
    os.set_inheritable(file.fileno(), False)
    faulthandler.register(number(), file=file, all_threads=True)
