"""Cached listings of settled sweeps always equal what the store has."""

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from sweeper.errors import AlreadyExists
from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.cached_contents import Contents
from sweeper.store.base import Entry
from sweeper.store.opening import open_store
from sweeper.store.remote import RemoteStore
from sweeper.store.snapshot import Snapshot
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.lease import holding_lease
from sweeper.sweep.marks import Kind, put_mark
from sweeper.sweep.requests import request_retry
from sweeper.sweep.settled import changing, is_settled
from sweeper.sweep.states import Event

RUNS = ("a0", "a1", "a2")
WHOLE = (Event.INTENT, Event.SUBMITTED, Event.CLAIMED, Event.SUCCEEDED)


class Killed(BaseException):
    """Raised where the process would be killed."""


class Watched(RemoteStore):
    """A store that calls `seen` around each write and `listed` before each listing."""

    def __init__(self, store: RemoteStore) -> None:
        self.__dict__ = store.__dict__ | {"instant": 0}
        self.instant: int
        self.lists: list[str] = []
        self.seen: Callable[[int], None] = lambda instant: None
        self.listed: Callable[[str], None] = lambda prefix: None

    def _around(self, action: Callable[..., None], *arguments: Any) -> None:
        is_beat = str(arguments[0]).endswith(".beat")  # written by a thread
        if not is_beat:
            self._step()
        action(*arguments)
        if not is_beat:
            self._step()

    def _step(self) -> None:
        self.instant += 1
        self.seen(self.instant)

    def create(self, path: str, data: bytes) -> None:
        self._around(super().create, path, data)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._around(super().replace, path, data)

    def remove(self, paths: Any) -> None:
        for path in [*paths]:
            self._around(super().remove, [path])

    def list(self, prefix: str) -> Iterator[Entry]:
        self.lists.append(prefix)
        self.listed(prefix)
        return super().list(prefix)


@pytest.fixture
def store() -> Watched:
    """Return a store with a sweep that has ended."""
    made = Watched(cast(RemoteStore, open_store(f"memory://{uuid.uuid4().hex}")))
    made.replace("s/sweep.json", b"{}")
    with holding_lease(SweepFolder(made, "s"), 0.0):
        for run in RUNS:
            _attempt(SweepFolder(made, "s"), run, 1)
    return made


def _attempt(folder: SweepFolder, run: str, attempt: int) -> None:
    for event in WHOLE:
        with suppress(AlreadyExists):
            folder.store.create(folder.event(run, attempt, event), b"{}")


def _launch(folder: SweepFolder) -> None:
    now = itertools.count(0.0, 10.0)  # a dead launcher's lease expires at once
    with holding_lease(folder, 0.0, clock=lambda: next(now), sleep=lambda _: None):
        for run in RUNS[:2]:
            _attempt(folder, run, 2)


def _retry(folder: SweepFolder) -> None:
    events = folder.read_events()
    with changing(folder):
        for run in RUNS[:2]:
            request_retry(folder, run, events[run], succeeded=True)


def _note(folder: SweepFolder) -> None:
    put_mark(folder, Kind.NOTE, "a0", "see this")


def _sync(folder: SweepFolder) -> None:
    with changing(folder):
        folder.store.replace(f"{folder.log_path('a0', 1)}/metrics.jsonl", b"{}")
        folder.store.remove([f"{folder.log_path('a0', 1)}/metrics.jsonl.parts/0"])


STORIES = (_launch, _retry, _note, _sync)


def _shown(store: Watched, cache: Folder) -> set[Entry]:
    """Return what a new process shows, without the lease's files."""
    listing = Snapshot(store, Contents(cache)).list("s")
    return {entry for entry in listing if not entry.path.startswith("s/launcher/")}


def _true(store: Watched) -> set[Entry]:
    return {e for e in RemoteStore.list(store, "s") if not e.path.startswith("s/launcher/")}


def _others(store: Watched) -> Watched:
    """Return a store of the same files, as in another process."""
    return Watched(cast(RemoteStore, open_store(store.root)))


