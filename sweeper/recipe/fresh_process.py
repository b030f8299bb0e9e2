"""Makes a process that was forked what a new interpreter would be: a session, an environment, a
folder, descriptors and random states of its own.

The fork server (fork_server.py) loads this file by path. Standard library only.
"""

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

__all__ = ["become", "open_descriptors"]

_PR_SET_PDEATHSIG = 1


def become(
    request: Begin,
    changed: Mapping[str, str | None],
    output: int,
    pipe: tuple[int, int],
    keeper: int,
) -> bool:
    """Be what a new interpreter would be that was started with `request`. `changed` are the
    variables that imports have set (None: removed), `output` is the descriptor for what it prints,
    `pipe` where this reads that it is to go, and writes that it is ready, `keeper` the process with
    which it dies. Returns whether the recipe is to begin: nothing may go wrong any more then, and
    the keeper or the worker has said so."""
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
    """Have the kernel kill this process when `parent` dies."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew
        os._exit(128 + signal.SIGKILL)


def _as_after_exec(
    request: Begin, changed: Mapping[str, str | None], output: int, *, keep: tuple[int, int]
) -> None:
    """Give this process the environment, folder, descriptors and random state of its own."""
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
        numpy.seed()  # Python's own generator is seeded anew by the fork
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def _opened(before: io.TextIOWrapper, descriptor: int) -> io.TextIOWrapper:
    """A standard stream as the interpreter opens it, for what the descriptor is now."""
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
    """The descriptors that this process has open."""
    return {
        int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
    }
