"""The spool: the local folder where an attempt writes if the store is remote. If a worker dies, its
files are uploaded by the next attempt or launcher on this machine, or by `sweeper store sync`."""

# <home>/spool/<hash of the root>/
#   root                            the store's address
#   <sweep>/runs/<run>.<attempt>/   as in the store; so is attempts/
#   <sweep>/unsynced/<run>.<attempt>  exists until everything of that attempt is in the store;
#                                   the attempt's worker locks this file as long as it lives

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from sweeper.errors import EnvironmentFailure, NotFound, StoreError
from sweeper.metrics.files import NAMES
from sweeper.store.base import Store
from sweeper.store.documents import place_of
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.worker.checkpoint_resume import has_checkpoints
from sweeper.worker.syncing import Sync, Syncing, contiguous

_FETCHED = ("config.json", *NAMES, "checkpoints.jsonl")
"""Files that an attempt may start from; see `checkpoint_resume.py`."""
_MARKS = "unsynced"


def place(root: str, home: str) -> LocalStore:
    name = hashlib.sha256(root.encode()).hexdigest()[:16]
    return LocalStore(os.path.join(home, "spool", name))


def arrange(folder: SweepFolder, run: str, attempt: int, home: str, *, resume: bool) -> SweepFolder:
    """Prepare the spool for an attempt. Return the sweep's folder in the spool. If earlier attempts
    of the run on this machine are unsynced, upload their files. With `resume`, download the files
    of attempts that ran on other machines: start with the newest attempt, and stop at an attempt
    with a checkpoint. Raises `StoreError` and `EnvironmentFailure`."""
    store = place(folder.store.root, home)
    spool = folder.at(store)
    try:
        os.makedirs(store.root, mode=0o700, exist_ok=True)
        if not store.exists("root"):
            store.replace("root", folder.store.root.encode())
        os.makedirs(_path(spool, _MARKS), exist_ok=True)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot write to {store.root}: {error.strerror}; set SWEEPER_HOME to another folder"
        ) from error
    recover(folder.store, spool, run)
    if resume:
        _fetch_earlier(folder, spool, run, attempt)
    return spool


class Spooled(NamedTuple):
    """An attempt whose files stay in the spool until they are in the store."""

    store: Store
    spool: SweepFolder
    run: str
    attempt: int


def start_syncing(spooled: Spooled, seconds: float, say: Callable[[str], None]) -> Syncing:
    """Lock the attempt that `arrange` has prepared, and return a thread that syncs its files every
    `seconds` seconds. The caller starts the thread."""
    _, spool, run, attempt = spooled
    path = _path(spool, f"{_MARKS}/{run}.{attempt}")
    while True:
        mark = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"sweeper: waiting for another process that uploads files of {run} ({path})")
            fcntl.flock(mark, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):  # A recovery may have removed the empty mark.
            if os.stat(path).st_ino == os.fstat(mark).st_ino:
                break
        os.close(mark)
    sync = Sync(*spooled, fresh=True)
    # The open file holds the lock as long as this process lives.
    return Syncing(
        sync, seconds, say, lambda succeeded: discard(spool, run, attempt, all_of_it=succeeded)
    )


def discard(spool: SweepFolder, run: str, attempt: int, *, all_of_it: bool) -> None:
    """Record in the spool that all files of an attempt are in the store. With `all_of_it`, also
    remove the local files of this and of earlier attempts. Keep the files of unsynced attempts."""
    with suppress(OSError):
        os.unlink(_path(spool, f"{_MARKS}/{run}.{attempt}"))
    for number in range(1, attempt + 1) if all_of_it else ():
        if not os.path.exists(_path(spool, f"{_MARKS}/{run}.{number}")):
            for folder in (spool.log_path(run, number), spool.attempt(run, number)):
                shutil.rmtree(_local(spool, folder), ignore_errors=True)


