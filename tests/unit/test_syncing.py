"""From the spool into a store: each byte once in parts and once whole, despite faults."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.errors import StoreError
from sweeper.metrics.sources import Files
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.testing import Fault, Faults, FaultyStore, Killed
from sweeper.worker import spool as spooling
from sweeper.worker.syncing import Sync, Syncing, contiguous

RUN = "0123456789ab"
FOLDER = f"s/runs/{RUN}.1"
LOG = f"s/attempts/{RUN}.1/stdout.log"
METRICS = f"{FOLDER}/metrics.jsonl"


pytestmark = pytest.mark.usefixtures("no_sync")


class Recipe:
    """A stand-in for a recipe that writes into a spool."""

    def __init__(self, tmp_path: Path) -> None:
        self.store = LocalStore(str(tmp_path / "store"))
        self.spool = LocalStore(str(tmp_path / "spool"))
        self.folder = tmp_path / "spool" / FOLDER
        self.folder.mkdir(parents=True)
        self.step = 0

    def steps(self, count: int) -> None:
        with (self.folder / "metrics.jsonl").open("a") as file:
            for _ in range(count):
                file.write(json.dumps({"step": self.step, "loss": 1 / (1 + self.step)}) + "\n")
                self.step += 1
        self.spool.append(LOG, b"step\r")

    def checkpoint(self) -> None:
        with (self.folder / "checkpoints.jsonl").open("a") as file:
            file.write(json.dumps({"name": str(self.step), "batch": self.step}) + "\n")

    def rollouts(self) -> None:
        folder = self.folder / f"iteration_{self.step:06d}"
        folder.mkdir()
        (folder / "train_rollout_summaries.jsonl").write_text('{"iteration": 1}\n' * 50)

    def sync(self, *, fresh: bool = True, store: object = None) -> Sync:
        return Sync(store or self.store, SweepFolder(self.spool, "s"), RUN, 1, fresh=fresh)  # type: ignore[arg-type]

    def written(self) -> dict[str, bytes]:
        root = Path(self.spool.root)
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}

    def arrived(self) -> dict[str, bytes]:
        return {path: self.store.read(path) for path in self.store.names("s")}

    def readable(self) -> list[int]:
        """Return the steps that a reader finds now."""
        source = Files(self.store, "s/runs").source(METRICS)
        lines = [] if source is None else source.read(0)[1].splitlines()
        return [json.loads(line)["step"] for line in lines]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return Recipe(tmp_path)


class Counting:
    """A store that counts its calls, its reads, and the uploaded bytes."""

    def __init__(self, store: LocalStore) -> None:
        self.up, self.down, self.calls = 0, 0, 0
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            self.calls += 1
            if name in ("create", "replace"):
                self.up += len(arguments[1])  # type: ignore[arg-type]
            elif name == "upload":
                self.up += os.stat(arguments[1]).st_size  # type: ignore[call-overload]
            elif name in ("read", "read_range"):
                self.down += 1
            return getattr(self._store, name)(*arguments)

        return call


def test_each_byte_is_uploaded_at_most_twice(recipe: Recipe) -> None:
    counting = Counting(recipe.store)
    sync = recipe.sync(store=counting)
    (recipe.folder / "config.json").write_text("{}")
    for turn in range(60):
        recipe.steps(10)
        if turn % 20 == 0:
            recipe.checkpoint()
            recipe.rollouts()
        sync.step()
        assert recipe.readable() == list(range(recipe.step))
    assert METRICS not in recipe.arrived()
    assert sync.parts >= 60
    sync.finish()
    written = recipe.written()
    assert recipe.arrived() == written
    assert counting.up <= 2 * sum(map(len, written.values()))
    assert counting.down == 0
    calls = counting.calls
    sync.finish()
    assert counting.calls == calls  # nothing is left to do


def test_half_a_line_of_metrics_waits_but_not_of_a_log(recipe: Recipe) -> None:
    sync = recipe.sync()
    (recipe.folder / "metrics.jsonl").write_text('{"step": 0}\n{"st')
    recipe.spool.append(LOG, b"50%\r60")
    sync.step()
    assert recipe.arrived()[f"{METRICS}.parts/0"] == b'{"step": 0}\n'
    assert recipe.arrived()[f"{LOG}.parts/0"] == b"50%\r60"
    sync.finish()
    assert recipe.arrived()[METRICS] == b'{"step": 0}\n{"st'


def test_a_checkpoint_is_uploaded_after_its_metrics(recipe: Recipe) -> None:
    faults = Faults()
    sync = recipe.sync(store=FaultyStore(recipe.store, faults))
    recipe.steps(3)
    recipe.checkpoint()
    recipe.rollouts()
    sync.step()
    sync.step()
    made = [call.split()[1] for call in faults.calls if call.startswith("store.create")]
    assert made[-1] == f"{FOLDER}/checkpoints.jsonl.parts/0"
    assert f"{METRICS}.parts/0" in made[:-1]


def test_other_files_are_uploaded_once_unchanged(recipe: Recipe) -> None:
    sync = recipe.sync()
    path = f"{FOLDER}/config.json"
    (recipe.folder / "config.json").write_text("{")
    sync.step()
    assert path not in recipe.arrived()
    (recipe.folder / "config.json").write_text('{"a": 1}')
    sync.step()
    sync.step()
    assert recipe.arrived()[path] == b'{"a": 1}'
    (recipe.folder / "config.json").write_text('{"a": 2}')
    sync.finish()
    assert recipe.arrived()[path] == b'{"a": 2}'


@pytest.mark.parametrize("how", ["shorter", "longer", "another file"])
def test_a_rewritten_file_replaces_the_uploaded_one(recipe: Recipe, how: str) -> None:
    sync = recipe.sync()
    recipe.steps(20)
    sync.step()
    new = "".join(f'{{"step": {n}, "again": 1}}\n' for n in range(3 if how == "shorter" else 90))
    if how == "another file":
        (recipe.folder / "new").write_text(new)
        (recipe.folder / "new").rename(recipe.folder / "metrics.jsonl")
    else:
        (recipe.folder / "metrics.jsonl").write_text(new)
    for _ in range(3):
        sync.step()
    assert recipe.arrived()[METRICS] == new.encode()
    sync.finish()
    assert recipe.arrived()[METRICS] == new.encode()
    assert not [path for path in recipe.arrived() if ".parts/" in path]


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REPLY, Fault.TWICE, Fault.KILL_AFTER])
def test_a_sync_interrupted_at_any_call_is_completed(tmp_path: Path, fault: Fault) -> None:
    struck = 0
    for number in range(1, 200):
        recipe = Recipe(tmp_path / str(number))
        recipe.rollouts()
        faults = Faults({number: fault})
        sync = recipe.sync(store=FaultyStore(recipe.store, faults))
        for _ in range(4):
            recipe.steps(5)
            recipe.checkpoint()
            try:
                sync.step()
            except StoreError:
                pass
            except Killed:  # a new sync continues without knowing what was sent
                sync = recipe.sync(fresh=False)
                continue
            seen = recipe.readable()
            assert seen == list(range(len(seen)))
        try:
            sync.finish()
        except (StoreError, Killed):
            sync = recipe.sync(fresh=False)
            sync.finish()
        assert recipe.arrived() == recipe.written()
        assert recipe.readable() == list(range(20))
        if not faults.struck:
            break
        struck += 1
    assert struck >= 12


def test_two_syncs_of_one_attempt_agree(recipe: Recipe) -> None:
    first, second = recipe.sync(), recipe.sync(fresh=False)
    for turn in range(12):
        recipe.steps(3)
        (first, second)[turn % 2].step()
        if turn % 3 == 0:
            (second, first)[turn % 2].step()
        assert recipe.readable() == list(range(recipe.step))
    second.finish()
    first.finish()
    assert recipe.arrived() == recipe.written()


def test_finish_ends_though_a_process_continues_to_write(recipe: Recipe) -> None:
    ending = list[bool]()

    class Meanwhile(LocalStore):
        def upload(self, path: str, source: str) -> None:
            super().upload(path, source)
            if ending:
                recipe.steps(1)

    recipe.steps(3)
    sync = recipe.sync(store=Meanwhile(recipe.store.root))
    sync.step()
    ending.append(True)
    sync.finish()
    assert recipe.readable() == list(range(len(recipe.readable())))
    assert len(recipe.readable()) >= 3


def test_unreadable_files_are_left_and_reported(recipe: Recipe) -> None:
    recipe.steps(2)
    (recipe.folder / os.fsdecode(b"n\xff.bin")).write_bytes(b"1")
    (recipe.folder / "gone").symlink_to("nowhere")
    sync = recipe.sync()
    for _ in range(2):
        sync.step()
    sync.finish()
    assert len(sync.trouble) == 1
    assert METRICS in recipe.arrived()


def test_a_long_outage_loses_nothing(recipe: Recipe) -> None:
    down = threading.Event()
    down.set()
    tried = threading.Event()

    def choose(number: int, what: str) -> Fault | None:
        if down.is_set():
            tried.set()
            return Fault.FAIL
        return None

    lines: list[str] = []
    sync = recipe.sync(store=FaultyStore(recipe.store, Faults(choose)))
    syncing = Syncing(sync, 0.001, lines.append, first_wait=0.01)
    recipe.steps(5)
    syncing.start()
    assert tried.wait(30)
    recipe.steps(500)
    assert recipe.arrived() == {}
    beats: list[int] = []

    def beat() -> bool:
        beats.append(1)
        if len(beats) == 3:
            down.clear()
        return False

    assert syncing.finish(beat, 0.01) is None
    assert recipe.arrived() == recipe.written()
    assert "not synced yet" in lines[0]


def test_parts_behind_a_gap_are_ignored() -> None:
    sizes = {"f/0": 5, "f/5": 5, "f/12": 3, "f/3": 4, "f/x": 9, "g/10": 2}
    assert contiguous("f", sizes) == [(0, "f/0", 5), (3, "f/3", 4), (5, "f/5", 5)]


# The spool


class Remote(LocalStore):
    """A local folder that claims to be remote."""

    is_remote = True

    def local_path(self, path: str) -> None:  # type: ignore[override]
        return None


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    store = Remote(str(tmp_path / "elsewhere"))
    store.create("s/sweep.json", b"{}")
    return store


def _attempt(remote: Remote, home: str, attempt: int) -> tuple[SweepFolder, Syncing, Path]:
    spool = spooling.arrange(SweepFolder(remote, "s"), RUN, attempt, home, resume=True)
    spooled = spooling.Spooled(remote, spool, RUN, attempt)
    syncing = spooling.start_syncing(spooled, 60.0, print)
    folder = Path(spool.store.root, spool.log_path(RUN, attempt))
    folder.mkdir(parents=True, exist_ok=True)
    return spool, syncing, folder


def _write(folder: Path, count: int) -> None:
    (folder / "metrics.jsonl").write_text("".join(f'{{"step": {n}}}\n' for n in range(count)))
    (folder / "checkpoints.jsonl").write_text('{"name": "1", "batch": 1}\n')


def test_files_of_a_dead_worker_are_recovered(remote: Remote, tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    spool, syncing, folder = _attempt(remote, home, 1)
    _write(folder, 9)
    assert spooling.recover(remote, spool) == 0  # the worker is alive
    del syncing
    _let_go(spool)
    assert [names for _, _, names in spooling.spools(home)] == [["s"]]
    assert spooling.recover(remote, spool) == 1
    assert remote.read(METRICS).count(b"\n") == 9
    assert spooling.recover(remote, spool) == 0
    spooling.tidy(spool)
    assert not folder.exists()


def test_files_of_a_dead_worker_do_not_recreate_a_deleted_sweep(
    remote: Remote, tmp_path: Path
) -> None:
    spool, syncing, folder = _attempt(remote, str(tmp_path / "home"), 1)
    _write(folder, 9)
    del syncing
    _let_go(spool)
    remote.remove(["s/sweep.json"])
    lines: list[str] = []
    assert spooling.recover(remote, spool, tell=lines.append) == 0
    assert len(lines) == 1 and "was removed" in lines[0]
    assert list(remote.names("s")) == []
    assert folder.exists()


def _let_go(spool: SweepFolder) -> None:
    """Close the lock of the worker, as the kernel does when the worker dies."""
    mark = os.stat(Path(spool.store.root, f"s/unsynced/{RUN}.1"))
    for descriptor in range(3, 256):
        try:
            status = os.fstat(descriptor)
        except OSError:
            continue
        if (status.st_ino, status.st_dev) == (mark.st_ino, mark.st_dev):
            os.close(descriptor)


@pytest.mark.parametrize("whole", [True, False])
def test_an_attempt_on_another_machine_starts_from_the_store(
    remote: Remote, tmp_path: Path, whole: bool
) -> None:
    spool, syncing, folder = _attempt(remote, str(tmp_path / "one"), 1)
    _write(folder, 9)
    if whole:
        syncing.finish(lambda: True, 1.0)
        syncing.forget(succeeded=False)
        assert folder.exists()  # the next attempt here starts from it
    else:
        Sync(remote, spool, RUN, 1, fresh=True).step()
    other, _, _ = _attempt(remote, str(tmp_path / "two"), 2)
    fetched = Path(other.store.root, FOLDER)
    assert (fetched / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    assert (fetched / "checkpoints.jsonl").exists()


def test_a_successful_run_leaves_no_copies(remote: Remote, tmp_path: Path) -> None:
    _, syncing, folder = _attempt(remote, str(tmp_path / "home"), 1)
    _write(folder, 3)
    syncing.forget(succeeded=True)
    assert folder.exists()  # the files are not in the store yet
    syncing.finish(lambda: True, 1.0)
    syncing.forget(succeeded=True)
    assert not folder.exists()
    assert list(remote.names(FOLDER))
