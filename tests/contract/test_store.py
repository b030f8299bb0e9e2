"""Contract tests of all stores."""

import errno
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.launcher import environment_cleanup
from sweeper.store.base import FarStore, Store
from sweeper.store.local import LocalStore
from sweeper.store.opening import open_store
from sweeper.store.remote import RemoteStore
from sweeper.store.shared import SharedStore, open_shared
from sweeper.store.snapshot import Snapshot
from sweeper.store.writable import probe
from sweeper.sweep import environment_file
from sweeper.testing import Faults, FaultyStore

EMULATED = [name for name in ("ceph", "gs", "az") if f"SWEEPER_TEST_{name.upper()}" in os.environ]
"""Servers other than moto: `make ceph`, and tests/support/clouds.py."""
REMOTE = ["memory", "s3", *EMULATED]


@pytest.fixture(params=["local", "faulty", "snapshot", "shared", *REMOTE])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param in ("memory", "snapshot"):
        memory = open_store(f"memory://{tmp_path.name}-{uuid.uuid4().hex}")
        return Snapshot(cast(RemoteStore, memory)) if request.param == "snapshot" else memory
    if request.param == "shared":
        return _shared(request)
    if request.param in REMOTE:
        return open_store(request.getfixturevalue(f"{request.param}_root"))
    store = open_store(str(tmp_path / "root"))
    return FaultyStore(store, Faults()) if request.param == "faulty" else store


@pytest.fixture(scope="module")
def shared_roots() -> list[str]:
    """Return the list of the tests' roots. All tests use the first: its process starts slowly."""
    return []