def recover(
    store: Store,
    spool: SweepFolder,
    run: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> int:
    """Upload the files that dead workers left in the spool, for one run or (None) all runs. Return
    the number of attempts whose files are now all in the store. If the store refuses files, they
    stay in the spool, and `tell` is called with a message. Raises `StoreError` if the store does
    not answer."""
    marks = [mark for mark in _marks(spool) if run in (None, mark.rpartition(".")[0])]
    if not marks:
        return 0
    if not store.exists(spool.plan):
        tell(f"{spool.name} was removed from {store.root}: its files stay in {spool.store.root}")
        return 0
    from sweeper.sweep.settled import changing  # imported late, since few workers need it

    with changing(spool.at(store)):
        return _recover(store, spool, marks, tell)


def _recover(
    store: Store, spool: SweepFolder, marks: list[str], tell: Callable[[str], None]
) -> int:
    done = 0
    for mark in marks:
        owner, _, attempt = mark.rpartition(".")
        if not attempt.isdecimal():
            continue
        with _held(_path(spool, f"{_MARKS}/{mark}")) as held:
            if not held:
                continue
            sync = Sync(store, spool, owner, int(attempt), fresh=False)
            try:
                sync.finish()
            except StoreError:
                store.exists(spool.plan)  # `exists` raises if the store does not answer at all.
                with suppress(StoreError):
                    sync.finish(whatever=True)
            if sync.missing is None:
                discard(spool, owner, int(attempt), all_of_it=False)
                done += 1
            else:
                tell(
                    f"{spool.name}: attempt {attempt} of run {owner} has files in "
                    f"{spool.store.root} that are not in the store: {sync.missing}"
                )
    return done


def _marks(spool: SweepFolder) -> list[str]:
    try:
        return sorted(os.listdir(_path(spool, _MARKS)))
    except FileNotFoundError:
        return []


def tidy(spool: SweepFolder) -> None:
    """Remove the local files of an ended sweep. If an attempt is unsynced, remove nothing."""
    with suppress(OSError):
        if not _marks(spool):
            shutil.rmtree(_local(spool, spool.name), ignore_errors=True)


def spools(home: str) -> Iterator[tuple[str, LocalStore, list[str]]]:
    """Yield the spools in `home`. For each spool, yield the address of its store, the spool itself,
    and the names of the sweeps in it."""
    top = os.path.join(home, "spool")
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(top)):
            spool = LocalStore(os.path.join(top, name))
            with suppress(OSError):
                with open(os.path.join(spool.root, "root"), encoding="utf-8") as file:
                    root = file.read()
                yield root, spool, sorted(spool.folders_with(_MARKS))


def abandoned(spool: SweepFolder) -> tuple[int, int]:
    """Return how many unsynced attempts (not all their files are in the store) a sweep has: first
    the attempts of live workers, then the attempts of dead workers."""
    living = dead = 0
    with suppress(OSError):
        for mark in _marks(spool):
            with _held(_path(spool, f"{_MARKS}/{mark}")) as held:
                dead += held
                living += not held
    return living, dead


@contextmanager
def _held(path: str) -> Generator[bool]:
    """Lock the file `path` during the block. Yield False if there is no file, or if another process
    holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = os.path.exists(path)  # It is gone if another process has synced the files.
    except BlockingIOError:
        held = False
    try:
        yield held
    finally:
        os.close(descriptor)


def _fetch_earlier(folder: SweepFolder, spool: SweepFolder, run: str, attempt: int) -> None:
    for earlier in range(attempt - 1, 0, -1):
        log_path = folder.log_path(run, earlier)
        target = _local(spool, log_path)
        if not os.path.isdir(target):
            _fetch(folder, log_path, target)
        if has_checkpoints(target, folder):
            return


def _fetch(sweep: SweepFolder, folder: str, target: str) -> None:
    store = sweep.store
    for _ in range(5):
        sizes = {entry.path: entry.size for entry in store.list(folder)}
        with suppress(NotFound):  # Parts may be joined into one file meanwhile.
            names = _fetched(folder, sizes) if sweep.inner else _FETCHED
            files = {name: _read(store, f"{folder}/{name}", sizes) for name in names}
            break
    else:
        raise StoreError(f"{place_of(store, folder)} changed while it was read")
    if not sizes:
        return
    temporary = f"{target}.tmp-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        os.makedirs(temporary)
        for name, data in ((name, data) for name, data in files.items() if data is not None):
            os.makedirs(os.path.dirname(os.path.join(temporary, name)), exist_ok=True)
            with open(os.path.join(temporary, name), "wb") as file:
                file.write(data)
        os.rename(temporary, target)
    except OSError as error:
        raise EnvironmentFailure(f"cannot write {target}: {error.strerror}") from error


def _fetched(folder: str, sizes: Iterable[str]) -> list[str]:
    names: dict[str, None] = {}
    for path in sizes:
        inner = path.removeprefix(f"{folder}/").split("/")
        if inner[-2:-1] and inner[-2].endswith(".parts"):
            inner = [*inner[:-2], inner[-2].removesuffix(".parts")]
        if inner[-1] in _FETCHED and not any(part.startswith("iteration_") for part in inner):
            names["/".join(inner)] = None
    return list(names)


def _read(store: Store, path: str, sizes: dict[str, int]) -> bytes | None:
    if path in sizes:
        return store.read(path)
    data, end = b"", 0
    for offset, part, size in contiguous(f"{path}.parts", sizes):
        data += store.read_range(part, end - offset, size)
        end = offset + size
    return data or None


def _path(spool: SweepFolder, inside: str) -> str:
    return _local(spool, f"{spool.name}/{inside}")


def _local(spool: SweepFolder, path: str) -> str:
    return os.path.join(spool.store.root, path)
