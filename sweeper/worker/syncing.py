"""Uploads an attempt's files to a remote store. A growing file is sent in parts
(`<file>.parts/<offset>`), which are created exclusively and do not overlap, and at the end as a
whole. docs/storage.md has the rules."""

import os
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from sweeper.common.atomic import TEMPORARY
from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.store.base import Store
from sweeper.store.local import open_regular
from sweeper.sweep.folder import SweepFolder

_GROWING = (".jsonl", ".log", ".csv", ".txt", ".out", ".err")
_ITERATION = "iteration_"
_LAST = "checkpoints.jsonl"
_PART = 16 << 20
_SEEN = 256
"""How many bytes before the sent offset are compared, to detect that a file was replaced."""
_SMALL = 1 << 16
_MANY_PARTS = 100.0
_FIRST, _LONGEST = 1.0, 60.0
"""Seconds before a failed step is retried: first and longest wait."""
_LONGEST_NAME = 800
_LOOKS = 5
"""How many times a file is sent at the end if it still changes, although nothing should write to
it."""
_IN_A_ROW = 3
"""Failures in a row after which the store counts as unreachable, since each may have taken a
minute."""
REFUSED_SECONDS = 900.0
"""Seconds after which remaining files are given up, if the store answers but accepts none of
them."""


class _Stat(NamedTuple):
    size: int
    time: int
    inode: int


class _Growing:
    """The state of a file that is sent in parts. `offset` is the number of bytes sent, and `seen`
    is a checksum of the last of these bytes. If the file was replaced, `replaced` is set, and the
    file is sent only as a whole."""

    def __init__(self, offset: int | None, inode: int) -> None:
        self.offset = offset
        self.inode = inode
        self.seen = 0
        self.whole: _Stat | None = None
        self.parts = offset is None
        self.made: list[str] = []
        self.replaced = False


class _Plain:
    """The state of a file that is sent as a whole, each time it has stopped changing."""

    def __init__(self) -> None:
        self.last: _Stat | None = None
        self.sent: _Stat | None = None
        self.count = 0
        self.skip = 0


