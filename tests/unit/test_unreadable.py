"""Damaged, unreadable or missing files are reported; the rest is shown, and nothing is deleted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow.parquet import read_table
from support import written

from sweeper import backends
from sweeper.cli import main
from sweeper.errors import NotFound, StoreError
from sweeper.launcher import environment_cleanup
from sweeper.results.registry import Registry
from sweeper.store.local import LocalStore
from sweeper.store.opening import open_store
from sweeper.sweep import environment_file, lock
from sweeper.sweep.folder import SweepFolder
from sweeper.testing import FakeBackend

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def root(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write two sweeps, `bad` and `good`, of one run each."""
    folder = tmp_path / "sweeps"
    monkeypatch.setenv("SWEEPER_ROOT", str(folder))
    for name in ("bad", "good"):
        sweep = written.Written(folder, name, {"lr": [1]})
        rows = [{"step": 0, "test/nll": 2.0}, {"step": 1, "test/nll": 0.5}]
        sweep.run({"lr": 1}, 0, rows, reason="of its own", checkpoints=[{"name": "final"}])
        sweep.save()
    return folder


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Return a function that runs a command and returns the exit code and both outputs."""

    def typed(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*words])
        printed = capsys.readouterr()
        assert "a bug in sweeper" not in printed.err
        return code, printed.out, printed.err

    return typed


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def a_grid(root: Path, name: str, values: str = "[1]") -> str:
    """Write a grid beside the root, in the current folder; return its path."""
    text = f"name: {name}\ncommand: ['true', '{{x}}']\ngrid: {{x: {values}}}\n"
    return str(write(root.parent / f"{name}.yaml", f"{text}launch: {{backend: local}}\n"))


OVER_THE_ROOT = (
    ("status",),
    ("ls",),
    ("sql", "select sweep from runs join metrics using (run, sweep)"),
    ("export", "--format", "csv", "--table", "metrics", "--out"),
    ("store", "gc"),
)


def type_all(say: Say, place: Path, *, shows: str = "good") -> list[str]:
    """Run all verbs over the root: each shows `good` and ends with 6; return their errors."""
    errors: list[str] = []
    for words in OVER_THE_ROOT:
        out = [str(place.parent / "out.csv")] if words[-1] == "--out" else []
        code, shown, error = say(*words, *out)
        assert code == 6, words
        shown += Path(*out).read_text() if out else ""
        assert shows in shown or words == ("store", "gc"), words
        errors.append(error)
    return errors


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ("{}", "name: should be a string, but is missing"),
        ("[]", "damaged (not a JSON object)"),
        ("{", "damaged (Expecting"),
    ],
)
def test_every_verb_reports_a_damaged_plan(root: Path, say: Say, document: str, what: str) -> None:
    path = root / "bad" / "sweep.json"
    path.write_text(document)
    for error in type_all(say, root):
        assert error.count(f"{path}: {what}") == 1
    code, shown, _ = say("status", "--json")
    status = json.loads(shown)
    assert code == 6 and [sweep["sweep"] for sweep in status["sweeps"]] == ["good"]
    assert len(status["problems"]) == 1
    code, _, error = say("ls", "bad")
    assert code == 6 and str(path) in error
    assert say("ls", "good")[0] == 0  # it is not affected
    code, shown, error = say("ls", "good", "bad")
    assert code == 6 and "good" in shown and str(path) in error
    code, _, error = say("launch", a_grid(root, "bad"))
    assert code == 6 and str(path) in error and path.read_text() == document


RUN = {"id": "a", "name": "x", "cell": "x", "seed": None, "config": {}}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"runs": None}, "runs: should be a list, not null"),
        ({"runs": [RUN, 7]}, "runs[1]: should be an object"),
        ({"runs": [{"id": "a", "name": 1, "config": {}}]}, "runs[0].name: should be a string, not"),
        ({"launch": {"retries": -1}}, "launch.retries: should be 0 or more, not -1"),
        ({"metric": {"name": "x", "at": "now"}}, "metric.at: should be auto, last, best or mean"),
        ({"axes": {"lr": 1}}, "axes.lr: should be a list, not 1"),
        ({"schema": 2}, "written by a newer sweeper; upgrade to read it"),
    ],
)
def test_a_malformed_plan_is_reported_with_its_place(
    root: Path, say: Say, change: dict[str, Any], what: str
) -> None:
    path = root / "bad" / "sweep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    code, shown, error = say("ls")
    assert code == 6 and "good" in shown and f"{path}: {what}" in error


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints.jsonl"])
def test_an_unreadable_file_hides_no_run(root: Path, say: Say, name: str) -> None:
    """A folder takes the place of a file that the user may not read."""
    [path] = root.glob(f"bad/runs/*/{name}")
    path.unlink()
    path.mkdir()
    verbs = {
        "metrics.jsonl": [("ls",), ("sql", "select sweep from metrics"), ("status", "bad")],
        "checkpoints.jsonl": [("sql", "select sweep from checkpoints")],
    }
    for words in [*verbs[name], ("show", "bad/lr=1,seed=0")]:
        code, shown, error = say(*words)
        assert code == 6 and f"{path}: Is a directory" in error, words
        assert "good" in shown or "bad" in words[-1], words
    out = root.parent / "out.csv"
    for table in {name.partition(".")[0], "runs"}:
        words = ("export", "--format", "csv", "--table", table, "--out", str(out))
        code, _, error = say(*words)
        # The table of runs needs metrics, but no checkpoints.
        whole = table == "runs" and name == "checkpoints.jsonl"
        assert code == (0 if whole else 6) and (whole or f"{path}: Is a directory" in error), words
        assert "good" in out.read_text(), words
    registry = Registry(str(root))
    frame = registry.metrics() if name == "metrics.jsonl" else registry.checkpoints()
    assert set(frame["sweep"]) == {"good"} and registry.problems.unread == 1
    run = registry.run("bad/lr=1,seed=0")
    with pytest.raises(StoreError, match="Is a directory"):
        run.metrics() if name == "metrics.jsonl" else run.checkpoints()


PIPED = [
    "sweep.json",
    "state/*/1.succeeded.json",
    "runs/*/metrics.jsonl",
    "runs/*/checkpoints.jsonl",
    "runs/*/iteration_000000/train_rollout_summaries.jsonl",
    "attempts/*/stdout.log",
    "attempts/*/job.json",
    "launcher/observations.json",
    "launcher/service.json",
    "launcher/lock",
    "alarms/abc.1.nan.json",
]


@pytest.fixture
def in_time() -> Iterator[None]:
    """Fail after a minute: a read of a pipe would wait forever."""

    def give_up(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("pattern", PIPED)
def test_a_pipe_in_place_of_a_file_does_not_block(root: Path, say: Say, pattern: str) -> None:
    metrics = next(root.glob("bad/runs/*/metrics.jsonl"))
    run = metrics.parent.name
    path = root / "bad" / pattern.replace("state/*", f"state/{run[:-2]}").replace("*", run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for words in (("ls",), ("status", "bad"), ("show", "bad/lr=1*"), ("logs", "bad"),
                  ("store", "gc"), ("rollouts", "bad/lr=1*"), ("alarms", "bad"),
                  ("cancel", "bad")):  # fmt: skip
        code, _, error = say(*words)
        assert code in (0, 5, 6), words
        assert code == 0 or "is a pipe or a device" in error or code == 5, words
    if path.name not in ("lock", "job.json"):
        with pytest.raises(StoreError, match="is a pipe or a device"):
            LocalStore(str(root)).read(str(path.relative_to(root)))


@pytest.mark.usefixtures("in_time")
def test_a_device_in_place_of_a_file_is_not_read(root: Path, say: Say) -> None:
    [path] = root.glob("bad/runs/*/metrics.jsonl")
    path.unlink()
    path.symlink_to("/dev/zero")
    code, shown, error = say("ls")
    assert code == 6 and "good" in shown and f"{path}: is a pipe or a device" in error


def test_a_malformed_outcome_hides_no_run(root: Path, say: Say) -> None:
    [path] = root.glob("bad/state/*/1.succeeded.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"wall_s": "long"}))
    for words in (("ls",), ("status", "bad"), ("show", "bad/lr=1,seed=0"), ("export", "--format",
                  "csv", "--table", "runs", "--out", str(root.parent / "x.csv"))):  # fmt: skip
        code, shown, error = say(*words)
        assert code == 6, words
        assert f'{path}: wall_s: should be a number, not "long"' in error
        assert "succeeded" in shown or words[0] == "export"  # the file's name says so


def test_damaged_observations_and_alarms_hide_no_run(root: Path, say: Say) -> None:
    observed = write(root / "bad" / "launcher" / "observations.json", '{"observed": ["x"]}')
    alarm = write(root / "bad" / "alarms" / "abc.1.nan.json", '{"message": 7}')
    code, shown, error = say("status", "bad")
    assert code == 6 and "lr=1,seed=0" in shown
    assert f"{observed}: observed: should be an object, not a list" in error
    assert f"{alarm}: message: should be a string, not 7" in error
    code, _, error = say("alarms", "bad")
    assert code == 6 and str(alarm) in error


SERVICE = [
    ("{}", "env_file: should be a string, but is missing"),
    ("[]", "damaged (not a JSON object)"),
    ("7", "damaged (not a JSON object)"),
    ("{", "damaged (Expecting"),
    ('{"env_file": 7}', "env_file: should be a string, not 7"),
    ('{"env_file": "e", "engine": []}', "engine: should be a string, not a list"),
    ('{"env_file": "e", "places": 3}', "places: should be a list, not 3"),
    ('{"env_file": "e", "places": [{}]}', "places[0].backend: should be a string, but is missing"),
    ('{"env_file": "e", "place": {"cluster": "c"}}', "place.backend: should be a string, but is m"),
]


@pytest.mark.parametrize(("document", "what"), SERVICE)
def test_a_damaged_launch_record_is_reported_by_its_readers(
    root: Path, say: Say, document: str, what: str
) -> None:
    path = write(root / "bad" / "launcher" / "service.json", document)
    message = f"{path}: {what}"
    code, shown, error = say("status", "bad")
    assert code == 6 and "lr=1,seed=0" in shown and error.count(message) == 1
    code, shown, _ = say("status", "bad", "--json")
    assert code == 6 and message in json.loads(shown)["problems"][0]
    code, shown, error = say("cancel", "bad")
    assert code == 0 and "1 succeeded already" in shown
    assert error.startswith(f"sweeper: {message}") and error.count("\n") == 1
    for words in (("costs", "bad"), ("store", "gc"), ("ls", "bad")):  # these do not read it
        code, shown, error = say(*words)
        assert code == 0 and str(path) not in error, words


@pytest.fixture
def launched(root: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a grid whose sweep `done` has succeeded, except for a run that has not started."""
    monkeypatch.chdir(root.parent)
    grid = a_grid(root, "done", "[1, 2]")
    assert say("launch", grid, "--wait", "--plain")[0] == 0
    plan = json.loads((root / "done" / "sweep.json").read_text())
    shutil.rmtree(root / "done" / "state" / plan["runs"][0]["id"])
    return grid


