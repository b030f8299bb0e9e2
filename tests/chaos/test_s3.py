"""A failing S3: some of the faults that `s3_faults.py` applies to every request, checked by the
ledger, exit codes and the output of `status` and `ls`. And workers' machines without room."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from harness.ledger import Verdict, judge, read_ledger
from harness.s3_proxy import FIRST, Fault, Proxy, apart
from harness.s3_world import NAME, STEPS, Trial, trials
from harness.small_disk import can_mount, small_disk

from sweeper.errors import StoreError
from sweeper.launcher.launching import pack_results
from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.cached_contents import Contents
from sweeper.results.sweeps import Sweep
from sweeper.store.base import FarStore
from sweeper.store.opening import open_store
from sweeper.store.snapshot import Snapshot
from sweeper.store.writable import probe
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import State

SOME = (
    Fault("cut", 29, 4, 97),
    Fault("late", 23, 1, 61),
    # The interval has more listings than a refused launch makes: otherwise each launch could get a
    # stale listing when it checks the store, and rightly refuse to start.
    Fault("stale", 4, 3, 23),
)


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="s3-") as folder:
        yield Path(folder)


def test_a_sweep_on_an_s3_that_goes_wrong(moto: str, short: Path) -> None:
    """Launched, taken over, cancelled, retried and looked at: replies and requests are lost, done
    late, or listings lag."""
    for result in trials(short, moto, SOME, abreast=3):
        assert result.good, (result.verdict, result.lies, result.fault)
        assert result.struck, result.fault


@pytest.mark.parametrize("kind", ["cut", "drop", "error"])
def test_a_probe_that_goes_wrong_blames_no_store(
    s3_root: str, kind: str, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost reply says nothing about whether a store creates exclusively: the probe's own file,
    created at the first try, is found at the second."""
    index, struck = 0, True
    while struck:
        index += 1
        proxy = Proxy(moto, Fault(kind, index))
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        store = open_store(s3_root)
        try:
            probe(store, "toys/launcher")
        except StoreError as error:
            assert "exclusively" not in str(error), index
        finally:
            proxy.close()
        struck = any(request.struck for request in proxy.requests)
    assert index > 6


def _read(root: str, cache: Path) -> tuple[list[object], list[str]]:
    """Read the runs of the finished sweep by a snapshot. Return their records and the errors."""
    errors: list[str] = []
    try:
        contents = Contents(Folder(root, str(cache)))
        folder = SweepFolder(Snapshot(cast(FarStore, open_store(root)), contents), NAME)
        sweep = Sweep(folder, None, lambda error: errors.append(str(error)))
        return [run.record() for run in sweep.runs], errors
    except StoreError as error:
        return [], [str(error)]


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("kind", ["cut", "drop", "error", "slowdown", "late"])
def test_results_are_packed_and_read_right_or_not_at_all(
    s3_root: str, kind: str, first: int, moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Any request of the packing or of a reader may be lost, refused or late: a reader that shows
    no error shows what was recorded."""
    store = open_store(s3_root)
    ids = [f"{number:012x}" for number in range(17)]
    runs = [{"id": run, "name": run, "cell": run, "seed": None, "config": {}} for run in ids]
    plan = {"schema": 1, "name": NAME, "metric": {"name": "x", "goal": "minimize"}}
    plan |= {"recipe": {}, "launch": {}, "axes": {}, "runs": runs}
    store.replace(f"{NAME}/sweep.json", json.dumps(plan).encode())
    for number, run in enumerate(ids):
        outcome = {"schema": 1, "wall_s": float(number)}
        store.replace(f"{NAME}/state/{run}/1.claimed.json", b"{}")
        store.replace(f"{NAME}/state/{run}/1.succeeded.json", json.dumps(outcome).encode())
        row = {"step": 0, "x": number}
        store.replace(f"{NAME}/runs/{run}.1/metrics.jsonl", json.dumps(row).encode() + b"\n")
    store.replace(f"{NAME}/launcher/1", b"{}")
    store.replace(f"{NAME}/launcher/1.released", b"")
    recorded, _ = _read(s3_root, tmp_path / "0")
    index, packed, strikes = first, 0, list[int]()
    while not strikes or strikes[-1]:
        store.remove([f"{NAME}/packed.jsonl"])
        proxy = Proxy(moto, Fault(kind, index, 4, 31))
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        pack_results(SweepFolder(open_store(s3_root), NAME))
        for _ in range(2):
            shown, errors = _read(s3_root, tmp_path / str(index))
            assert errors or shown == recorded, index
        proxy.close()
        monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
        for cache in (str(index), "new"):
            assert _read(s3_root, tmp_path / cache) == (recorded, []), index
        packed += store.exists(f"{NAME}/packed.jsonl")
        strikes.append(sum(request.struck for request in proxy.requests))
        index += apart(7)
    print(f"\n{kind}: {len(strikes)} stories, {sum(strikes)} requests struck, none wrong")
    assert packed
    assert index > 34


def test_an_s3_that_refuses_is_told_by_its_own_word(
    s3_root: str, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(moto, Fault("error", 1, 99))
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
    with pytest.raises(StoreError, match=r"/toys/sweep\.json: InternalError: injected"):
        open_store(s3_root).replace("toys/sweep.json", b"{}")
    proxy.close()


def _ended(trial: Trial) -> int:
    """Return how many runs have succeeded."""
    states = SweepFolder(open_store(trial.root), NAME).read_states().values()
    return sum(state.state is State.SUCCEEDED for state in states)


@pytest.mark.parametrize("lacks", ["bytes", "inodes"])
def test_the_spool_has_no_room(moto: str, short: Path, tmp_path: Path, lacks: str) -> None:
    """A worker whose machine has no room for its recipe's files ends with that reason, which is
    not the run's fault: the run is started again until there is room. Data written when there is
    no room left still reach the store."""
    if not can_mount(tmp_path):
        pytest.skip("small file systems can be mounted by root only")

    def story(trial: Trial) -> Verdict:
        spool, grid = trial.folder / "home" / "spool", trial.folder / "grid.yaml"
        grid.write_text(grid.read_text().replace("first:fail", "say-done"))
        with small_disk(spool, lacks) as disk:
            disk.fill()
            pid, out = trial.launch(
                lambda: "start again" in "".join(trial.log()), "a run without room"
            )
            shown, reasons = "", set[str]()

            def reports_no_room() -> bool:
                """Return whether a waiting run has a reason. While all are being started again,
                none has one."""
                nonlocal shown, reasons
                _, shown, _ = trial.run("status", NAME, "--json")
                reasons = {run["reason"] for run in json.loads(shown)["runs"] if run["reason"]}
                return bool(reasons)

            trial.until(reports_no_room, "a run that has ended to be told of")
            if reasons != {"limit"} or "No space" not in shown:
                trial.lies.append(f"status says {shown}")
            disk.free()
            # Wait for the others: a recipe that is just writing would rightly fail by itself.
            trial.until(lambda: trial.rows("waits") and _ended(trial) == 2, "all but one to end")
            disk.fill()
            Path(f"{trial.ledger}.go").touch()
            code, _, errors = trial.ended(pid, out)
            if code:
                trial.lies.append(f"launch ended with {code}: {errors}")
        return judge(open_store(trial.root), NAME, read_ledger(trial.ledger), STEPS)

    (result,) = trials(short, moto, [None], 1, story)
    assert result.good, (result.verdict, result.lies)