class Sync:
    """Uploads the files of one attempt from `folder`, the sweep's folder in the spool, to `store`.
    `fresh` means that the store has no file of the attempt yet. Use the object in one thread
    only."""

    def __init__(
        self, store: Store, folder: SweepFolder, run: str, attempt: int, *, fresh: bool
    ) -> None:
        self._store = store
        self._spool = folder.store
        self._folders = (folder.log_path(run, attempt), folder.attempt(run, attempt))
        self._fresh = fresh
        self._known: dict[str, int] | None = {} if fresh else None
        self._growing: dict[str, _Growing] = {}
        self._plain: dict[str, _Plain] = {}
        self.parts = 0
        """The number of parts that were created."""
        self.sent = 0
        """The number of files and parts that were uploaded."""
        self.trouble: dict[str, str] = {}
        """Files that are never sent, because they cannot be read or have an invalid name: path
        -> reason."""
        self.refused: dict[str, str] = {}
        """Files that could not be sent at the last try: path -> reason."""

    @property
    def missing(self) -> str | None:
        """A text with the reason why a file was not sent, and the number of other files that were
        not sent. None if every file was sent."""
        reasons = [*self.refused.values(), *self.trouble.values()]
        more = f" (and {len(reasons) - 1} more files)" if len(reasons) > 1 else ""
        return f"{reasons[0]}{more}" if reasons else None

    def step(self) -> None:
        """Send new data. Raises `StoreError`. The next call continues after the data that has
        arrived."""
        self._each(self._send_new)

    def finish(self, *, whatever: bool = False) -> None:
        """Send each file as a whole, after the last write to it. Raises `StoreError`; the caller
        may then call this method again. With `whatever`, try every file, whatever fails."""
        self._each(self._finish_one, whatever)

    def _each(self, send: Callable[[str, str, _Stat], None], whatever: bool = False) -> None:
        files = sorted(self._scan(), key=lambda file: (_is_last(file[0]), file[0] in self.refused))
        self.refused = {path: self.refused[path] for path, *_ in files if path in self.refused}
        failed, sent = 0, self.sent
        for path, full, status in files:
            if not whatever and (failed == _IN_A_ROW or (self.refused and _is_last(path))):
                break
            try:
                send(path, full, status)
                self.refused.pop(path, None)
            except StoreError as error:
                self.refused[path] = str(error)
                failed, sent = 1 if self.sent > sent else failed + 1, self.sent
        if self.refused:
            raise StoreError(next(iter(self.refused.values())))

    def _send_new(self, path: str, full: str, status: _Stat) -> None:
        if _grows(path):
            self._grow(path, full, status)
        else:
            self._send_when_stable(path, full, status)

    def _finish_one(self, path: str, full: str, status: _Stat | None) -> None:
        self._ask()
        file = self._growing.get(path)
        plain = self._plain.setdefault(path, _Plain())
        sent = plain.sent if file is None else file.whole
        for _ in range(_LOOKS):
            if (status := _stat(full)) is None or status == sent:
                break
            if not (sent is None and self._is_there(path, status)) and not self._upload(path, full):
                return
            # The status from before the upload, so that the next check sees later changes.
            sent = status
        plain.sent = sent
        if file is not None:
            file.whole = sent
        if _grows(path) and (not self._fresh if file is None else file.parts):
            # Our own parts are known even if a listing is too old to show them.
            parts = {*self._store.names(f"{path}.parts"), *(file.made if file is not None else ())}
            self._store.remove(parts)
            if file is not None:
                file.made.clear()
                file.parts = False

    def _upload(self, path: str, full: str) -> bool:
        try:
            self._store.upload(path, full)
        except NotFound:
            return False  # The file was removed meanwhile.
        self.sent += 1
        return True

    def _is_there(self, path: str, status: _Stat) -> bool:
        """Return whether the store already has the file, judged by its size. Return False for a
        small file, because small files often have equal sizes."""
        sizes = self._known or {}
        return status.size > _SMALL and sizes.get(path) == status.size

    def _ask(self) -> None:
        if self._known is None:
            entries = (entry for folder in self._folders for entry in self._store.list(folder))
            self._known = {entry.path: entry.size for entry in entries}

    def _scan(self) -> Iterator[tuple[str, str, _Stat]]:
        files: list[tuple[str, str]] = []
        for folder in self._folders:
            top = self._spool.local_path(folder)
            for inner, _, names in os.walk(top or ""):
                relative = os.path.relpath(inner, top)
                start = folder if relative == "." else f"{folder}/{relative}"
                files += (
                    (f"{start}/{name}", os.path.join(inner, name))
                    for name in names
                    if not name.startswith(TEMPORARY)
                )
        late = [(path, full, _stat(full)) for path, full in files if _is_last(path)]
        early = ((path, full, _stat(full)) for path, full in files if not _is_last(path))
        for path, full, status in (*early, *late):
            if status is not None and self._can(path, full):
                yield path, full, status

    def _can(self, path: str, full: str) -> bool:
        if path in self.trouble:
            return False
        try:
            if len(path.encode()) > _LONGEST_NAME:
                raise ValueError("its name is too long")
            with open(full, "rb", opener=open_regular):
                return True
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            self.trouble[path] = f"{path!a}: {error}"
            return False

    def _grow(self, path: str, full: str, status: _Stat) -> None:
        file = self._growing.get(path)
        if file is None:
            self._ask()
            fresh = not any(p == path or p.startswith(f"{path}.parts/") for p in self._known or {})
            file = self._growing[path] = _Growing(0 if fresh else None, status.inode)
        if file.replaced:
            self._send_when_stable(path, full, status)
            return
        if file.offset is None:
            file.offset = self._arrived(path)
            file.seen = _check(full, file.offset)
        while file.offset < status.size:
            if status.inode != file.inode or _check(full, file.offset) != file.seen:
                file.replaced = True
                return
            data = _read(full, file.offset, min(status.size - file.offset, _PART))
            if path.endswith((".jsonl", ".csv")) and len(data) < _PART:
                data = data[: data.rfind(b"\n") + 1]  # Leave an incomplete line for the next time.
            if not data:
                return
            file.parts = True
            file.made.append(f"{path}.parts/{file.offset}")
            file.offset = self._part(path, file.offset, data)
            file.seen = _check(full, file.offset)
        if file.offset > status.size:
            file.replaced = True

    def _part(self, path: str, offset: int, data: bytes) -> int:
        """Send a part of a file. Return the offset of the next part."""
        try:
            self._store.create(f"{path}.parts/{offset}", data)
        except AlreadyExists:
            # Our own part, whose reply was lost, or one by another worker that syncs the same file.
            arrived = self._arrived(path)
            if arrived <= offset:
                raise StoreError(f"{path}.parts/{offset} exists, but is empty") from None
            return arrived
        self.parts += 1
        self.sent += 1
        return offset + len(data)

    def _arrived(self, path: str) -> int:
        folder = f"{path}.parts"
        sizes = {entry.path: entry.size for entry in self._store.list(folder)}
        pieces = contiguous(folder, sizes)
        return pieces[-1][0] + pieces[-1][2] if pieces else 0

    def _send_when_stable(self, path: str, full: str, status: _Stat) -> None:
        file = self._plain.setdefault(path, _Plain())
        stable, file.last = status == file.last, status
        if status == file.sent or not stable:
            return
        if file.skip > 0:
            file.skip -= 1
        elif self._upload(path, full):
            file.sent = status
            file.count += 1
            file.skip = 2**file.count if file.count < 10 else 1024
            if path in self._growing:
                self._growing[path].whole = status