def test_a_settled_sweep_is_listed_once(store: Watched, tmp_path: Path) -> None:
    cache = Folder(store.root, str(tmp_path))
    assert _shown(store, cache) == _true(store)
    assert "s" in store.lists
    store.lists.clear()
    assert _shown(store, cache) == _true(store)
    assert sorted(store.lists) == ["s/launcher", "s/notes"]
    store.lists.clear()
    whole = Snapshot(store, Contents(cache))
    assert {e.path for e in whole.list("")} == {e.path for e in RemoteStore.list(store, "")}
    assert sorted(store.lists) == ["s/launcher", "s/notes"]


@pytest.mark.parametrize("story", STORIES)
def test_readers_see_each_write_even_if_the_writer_is_killed(
    store: Watched, tmp_path: Path, story: Callable[[SweepFolder], None]
) -> None:
    """Readers look before and after every write, then again with a kill at each write."""
    names = 0

    def once(kill: int) -> int:
        nonlocal names
        names += 1
        mine = Watched(cast(RemoteStore, open_store(f"memory://{uuid.uuid4().hex}")))
        for entry in RemoteStore.list(store, ""):
            RemoteStore.replace(mine, entry.path, RemoteStore.read(store, entry.path))
        reader, cache = _others(mine), Folder(mine.root, str(tmp_path / str(names)))
        assert _shown(reader, cache) == _true(mine)

        def check(instant: int) -> None:
            if kill and instant >= kill:
                raise Killed
            assert _shown(reader, cache) == _true(mine), instant

        mine.seen = check
        try:
            story(SweepFolder(mine, "s"))
        except Killed:
            assert kill
        for _ in range(2):
            assert _shown(reader, cache) == _true(mine), kill
        mine.seen = lambda instant: None
        _launch(SweepFolder(mine, "s"))
        assert _shown(reader, cache) == _true(mine), kill
        return mine.instant

    last = once(0)
    assert last > 1
    for kill in range(1, last + 1):
        once(kill)


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("when", ["s/launcher", "s/notes", "s"])
def test_a_reader_overtaken_by_a_writer_catches_up(
    store: Watched, tmp_path: Path, story: Callable[[SweepFolder], None], when: str
) -> None:
    """The whole write happens just before one of a reader's requests."""
    cache, reader = Folder(store.root, str(tmp_path)), _others(store)

    def overtake(prefix: str) -> None:
        if prefix == when:
            reader.listed = lambda prefix: None
            story(SweepFolder(store, "s"))

    reader.listed = overtake
    _shown(reader, cache)
    for _ in range(2):
        assert _shown(reader, cache) == _true(store)


def _paths(*names: str) -> list[str]:
    return [*names, "launcher/1", "launcher/1.released", "sweep.json"]


@pytest.mark.parametrize(
    ("names", "settled"),
    [
        ([], True),
        (["state/a/1.claimed.json", "state/a/1.failed.json"], True),
        (["state/a/1.cancel.json"], True),
        (["state/a/1.failed.json"], False),  # its job may start late
        (["state/a/1.claimed.json"], False),
        (["state/a/1.claimed.json", "state/a/1.lost.json"], False),
        (["state/a/1.claimed.json", "state/a/1.preempted.json"], False),
        (
            [f"state/a/{name}.json" for name in ("1.claimed", "1.preempted", "2.claimed")]
            + ["state/a/2.succeeded.json"],
            True,
        ),
        (["state/a/1.stacks"], False),
        (["launcher/2"], False),
        (["launcher/changing.abc"], False),
    ],
)  # fmt: skip
def test_which_sweeps_are_settled(names: list[str], settled: bool) -> None:
    assert is_settled(_paths(*names)) is settled


def test_a_launcher_removes_the_mark_of_a_killed_command(store: Watched, tmp_path: Path) -> None:
    folder = SweepFolder(store, "s")
    store.replace("s/launcher/changing.x", b'{"host": "elsewhere", "pid": 1, "began": "1"}')
    with changing(folder):
        (ours,) = [p for p in store.names("s/launcher") if "changing" in p and p[-2:] != ".x"]
        document = store.read(ours).replace(b'"began":', b'"began": "0", "was":')
    store.replace("s/launcher/changing.dead", document)
    _launch(folder)
    left = [path for path in store.names("s/launcher") if "changing" in path]
    assert left == ["s/launcher/changing.x"]
