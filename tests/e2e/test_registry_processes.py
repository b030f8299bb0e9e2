"""The registry with several processes using its cache, and tinker-cookbook's readers."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import written

from sweeper.results.registry import Registry

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
COOKBOOK = Path(os.environ.get("COOKBOOK_PYTHON") or ROOT / ".venv-cookbook" / "bin" / "python")
RUNS, STEPS = 40, 200


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    sweep = written.Written(tmp_path / "root", "s")
    for number in range(RUNS):
        rows = [{"step": s, "a": s / 7 + number, f"k{s // 90}": float(s)} for s in range(STEPS)]
        sweep.run({"n": number}, 0, [*rows, {"step": STEPS, "a": "end"}])
    sweep.save()
    return tmp_path / "root"


def test_readers_agree_while_the_cache_is_removed_and_files_grow(root: Path) -> None:
    """Four processes read at the same time. Each sees the first part of the data."""
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


def test_cookbook_s_registry_reads_our_runs_and_ours_a_folder_of_its_writer(tmp_path: Path) -> None:
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
    document = json.loads(done.stdout.rpartition("TOLD")[2])
    assert document == [f"{run}.1", True, rows, written.checkpoint("c")]
    registry = Registry(str(tmp_path / "x"), cache=str(tmp_path / "cache"))
    frame = registry.runs().set_index("name")
    assert set(frame.index) == {"theirs", "logged"}
    assert frame.loc["theirs", "state"] == "succeeded" and frame.loc["theirs", "lr"] == 0.5
    assert frame.loc["logged", "lr"] == 2
    losses = registry.sql("select loss from metrics where run in (select run from runs where name = 'theirs') order by step")  # fmt: skip  # noqa: E501
    assert str(losses["loss"].tolist()) == "[0.0, nan, 0.5]"
    assert registry.rollouts()["total_reward"].tolist() == [0.75]
    assert registry.checkpoints()["state_path"].tolist() == ["p"]
