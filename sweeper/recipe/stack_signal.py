"""Makes a recipe's process write the stacks of its threads to a file when it gets a signal.
bootstrap.py loads this file by path. Standard library only."""

from __future__ import annotations

import os
import signal

_files: list[object] = []
"""Keeps the file open that the handler writes to."""


def number() -> int:
    """Return the number of a real-time signal, which programs hardly ever use, or 0 if the platform
    has none."""
    last = getattr(signal, "SIGRTMAX", None)
    return 0 if last is None else int(last) - 1


def write_stacks_to(path: str) -> None:
    """Write the stacks to the file at `path` with each signal. Without a file nothing happens."""
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
