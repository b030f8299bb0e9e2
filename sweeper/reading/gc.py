"""`sweeper gc`: what may go, and with `--delete` it goes.

- caches of roots that are gone, and cache files that nobody has used lately;
- copies of code on this machine (`<home>/snapshots`) that no sweep of this root names;
- temporary files of writers that are dead;
- asked for by `--attempts`: rollouts and transcripts of runs that succeeded, of iterations that a
  later attempt has written again, so that no reader looks at them any more.

Nothing else: no plan, event, metric, checkpoint or log. What was used in the last `--days` stays,
since whoever uses it may not be known here.
"""

import contextlib
import json
import os
import re
import shutil
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import NamedTuple

from sweeper.engine.home import home
from sweeper.errors import NotFound, StoreError
from sweeper.reading.choosing import chosen, open_registry
from sweeper.records.runs import RecordedRun, SweepRun
from sweeper.registry import Registry
from sweeper.states import State
from sweeper.store.files import open_store
from sweeper.tables.keeping import cache_folder
from sweeper.tables.rollouts import summary_files
from sweeper.terminal import print_json, print_table

__all__ = ["gc"]

_TEMPORARY = re.compile(r"\.tmp-(\d+)-[0-9a-f]+")


class Waste(NamedTuple):
    """Something to remove: a file or folder, why, and its bytes."""

    path: str
    why: str
    size: int


def gc(arguments: Namespace) -> int:
    """List what may go; remove it with `--delete`."""
    registry = open_registry(arguments)
    runs = chosen(registry, arguments)
    before = time.time() - arguments.days * 86400
    found = [*_caches(before), *_snapshots(registry, before)]
    for root in registry.roots:
        found += _temporaries(root, before)
    if arguments.attempts:
        found += [waste for run in runs for waste in _superseded(run)]
    if arguments.delete:
        for waste in found:
            _remove(waste.path)
    if arguments.json:
        items = [waste._asdict() for waste in found]
        return print_json({"schema": 1, "deleted": bool(arguments.delete), "items": items})
    if found:
        print_table(("path", "why", "bytes"), found)
    total = sum(waste.size for waste in found) / 1e6
    done = "removed" if arguments.delete else "would go; --delete removes them"
    print(f"{len(found)} items, {total:.1f} MB {done}" if found else "nothing to remove")
    return 0


def _caches(before: float) -> Iterator[Waste]:
    for folder in _folders(cache_folder(), depth=2):
        try:
            with open(os.path.join(folder, "root")) as file:
                root = file.read()
        except OSError:
            root = ""
        if not root or ("://" not in root and not os.path.isdir(root)):
            if _newest(folder) < before or root:
                yield Waste(folder, "cache of a root that is gone", _size(folder))
        elif _newest(folder) < before:
            yield Waste(folder, "cache not used lately", _size(folder))


def _snapshots(registry: Registry, before: float) -> Iterator[Waste]:
    named: set[str] = set()
    for record in registry.sweep_records():
        with contextlib.suppress(NotFound, StoreError):
            sweep = registry.sweep(record["sweep"])
            named.update(re.findall(r"[0-9a-f]{16,}", json.dumps(sweep.document)))
            jobs = f"{sweep.name}/attempts"
            for path in sweep.store.names(jobs):
                if path.endswith("/job.json"):
                    text = sweep.store.read(path).decode("utf-8", "replace")
                    named.update(re.findall(r"[0-9a-f]{16,}", text))
    for folder in _folders(os.path.join(home(), "snapshots"), depth=1):
        digest = os.path.basename(folder).partition("-")[0]  # what follows tells clones apart
        if digest not in named and _newest(folder) < before:
            yield Waste(folder, "code that no sweep here names", _size(folder))


def _temporaries(root: str, before: float) -> Iterator[Waste]:
    """Of writers on this machine that are dead, or so old that any writer is."""
    top = open_store(root).local_path("")
    if top is None:
        return
    for folder, _, names in os.walk(top):
        for name in names:
            matched = _TEMPORARY.fullmatch(name)
            if matched is None:
                continue
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                status = os.stat(path)
                if status.st_mtime < before or (
                    status.st_mtime < time.time() - 3600 and not _lives(int(matched[1]))
                ):
                    yield Waste(path, "left by a writer that is dead", status.st_size)


def _lives(pid: int) -> bool:
    return os.path.isdir(f"/proc/{pid}") if os.path.isdir("/proc/self") else True


def _superseded(run: RecordedRun) -> Iterator[Waste]:
    if not isinstance(run, SweepRun) or run.state is not State.SUCCEEDED:
        return
    folders = run.folders()
    read = {file.path for file in summary_files(run.files, folders)}
    again = {(file.iteration, file.name) for file in summary_files(run.files, folders)}
    for folder in folders[:-1]:
        for file in summary_files(run.files, [folder]):
            if file.path in read or (file.iteration, file.name) not in again:
                continue
            for path in (file.path, file.transcript):
                full = run.store.local_path(path)
                if full is not None and os.path.exists(full):
                    yield Waste(full, "a later attempt has it again", os.path.getsize(full))


def _folders(top: str, depth: int) -> list[str]:
    """The folders so deep below `top`."""
    found = [top]
    for _ in range(depth):
        inner: list[str] = []
        for folder in found:
            with contextlib.suppress(OSError), os.scandir(folder) as items:
                inner += [item.path for item in items if item.is_dir(follow_symlinks=False)]
        found = inner
    return sorted(found)


def _files(top: str) -> Iterator[os.stat_result]:
    for folder, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(folder, name))


def _size(top: str) -> int:
    return sum(status.st_size for status in _files(top))


def _newest(top: str) -> float:
    """When anything in a folder was last changed or read."""
    return max((max(s.st_mtime, s.st_atime, s.st_ctime) for s in _files(top)), default=0.0)


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