def _shared(request: pytest.FixtureRequest) -> SharedStore:
    roots = request.getfixturevalue("shared_roots")
    roots.append(request.getfixturevalue("s3_root"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_CURRENT_TEST")  # each environment would start its own process
        shared = open_shared(roots[0])
    assert isinstance(shared, SharedStore)
    request.addfinalizer(shared.close)
    request.addfinalizer(lambda: shared.remove(shared.names("")))
    return shared


def test_only_local_stores_have_paths(store: Store) -> None:
    assert store.is_remote == (store.local_path("a/b") is None)


def test_create_is_exclusive_and_keeps_the_first(store: Store) -> None:
    store.create("a/b/c.json", b"one")
    with pytest.raises(AlreadyExists, match=r"c\.json already exists"):
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
    if store.is_remote:
        _race_of_threads(store)
        return
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


def _race_of_threads(store: Store) -> None:
    """Race with one client per thread, or one connection to the shared store."""
    together, won = threading.Barrier(8), list[tuple[int, int]]()

    def race(number: int) -> None:
        client = store if isinstance(store, SharedStore) else open_store(store.root)
        together.wait()
        for index in range(5):
            try:
                client.create(f"race/{index}", b"%d" % number)
            except AlreadyExists:
                continue
            won.append((index, number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(race, range(8)))
    assert sorted(index for index, _ in won) == list(range(5))
    assert all(store.read(f"race/{index}") == b"%d" % number for index, number in won)


def test_replace_makes_and_overwrites(store: Store) -> None:
    store.replace("x", b"one")
    store.replace("x", b"two", durable=False)
    assert store.read("x") == b"two"


def test_only_local_stores_append(store: Store) -> None:
    if store.is_remote:
        with pytest.raises(StoreError, match="cannot append to a file"):
            store.append("d/log", b"hello ")
        return
    store.append("d/log", b"hello ")
    store.append("d/log", b"world")
    assert store.read("d/log") == b"hello world"


def test_ranges_of_a_file_are_read(store: Store) -> None:
    store.replace("d/log", b"hello world")
    assert store.read_range("d/log", 6, 8) == b"wo"
    assert store.read_range("d/log", 6, 999) == b"world"
    assert store.read_range("d/log", 99, 100) == b""
    assert store.read_range("d/log", 3, 3) == b""
    store.replace("d/empty", b"")
    assert store.read("d/empty") == store.read_range("d/empty", 0, 9) == b""


def test_missing_files_are_reported(store: Store) -> None:
    assert not store.exists("nothing")
    assert list(store.list("nothing")) == []
    assert list(store.folders_with("x")) == []
    with pytest.raises(NotFound, match="nothing: no such file"):
        store.read("nothing")
    with pytest.raises(NotFound):
        store.read_range("nothing", 0, 1)


def test_listings_are_recursive(store: Store) -> None:
    for path in ("s/a", "s/b/c", "s/b/d/e", "t/f"):
        store.create(path, path.encode())
    assert {e.path: e.size for e in store.list("s")} == {"s/a": 3, "s/b/c": 5, "s/b/d/e": 7}
    assert sorted(store.names("s")) == ["s/a", "s/b/c", "s/b/d/e"]
    assert list(store.names("nothing")) == []
    assert store.exists("s/b/c")
    assert list(store.folders_with("a")) == ["s"]


def test_the_stamp_follows_the_content(store: Store) -> None:
    stamps: set[int] = set()
    for index in range(4):
        store.replace("beat/one", str(index).encode(), durable=False)
        stamps |= {entry.stamp for entry in store.list("beat")}
        time.sleep(0.05)  # many writes may share one tick of the file system's clock
    assert len(stamps) == 4


def test_listings_are_never_stale(store: Store) -> None:
    if isinstance(store, Snapshot):
        pytest.skip("a snapshot is as of one moment")
    other = open_store(store.root)
    for index in range(3):
        assert len(list(store.list("s"))) == len(list(store.folders_with("x"))) == index
        assert not store.exists(f"s/{index}")
        other.create(f"s/{index}", b"1")
        other.create(f"f{index}/x", b"1")
        assert store.exists(f"s/{index}")


def test_more_files_than_a_page_holds(store: Store) -> None:
    count = 20 if isinstance(store, SharedStore) else 1005  # its pages are tested with s3
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.replace(f"m/{n}", b"1", durable=False), range(count)))
    assert len(list(store.names("m"))) == count


def test_threads_make_a_new_root_together(tmp_path: Path) -> None:
    """The root that another thread has just created is not taken for an unmounted disk."""
    with ThreadPoolExecutor(8) as pool:
        for index in range(400):
            store = open_store(str(tmp_path / str(index)))
            list(pool.map(lambda n, s=store: s.replace(f"m/{n}", b"1", durable=False), range(8)))
            assert len(list(store.names("m"))) == 8


def test_odd_names(store: Store) -> None:
    for path in ("o/a b+c%20&=#?.json", "o/\u00e4\u20ac/\U0001f600", "o/-", "o/x=1,y=2"):
        store.create(path, path.encode())
        assert store.read(path) == path.encode()
        assert store.exists(path)
        assert path in list(store.names("o"))


def test_many_files_are_read_at_once(store: Store) -> None:
    if not isinstance(store, FarStore):
        pytest.skip("only stores that are slow to answer")
    contents = {f"m/{number}": b"%d" % number * number for number in range(50)}
    contents["m/[odd]*?"] = b"odd"
    for path, data in contents.items():
        store.create(path, data)
    assert store.read_many([*contents, "m/missing"]) == contents
    assert store.read_many([]) == {}


def test_upload_and_remove(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"12" * 5000)
    for data in (b"12" * 5000, b"", b"3"):
        source.write_bytes(data)
        store.upload("u/file", str(source))
        assert store.read("u/file") == data
    with pytest.raises(NotFound):
        store.upload("u/file", str(tmp_path / "nothing"))
    store.remove(["u/file", "u/nothing"])
    assert not store.exists("u/file")
    store.remove([])


def test_half_written_files_are_never_seen(store: Store) -> None:
    if store.is_remote:
        pytest.skip("no half file of a killed writer lies on an object store")
    store.create("s/a", b"1")
    folder = Path(store.root, "s")
    (folder / ".tmp-1-abcd").write_bytes(b"half")  # left by a killed writer
    assert [entry.path for entry in store.list("s")] == ["s/a"]
    assert list(store.names("s")) == ["s/a"]


def test_paths_outside_the_root_are_refused(store: Store) -> None:
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
    with pytest.raises(StoreError, match="this disk has no hard links"):
        LocalStore(str(tmp_path)).create("s/a", b"1")
    assert list((tmp_path / "s").iterdir()) == []


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("ftp://somewhere", "no store for ftp://; use a folder"),
        ("s3://", "has no bucket"),
        ("s3://AKIA:secret@bucket/x", "remove the credentials from the address"),
        ("az://name:secret@container/x", "remove the credentials from the address"),
        ("s3://bucket/x?versionId=1", "a root cannot contain ?, # or ::"),
        ("s3://bucket//x", "a root cannot contain //, /./ or /../: write s3://bucket/x"),
        ("s3://bucket/x//y/", "write s3://bucket/x/y"),
        ("s3://bucket/./x", "write s3://bucket/x"),
        ("s3://bucket/x/../y", "a root cannot contain"),
        ("gs://bucket//x", "write gs://bucket/x"),
        ("az://container//x", "write az://container/x"),
        ("memory://a//b", "write memory://a/b"),
        ("gs://bucket/x", "needs the package gcsfs: `pip install gcsfs`"),
    ],
)
def test_malformed_roots_are_refused(root: str, message: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(root)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_missing_bucket_is_an_error(s3_root: str) -> None:
    store = open_store("s3://there-is-no-such-bucket/x")
    for ask in (
        lambda: list(store.names("a")),
        lambda: list(store.folders_with("a")),
        lambda: store.create("a", b"1"),
        lambda: store.replace("a", b"1"),
    ):
        with pytest.raises(StoreError, match="no such bucket"):
            ask()


def test_an_unreachable_store_is_an_error(
    s3_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match="Could not connect"):
        open_store(s3_root).read("a")
    # The cleanup keeps the environment of a sweep in an unreachable store.
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    environment = environment_file.write(f"{s3_root}/s", {})
    os.utime(environment, (1, 1))
    away: list[tuple[str, str]] = []
    assert list(environment_cleanup.unused_files(unknown=lambda *about: away.append(about))) == []
    assert away == [(environment, f"{s3_root}/s")]


def test_the_probe_leaves_nothing(store: Store) -> None:
    probe(store, "s/launcher")
    assert list(store.names("")) == []


class Forgetful(LocalStore):
    """A store whose listings are empty."""

    def names(self, prefix: str) -> Iterator[str]:
        del prefix
        return iter(())


class Overwriting(LocalStore):
    """A store like S3 behind a server that drops If-None-Match."""

    def create(self, path: str, data: bytes) -> None:
        self.replace(path, data)


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Forgetful, "missing from the listing"), (Overwriting, "accepts a second create")],
)
def test_a_store_that_breaks_its_contract_is_refused(
    kind: type[LocalStore], message: str, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match=message):
        probe(kind(str(tmp_path)), "s/launcher")
    assert list(LocalStore(str(tmp_path)).names("")) == []


