"""Makes a forked process equal to a new interpreter: session, environment, folder, descriptors,
random state. The fork server loads this file by path. Uses only the standard library."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from contextlib import suppress
from typing import cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from sweeper.recipe.documents import Begin

_PR_SET_PDEATHSIG = 1


def become(
    request: Begin,
    changed: Mapping[str, str | None],
    output: int,
    pipe: tuple[int, int],
    keeper: int,
) -> bool:
    """Make this process equal to a new interpreter that was started with `request`. Return True
    when the start signal comes, and False if the recipe must not start.

    `changed` are the variables that imports have set (None: removed). `output` is the descriptor
    for the process's output. `pipe` has two descriptors: one to read the start signal, one to
    report that this process is ready. When the process `keeper` dies, this process dies too.
    """
    reading, telling = pipe
    try:
        os.setsid()
        _die_with(keeper)
        _as_after_exec(request, changed, output, keep=pipe)
        os.write(telling, b"r")
        os.close(telling)
        begun = os.read(reading, 1) == b"g"
        os.close(reading)
    except BaseException:  # noqa: BLE001 - the worker starts it by itself
        return False
    return begun


def _die_with(parent: int) -> None:
    """Make the kernel kill this process when `parent` dies."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # The parent died before prctl took effect.
        os._exit(128 + signal.SIGKILL)


def _as_after_exec(
    request: Begin, changed: Mapping[str, str | None], output: int, *, keep: tuple[int, int]
) -> None:
    """Give this process the environment, folder, descriptors and random state of a new process. The
    descriptors `keep` stay open."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for descriptor in open_descriptors():
        if descriptor > 2 and descriptor not in keep:
            with suppress(OSError):
                os.close(descriptor)
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for name, value in changed.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.chdir(request["cwd"])
    time.tzset()
    sys.argv[:] = request["argv"][1:]
    sys.orig_argv[:] = request["argv"]
    sys.stdout = sys.__stdout__ = _opened(cast("io.TextIOWrapper", sys.stdout), 1)
    sys.stderr = sys.__stderr__ = _opened(cast("io.TextIOWrapper", sys.stderr), 2)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()  # The fork seeds Python's own generator again.
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def _opened(before: io.TextIOWrapper, descriptor: int) -> io.TextIOWrapper:
    """Open a standard stream on a descriptor as a new interpreter would, with the settings of the
    stream `before`."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    raw.name = before.name
    return io.TextIOWrapper(
        raw if before.write_through else io.BufferedWriter(raw),
        encoding=before.encoding,
        errors=before.errors,
        newline="\n",
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )


def open_descriptors() -> set[int]:
    """Return the open descriptors of this process."""
    return {
        int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
    }
