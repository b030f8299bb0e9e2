"""A snapshot of a remote store: few requests, many at once, and the state of one moment."""

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest

from sweeper.errors import NotFound, StoreError
from sweeper.launcher.launching import pack_results
from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.cached_contents import Contents
from sweeper.results.registry import Registry
from sweeper.store.base import Entry
from sweeper.store.opening import open_store
from sweeper.store.remote import RemoteStore
from sweeper.store.snapshot import Snapshot
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

RUNS = [f"{number:04x}" for number in range(300)]


class Counted(RemoteStore):
    """A store that counts its requests, and fails for the files in `broken`."""

    def __init__(self, store: RemoteStore) -> None:
        self.__dict__ = store.__dict__ | {"requests": Counter[str](), "broken": set[str]()}
        self.requests: Counter[str]
        self.broken: set[str]
        self.unlisted = set[str]()

    def read(self, path: str) -> bytes:
        self.requests["read"] += 1
        if path in self.broken:
            raise StoreError(f"{path}: SlowDown")
        return super().read(path)

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        wanted = list(paths)
        self.requests.update({"round": 1, "read": len(wanted)})
        return super().read_many(path for path in wanted if path not in self.broken)

    def list(self, prefix: str) -> Iterator[Entry]:
        self.requests["list"] += 1
        if prefix in self.unlisted:
            raise StoreError(f"{prefix}: SlowDown")
        return super().list(prefix)

    def exists(self, path: str) -> bool:
        self.requests["exists"] += 1
        return super().exists(path)


@pytest.fixture
def store() -> Counted:
    made = Counted(cast(RemoteStore, open_store(f"memory://{uuid.uuid4().hex}")))
    for run in RUNS:
        made.replace(f"s/state/{run}/1.succeeded.json", run.encode())
    made.replace("s/sweep.json", b"{}")
    made.requests.clear()
    return made


def test_many_files_are_read_once_in_few_rounds(store: Counted) -> None:
    snapshot = Snapshot(store)
    for run in reversed(RUNS):
        assert snapshot.read(f"s/state/{run}/1.succeeded.json") == run.encode()
    assert store.requests == {"list": 1, "read": len(RUNS), "round": store.requests["round"]}
    assert store.requests["round"] <= 10


def test_facts_of_the_listing_take_no_requests(store: Counted) -> None:
    snapshot = Snapshot(store)
    assert snapshot.exists("s/sweep.json")
    assert snapshot.exists("s/state")
    assert not snapshot.exists("s/notes")
    assert [*snapshot.list("s/notes")] == []
    assert len([*snapshot.names("s/state")]) == len(RUNS)
    with pytest.raises(NotFound, match=r"s/pause\.json: no such file"):
        snapshot.read("s/pause.json")
    assert store.requests == {"list": 1}


def test_a_folder_does_not_list_files_of_its_neighbours(store: Counted) -> None:
    near = ["a!", "a-/x", "a./x", "a/x", "a/y/z", "a0/x", "ab/x"]
    for name in near:
        store.replace(f"s/runs/{name}", b"")
    snapshot = Snapshot(store)
    assert [*snapshot.names("s/runs/a")] == ["s/runs/a/x", "s/runs/a/y/z"]
    assert {*snapshot.names("s/runs/")} == {f"s/runs/{name}" for name in near}
    assert len([*snapshot.list("")]) == len(RUNS) + 1 + len(near)
    assert [*snapshot.names("s/runs/a/y")] == ["s/runs/a/y/z"]
    assert store.requests["list"] <= 2


def test_one_file_takes_one_read(store: Counted) -> None:
    assert Snapshot(store).read(f"s/state/{RUNS[7]}/1.succeeded.json") == RUNS[7].encode()
    assert store.requests["read"] == 1