@pytest.mark.parametrize("session", ["", "sso_session = s\n"])
def test_a_missing_login_is_one_line(tmp_path: Path, session: str) -> None:
    """The AWS client would log a traceback."""
    (tmp_path / "config").write_text(
        f"[profile work]\nregion = us-east-1\nsso_account_id = 1\nsso_role_name = r\n{session}"
        "sso_start_url = https://example.invalid/start\nsso_region = us-east-1\n"
        "[sso-session s]\nsso_start_url = https://example.invalid/start\nsso_region = us-east-1\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", "ls", "--root", "s3://bucket/x"],
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith("AWS_")},
            **{"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_PROFILE": "work"},
            **{"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"},
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 6, done.stderr
    assert "not logged in: run `aws sso login`" in done.stderr
    assert done.stderr.count("\n") == 1


def _serving(root: str) -> set[str]:
    """Return the processes that serve this root."""
    pids: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cmdline").read_bytes().decode().split("\0")[-3:-1] == [
                "sweeper.store.serving",
                root,
            ]:
                pids.add(folder.name)
    return pids


def test_changed_settings_start_a_new_serving_process(
    s3_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = tmp_path / ".aws" / "config"
    settings.parent.mkdir()
    seen: list[set[str]] = []
    for text in ("[default]\n", "[default]\n", "[default]\nregion = us-east-1\n"):
        if not settings.exists() or settings.read_text() != text:
            settings.write_text(text)
        shared = open_shared(s3_root)
        assert isinstance(shared, SharedStore)
        shared.create(f"a/{len(seen)}", b"1")
        shared.close()
        seen.append(_serving(s3_root))
    assert [len(pids) for pids in seen] == [1, 1, 2]
