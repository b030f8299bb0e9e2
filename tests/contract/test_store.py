"""What every store must do, whatever it is made of."""

import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.store import LocalStore, Store, open_store
from sweeper.testing import Faults, FaultyStore


@pytest.fixture(params=["local", "faulty"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    store = open_store(str(tmp_path / "root"))
    return FaultyStore(store, Faults()) if request.param == "faulty" else store


def test_create_is_exclusive_and_keeps_the_first(store: Store) -> None:
    store.create("a/b/c.json", b"one")
    with pytest.raises(AlreadyExists, match=r"c\.json: exists already"):
        store.create("a/b/c.json", b"two")
    assert store.read("a/b/c.json") == b"one"


def _race(root: str, barrier: object, wins: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    store = LocalStore(root)
    for index in range(50):
        try:
            store.create(f"race/{index}", str(os.getpid()).encode())
        except AlreadyExists:
            continue
        wins.put(index)  # type: ignore[attr-defined]


def test_a_create_race_has_one_winner(store: Store) -> None:
    context = multiprocessing.get_context("fork")
    barrier, wins = context.Barrier(4), context.Queue()
    racers = [context.Process(target=_race, args=(store.root, barrier, wins)) for _ in range(4)]
    for racer in racers:
        racer.start()
    won = sorted(wins.get(timeout=60) for _ in range(50))
    for racer in racers:
        racer.join()
    assert won == list(range(50))
    assert wins.empty()


def test_replace_makes_and_overwrites(store: Store) -> None:
    store.replace("x", b"one")
    store.replace("x", b"two", durable=False)
    assert store.read("x") == b"two"


def test_append_and_ranges(store: Store) -> None:
    store.append("d/log", b"hello ")
    store.append("d/log", b"world")
    assert store.read("d/log") == b"hello world"
    assert store.read_range("d/log", 6, 8) == b"wo"
    assert store.read_range("d/log", 6, 999) == b"world"
    assert store.read_range("d/log", 99, 100) == b""


def test_what_is_missing(store: Store) -> None:
    assert not store.exists("nothing")
    assert list(store.list("nothing")) == []
    assert list(store.folders_with("x")) == []
    with pytest.raises(NotFound, match="nothing: no such file"):
        store.read("nothing")
    with pytest.raises(NotFound):
        store.read_range("nothing", 0, 1)


def test_listing_goes_all_the_way_down(store: Store) -> None:
    for path in ("s/a", "s/b/c", "s/b/d/e", "t/f"):
        store.create(path, path.encode())
    assert {e.path: e.size for e in store.list("s")} == {"s/a": 3, "s/b/c": 5, "s/b/d/e": 7}
    assert sorted(store.names("s")) == ["s/a", "s/b/c", "s/b/d/e"]
    assert list(store.names("nothing")) == []
    assert store.exists("s/b")
    assert list(store.folders_with("a")) == ["s"]


def test_the_stamp_follows_the_content(store: Store) -> None:
    stamps: set[int] = set()
    for index in range(20):
        store.replace("beat/one", str(index).encode(), durable=False)
        stamps |= {entry.stamp for entry in store.list("beat")}
    assert len(stamps) > 1


def test_half_written_files_are_never_seen(store: Store) -> None:
    store.create("s/a", b"1")
    folder = Path(store.root, "s")
    (folder / ".tmp-1-abcd").write_bytes(b"half")  # what a killed writer leaves behind
    assert [entry.path for entry in store.list("s")] == ["s/a"]
    assert list(store.names("s")) == ["s/a"]


def test_nothing_outside_the_root(store: Store) -> None:
    for path in ("../x", "a/../../x", "/etc/passwd"):
        with pytest.raises(StoreError, match="outside the store"):
            store.read(path)


def test_a_store_that_refuses_says_why(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    store = LocalStore(str(blocked))
    with pytest.raises(StoreError, match=r"file/a: Not a directory"):
        store.create("a", b"1")


def test_a_disk_without_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), source, None, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreError, match="no hard links on this disk"):
        LocalStore(str(tmp_path)).create("s/a", b"1")
    assert list((tmp_path / "s").iterdir()) == []


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(StoreError, match="no store for ftp://"):
        open_store("ftp://somewhere")