def contiguous(folder: str, sizes: Mapping[str, int]) -> list[tuple[int, str, int]]:
    """Return the parts of a file that follow each other without a gap, from offset 0 on, as tuples
    (offset, path, size). `sizes` is a dict from path to size. A part is a file in `folder` whose
    name is its offset. Sizes are in bytes."""
    numbered = sorted(
        (int(name), path, size)
        for path, size in sizes.items()
        if path.startswith(f"{folder}/") and (name := path[len(folder) + 1 :]).isdecimal()
    )
    pieces: list[tuple[int, str, int]] = []
    end = 0
    for offset, path, size in numbered:
        if offset <= end < offset + size:
            pieces.append((offset, path, size))
            end = offset + size
    return pieces


class Syncing:
    """A thread that syncs every `seconds` seconds, and less often after more than 100 parts of
    files were sent. `say` prints messages about failures."""

    def __init__(
        self,
        sync: Sync,
        seconds: float,
        say: Callable[[str], None],
        forget: Callable[[bool], object] = lambda _: None,
        *,
        first_wait: float = _FIRST,
    ) -> None:
        self._sync = sync
        self._seconds = seconds
        self._first_wait = first_wait
        self._say = say
        self._forget = forget
        self._ending = threading.Event()
        self._giving_up = threading.Event()
        self._abandoned = threading.Event()
        self._ended = threading.Event()
        self._failing: str | None = None
        self._failures = 0  # failures after the recipe's end
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Call this method after all forks of the process."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(
        self,
        beat: Callable[[], bool],
        every: float,
        cancelled: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> str | None:
        """Wait until all files are in the store, even if the store does not answer for a long time.
        Call `beat` every `every` seconds; it returns whether the store answers.

        Give up if the store answers but refuses all remaining files for `REFUSED_SECONDS`, or if
        the store fails after the run was `cancelled`. Return a text about the missing files, or
        None if there are none.
        """
        if self._thread is None:
            self.start()
        self._ending.set()
        sent, since, failures = self._sync.sent, clock(), 0
        while not self._ended.wait(every):
            answers = beat()
            if not answers:
                failures = self._failures + 1  # A step in progress may fail for the same reason.
            if not answers or self._failing is None or self._sync.sent > sent:
                sent, since = self._sync.sent, clock()
            if self._failures > failures and cancelled():
                return self._failing or self._missing()
            if clock() - since > REFUSED_SECONDS:
                self._giving_up.set()
        return self._missing()

    def abandon(self) -> None:
        """Stop syncing. Call this method if the sweep was removed."""
        self._abandoned.set()
        self._ending.set()

    def forget(self, *, succeeded: bool) -> None:
        """If all files are in the store, record this in the spool. With `succeeded`, also remove
        the local files. Call this method after the outcome was recorded in the store."""
        if self._ended.is_set() and self._missing() is None:
            self._forget(succeeded)

    def _missing(self) -> str | None:
        return self._sync.missing or self._failing

    def _run(self) -> None:
        pause = 0.0
        while not self._ending.wait(pause or self._interval()):
            pause = self._try(self._sync.step, pause)
        if self._abandoned.is_set():
            return
        pause = self._try(self._sync.finish, 0.0)
        while pause:
            self._failures += 1
            if self._giving_up.wait(pause):
                self._try(partial(self._sync.finish, whatever=True), pause)
                break
            pause = self._try(self._sync.finish, pause)
        if self._missing() is not None:
            self._say(f"sweeper: not synced: {self._missing()}")
        self._ended.set()

    def _interval(self) -> float:
        return self._seconds * max(1.0, self._sync.parts / _MANY_PARTS)

    def _try(self, action: Callable[[], None], before: float) -> float:
        """Call `action`. Return 0, or the seconds to wait if it failed. `before` is the wait before
        this call."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - a thread that dies would lose what is to come
            kind = "" if isinstance(error, StoreError) else f"{type(error).__name__}: "
            self._failing = f"{kind}{error}"
            if not before:
                self._say(f"sweeper: not synced yet: {self._failing}")
            return min(before * 2 or self._first_wait, _LONGEST)
        self._failing = None
        if before:
            self._say("sweeper: synced again")
        return 0.0


def _is_last(path: str) -> bool:
    return path.endswith(f"/{_LAST}")


def _grows(path: str) -> bool:
    above, _, name = path.rpartition("/")
    return name.endswith(_GROWING) and f"/{_ITERATION}" not in above


def _stat(full: str) -> _Stat | None:
    try:
        status = os.stat(full)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return _Stat(status.st_size, status.st_mtime_ns, status.st_ino)


def _read(full: str, start: int, count: int) -> bytes:
    try:
        with open(full, "rb", opener=open_regular) as file:
            file.seek(start)
            return file.read(count)
    except FileNotFoundError:
        return b""


def _check(full: str, offset: int) -> int:
    """Return a checksum of the bytes just before `offset`."""
    start = max(0, offset - _SEEN)
    return zlib.crc32(_read(full, start, offset - start))
