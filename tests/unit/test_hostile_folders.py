"""Ids and links of a hostile sweep folder: nothing beyond it is written, removed or read."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper.cli import main
from sweeper.errors import StoreError, UsageError
from sweeper.store.local import LocalStore
from sweeper.sweep import environment_file
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.lock import holding_sweep
from sweeper.sweep.requests import request_cancel
from sweeper.sweep.states import Event
from sweeper.worker import checkpoint_resume


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPER_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "identity", ["../../victim/state/0123456789ab", "..", ".", "a/b", "", "x" * 65, "a\n", "a b"]
)
@pytest.mark.parametrize("verb", ["cancel", "retry", "status", "logs"])
def test_an_id_that_is_a_path_is_refused(root, capsys, identity, verb):
    """Once, `cancel evil` wrote a request into another sweep and stopped its run."""
    for name in ("victim", "evil"):
        sweep = written.Written(root, name, {"x": [1]}, launch={"retries": 0, "grace_s": 1})
        run = sweep.run({"x": 1}, state="running")
        sweep.save()
    plan = json.loads((root / "evil" / "sweep.json").read_text())
    plan["runs"][0]["id"] = identity.replace("0123456789ab", run)
    (root / "evil" / "sweep.json").write_text(json.dumps(plan))
    before = tree(root)
    assert main([verb, "evil"]) == 6
    assert "evil/sweep.json: runs[0].id: should be letters, digits" in capsys.readouterr().err
    assert tree(root) == before


def _outside(root: Path) -> Path:
    outside = root.parent / "outside"
    outside.mkdir(parents=True)
    (outside / "keep").write_text("mine")
    return outside


WRITES: dict[str, Callable[[LocalStore], Any]] = {
    "create": lambda store: store.create("s/linked/new", b"x"),
    "replace": lambda store: store.replace("s/linked/keep", b"x"),
    "append": lambda store: store.append("s/linked/keep", b"x"),
    "remove": lambda store: store.remove(["s/linked/keep"]),
    "deep": lambda store: store.create("s/a/linked/b/c/new", b"x"),
    "upload": lambda store: store.upload("s/linked/keep", __file__),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_store_writes_and_removes_nothing_beyond_a_link(root, write):
    outside = _outside(root)
    (root / "s" / "a").mkdir(parents=True)
    for link in ("s/linked", "s/a/linked"):
        (root / link).symlink_to(outside)
    with pytest.raises(StoreError, match="linked is a symbolic link"):
        WRITES[write](LocalStore(str(root)))
    assert tree(outside) == {str(outside / "keep"): b"mine"} and os.listdir(outside) == ["keep"]


def test_a_link_in_the_place_of_a_file_is_not_followed(root):
    keep = _outside(root) / "keep"
    store = LocalStore(str(root))
    store.create("s/x", b"x")
    for name in ("replaced", "removed", "appended", "seeded"):
        (root / "s" / name).symlink_to(keep)
    store.replace("s/replaced", b"theirs")
    store.remove(["s/removed"])
    with pytest.raises(StoreError, match="symbolic link"):
        store.append("s/appended", b"theirs")
    with pytest.raises(OSError, match="symbolic links"):
        checkpoint_resume.copy(str(root / "s" / "x"), str(root / "s" / "seeded"))
    assert keep.read_text() == "mine"
    assert store.read("s/replaced") == b"theirs" and not (root / "s" / "removed").exists()


def test_a_sweep_may_itself_lie_elsewhere(root):
    """For example on a larger disk: the root and the link in it have the same owner."""
    (root.parent / "large").mkdir()
    root.mkdir()
    (root / "s").symlink_to(root.parent / "large")
    LocalStore(str(root)).create("s/state/a/1.intent.json", b"{}")
    assert (root.parent / "large" / "state" / "a" / "1.intent.json").exists()


def test_no_lock_request_or_launcher_goes_through_a_link(root):
    outside = _outside(root)
    store = LocalStore(str(root))
    store.replace("s/sweep.json", b"{}")
    for name in ("launcher", "state"):
        (root / "s" / name).symlink_to(outside)
    with (
        pytest.raises(StoreError, match="launcher is a symbolic link"),
        holding_sweep(SweepFolder(store, "s")),
    ):
        pass
    with pytest.raises(StoreError, match="state is a symbolic link"):
        request_cancel(SweepFolder(store, "s"), "a", {(1, Event.CLAIMED)}, 0)
    assert os.listdir(outside) == ["keep"]


def test_gc_removes_nothing_beyond_a_link(root, capsys):
    """Once, `gc --attempts --delete` followed an `iteration_*` folder that was a link."""
    outside = _outside(root)
    sweep = written.Written(root, "s", {"x": [1]})
    sweep.run({"x": 1}, state="failed", attempt=1)
    run = sweep.run({"x": 1}, state="succeeded", attempt=2)
    sweep.save()
    name = "train_rollout_summaries.jsonl"
    for place in (outside, root / "s" / "runs" / f"{run}.2" / "iteration_000000"):
        place.mkdir(exist_ok=True)
        (place / name).write_text("{}\n")
    (root / "s" / "runs" / f"{run}.1" / "iteration_000000").symlink_to(outside)
    assert main(["store", "gc", "--attempts", "--delete", "--days", "0"]) == 0
    output = capsys.readouterr()
    assert "iteration_000000 is a symbolic link" in output.err and name not in output.out
    assert (outside / name).exists()


def test_cancel_removes_no_file_that_is_not_the_runs_environment(root, tmp_path):
    """Once, the environment file named in a launcher's record was removed, wherever it was."""
    sweep = written.Written(root, "s", {"x": [1]}, launch={"retries": 0, "grace_s": 1})
    sweep.run({"x": 1}, state="failed")
    sweep.save()
    service = root / "s" / "launcher" / "service.json"
    service.parent.mkdir()
    mine = environment_file.write(str(root / "other"), {})
    for name, text in (("key", "-----BEGIN"), ("list", "[1]"), ("json", "{}")):
        (tmp_path / name).write_text(text)
    for path in (mine, *(str(tmp_path / name) for name in ("key", "list", "json"))):
        service.write_text(json.dumps({"schema": 1, "env_file": path}))
        assert main(["cancel", "s"]) == 0
        assert os.path.exists(path)
    theirs = environment_file.write(str(root / "s"), {})
    service.write_text(json.dumps({"schema": 1, "env_file": theirs}))
    assert main(["cancel", "s"]) == 0
    assert not os.path.exists(theirs)