def test_a_failing_file_does_not_disturb_others(store: Counted) -> None:
    store.broken = {f"s/state/{RUNS[9]}/1.succeeded.json"}
    snapshot, failed = Snapshot(store), 0
    for run in RUNS:
        try:
            assert snapshot.read(f"s/state/{run}/1.succeeded.json") == run.encode()
        except StoreError:
            failed += 1
            assert run == RUNS[9]
    assert failed == 1


def test_a_file_changed_since_the_listing_is_read_whole(store: Counted) -> None:
    snapshot = Snapshot(store)
    assert snapshot.exists("s/sweep.json")
    store.replace("s/sweep.json", b'{"longer": 1}')
    assert snapshot.read("s/sweep.json") == b'{"longer": 1}'


def test_large_files_are_not_read_ahead(store: Counted) -> None:
    for run in RUNS[:8]:
        store.replace(f"s/runs/{run}.1/metrics.jsonl", b"x" * ((1 << 20) + 1))
    snapshot = Snapshot(store)
    for run in RUNS[:8]:
        assert len(snapshot.read(f"s/runs/{run}.1/metrics.jsonl")) == (1 << 20) + 1
    assert store.requests["round"] == 0


def test_writes_through_the_snapshot_are_visible(store: Counted) -> None:
    snapshot = Snapshot(store)
    assert not snapshot.exists("s/report/report.md")
    snapshot.replace("s/report/report.md", b"new")
    assert snapshot.read("s/report/report.md") == b"new"
    assert "s/report/report.md" in snapshot.names("s")


def test_sweeps_that_are_expected_are_listed_and_read_at_once(store: Counted) -> None:
    names = [f"s{number}" for number in range(20)]
    for name in names:
        store.replace(f"{name}/sweep.json", name.encode())
    snapshot = Snapshot(store)
    assert {*snapshot.folders_with("sweep.json")} == {"s", *names}
    snapshot.expect(names)
    store.requests.clear()
    assert [snapshot.read(f"{name}/sweep.json") for name in names] == [n.encode() for n in names]
    assert store.requests["list"] == store.requests["read"] == len(names)
    assert store.requests["round"] < 10
    snapshot.replace("s3/sweep.json", b"new")
    assert snapshot.read("s3/sweep.json") == b"new"


def test_an_unlistable_sweep_does_not_disturb_others(store: Counted) -> None:
    names = [f"s{number}" for number in range(6)]
    for name in names:
        store.replace(f"{name}/sweep.json", name.encode())
    store.unlisted = {"s3"}
    snapshot = Snapshot(store)
    snapshot.expect(names)
    for name in names:
        if name == "s3":
            with pytest.raises(StoreError, match="SlowDown"):
                snapshot.read("s3/sweep.json")
        else:
            assert snapshot.read(f"{name}/sweep.json") == name.encode()


