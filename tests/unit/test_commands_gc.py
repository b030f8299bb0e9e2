"""`sweeper store gc` with a remote store, and for the files of this machine."""

import fcntl
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from support import written
from support.verbs import ask

from sweeper.backends.base import JobSpec
from sweeper.backends.slurm.tables import Tables
from sweeper.cli import main
from sweeper.commands import store_gc as gc
from sweeper.launcher import background
from sweeper.launcher.background import launcher_log
from sweeper.paths import built, home, sources
from sweeper.store.base import Store
from sweeper.store.local import LocalStore
from sweeper.store.opening import open_store
from sweeper.sweep import environment_file
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.lock import holding_sweep
from sweeper.sweep.worker_lock import is_held
from sweeper.worker.spool import place

SUMMARIES = "train_rollout_summaries.jsonl"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Make a remote store: a run whose second attempt succeeded, and one that is running."""
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    sweep = written.Written(tmp_path / "written", "s", {"lr": [1, 2]})
    sweep.run({"lr": 1}, 0, [{"step": 0}], "preempted")
    done = sweep.run({"lr": 1}, 0, [{"step": 0}], attempt=2)
    open_ = sweep.run({"lr": 2}, 0, [{"step": 0}], "claimed")
    sweep.save()
    remote = open_store(f"memory://{uuid.uuid4().hex}")
    local = LocalStore(str(tmp_path / "written"))
    for path in local.names(""):
        remote.replace(path, local.read(path))
    for attempt, iteration in ((1, 0), (1, 1), (2, 1)):
        inner = f"s/runs/{done}.{attempt}/iteration_{iteration:06}"
        for name in (SUMMARIES, "train_logtree.json"):
            remote.replace(f"{inner}/{name}", b"{}\n")
    for run in (f"{done}.2", f"{open_}.1"):
        remote.replace(f"s/runs/{run}/metrics.jsonl.parts/0", b"{}\n")
    monkeypatch.setenv("SWEEPER_ROOT", remote.root)
    return remote


def _age(path: Path, seconds: float) -> None:
    """Set the times of a file to `seconds` ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def spooled(
    root: str, sweep: str, name: str, mark: str | None = None, age: float = 0
) -> LocalStore:
    """Make a copy of a run in the spool of this machine."""
    spool = place(root, home())
    spool.replace("root", root.encode())
    spool.replace(f"{sweep}/runs/{name}/metrics.jsonl", b"x" * 100)
    Path(spool.root, sweep, "unsynced").mkdir(exist_ok=True)
    if mark is not None:
        spool.replace(f"{sweep}/unsynced/{mark}", b"")
    for path in Path(spool.root, sweep).rglob("*"):
        _age(path, age)
    return spool


def test_gc_removes_files_from_a_remote_store(store, capsys):
    before = set(store.names(""))
    parts = {path for path in before if "metrics.jsonl.parts" in path}
    [dead] = [path for path in parts if ".2/" in path]
    again = {path for path in before if ".1/iteration_000001/" in path}
    assert [item["path"] for item in ask(capsys, "store", "gc")["items"]] == [
        f"{store.root}/{dead}"
    ]
    items = ask(capsys, "store", "gc", "--attempts")["items"]
    assert {item["path"] for item in items} == {f"{store.root}/{path}" for path in {dead, *again}}
    assert {item["size"] for item in items} == {3}
    assert set(store.names("")) == before
    assert main(["store", "gc", "--attempts", "--delete"]) == 0
    changed = f"{dead.partition('/')[0]}/launcher/changed"  # so that no earlier listing is used
    assert set(store.names("")) == (before - again - {dead}) | {changed}
    assert ask(capsys, "store", "gc", "--attempts")["items"] == []


