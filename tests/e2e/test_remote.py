"""Sweeps on moto's S3 over HTTP: launched, killed, resumed elsewhere, analysed."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support import shell as shells

from sweeper import analysis
from sweeper.results.registry import Registry
from sweeper.store.opening import open_store

pytestmark = pytest.mark.e2e
RESUMES = """
import json, os, time
import chz

@chz.chz
class Config:
    log_path: str
    ledger: str
    learning_rate: float = 0.1
    seconds: float = 1.0
    hold: str = ""
    behavior_if_log_dir_exists: str = "ask"

def lines(path):
    return open(path).read().splitlines() if os.path.exists(path) else []

def main(config: Config) -> None:
    metrics = os.path.join(config.log_path, "metrics.jsonl")
    checkpoints = os.path.join(config.log_path, "checkpoints.jsonl")
    start = max([json.loads(line)["batch"] for line in lines(checkpoints)], default=0)
    assert [json.loads(line)["step"] for line in lines(metrics)][:start] == list(range(start))
    with open(os.path.join(config.log_path, "config.json"), "w") as file:
        json.dump({"learning_rate": config.learning_rate}, file)
    for step in range(start, 20):
        print(f"step {step}", flush=True)
        with open(config.ledger, "a") as file:
            print(os.environ["SWEEPER_RUN"], os.environ["SWEEPER_ATTEMPT"], step, file=file)
        with open(metrics, "a") as file:
            print(json.dumps({"step": step, "loss": config.learning_rate / (1 + step)}), file=file)
        if step % 5 == 4:
            folder = os.path.join(config.log_path, f"iteration_{step:06d}")
            os.makedirs(folder, exist_ok=True)
            summary = {"iteration": step, "group_idx": 0, "traj_idx": 0, "total_reward": 1.0}
            with open(os.path.join(folder, "train_rollout_summaries.jsonl"), "w") as file:
                print(json.dumps(summary), file=file)
            with open(checkpoints, "a") as file:
                name = "final" if step == 19 else f"{step + 1:06d}"
                print(json.dumps({"name": name, "batch": step + 1, "state_path": "x"}), file=file)
        while step == 14 and config.hold and os.path.exists(config.hold):
            time.sleep(0.05)
        time.sleep(config.seconds / 20)

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""
GRID = """
name: toys
recipe: toy.py
service: none
base: {{ledger: {ledger}, hold: {hold}}}
grid: {{learning_rate: [0.1, 0.3]}}
metric: {{name: loss, goal: minimize}}
launch: {{backend: {backend}, max_parallel: 2, sync: 1s, retries: 1, lease: 15s}}
"""