def test_contents_are_cached_until_the_file_changes(
    store: Counted, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = Folder(store.root, str(tmp_path_factory.mktemp("cache")))
    first = Contents(folder)
    snapshot = Snapshot(store, first)
    for run in RUNS:
        snapshot.read(f"s/state/{run}/1.succeeded.json")
    first.save()
    store.replace(f"s/state/{RUNS[3]}/1.succeeded.json", b"else")
    store.requests.clear()
    again = Snapshot(store, Contents(folder))
    contents = [again.read(f"s/state/{run}/1.succeeded.json") for run in RUNS]
    assert contents == [b"else" if run == RUNS[3] else run.encode() for run in RUNS]
    assert store.requests == {"list": 3, "round": 1, "read": 1}


@pytest.fixture
def sweep(store: Counted) -> SweepFolder:
    """Write a sweep of finished runs."""
    plan = (
        b'{"schema": 1, "name": "s", "metric": {"name": "x", "goal": "minimize"}, "recipe": {}, '
        b'"launch": {}, "axes": {}, "runs": [%s]}'
    )
    runs = b", ".join(
        b'{"id": "%s", "name": "%s", "cell": "c", "seed": null, "config": {}}'
        % (run.encode(), run.encode())
        for run in RUNS
    )
    store.replace("s/sweep.json", plan % runs)
    for run in RUNS:
        store.replace(f"s/state/{run}/1.succeeded.json", b'{"schema": 1, "wall_s": 2.0}')
        store.replace(f"s/runs/{run}.1/metrics.jsonl", b'{"step": 0, "x": 1.5}\n')
    store.requests.clear()
    return SweepFolder(store, "s")


def test_a_registry_by_snapshot_shows_the_same(sweep: SweepFolder) -> None:
    root = sweep.store.root
    by_snapshot = Registry(root, cache=False, snapshot=True).records("s")
    assert by_snapshot == Registry(root, cache=False).records("s")
    assert {record["value"] for record in by_snapshot} == {1.5}


def _read(store: Counted, folder: SweepFolder) -> set[bytes]:
    """Read the outcomes and metrics of all runs through a new snapshot."""
    store.requests.clear()
    snapshot = Snapshot(store)
    paths = [folder.event(run, 1, Event.SUCCEEDED) for run in RUNS]
    paths += [f"{folder.log_path(run, 1)}/metrics.jsonl" for run in RUNS]
    return {snapshot.read(path) for path in paths}


@pytest.mark.parametrize("given", [False, True])
def test_a_packed_sweep_is_opened_by_few_requests(
    store: Counted, sweep: SweepFolder, given: bool
) -> None:
    """`given`: the launcher that packs has read the outcomes already."""
    before = _read(store, sweep)
    assert store.requests["read"] == 2 * len(RUNS)
    paths = [sweep.event(run, 1, Event.SUCCEEDED) for run in RUNS]
    outcomes = {path: store.read(path) for path in paths} if given else {}
    store.requests.clear()
    pack_results(sweep, outcomes)
    assert not given or store.requests["read"] == len(RUNS)  # the metrics
    assert _read(store, sweep) == before
    assert sum(store.requests.values()) <= 5


def test_a_packed_file_that_changed_is_read_anew(store: Counted, sweep: SweepFolder) -> None:
    pack_results(sweep)
    path = sweep.event(RUNS[5], 1, Event.SUCCEEDED)
    store.replace(path, b'{"schema": 1, "wall_s": 3.0}')
    assert b'{"schema": 1, "wall_s": 3.0}' in _read(store, sweep)
    store.remove([path])
    with pytest.raises(NotFound):
        Snapshot(store).read(path)


def test_a_second_launcher_packs_only_what_is_new(store: Counted, sweep: SweepFolder) -> None:
    pack_results(sweep)
    store.replace(sweep.event(RUNS[5], 1, Event.SUCCEEDED), b"else")
    store.requests.clear()
    pack_results(sweep)
    assert store.requests["read"] <= 4
    assert b"else" in _read(store, sweep)
    assert store.requests["read"] <= 3


@pytest.mark.parametrize("data", [b"", b"[1, 2]\n", b'["state/x", 1', b"\xff\xfe", b"null\n"])
def test_a_damaged_pack_is_ignored(store: Counted, sweep: SweepFolder, data: bytes) -> None:
    before = _read(store, sweep)
    store.replace("s/packed.jsonl", data)
    assert _read(store, sweep) == before


def test_a_failing_store_is_not_packed(store: Counted, sweep: SweepFolder) -> None:
    store.broken = {sweep.event(RUNS[9], 1, Event.SUCCEEDED)}
    pack_results(sweep)
    assert not store.exists("s/packed.jsonl")


def test_few_files_and_local_ones_are_not_packed(store: Counted, tmp_path: Path) -> None:
    local = open_store(str(tmp_path))
    for place in (local, store):
        for run in RUNS[:20]:
            place.replace(f"few/state/{run}/1.succeeded.json", b"{}")
        pack_results(SweepFolder(place, "few"))
        assert not place.exists("few/packed.jsonl")
