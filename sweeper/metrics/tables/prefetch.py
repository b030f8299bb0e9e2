"""A second process that reads the same files from the other end, so that both cores parse.

There is no protocol: what it has read is in the cache, where the first process finds it. It may
die, be late or never start, and all that is lost is time.

    python -m sweeper.metrics.tables.prefetch < JSON: root, cache, prefix, paths, rollouts
"""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TypedDict

from sweeper.errors import SweeperError
from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.sources import Files
from sweeper.metrics.tables.reading import Reader
from sweeper.metrics.tables.rollouts import Recorded, read_rollouts, rollout_cache
from sweeper.store.local import LocalStore

ENOUGH = 250_000_000
"""Bytes to parse from which on the start of a process pays."""


class Request(TypedDict):
    """What to read: the root and the folder of its cache; metrics files below `prefix`; and the
    folders of rollouts, those of a run together."""

    root: str
    cache: str
    prefix: str
    paths: list[str]
    rollouts: list[Sequence[str]]


def can_help(files: Files) -> bool:
    """Return whether a second process can read these files, on another core."""
    return files.local is not None and (os.cpu_count() or 1) > 1


@contextmanager
def helped(
    folder: Folder, files: Files, paths: Sequence[str] = (), rollouts: Sequence[Sequence[str]] = ()
) -> Generator[None]:
    """Run a second process during the block, which reads metrics files and the rollouts of runs,
    last first."""
    request: Request = {
        "root": files.store.root,
        "cache": folder.top,
        "prefix": files.prefix,
        "paths": [*reversed(paths)],
        "rollouts": [*reversed(rollouts)],
    }
    helper: subprocess.Popen[bytes] | None = None
    with suppress(OSError):
        command = [sys.executable, "-m", "sweeper.metrics.tables.prefetch"]
        none = subprocess.DEVNULL
        helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=none, stderr=none)
    try:
        if helper is not None and helper.stdin is not None:
            with suppress(OSError), helper.stdin as pipe:
                pipe.write(json.dumps(request).encode())
        yield
    finally:
        if helper is not None:
            helper.terminate()
            helper.wait()


def fill(request: Request) -> None:
    """Read these files into the cache."""
    store = LocalStore(request["root"])
    folder = Folder(store.root, request["cache"])
    files, reader = Files(store, request["prefix"]), Reader(folder)
    for path in request["paths"]:
        with suppress(SweeperError):
            reader.columns(files, path)
    reader.flush()
    cache = rollout_cache(folder, files)
    for folders in request["rollouts"]:
        with suppress(SweeperError):
            read_rollouts(Recorded(files, folders, cache), ())
    cache.flush()


if __name__ == "__main__":
    fill(json.loads(sys.stdin.buffer.read()))