def _shell(folder: Path, backend: str, root: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SWEEPER_ROOT", root)
    shell = shells.Shell(folder, backend)
    (folder / "toy.py").write_text(RESUMES)
    grid = GRID.format(ledger=shell.ledger, hold=shell.hold, backend=backend)
    (folder / "grid.yaml").write_text(grid)
    return shell


def _steps(root: str) -> dict[str, list[int]]:
    """Return the steps of each run for a reader without a cache."""
    registry = Registry(root, cache=False)
    metrics = registry.metrics(registry.runs(sweep="toys"))
    return {str(run): sorted(rows["step"]) for run, rows in metrics.groupby("run")}


def _keys(root: str) -> list[str]:
    return sorted(open_store(root).names("toys"))


@pytest.fixture
def local(tmp_path: Path, s3_root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a folder with the toy above. Its sweeps are on S3 and use the local backend."""
    shell = _shell(tmp_path, "local", s3_root, monkeypatch)
    yield shell
    shell.hold.unlink(missing_ok=True)


def test_a_sweep_from_start_to_end(local: Any, s3_root: str) -> None:
    shell = local
    assert "2 to start" in shell.run("plan", "grid.yaml")
    assert _keys(s3_root) == []  # a plan leaves nothing behind
    assert "2/2 succeeded" in shell.run("launch", "grid.yaml", "--wait")
    assert shell.states() == {"succeeded": 2}
    assert list(_steps(s3_root).values()) == [list(range(20))] * 2
    listed = json.loads(shell.run("ls", "toys", "--json"))
    assert [run["value"] for run in listed["runs"]] == [0.1 / 20, 0.3 / 20]
    log = "".join(f"step {step}\n" for step in range(20))
    assert shell.run("logs", "toys/lr=0.1") == log
    assert shell.run("logs", "toys/lr=0.1", "--follow") == log
    assert "0 to start, 2 succeeded" in shell.run("plan", "grid.yaml")
    keys = _keys(s3_root)
    assert not [key for key in keys if ".parts/" in key or "probe" in key]
    assert sum(key.endswith("_summaries.jsonl") for key in keys) == 8
    report = analysis.analyze(s3_root, "toys")
    assert report.html_path == f"{s3_root}/toys/report/report.html"
    assert "toys/report/report.html" in _keys(s3_root)
    for verb in (
        ["show", "toys/lr=0.1"],
        ["compare", "toys"],
        ["sql", "select count(*) from metrics"],
        ["store", "gc", "toys"],
    ):
        assert shell.run(*verb)
    # Listings cached by earlier verbs are not stale.
    shell.run("note", "toys/lr=0.1", "the better rate")
    assert "the better rate" in shell.run("show", "toys/lr=0.1")
    shell.run("retry", "toys", "lr=0.1", "--state", "succeeded", "--wait")
    listed = json.loads(shell.run("ls", "toys", "--json"))
    assert [(run["state"], run["attempts"]) for run in listed["runs"]] == [
        ("succeeded", 2),
        ("succeeded", 1),
    ]
    # No secret has reached the store, and nothing of the runs is left on this machine.
    store = open_store(s3_root)
    assert not [key for key in _keys(s3_root) if b"testing-secret" in store.read(key)]
    spool = shell.folder / "home" / "spool"
    # A worker cleans up after it has recorded its outcome.
    shell.until(lambda: [name for _, _, names in os.walk(spool) for name in names] == ["root"])


def test_detached_followed_and_cancelled(
    tmp_path: Path,
    tmux_socket: str,
    s3_root: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = _shell(tmp_path, "tmux", s3_root, monkeypatch)
    # An earlier tmux server, whose environment has no access to the store.
    bare = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    keep = ["tmux", "-L", tmux_socket, "new-session", "-d", "-s", "keep", "sleep 600"]
    subprocess.run(keep, env=bare, check=True)
    shell.run("launch", "grid.yaml", "seconds=600")
    shell.until_states({"running": 2})
    shell.until(lambda: len(_steps(s3_root)) == 2)  # while they run
    shell.until(lambda: "step 0" in shell.run("logs", "toys/lr=0.1"))
    again = shell.run("launch", "grid.yaml", "seconds=600")
    assert "the running launcher continues the sweep" in again
    assert "2 cancelled" in shell.run("cancel", "toys")
    executed = Counter(run for run, _, _ in shell.executed())
    assert {run: len(steps) for run, steps in _steps(s3_root).items()} == executed
    assert not [key for key in _keys(s3_root) if ".parts/" in key]


def test_output_is_followed_while_it_comes_in_parts(local: Any) -> None:
    local.run("launch", "grid.yaml", "seconds=6", "launch.sync=1s")
    lines = local.run("logs", "-f", "toys").splitlines()
    for rate in ("0.1", "0.3"):
        mine = [line.partition(" | ")[2] for line in lines if line.startswith(f"lr={rate} ")]
        assert mine == [f"step {step}" for step in range(20)]
    assert len(lines) == 40


@pytest.fixture
def killed(local: Any, s3_root: str) -> Any:
    """Return a half-done sweep with checkpoints. Its launcher and workers were killed."""
    shell = local
    shell.hold.touch()
    launcher = shell.start("launch", "grid.yaml", "seconds=8", "--wait")
    shell.until(lambda: _all_are_past(shell, 8))
    shell.until(lambda: len(_with_checkpoints(s3_root)) == 2)
    launcher.kill()
    launcher.communicate()
    for process in _workers(s3_root):
        with suppress(ProcessLookupError):  # a guard ends with its worker
            os.kill(process, signal.SIGKILL)
    shell.hold.unlink()
    return shell


def _with_checkpoints(root: str) -> set[str]:
    """Return the attempts with a checkpoint in the store."""
    return {key.split("/")[2] for key in _keys(root) if "/checkpoints.jsonl" in key}


def _all_are_past(shell: Any, steps: int) -> bool:
    """Return whether both runs have executed more than `steps` steps."""
    done = Counter(run for run, _, _ in shell.executed())
    return len(done) == 2 and min(done.values()) > steps


def _workers(root: str) -> list[int]:
    """Return the workers of this test's sweep."""
    workers: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sweeper.worker.main" in arguments and f"{root}/toys".encode() in arguments:
            workers.append(int(folder.name))
    return workers


def test_killed_and_resumed_on_another_machine(killed: Any, s3_root: str, tmp_path: Path) -> None:
    """Another folder and another home, without spool and cache."""
    before = killed.executed()
    other = tmp_path / "other"
    other.mkdir()
    for name in ("toy.py", "grid.yaml"):
        shutil.copy(killed.folder / name, other)
    # Both machines belong to one user, so they have the same identity.
    killed.environment["SWEEPER_IDENTITY"] = (killed.folder / "home" / "identity").read_text()
    killed.environment["SWEEPER_HOME"] = str(other / "home")
    first, killed.folder = killed.folder, other
    assert "2/2 succeeded" in killed.run("launch", "grid.yaml", "seconds=8", "--wait")
    resumed = Counter((run, step) for run, attempt, step in killed.executed() if int(attempt) > 1)
    assert resumed
    assert min(int(step) for _, step in resumed) >= 5  # from a checkpoint, not from the start
    assert list(_steps(s3_root).values()) == [list(range(20))] * 2
    # The first machine is back, and has files that it could not upload.
    killed.environment["SWEEPER_HOME"] = str(first / "home")
    assert "uploaded to the store (attempts: " in killed.run("store", "sync")
    assert "2 attempts" not in killed.run("store", "sync")
    assert list(_steps(s3_root).values()) == [list(range(20))] * 2
    store = open_store(s3_root)
    for run in {run for run, _, _ in before}:
        done = [step for name, attempt, step in before if (name, attempt) == (run, "1")]
        steps_stored = store.read(f"toys/runs/{run}.1/metrics.jsonl").count(b"\n")
        assert steps_stored >= len(done) - 1  # the ledger is written first


def test_killed_and_resumed_here(killed: Any, s3_root: str) -> None:
    assert "2/2 succeeded" in killed.run("launch", "grid.yaml", "seconds=8", "--wait")
    assert list(_steps(s3_root).values()) == [list(range(20))] * 2
    assert not [key for key in _keys(s3_root) if ".parts/" in key]


def _serving(root: str) -> list[int]:
    """Return the processes that serve this root to workers."""
    pids: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if words[-3:-1] == ["sweeper.store.serving", root]:
                pids.append(int(folder.name))
    return pids


def test_the_process_that_reaches_the_store_is_killed_again_and_again(
    local: Any, s3_root: str
) -> None:
    shell, killed = local, set[int]()
    shell.hold.touch()  # the runs wait at step 14
    shell.run("launch", "grid.yaml")
    deadline = time.monotonic() + 240
    while shell.states() != {"succeeded": 2} and time.monotonic() < deadline:
        for pid in _serving(s3_root):
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        # A worker whose requests fail twice in a row accesses the store directly.
        if len(killed) > 1:
            shell.hold.unlink(missing_ok=True)
    assert shell.states() == {"succeeded": 2}
    assert len(killed) > 1
    lines = shell.ledger.read_text().splitlines()
    assert Counter(lines).most_common(1)[0][1] == 1  # no step was done twice
    assert len(lines) == 40
    assert list(_steps(s3_root).values()) == [list(range(20))] * 2


def test_no_secret_stays_where_a_launcher_was_taken_over_from(local: Any, s3_root: str) -> None:
    """A launcher that is taken over removes the environments of its runs, which continue."""
    local.hold.touch()  # the runs last until the takeover
    launcher = local.start("launch", "grid.yaml", "seconds=6", "--wait")
    try:
        local.until(lambda: len(local.executed()) >= 4)
        folder = local.folder / "home" / "environments"
        assert len(list(folder.iterdir())) == 1
        other = {"host": "another", "pid": 1, "began": "1"}
        open_store(s3_root).create("toys/launcher/2", json.dumps(other).encode())
        _, errors = launcher.communicate(timeout=120)
    finally:
        local.hold.unlink()
    assert launcher.returncode == 6 and "has taken over 'toys'" in errors
    assert list(folder.iterdir()) == []
    local.until_states({"succeeded": 2})
    assert set(local.executed().values()) == {1} and len(local.executed()) == 40


def test_an_outage_that_outlasts_the_runs(
    local: Any, s3_root: str, moto_server: tuple[str, int]
) -> None:
    launcher = local.start("launch", "grid.yaml", "seconds=4", "--wait")
    local.until(lambda: _all_are_past(local, 4))
    os.kill(moto_server[1], signal.SIGSTOP)  # accepts connections but does not answer
    try:
        local.until(lambda: len(local.executed()) == 40)  # the runs still end
        time.sleep(10)
    finally:
        os.kill(moto_server[1], signal.SIGCONT)
    output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, output + errors
    assert set(local.executed().values()) == {1}
    assert list(_steps(s3_root).values()) == [list(range(20))] * 2
    assert not [key for key in _keys(s3_root) if ".parts/" in key]


def test_roots_that_are_refused(local: Any) -> None:
    shell = local
    output = shell.run("launch", "grid.yaml", "--root", "s3://there-is-no-such/x", code=6)
    assert output.endswith("sweeper: s3://there-is-no-such/x: no such bucket\n")
    assert "memory of this process" in shell.run(
        "launch", "grid.yaml", "--root", "memory://x", code=2
    )
    output = shell.run("status", "--root", "s3://AKIA:hushhush@bucket/x", code=6)
    assert "remove the credentials" in output
    assert "hushhush" not in output
    checks = json.loads(shell.run("doctor", "--json"))["checks"]
    assert "create files exclusively" in next(c["found"] for c in checks if c["name"] == "store")
