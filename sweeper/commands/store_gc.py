"""`sweeper store gc`: lists files that nothing needs, or removes them (`--delete`).
docs/registry.md describes these files. Files that a process on this machine has locked are kept."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from sweeper import paths
from sweeper.backends import every_backend
from sweeper.backends.base import Leftover
from sweeper.commands import arguments as shared
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import open_registry
from sweeper.errors import EnvironmentFailure, NotFound, StoreError
from sweeper.metrics.rollout_files import summary_files
from sweeper.results.problems import Problems, tell_problems
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.results.sweeps import SweepRun
from sweeper.store.base import Store
from sweeper.store.local import refuse_links
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.hint import hint
from sweeper.sweep.labels import plural
from sweeper.sweep.lock import is_held
from sweeper.sweep.settled import changing
from sweeper.sweep.states import State
from sweeper.sweep.worker_lock import is_held as is_used
from sweeper.terminal import print_table, warn

_HOUR = 3600.0
_OVER = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
_DIGEST = re.compile(r"[0-9a-f]{16,}")
_GONE = ".gone-"
_TEMPORARY = re.compile(r"\.tmp-(\d+)-[0-9a-f]+")


class Waste(NamedTuple):
    """A file or folder to remove, the reason, and the size in bytes. A file in a store is at the
    path `inside` of `store`. For a folder that jobs share, `used` is the time of its last use.
    Before the removal, `release` (if not None) must be called with the paths of the files."""

    path: str
    why: str
    size: int
    store: Store | None = None
    inside: str = ""
    used: float | None = None
    release: Callable[[Sequence[str]], None] | None = None


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper store gc`."""
    shared.runs_of_any_sweeps(verb)
    shared.select(verb)
    remove = shared.group(verb, "what to remove")
    shared.flag(remove, "--delete", "remove the files (default: only list them)")
    shared.flag(
        remove,
        "--attempts",
        "also remove rollouts and transcripts that a later attempt of the run wrote again",
    )
    remove.add_argument(
        "--days", type=float, default=7.0, help="keep files used in the last DAYS days (default: 7)"
    )
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """List files that nothing needs. With `--delete`, remove them."""
    registry = open_registry(arguments, snapshot=True)
    filters = arguments.runs, arguments.state, arguments.where
    runs = registry.choose(*filters, dropped=True, archived=True)
    before = time.time() - arguments.days * 86400
    problems = registry.problems
    waste = [*_caches(before), *_snapshots(registry, problems, before), *built_waste(before)]
    away: list[dict[str, str]] = []
    waste += _of_launchers(registry, before, away)
    for root in registry.roots:
        waste += _temporaries(root, before)
    waste += _of_each(runs, _left_parts)
    waste += _submissions(runs, before)
    spooled, unsynced = _spooled(before)
    waste += spooled
    if arguments.attempts:
        waste += _of_each(runs, _superseded)
    waste = [waste for waste in waste if not _is_beyond_a_link(waste)]
    if arguments.delete:
        waste = _released(waste)
        remove_waste(waste)
    shown = [waste[:3] for waste in waste]
    if arguments.json:
        items = [dict(zip(("path", "why", "size"), row, strict=True)) for row in shown]
        document = {"deleted": bool(arguments.delete), "items": items, "unsynced": unsynced}
        return print_json_answer({"schema": 1, **document, "away": away}, problems)
    for place in away:
        warn(
            f"{place['path']}: kept, because the folder of the runs, {place['folder']}, is missing "
            "or cannot be read; if the runs are gone, remove the kept file yourself"
        )
    for spool in unsynced:
        warn(
            f"{spool['path']}: kept, because some files of dead workers (attempts: "
            f"{spool['attempts']}) are not yet in {spool['root']}: "
            f"`{hint('store sync', str(spool['sweep']), root=str(spool['root']))}` uploads them"
        )
    if shown:
        print_table(("path", "why", "bytes"), shown)
    total = sum(waste.size for waste in waste) / 1e6
    done = "removed" if arguments.delete else "in total; --delete removes them"
    print(f"{plural(len(waste), 'item')}, {total:.1f} MB {done}" if waste else "nothing to remove")
    return tell_problems(problems)