def test_gc_removes_spooled_copies_but_no_unsynced_files(store, capsys, monkeypatch):
    monkeypatch.setattr(
        "sweeper.commands.store_gc._touched",
        lambda folder: os.stat(next(Path(folder).rglob("metrics.jsonl"))).st_mtime,
    )  # ctime cannot be set
    day = 86400.0
    old = spooled("s3://gone/x", "old", "a.1", age=90 * day)
    spooled("s3://gone/x", "young", "a.1", age=60)
    spooled("s3://gone/x", "living", "a.1", "a.1", age=90 * day)
    spooled("s3://gone/x", "dead", "a.1", "a.1", age=90 * day)
    held = os.open(Path(old.root, "living", "unsynced", "a.1"), os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    answer = ask(capsys, "store", "gc", "--days", "0")
    folder = str(Path(old.root, "old"))
    assert folder in [item["path"] for item in answer["items"]]
    assert not any(old.root in item["path"] for item in answer["items"] if item["path"] != folder)
    copied = {"path": str(Path(old.root, "dead")), "root": "s3://gone/x", "sweep": "dead"}
    assert answer["unsynced"] == [copied | {"attempts": 1}]
    assert main(["store", "gc", "--delete", "--days", "0"]) == 0
    os.close(held)
    assert "`sweeper store sync dead --root s3://gone/x` uploads them" in capsys.readouterr().err
    left = {path.name for path in Path(old.root).iterdir() if path.is_dir()}
    assert left == {"young", "living", "dead"}


def test_gc_removes_environments_and_logs_of_launchers(store, capsys):
    expected = {
        name: Path(environment_file.write(f"{store.root}/{name}", {})) for name in ("gone", "s")
    }
    quiet = Path(launcher_log(SweepFolder(store, "s")))
    logs = quiet.parent
    for path in (logs / "old.log", logs / "young.log", quiet):
        path.touch()
    for path in (*expected.values(), logs / "old.log", quiet):
        os.utime(path, (1, 1))
    with holding_sweep(SweepFolder(store, "s")):
        answer = ask(capsys, "store", "gc", "--delete")
    assert str(logs / "old.log") in {item["path"] for item in answer["items"]}
    gone = {"path": str(expected["gone"]), "folder": f"{store.root}/gone"}
    assert answer["away"] == [gone]  # removed or not mounted
    assert quiet.exists()  # its launcher is running, but had nothing to log
    assert str(quiet) in {item["path"] for item in ask(capsys, "store", "gc", "--delete")["items"]}
    assert expected["gone"].exists()
    assert expected["s"].exists()  # it has a running run
    assert [path.name for path in logs.iterdir()] == ["young.log"]


def test_gc_removes_slurm_tables_of_finished_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPER_ROOT", str(tmp_path))
    sweep = written.Written(tmp_path, "s", {"lr": [1, 2, 3]})
    good, bad, open_ = (
        sweep.run({"lr": lr}, 0, [{"step": 0}], end)
        for lr, end in ((1, "succeeded"), (2, "failed"), (3, "claimed"))
    )
    sweep.save()
    tables = Tables(str(tmp_path / "s"))
    handed: dict[tuple[str, ...], str] = {}
    for runs in ((good, bad), (good, open_), (bad,), (good,)):
        jobs = [JobSpec(f"{run}-a1", "", [], "/", {}) for run in runs]
        handed[runs] = tables.write(jobs, requeue=True)
        for index in range(len(runs)):
            Path(tables.output(handed[runs], jobs).replace("%a", str(index))).touch()
    for path in Path(tables.place).iterdir():
        if not path.name.startswith(handed[good,]):  # the only one that is young
            _age(path, 90 * 86400)
    expected = {f"{handed[good, bad]}.json", f"{handed[good, bad]}.0.out", f"{handed[bad,]}.json"}
    items = ask(capsys, "store", "gc")["items"]
    assert {Path(item["path"]).name for item in items} == expected
    before = {path.name for path in Path(tables.place).iterdir()}
    assert main(["store", "gc", "--delete"]) == 0
    assert {path.name for path in Path(tables.place).iterdir()} == before - expected


@pytest.mark.parametrize("top", [built, sources])
def test_gc_removes_unused_environments_of_jobs(store, capsys, top):
    folder = Path(top(), "0123")
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text("a==1\n")
    paths = [item["path"] for item in ask(capsys, "store", "gc", "--days", "0")["items"]]
    assert str(folder) in paths and f"{folder}.lock" not in paths
    assert str(folder) not in str(ask(capsys, "store", "gc")["items"])
    with open(f"{folder}.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["store", "gc", "--days", "0", "--delete"]) == 0
        assert folder.exists()
    (waste,) = gc.built_waste(time.time() + 1)
    os.utime(folder / "requirements.txt", (2e9, 2e9))  # as a job that starts now does
    gc.remove_waste([waste])
    assert folder.exists()
    os.utime(folder / "requirements.txt", (0, 0))
    assert main(["store", "gc", "--days", "0", "--delete"]) == 0
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["snapshots", "built", "sources"])
def test_gc_keeps_files_of_living_processes_only(store, capsys, kind):
    """The kernel releases the locks of a killed process."""
    folder = Path(home(), kind, "0123456789abcdef-01")
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text("a==1\n")
    takes = {
        "snapshots": "from sweeper.recipe.snapshot import hold_copy as hold",
        "built": "from sweeper.worker.bare_machine import hold_build as hold",
    }
    program = f"{takes.get(kind, takes['built'])}\nimport time\nhold({str(folder)!r})\n"
    program += "print(flush=True)\ntime.sleep(600)\n"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        items = ask(capsys, "store", "gc", "--days", "0", "--delete")["items"]
        assert str(folder) not in {item["path"] for item in items}
        assert (folder / "requirements.txt").exists()
        process.kill()
    assert main(["store", "gc", "--days", "0", "--delete"]) == 0
    assert not folder.exists()


def test_gc_finishes_an_interrupted_removal(store, capsys):
    """Copies are renamed before they are removed, so that no job finds half of one."""
    folder = Path(home(), "snapshots", "0123456789abcdef-01.gone-7")
    folder.mkdir(parents=True)
    assert main(["store", "gc", "--delete"]) == 0
    assert not folder.exists()


def test_gc_keeps_young_temporary_files(tmp_path, monkeypatch):
    """Their writer may be running, here or on another machine that has this root."""
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPER_ROOT", str(tmp_path))
    written.Written(tmp_path, "s", {"lr": [1]}).save()
    young, old = (tmp_path / "s" / f".tmp-{2**22 + 1}-0a0{n}" for n in "bc")
    for path in (young, old):
        path.touch()
    _age(old, 7200)
    assert main(["store", "gc", "--days", "0", "--delete"]) == 0
    assert young.exists() and not old.exists()


def test_gc_keeps_the_log_of_a_living_launcher_of_another_root(store, tmp_path, capsys):
    """`gc` reads this root's sweeps only, and a launcher may log nothing for a long time."""
    log = Path(home(), "launchers", "other.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    go = tmp_path / "go"
    program = "import os, time\nprint('begun', flush=True)\n"
    program += f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\n"
    poll = background.start_with_log([sys.executable, "-c", program], str(log))
    try:
        while "begun" not in log.read_text():
            time.sleep(0.05)
        os.utime(log, (1, 1))
        items = ask(capsys, "store", "gc", "--delete")["items"]
        assert str(log) not in {item["path"] for item in items} and log.exists()
    finally:
        go.touch()
        while is_held(str(log)):
            time.sleep(0.05)
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # the lock is free before the end
        poll()
    assert main(["store", "gc", "--delete"]) == 0
    assert not log.exists()
