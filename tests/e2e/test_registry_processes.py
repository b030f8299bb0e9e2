"""The registry with more than one process at work on its cache, and tinker-cookbook's readers."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.sources import Files
from sweeper.metrics.tables.reading import Reader
from sweeper.results import metrics_reader
from sweeper.results.registry import Registry
from sweeper.store.local import LocalStore

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
COOKBOOK = Path(os.environ.get("COOKBOOK_PYTHON") or ROOT / ".venv-cookbook" / "bin" / "python")
RUNS, STEPS = 40, 200


@pytest.fixture
def root(tmp_path: Path, written: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    sweep = written.Written(tmp_path / "root", "s")
    for number in range(RUNS):
        rows = [{"step": s, "a": s / 7 + number, f"k{s // 90}": float(s)} for s in range(STEPS)]
        sweep.run({"n": number}, 0, [*rows, {"step": STEPS, "a": "end"}])
    sweep.save()
    return tmp_path / "root"


def test_a_second_process_reads_the_other_half(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Registry(str(root), cache=False).metrics()
    monkeypatch.setattr(metrics_reader, "ENOUGH", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for keys in (None, ["a"]):
        frame = Registry(str(root)).metrics(keys=keys)
        assert frame.equals(alone if keys is None else alone[["run", "sweep", "root", "step", "a"]])
    shutil.rmtree(root.parent / "home")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert Registry(str(root)).metrics().equals(alone)


def test_what_the_second_process_reads_is_found(root: Path, tmp_path: Path) -> None:
    paths = [str(p.relative_to(root)) for p in sorted(root.glob("s/runs/*/metrics.jsonl"))]
    cache = str(tmp_path / "home" / "cache")
    request = {"root": str(root), "cache": cache, "prefix": "s/runs"}
    text = json.dumps({**request, "paths": paths, "rollouts": []})
    command = [sys.executable, "-m", "sweeper.metrics.tables.prefetch"]
    subprocess.run(command, input=text, text=True, check=True)
    reader, files = Reader(Folder(str(root), cache)), Files(LocalStore(str(root)), "s/runs")
    found = [reader.columns(files, path, ["a"]) for path in paths]
    assert [columns.rows for columns in found if columns is not None] == [STEPS + 1] * RUNS
    assert reader.parsed < STEPS  # but for files that changed just now, which are compared


def test_readers_agree_while_the_cache_is_removed_and_files_grow(root: Path) -> None:
    """Four processes read all the while; what each sees is some beginning of the truth."""
    code = (
        "import sys; from sweeper.results.registry import Registry\n"
        "for _ in range(12):\n"
        "    f = Registry(sys.argv[1]).metrics(keys=['grow'])\n"
        "    assert f['grow'].tolist() == [float(i) for i in range(len(f))], f['grow'].tolist()\n"
        "print(len(f))\n"
    )
    file = root / "alone" / "metrics.jsonl"
    file.parent.mkdir()
    file.write_text('{"step": 0, "grow": 0}\n')  # readers may have ended before the next line
    readers = [
        subprocess.Popen([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    done = threading.Event()

    def write() -> None:
        step = 1
        while not done.wait(0.002):
            with file.open("a") as stream:
                stream.write(f'{{"step": {step}, "gr')
                stream.flush()
                stream.write(f'ow": {step}}}\n')
            step += 1
            if step % 100 == 0:
                shutil.rmtree(root.parent / "home", ignore_errors=True)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for reader in readers:
            out, _ = reader.communicate(timeout=240)
            assert reader.returncode == 0 and int(out) > 0
    finally:
        done.set()
        writer.join()


def test_cookbook_s_registry_reads_our_runs_and_ours_a_folder_of_its_writer(
    tmp_path: Path, written: ModuleType
) -> None:
    if not COOKBOOK.exists():
        pytest.skip("tinker-cookbook is not installed: `make cookbook` gets it")
    sweep = written.Written(tmp_path / "root", "s")
    rows = [{"step": s, "loss": s / 3} for s in range(5)]
    run = sweep.run({"lr": 1}, 0, rows, checkpoints=written.checkpoint("c"))
    sweep.save()
    code = """
import json, sys
from tinker_cookbook.stores.registry import RunRegistry
from tinker_cookbook.stores.storage import storage_from_uri
from tinker_cookbook.stores.training_store import TrainingRunStore
from tinker_cookbook.utils import ml_log

registry = RunRegistry([storage_from_uri(sys.argv[1])])
[info] = registry.get_runs()
store = registry.get_training_store(info.run_id)
told = [info.run_id, info.has_metrics, store.read_metrics(), store.read_checkpoints()]
made = TrainingRunStore(storage_from_uri(sys.argv[2]), "deep/theirs")
made.write_config({"lr": 0.5, "nested": {"a": [1]}})
for step in range(3):
    made.write_metrics({"loss": float("nan") if step == 1 else step / 4}, step)
made.write_checkpoint({"name": "000002", "batch": 2, "final": True, "state_path": "p"})
made.write_rollouts(2, [{"iteration": 2, "group_idx": 0, "traj_idx": 1, "total_reward": 0.75,
                         "steps": [{"ob_len": 3, "ac_len": 4, "metrics": {}, "logs": {}}]}])
logger = ml_log.setup_logging(log_dir=sys.argv[2] + "/logged", config={"lr": 2})
logger.log_metrics({"loss": 8.0}, step=0)
logger.close()
print("TOLD" + json.dumps(told))
"""
    command = [
        str(COOKBOOK),
        "-c",
        code,
        str(tmp_path / "root" / "s" / "runs"),
        str(tmp_path / "x"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.rpartition("TOLD")[2])
    assert told == [f"{run}.1", True, rows, written.checkpoint("c")]
    registry = Registry(str(tmp_path / "x"), cache=str(tmp_path / "cache"))
    frame = registry.runs().set_index("name")
    assert set(frame.index) == {"theirs", "logged"}
    assert frame.loc["theirs", "state"] == "succeeded" and frame.loc["theirs", "lr"] == 0.5
    assert frame.loc["logged", "lr"] == 2
    losses = registry.sql("select loss from metrics where run in (select run from runs where name = 'theirs') order by step")  # fmt: skip  # noqa: E501
    assert str(losses["loss"].tolist()) == "[0.0, nan, 0.5]"
    assert registry.rollouts()["total_reward"].tolist() == [0.75]
    assert registry.checkpoints()["state_path"].tolist() == ["p"]