def _caches(before: float) -> Iterator[Waste]:
    """Yield caches that were not used since `before`."""
    for folder in _folders(paths.cache(), depth=2):
        if _newest(folder) < before:
            yield Waste(folder, "cache not used lately", _size(folder))


def _snapshots(registry: Registry, problems: Problems, before: float) -> Iterator[Waste]:
    """Yield copies of code that no sweep refers to and that were not used since `before`, and
    copies whose removal was interrupted. Yield nothing if there is no sweep. Also yield nothing if
    a sweep cannot be read, since this sweep may refer to any copy."""
    named: set[str] = set()
    names = registry.sweep_names()
    for name in names:
        try:
            sweep = registry.sweep(name)
            named.update(_DIGEST.findall(json.dumps(sweep.plan.recorded)))
            for path in sweep.store.names(f"{sweep.name}/attempts"):
                if path.endswith("/job.json"):
                    named.update(_DIGEST.findall(sweep.store.read(path).decode("utf-8", "replace")))
        except (NotFound, StoreError) as error:
            problems.unreadable(error)
    if problems.unread or not names:
        return
    for folder in _folders(os.path.join(paths.home(), "snapshots"), depth=1):
        # The rest of the name distinguishes clones.
        digest = os.path.basename(folder).partition("-")[0]
        used = _newest(folder)
        if _GONE in folder:
            yield Waste(folder, "code whose removal was interrupted", _size(folder))
        elif digest not in named and used < before and not is_used(f"{folder}.use"):
            yield Waste(folder, "code that no sweep of this root uses", _size(folder), used=used)


def built_waste(before: float) -> Iterator[Waste]:
    """Yield the Python environments and copies of sweeper's source that jobs made on this machine,
    and that no job has used since `before`."""
    for folder in (*_folders(paths.built(), depth=1), *_folders(paths.sources(), depth=1)):
        with contextlib.suppress(FileNotFoundError):
            used = _last_use(folder)
            if used < before and not is_used(f"{folder}.use"):
                why = "environment of launch.requirements, not used lately"
                yield Waste(folder, why, _size(folder), used=used)


def _last_use(folder: str) -> float:
    return max(_newest(folder), os.stat(folder).st_mtime)