def test_a_report_does_not_follow_a_link(root):
    from sweeper.analysis.reading.sources import Source, write_file
    from sweeper.results.registry import Registry

    outside = _outside(root)
    root.mkdir()
    (root / "report").symlink_to(outside)
    source = Source("x", Registry(str(root)), {}, None, {}, (), 0, None)
    with pytest.raises(UsageError, match="report is a symbolic link"):
        source.write({"report.html": b"theirs"})
    (root / "report.html").symlink_to(outside / "keep")
    write_file(str(root), "report.html", b"theirs")
    assert (root / "report.html").read_bytes() == b"theirs"
    assert tree(outside) == {str(outside / "keep"): b"mine"}


JOBS = [
    lambda job: job | {"env": {"LD_PRELOAD": "/tmp/evil.so"}},  # noqa: S108
    lambda job: job | {"recipe": job["recipe"] | {"cwd": "/elsewhere"}},
    lambda _: {"schema": 1},
]


@pytest.mark.parametrize("other", JOBS)
def test_jobs_are_executed_from_the_plan_and_not_from_a_stored_job(scene, other):
    """As if an earlier launcher had written the job. Only the plan was confirmed."""
    run = scene.ids[0]
    scene.step()
    path = scene.folder.job(run, 1)
    right = scene.store.read(path)
    scene.store.remove([scene.folder.event(run, 1, Event.SUBMITTED)])
    scene.backend.lose(scene.backend.submitted[0])
    scene.store.replace(path, json.dumps(other(json.loads(right))).encode())
    scene.relaunch()
    assert scene.backend.submitted.count(f"{run}-a1") == 2
    assert scene.store.read(path) == right


def _written(path: str) -> tuple[int, int, int]:
    """Return the inode, the time of the last write, and the size of a file."""
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns, status.st_size


def test_an_unchanged_job_is_not_rewritten(scene):
    """A living worker is recognised by its lock on the file."""
    run = scene.ids[0]
    scene.step()
    path = scene.store.local_path(scene.folder.job(run, 1))
    before = _written(path)
    scene.store.remove([scene.folder.event(run, 1, Event.SUBMITTED)])
    scene.backend.lose(scene.backend.submitted[0])
    scene.relaunch()
    assert scene.backend.submitted.count(f"{run}-a1") == 2
    assert _written(path) == before
