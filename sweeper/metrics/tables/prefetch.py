"""A second process that reads the same files from the other end, so that both cores parse.

There is no protocol: what it has read is in the cache, where the first process finds it. It may
die, be late or never start, and all that is lost is time.

    python -m sweeper.metrics.tables.prefetch < JSON: root, cache, prefix, paths, keys, folders
"""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TypedDict

from sweeper.errors import SweeperError
from sweeper.metrics.tables.cache import Cache
from sweeper.metrics.tables.cache_dir import Folder
from sweeper.metrics.tables.packing import belongs
from sweeper.metrics.tables.reading import Reader
from sweeper.metrics.tables.rollouts import Recorded, cached_as, read_rollouts, summary_files
from sweeper.metrics.tables.sources import Files
from sweeper.metrics.tables.summaries import SummaryReader
from sweeper.store.local import LocalStore

_ENOUGH = 250_000_000
"""Bytes to parse from which on the start of a process pays."""
_LOOKS = 10


def worth_it(cache: Cache, files: Files, paths: Sequence[str]) -> bool:
    """Whether so much of these local files is not in the cache that help pays."""
    if files.local is None or (os.cpu_count() or 1) < 2:
        return False
    unread = 0
    for path in paths:
        if not cache.has(path):
            source = files.source(path)
            if source is not None and not belongs(source):
                unread += source.stamp.size
        if unread >= _ENOUGH:
            return True
    return False


def rollouts_worth_it(cache: Cache, files: Files, runs: Sequence[Sequence[str]]) -> bool:
    """Whether help pays for the rollouts of runs, told by their folders. Only one in so many is
    looked at, since looking at all takes as long as reading some."""
    if files.local is None or (os.cpu_count() or 1) < 2:
        return False
    unread = [folders for folders in runs if folders and not cache.has(cached_as(folders))]
    some = unread[:: len(unread) // _LOOKS + 1]
    found = [
        source.stamp.size
        for folders in some
        for file in summary_files(files, folders)
        if (source := files.source(file.path)) is not None
    ]
    return bool(some) and sum(found) * len(unread) / len(some) >= _ENOUGH


class Request(TypedDict):
    """What to read: the root and the folder of its cache; the files, below `prefix`, of which
    `keys` are wanted (None: all); and the folders of rollouts, those of a run together."""

    root: str
    cache: str
    prefix: str
    paths: list[str]
    keys: list[str] | None
    folders: list[Sequence[str]]


@contextmanager
def helped(
    folder: Folder,
    files: Files,
    paths: Sequence[str] = (),
    keys: Sequence[str] | None = None,
    rollouts: Sequence[Sequence[str]] = (),
) -> Generator[None]:
    """Run a second process during the block, which reads `paths` and the rollouts of runs (told by
    their folders), last first."""
    request: Request = {
        "root": files.store.root,
        "cache": folder.top,
        "prefix": files.prefix,
        "paths": list(reversed(paths)),
        "keys": None if keys is None else list(keys),
        "folders": list(reversed(rollouts)),
    }
    helper: subprocess.Popen[bytes] | None = None
    with suppress(OSError):
        helper = subprocess.Popen(
            [sys.executable, "-m", "sweeper.metrics.tables.prefetch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
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
    cache = Cache(Folder(store.root, request["cache"]))
    reader, summaries = Reader(cache), SummaryReader()
    files = Files(store, request["prefix"])
    for path in request["paths"]:
        with suppress(SweeperError):
            source = files.source(path)
            if source is not None and not belongs(source):
                reader.columns(files, path, request["keys"], source)
    for folders in request["folders"]:
        with suppress(SweeperError):
            read_rollouts(Recorded(files, folders, cache, summaries), ())


if __name__ == "__main__":
    fill(json.loads(sys.stdin.buffer.read()))