def _remove_made(waste: Waste) -> None:
    """Remove an environment or a copy of code that jobs share. Keep a folder that a job on this
    machine is using or rebuilding, or has used since the listing. Lock files stay, because a job
    may be waiting for one. The folder is renamed first, so no job sees an incomplete folder."""
    gone = f"{waste.path}{_GONE}{os.getpid()}"
    with contextlib.suppress(OSError), contextlib.ExitStack() as locks:
        for ending in ("use", "lock"):
            lock = locks.enter_context(open(f"{waste.path}.{ending}", "ab"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if waste.used in (_last_use(waste.path), _newest(waste.path)):
            os.rename(waste.path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _of_launchers(registry: Registry, before: float, away: list[dict[str, str]]) -> Iterator[Waste]:
    """Yield the environment files of ended sweeps, and the logs of ended launchers that were last
    written before `before`. If the sweep of an environment file is missing or unreadable, add the
    file to `away` instead."""
    from sweeper.launcher.environment_cleanup import unused_files

    def tell(path: str, folder: str) -> None:
        away.append({"path": path, "folder": folder})

    for path in unused_files(unknown=tell):
        with contextlib.suppress(FileNotFoundError):
            yield Waste(path, "environment of finished runs", os.path.getsize(path))
    old: dict[str, int] = {}
    with contextlib.suppress(OSError), os.scandir(os.path.join(paths.home(), "launchers")) as logs:
        old = {
            log.path: log.stat().st_size
            for log in logs
            if log.stat().st_mtime < before and not is_used(log.path)
        }
    # A running launcher may log nothing for a long time.
    for path in sorted(old.keys() - (_logs_in_use(registry) if old else set())):
        yield Waste(path, "log of a launcher that has ended", old[path])


def _logs_in_use(registry: Registry) -> set[str]:
    from sweeper.launcher.background import launcher_log, messages_file

    sweeps = (folder for folder in registry.sweep_folders() if folder.store.is_remote)
    held = [folder for folder in sweeps if is_held(folder)]
    messages = [f"{messages_file(folder)}{end}" for folder in held for end in ("", ".1")]
    return {*map(launcher_log, held), *messages}


def _temporaries(root: str, before: float) -> Iterator[Waste]:
    """Yield temporary files that are older than an hour and whose writer is not running on this
    machine. Also yield all temporary files that are older than `before`, since another process may
    now have the writer's process id."""
    if "://" in root:
        return
    for folder, _, names in os.walk(root):
        for name in names:
            matched = _TEMPORARY.fullmatch(name)
            if matched is None:
                continue
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                status = os.stat(path)
                old = time.time() - _HOUR  # a writer on another machine may still use younger files
                if status.st_mtime < old and (
                    status.st_mtime < before or not _lives(int(matched[1]))
                ):
                    yield Waste(path, "temporary file of a dead writer", status.st_size)


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
                source = run.files.source(path)
                if source is not None:
                    yield _in(run.store, path, "a later attempt wrote it again", source.stamp.size)


def _of_each(
    runs: Iterable[RecordedRun], find: Callable[[RecordedRun], Iterator[Waste]]
) -> Iterator[Waste]:
    """Yield the results of `find` for each run. Skip runs that cannot be read."""
    for run in runs:
        yield from run.readable(lambda run=run: list(find(run)), [])


def _left_parts(run: RecordedRun) -> Iterator[Waste]:
    """Yield the parts (`FILE.parts/...`) in which an ended run uploaded a file to a remote store,
    if the store also has the complete file."""
    if not run.store.is_remote or run.state not in _OVER:
        return
    for folder in run.folders():
        for inner in run.files.below(folder):
            whole = inner.removesuffix(".parts")
            if whole != inner and whole in run.files.entries():
                for entry in run.files.inside(inner):
                    yield _in(
                        run.store,
                        entry.path,
                        "part of a file that is stored completely",
                        entry.size,
                    )


def _submissions(runs: Iterable[RecordedRun], before: float) -> Iterator[Waste]:
    over: dict[str, set[str]] = {}
    stores: dict[str, Store] = {}
    succeeded: set[str] = set()
    for run in runs:
        if isinstance(run, SweepRun) and run.state in _OVER:
            folder = run.sweep_folder.address
            over.setdefault(folder, set()).add(run.id)
            stores[folder] = run.store
            if run.state is State.SUCCEEDED:
                succeeded.add(run.id)
    kinds = list(every_backend()) if over else []
    for folder, ids in over.items():
        leftovers = [
            each for kind in kinds for each in kind.leftovers(folder, ids, succeeded & ids)
        ]
        yield from _of_backends(leftovers, stores[folder], folder, before)


def _of_backends(
    leftovers: Sequence[Leftover], store: Store, folder: str, before: float
) -> Iterator[Waste]:
    """Yield the files that a sweep's backends left, if they are older than `before`. On a remote
    store, where the age is unknown, yield all of these files."""
    sizes: dict[str, int] = {}
    paths = [path for leftover in leftovers for path in leftover.paths]
    if store.is_remote and any(path.startswith(folder) for path in paths):
        top = f"{folder.removeprefix(f'{store.root}/')}/launcher"
        sizes = {entry.path: entry.size for entry in store.list(top)}
    for files, why, release in leftovers:
        insides = [path.removeprefix(f"{store.root}/") for path in files]
        if store.is_remote and sizes.keys() >= set(insides):
            for inside in insides:
                yield _in(store, inside, why, sizes[inside])._replace(release=release)
            continue
        with contextlib.suppress(OSError):
            statuses = [os.stat(path) for path in files]
            if max(status.st_mtime for status in statuses) < before:
                for path, inside, status in zip(files, insides, statuses, strict=True):
                    here, size = not store.is_remote, status.st_size
                    waste = _in(store, inside, why, size) if here else Waste(path, why, size)
                    yield waste._replace(release=release)


def _in(store: Store, path: str, why: str, size: int) -> Waste:
    full = store.local_path(path) or f"{store.root.rstrip('/')}/{path}"
    return Waste(full, why, size, store, path)


def _is_beyond_a_link(waste: Waste) -> bool:
    """Return whether a symbolic link in a sweep's folder leads to the file. In this case, also warn
    that the file is kept, since the sweep does not own the file."""
    if waste.store is None or waste.store.is_remote:
        return False
    sweep = waste.inside.partition("/")[0]
    try:
        refuse_links(os.path.join(waste.store.root, sweep), os.path.dirname(waste.path))
    except StoreError as error:
        warn(f"{waste.path}: kept: {error}")
        return True
    return False


def _spooled(before: float) -> tuple[list[Waste], list[dict[str, object]]]:
    """Return the spools to remove, and records of the spools with files that are not uploaded yet.
    A spool is removed if it is uploaded and was not used since `before`."""
    from sweeper.worker.spool import abandoned, spools

    waste: list[Waste] = []
    unsynced: list[dict[str, object]] = []
    for root, spool, sweeps in spools(paths.home()):
        for sweep in sweeps:
            folder = os.path.join(spool.root, sweep)
            living, dead = abandoned(SweepFolder(spool, sweep))
            if dead:
                unsynced.append({"path": folder, "root": root, "sweep": sweep, "attempts": dead})
            elif not living and _touched(folder) < min(before, time.time() - _HOUR):
                waste.append(Waste(folder, "copies of files in the store", _size(folder)))
    return waste, unsynced


def _folders(top: str, depth: int) -> list[str]:
    folders = [top]
    for _ in range(depth):
        inner: list[str] = []
        for folder in folders:
            with contextlib.suppress(OSError), os.scandir(folder) as items:
                inner += [item.path for item in items if item.is_dir(follow_symlinks=False)]
        folders = inner
    return sorted(folders)


def _files(top: str) -> Iterator[os.stat_result]:
    for folder, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(folder, name))


def _size(top: str) -> int:
    return sum(status.st_size for status in _files(top))


def _newest(top: str) -> float:
    """Return the latest time at which a file below `top` was changed or read; 0 if there is no
    file."""
    return max((max(s.st_mtime, s.st_atime, s.st_ctime) for s in _files(top)), default=0.0)


def _touched(folder: str) -> float:
    """Return the time when a sweep's spool was last used. This includes changes of the folder
    `unsynced`, because a worker that has just started has written no files."""
    return max(_newest(folder), os.stat(os.path.join(folder, "unsynced")).st_mtime)


def _released(removed: Sequence[Waste]) -> list[Waste]:
    """Call the `release` functions of the files that will be removed. Return these files without
    those whose `release` failed."""
    paths: dict[Callable[[Sequence[str]], None], list[str]] = {}
    for waste in removed:
        if waste.release is not None:
            paths.setdefault(waste.release, []).append(waste.path)
    kept: set[str] = set()
    for release, records in paths.items():
        try:
            release(records)
        except EnvironmentFailure as error:
            warn(
                f"{error}: kept {plural(len(records), 'job record')}, which the next "
                "`sweeper store gc` tries to remove"
            )
            kept.update(records)
    return [waste for waste in removed if waste.path not in kept]


def remove_waste(removed: Iterable[Waste]) -> None:
    elsewhere: dict[str, tuple[Store, list[str]]] = {}
    for waste in removed:
        if waste.store is not None:
            elsewhere.setdefault(waste.store.root, (waste.store, []))[1].append(waste.inside)
        elif waste.used is not None:
            _remove_made(waste)
        elif os.path.isdir(waste.path):
            shutil.rmtree(waste.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(waste.path)
    for store, names in elsewhere.values():
        if store.is_remote:
            with contextlib.ExitStack() as marks:
                for top in dict.fromkeys(name.partition("/")[0] for name in names):
                    marks.enter_context(changing(SweepFolder(store, top)))
                store.remove(names)
            continue
        for path in names:
            try:
                store.remove([path])
            except StoreError as error:
                warn(str(error))
