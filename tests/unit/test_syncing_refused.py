"""A remote store that answers but refuses some files for good."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.errors import StoreError
from sweeper.store.base import Store
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event
from sweeper.worker import spool as spooling
from sweeper.worker import syncing as syncing_module
from sweeper.worker.outcome import Ending, judge
from sweeper.worker.syncing import Sync, Syncing

Begin = Callable[..., tuple[SweepFolder, Sync, Syncing]]
RUN, OTHER = "0123456789ab", "ba9876543210"


class Refusing(LocalStore):
    """A local folder that claims to be remote, and refuses paths that contain one of `words`."""

    is_remote = True
    words: tuple[str, ...] = ()

    def local_path(self, path: str) -> None:  # type: ignore[override]
        return None

    def upload(self, path: str, source: str) -> None:
        self._look(path)
        super().upload(path, source)

    def create(self, path: str, data: bytes) -> None:
        self._look(path)
        super().create(path, data)

    def exists(self, path: str) -> bool:
        self._look(path)
        return super().exists(path)

    def _look(self, path: str) -> None:
        if any(word in path for word in self.words):
            raise StoreError(f"{path}: not allowed")


@pytest.fixture
def remote(tmp_path: Path, no_sync: None) -> Refusing:
    store = Refusing(str(tmp_path / "store"))
    store.create("s/sweep.json", b"{}")
    return store


@pytest.fixture
def begin(remote: Refusing, tmp_path: Path) -> Begin:
    """Return a function that begins an attempt with several files whose worker is dead."""

    def begin(run: str = RUN) -> tuple[SweepFolder, Sync, Syncing]:
        sweep = SweepFolder(remote, "s")
        spool = spooling.arrange(sweep, run, 1, str(tmp_path / "home"), resume=True)
        folder = Path(spool.store.root, spool.log_path(run, 1))
        folder.mkdir(parents=True)
        for name in ("a.png", "b.png", "c.png"):
            (folder / name).write_text("plot")
        (folder / "metrics.jsonl").write_text('{"step": 0}\n')
        (folder / "checkpoints.jsonl").write_text('{"name": "0"}\n')
        Path(spool.store.root, "s", "unsynced", f"{run}.1").touch()
        sync = Sync(remote, spool, run, 1, fresh=True)

        def forget(succeeded: bool) -> None:
            spooling.discard(spool, run, 1, all_of_it=succeeded)

        return spool, sync, Syncing(sync, 60.0, print, forget, first_wait=0.001)

    return begin


def _names(store: Store) -> set[str]:
    return {path.rpartition("/")[2] for path in store.names("s/runs")}


ALL = {"a.png", "b.png", "c.png", "metrics.jsonl", "checkpoints.jsonl"}


def test_a_refused_file_does_not_hold_up_others(remote: Refusing, begin: Begin) -> None:
    remote.words = (".png",)
    _, sync, _ = begin()
    for _ in range(3):  # three failures in a row may be an outage; untried files then come first
        with pytest.raises(StoreError, match=r"a\.png: not allowed"):
            sync.finish()
    assert _names(remote) == {"metrics.jsonl"}  # a checkpoint comes only after all other files
    assert sync.missing is not None
    assert sync.missing.endswith("a.png: not allowed (and 2 more files)")
    with pytest.raises(StoreError):
        sync.finish(whatever=True)
    assert _names(remote) == {"metrics.jsonl", "checkpoints.jsonl"}
    remote.words = ()
    sync.finish()
    assert (_names(remote), sync.missing) == (ALL, None)


def test_a_refused_file_does_not_hold_up_others_during_the_run(
    remote: Refusing, begin: Begin
) -> None:
    remote.words = ("a.png",)
    _, sync, _ = begin()
    sync.step()  # no file counts as unchanged yet
    for _ in range(2):
        with pytest.raises(StoreError):
            sync.step()
    assert _names(remote) == {"b.png", "c.png", "0"}


def test_refused_files_are_given_up_after_a_while(remote: Refusing, begin: Begin) -> None:
    remote.words = ("a.png",)
    spool, _, syncing = begin()
    clock = itertools.count(step=syncing_module.REFUSED_SECONDS / 3)
    problem = syncing.finish(lambda: True, 0.01, clock=lambda: float(next(clock)))
    assert problem.endswith("a.png: not allowed")
    assert _names(remote) == ALL - {"a.png"}
    syncing.forget(succeeded=True)
    assert spooling.abandoned(spool) == (0, 1)
    assert _names(spool.store) == ALL


def test_an_outage_at_the_end_is_waited_out(remote: Refusing, begin: Begin) -> None:
    remote.words = ("s/",)
    spool, _, syncing = begin()
    clock = itertools.count(step=syncing_module.REFUSED_SECONDS)
    beats: list[bool] = []

    def beat() -> bool:
        beats.append(False)
        remote.words = remote.words if len(beats) < 9 else ()
        return False

    assert syncing.finish(beat, 0.001, clock=lambda: float(next(clock))) is None
    syncing.forget(succeeded=True)
    assert _names(remote) == ALL
    assert _names(spool.store) == set()


def test_a_cancelled_run_does_not_wait_for_refused_files(remote: Refusing, begin: Begin) -> None:
    remote.words = ("a.png",)
    spool, _, syncing = begin()
    problem = syncing.finish(lambda: True, 0.01, lambda: True)
    assert problem.endswith("a.png: not allowed")
    syncing.forget(succeeded=False)
    assert spooling.abandoned(spool) == (0, 1)


def test_a_cancel_during_an_outage_loses_nothing(remote: Refusing, begin: Begin) -> None:
    remote.words = ("s/",)
    _, _, syncing = begin()
    beats: list[bool] = []

    def beat() -> bool:
        beats.append(len(beats) > 5)
        remote.words = () if beats[-1] else remote.words
        return beats[-1]

    assert syncing.finish(beat, 0.02, lambda: True) is None
    assert _names(remote) == ALL


def test_a_refused_file_of_a_dead_worker_does_not_hold_up_others(
    remote: Refusing, begin: Begin, tmp_path: Path
) -> None:
    spool, *_ = begin()
    begin(OTHER)
    remote.words = (f"{RUN}.1/a.png",)
    lines: list[str] = []
    assert spooling.recover(remote, spool, tell=lines.append) == 1
    assert len(lines) == 1
    where = spool.store.root
    there = f"has files in {where} that are not in the store: "
    assert lines[0].startswith(f"s: attempt 1 of run {RUN} {there}")
    folder = SweepFolder(remote, "s")
    spooling.arrange(folder, RUN, 2, str(tmp_path / "home"), resume=True)  # attempt 2 can start
    remote.words = ("s/",)
    with pytest.raises(StoreError):
        spooling.recover(remote, spool)
    remote.words = ()
    assert spooling.recover(remote, spool) == 1


@pytest.mark.parametrize(
    ("ending", "event"),
    [
        (Ending(0, True, unsynced="x"), Event.SUCCEEDED),
        (Ending(0, True, unsynced="x", cancelled=True), Event.CANCELLED),
        (Ending(1, None, unsynced="x"), Event.FAILED),
        (Ending(1, None, unsynced="x", timeout_s=1.0), Event.FAILED),
    ],
)
def test_the_outcome_names_files_missing_in_the_store(ending: Ending, event: Event) -> None:
    outcome = judge(ending)
    assert (outcome["event"], outcome.get("unsynced")) == (event, "x")
    assert str(outcome["detail"]).endswith("stored on this machine but not in the store: x")
    assert "unsynced" not in judge(ending._replace(unsynced=None))