@pytest.mark.parametrize("verb", ["launch", "resume", "retry"])
def test_a_damaged_launch_record_is_replaced_if_no_job_may_wait(
    root: Path, say: Say, launched: str, verb: str
) -> None:
    path = root / "done" / "launcher" / "service.json"
    path.write_text('{"env_file": 7}')
    words = {
        "launch": ("launch", launched, "--wait", "--plain"),
        "resume": ("resume", "done"),
        "retry": ("retry", "done", "x=1", "--wait", "--plain"),
    }
    # In a separate process: `resume` leaves its launcher running.
    typed = [sys.executable, "-P", "-m", "sweeper", *words[verb]]
    done = subprocess.run(typed, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    message = (
        f"{path}: env_file: should be a string, not 7; the file is not needed and will be rewritten"
    )
    assert done.stderr.count(message) == 1
    deadline = time.monotonic() + 60
    while lock.is_held(SweepFolder(open_store(str(root)), "done")) and time.monotonic() < deadline:
        time.sleep(0.1)
    code, _, error = say("status", "done")
    assert code == 0 and "service.json" not in error
    assert json.loads(path.read_text())["env_file"]


class Clustered(FakeBackend):
    """A fake backend on the cluster `one`."""

    def location(self) -> dict[str, str]:
        return {"cluster": "one"}


@pytest.mark.parametrize("verb", ["launch", "resume", "retry"])
def test_a_damaged_launch_record_is_refused_if_a_job_may_wait(
    root: Path, say: Say, launched: str, verb: str
) -> None:
    """Only the record says on which cluster the job may wait."""
    path, plan = root / "done" / "launcher" / "service.json", root / "done" / "sweep.json"
    waits, failed = (run["id"] for run in json.loads(plan.read_text())["runs"])
    (state := root / "done" / "state" / waits).mkdir()
    (state / "1.submitted.json").write_text('{"schema": 1}')
    [ended] = root.glob(f"done/state/{failed}/1.succeeded.json")
    ended.rename(ended.with_name("1.failed.json"))
    path.write_text('{"env_file": "e", "places": 3}')
    words = {"launch": launched, "resume": "done", "retry": "done"}
    local = backends.backend_type("local")._replace(open=lambda *_: Clustered())
    with backends.registered(local):
        code, _, error = say(verb, words[verb])
    message = (
        f"{path}: places: should be a list, not 3, so it is unknown where the sweep's jobs are:"
    )
    assert code == 6 and error.count(message) == 1
    assert path.read_text() == '{"env_file": "e", "places": 3}'


def test_a_launch_beside_a_launcher_needs_its_launch_record(
    root: Path, say: Say, launched: str
) -> None:
    path = root / "done" / "launcher" / "service.json"
    path.write_text("{}")
    with lock.holding_sweep(SweepFolder(open_store(str(root)), "done")):
        code, _, error = say("launch", launched, "x=[1,2,3]")
    message = (
        f"{path}: env_file: should be a string, but is missing: end the running launcher with `sw"
    )
    assert code == 6 and message in error


def test_lone_surrogates_are_shown_and_exported(root: Path, say: Say) -> None:
    [path] = root.glob("bad/runs/*/metrics.jsonl")
    with path.open("ab") as file:
        file.write(b'{"step": 2, "\\ud800": 3.5, "text": "\\udc01"}\n')
    code, shown, _ = say("show", "bad/lr=1,seed=0")
    assert code == 0 and "\ufffd" in shown
    out = root.parent / "x.csv"
    assert say("export", "--format", "csv", "--table", "metrics", "--out", str(out))[0] == 0
    assert "\ufffd" in out.read_text()
    parquet = root.parent / "x.parquet"
    words = ("export", "--format", "parquet", "--table", "metrics", "--out", str(parquet))
    assert say(*words)[0] == 0
    table = read_table(parquet).to_pydict()
    assert table["\ufffd"].count(3.5) == 1 and table["text"].count("\ufffd") == 1


def test_deep_nesting_counts_as_damage(root: Path, say: Say) -> None:
    deep = "[" * 400 + "]" * 400
    path = root / "bad" / "sweep.json"
    document = path.read_text().replace('"axes": {"lr": [1]}', f'"axes": {{"lr": {deep}}}')
    assert deep in document
    path.write_text(document)
    [metrics] = root.glob("good/runs/*/metrics.jsonl")
    with metrics.open("a") as file:
        file.write(f'{{"step": 2, "x": {deep}}}\n')
    code, shown, error = say("ls")
    assert code == 6 and "good" in shown and f"{path}: damaged (nested more than 100" in error
    assert "1 malformed line skipped" in say("sql", "select * from metrics")[2]


def test_a_dangling_link_is_reported(root: Path, say: Say) -> None:
    shutil.move(root / "bad", root.parent / "elsewhere")
    (root / "bad").symlink_to(root.parent / "gone")
    code, shown, error = say("status")
    assert code == 6 and "good" in shown
    assert f"{root / 'bad'} is a dangling link" in error


def old_environment(folder: Path) -> Path:
    """Write the environment that a launch of this sweep left two hours ago."""
    path = Path(environment_file.write(str(folder), {}))
    os.utime(path, (time.time() - 7200, time.time() - 7200))
    return path


@pytest.mark.parametrize("away", [".", "open"])
def test_gc_keeps_the_environment_of_a_sweep_that_is_away(
    root: Path, say: Say, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """The sweep's disk is not mounted, or its link is broken; its runs need the environment."""
    sweep = written.Written(root, "open", {"lr": [1, 2]})
    sweep.run({"lr": 1}, 0, [], "running")
    sweep.run({"lr": 2}, 0, [], "planned")
    sweep.save()
    path, ended = old_environment(root / "open"), old_environment(root / "good")
    assert list(environment_cleanup.unused_files()) == [str(ended)]
    stays: list[tuple[str, str]] = []
    (root / away).rename(root.parent / "away")
    left = list(environment_cleanup.unused_files(unknown=lambda *about: stays.append(about)))
    assert str(path) not in left and (str(path), str(root / "open")) in stays
    code, _, error = say("store", "gc", "--delete")
    assert code == (6 if away == "." else 0)
    assert f"{path}: kept, because the folder of the runs, {root / 'open'}, is" in error
    assert path.exists()
    monkeypatch.chdir(root.parent)
    assert say("launch", a_grid(root, "other"), "--wait", "--plain")[0] == 0
    assert path.exists()


def test_a_sweep_that_is_away_is_not_launched_again(
    root: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    grid = a_grid(root, "good")
    path = environment_file.write(str(root / "good"), {})
    root.rename(root.parent / "away")
    code, _, error = say("launch", grid, "--wait", "--plain")
    assert code == 6
    assert f"{root / 'good'}: this sweep was launched before and has not ended" in error
    assert f"also remove {path}" in error
    assert not root.exists()


def test_gc_keeps_code_while_a_sweep_is_unreadable(root: Path, say: Say) -> None:
    copy = root.parent / "home" / "snapshots" / f"{'a' * 32}-0123abcd"
    copy.mkdir(parents=True)

    def is_removable() -> bool:
        return str(copy) in say("store", "gc", "--days", "-1")[1]

    assert is_removable()
    (root / "bad" / "sweep.json").write_text("{")
    assert not is_removable()
    root.rename(root.parent / "away")
    assert not is_removable()
    root.mkdir()  # the empty mount point of a disk
    assert not is_removable()


def test_reading_events_of_a_missing_sweep_fails(root: Path) -> None:
    store = open_store(str(root))
    assert len(SweepFolder(store, "good").read_events()) == 1
    shutil.rmtree(root / "good" / "state")
    assert SweepFolder(store, "good").read_events() == {}  # nothing has happened yet
    for missing in (root / "good", root):
        shutil.rmtree(missing)
        with pytest.raises((NotFound, StoreError)):
            SweepFolder(LocalStore(str(root)), "good").read_events()


def test_a_missing_root_does_not_hide_the_others(
    root: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, loop = root.parent / "gone", root.parent / "loop"
    loop.symlink_to(loop)
    code, _, error = say("ls", "--root", str(gone))
    assert code == 6 and f"{gone}: does not exist" in error
    assert say("ls", "--root", str(loop))[0] == 6
    registry = Registry(str(gone), str(loop), str(root))
    with pytest.warns(UserWarning, match="no such folder"):
        assert set(registry.runs()["sweep"]) == {"good", "bad"}
    assert registry.problems.unread == 2
    # In a current folder without sweeps, the message says just that.
    monkeypatch.chdir(root.parent)
    monkeypatch.delenv("SWEEPER_ROOT")
    (root.parent / "sweeps").rename(root.parent / "others")
    code, _, error = say("status")
    assert code == 0 and "nothing has been launched from the current folder yet" in error


def test_an_unreadable_log_does_not_hide_the_others(root: Path, say: Say) -> None:
    sweep = written.Written(root, "said", {"lr": [1, 2]})
    for lr in (1, 2):
        sweep.run({"lr": lr}, 0, [], log=f"this is {lr}\n")
    sweep.save()
    path = root / "said" / "attempts" / f"{sweep.document['runs'][0]['id']}.1" / "stdout.log"
    path.unlink()
    path.mkdir()
    code, shown, error = say("logs", "said")
    assert code == 6 and "this is 2" in shown and f"{path}: Is a directory" in error
