"""A store of which something is damaged, cannot be read, or is away: that is said, the rest is
shown, and nothing is deleted or started on the ground of it."""

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
from sweeper.launcher import kept_environments
from sweeper.results.registry import Registry
from sweeper.store.local import LocalStore
from sweeper.store.opening import open_store
from sweeper.sweep import environment_file, lock
from sweeper.sweep.folder import SweepFolder
from sweeper.testing import FakeBackend

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sweeps, `bad` and `good`, of a run each."""
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
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
    """Types a command; gives the exit code and both outputs."""

    def typed(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*words])
        printed = capsys.readouterr()
        assert "a bug in sweeper" not in printed.err
        return code, printed.out, printed.err

    return typed


OVER_THE_ROOT = (
    ("status",),
    ("ls",),
    ("sql", "select sweep from runs join metrics using (run, sweep)"),
    ("export", "--format", "csv", "--table", "metrics", "--out"),
    ("store", "gc"),
)


def type_all(say: Say, place: Path, *, shows: str = "good") -> list[str]:
    """What verbs over the root say of it: each shows `good`, and ends with 6."""
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
        ("{}", "name: should be a text, and is missing"),
        ("[]", "damaged (not a JSON object)"),
        ("{", "damaged (Expecting"),
    ],
)
def test_a_damaged_plan_is_told_by_every_verb(
    root: Path, say: Say, document: str, what: str
) -> None:
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
    assert say("ls", "good")[0] == 0  # which has nothing to do with it
    code, shown, error = say("ls", "good", "bad")
    assert code == 6 and "good" in shown and str(path) in error


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"runs": None}, "runs: should be a list, not null"),
        (
            {"runs": [{"id": "a", "name": "x", "cell": "x", "seed": None, "config": {}}, 7]},
            "runs[1]: should be an object",
        ),
        ({"runs": [{"id": "a", "name": 1, "config": {}}]}, "runs[0].name: should be a text, not"),
        ({"launch": {"retries": -1}}, "launch.retries: should be 0 or more, not -1"),
        (
            {"metric": {"name": "x", "at": "now"}},
            "metric.at: should be auto, last, best or mean_of_last=5, not",
        ),
        ({"axes": {"lr": 1}}, "axes.lr: should be a list, not 1"),
    ],
)
def test_a_plan_of_another_shape_is_told_with_its_place(
    root: Path, say: Say, change: dict[str, Any], what: str
) -> None:
    path = root / "bad" / "sweep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    code, shown, error = say("ls")
    assert code == 6 and "good" in shown and f"{path}: {what}" in error


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints.jsonl"])
def test_a_file_that_cannot_be_read_leaves_its_run_and_all_others(
    root: Path, say: Say, name: str
) -> None:
    """A folder in its place: what a user who is not root sees of a file that is not for him."""
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
        # Of a run only its metrics are in the table of runs.
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
    """Who waits for a pipe waits for ever."""

    def give_up(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("pattern", PIPED)
def test_a_pipe_in_the_place_of_a_file_makes_nobody_wait(
    root: Path, say: Say, pattern: str
) -> None:
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
    launched = LocalStore(str(root))
    if path.name not in ("lock", "job.json"):
        with pytest.raises(StoreError, match="is a pipe or a device"):
            launched.read(str(path.relative_to(root)))


@pytest.mark.usefixtures("in_time")
def test_what_a_device_has_without_end_is_not_read(root: Path, say: Say) -> None:
    [path] = root.glob("bad/runs/*/metrics.jsonl")
    path.unlink()
    path.symlink_to("/dev/zero")
    code, shown, error = say("ls")
    assert code == 6 and "good" in shown and f"{path}: is a pipe or a device" in error


def test_an_outcome_of_another_shape_leaves_its_run_and_all_others(root: Path, say: Say) -> None:
    [path] = root.glob("bad/state/*/1.succeeded.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"wall_s": "long"}))
    for words in (("ls",), ("status", "bad"), ("show", "bad/lr=1,seed=0"), ("export", "--format",
                  "csv", "--table", "runs", "--out", str(root.parent / "x.csv"))):  # fmt: skip
        code, shown, error = say(*words)
        assert code == 6, words
        assert f'{path}: wall_s: should be a number, not "long"' in error
        assert "succeeded" in shown or words[0] == "export"  # its name tells that


def test_what_a_launcher_left_damaged_hides_no_run(root: Path, say: Say) -> None:
    observed = root / "bad" / "launcher" / "observations.json"
    observed.parent.mkdir()
    observed.write_text('{"observed": ["x"]}')
    alarm = root / "bad" / "alarms" / "abc.1.nan.json"
    alarm.parent.mkdir()
    alarm.write_text('{"message": 7}')
    code, shown, error = say("status", "bad")
    assert code == 6 and "lr=1,seed=0" in shown
    assert f"{observed}: observed: should be an object, not a list" in error
    assert f"{alarm}: message: should be a text, not 7" in error
    code, _, error = say("alarms", "bad")
    assert code == 6 and str(alarm) in error


# The record of a sweep's last launch: what of it is damaged is said by who reads it.

SERVICE = [
    ("{}", "env_file: should be a text, and is missing"),
    ("[]", "damaged (not a JSON object)"),
    ("7", "damaged (not a JSON object)"),
    ("{", "damaged (Expecting"),
    ('{"env_file": 7}', "env_file: should be a text, not 7"),
    ('{"env_file": "e", "engine": []}', "engine: should be a text, not a list"),
    ('{"env_file": "e", "places": 3}', "places: should be a list, not 3"),
    ('{"env_file": "e", "places": [{}]}', "places[0].backend: should be a text, and is missing"),
    ('{"env_file": "e", "place": {"cluster": "c"}}', "place.backend: should be a text, and is m"),
]


@pytest.mark.parametrize(("document", "what"), SERVICE)
def test_a_damaged_record_of_the_launch_is_told_by_who_reads_it(
    root: Path, say: Say, document: str, what: str
) -> None:
    path = root / "bad" / "launcher" / "service.json"
    path.parent.mkdir()
    path.write_text(document)
    message = f"{path}: {what}"
    code, shown, error = say("status", "bad")
    assert code == 6 and "lr=1,seed=0" in shown and error.count(message) == 1
    code, shown, _ = say("status", "bad", "--json")
    assert code == 6 and message in json.loads(shown)["problems"][0]
    code, shown, error = say("cancel", "bad")
    assert code == 0 and "1 succeeded already" in shown
    assert error.startswith(f"sweeper: {message}") and error.count("\n") == 1
    for words in (("costs", "bad"), ("store", "gc"), ("ls", "bad")):  # which have no use for it
        code, shown, error = say(*words)
        assert code == 0 and str(path) not in error, words


@pytest.fixture
def launched(root: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A grid whose sweep `done` has succeeded, but for a run that has not begun."""
    monkeypatch.chdir(root.parent)
    grid = root.parent / "done.yaml"
    grid.write_text("name: done\ncommand: ['true', '{x}']\ngrid: {x: [1, 2]}\n"
                    "launch: {backend: local}\n")  # fmt: skip
    assert say("launch", str(grid), "--wait", "--plain")[0] == 0
    plan = json.loads((root / "done" / "sweep.json").read_text())
    shutil.rmtree(root / "done" / "state" / plan["runs"][0]["id"])
    return grid


@pytest.mark.parametrize("verb", ["launch", "resume", "retry"])
def test_a_damaged_record_of_the_launch_is_written_anew_where_no_job_may_wait(
    root: Path, say: Say, launched: Path, verb: str
) -> None:
    path = root / "done" / "launcher" / "service.json"
    path.write_text('{"env_file": 7}')
    words = {
        "launch": ("launch", str(launched), "--wait", "--plain"),
        "resume": ("resume", "done"),
        "retry": ("retry", "done", "x=1", "--wait", "--plain"),
    }
    # In a process of its own: `resume` leaves the launcher behind.
    typed = [sys.executable, "-P", "-m", "sweeper", *words[verb]]
    done = subprocess.run(typed, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    message = f"{path}: env_file: should be a text, not 7; it is not needed, and is writ"
    assert done.stderr.count(message) == 1
    deadline = time.monotonic() + 60
    while lock.is_held(SweepFolder(open_store(str(root)), "done")) and time.monotonic() < deadline:
        time.sleep(0.1)
    code, _, error = say("status", "done")
    assert code == 0 and "service.json" not in error
    assert json.loads(path.read_text())["env_file"]


class Clustered(FakeBackend):
    """One whose jobs wait on a cluster."""

    def location(self) -> dict[str, str]:
        return {"cluster": "one"}


@pytest.mark.parametrize("verb", ["launch", "resume", "retry"])
def test_a_damaged_record_of_the_launch_ends_who_needs_it(
    root: Path, say: Say, launched: Path, verb: str
) -> None:
    """A run may wait, and only the record says on which cluster."""
    path, plan = root / "done" / "launcher" / "service.json", root / "done" / "sweep.json"
    waits, failed = (run["id"] for run in json.loads(plan.read_text())["runs"])
    (state := root / "done" / "state" / waits).mkdir()
    (state / "1.submitted.json").write_text('{"schema": 1}')
    [ended] = root.glob(f"done/state/{failed}/1.succeeded.json")
    ended.rename(ended.with_name("1.failed.json"))
    path.write_text('{"env_file": "e", "places": 3}')
    words = {"launch": str(launched), "resume": "done", "retry": "done"}
    local = backends.backend_type("local")._replace(open=lambda *_: Clustered())
    with backends.registered(local):
        code, _, error = say(verb, words[verb])
    message = f"{path}: places: should be a list, not 3; so it is unknown where its jobs wait"
    assert code == 6 and error.count(message) == 1
    assert path.read_text() == '{"env_file": "e", "places": 3}'


def test_a_launch_beside_a_launcher_needs_the_record_of_its_launch(
    root: Path, say: Say, launched: Path
) -> None:
    path = root / "done" / "launcher" / "service.json"
    path.write_text("{}")
    with lock.holding_sweep(SweepFolder(open_store(str(root)), "done")):
        code, _, error = say("launch", str(launched), "x=[1,2,3]")
    message = (
        f"{path}: env_file: should be a text, and is missing; end the running launcher with `sw"
    )
    assert code == 6 and message in error


def test_a_key_that_is_half_a_character_is_shown_and_exported(root: Path, say: Say) -> None:
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


def test_nesting_without_end_is_damage(root: Path, say: Say) -> None:
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


def test_a_link_to_a_disk_that_is_away_is_no_absence(root: Path, say: Say) -> None:
    shutil.move(root / "bad", root.parent / "elsewhere")
    (root / "bad").symlink_to(root.parent / "gone")
    code, shown, error = say("status")
    assert code == 6 and "good" in shown
    assert f"{root / 'bad'}: is a dangling link" in error


# Nothing is deleted, forgotten or started on the ground of absence


def old_environment(folder: Path) -> Path:
    """What a launch of the sweep at `folder` left, two hours ago."""
    path = Path(environment_file.write(str(folder), {}))
    os.utime(path, (time.time() - 7200, time.time() - 7200))
    return path


@pytest.mark.parametrize("away", [".", "open"])
def test_the_environment_of_a_sweep_that_is_away_stays(
    root: Path, say: Say, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """Its root's disk is not mounted, or a link to its folder leads nowhere. The runs that are
    still to be started would fail without it, and nobody could say why."""
    sweep = written.Written(root, "open", {"lr": [1, 2]})
    sweep.run({"lr": 1}, 0, [], "running")
    sweep.run({"lr": 2}, 0, [], "planned")
    sweep.save()
    path, ended = old_environment(root / "open"), old_environment(root / "good")
    assert list(kept_environments.unused_files()) == [str(ended)]
    stays: list[tuple[str, str]] = []
    (root / away).rename(root.parent / "away")
    left = list(kept_environments.unused_files(unknown=lambda *about: stays.append(about)))
    assert str(path) not in left and (str(path), str(root / "open")) in stays
    code, _, error = say("store", "gc", "--delete")
    assert code == (6 if away == "." else 0)
    assert f"{path}: kept, because its runs' folder {root / 'open'} is" in error
    assert path.exists()
    monkeypatch.chdir(root.parent)
    grid = root.parent / "other.yaml"
    grid.write_text("name: other\ncommand: ['true', '{x}']\ngrid: {x: [1]}\n"
                    "launch: {backend: local}\n")  # fmt: skip
    assert say("launch", str(grid), "--wait", "--plain")[0] == 0
    assert path.exists()


def test_a_sweep_that_is_away_is_not_launched_anew(
    root: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    grid = root.parent / "good.yaml"
    grid.write_text("name: good\ncommand: ['true', '{x}']\ngrid: {x: [1]}\n"
                    "launch: {backend: local}\n")  # fmt: skip
    path = environment_file.write(str(root / "good"), {})
    root.rename(root.parent / "away")
    code, _, error = say("launch", str(grid), "--wait", "--plain")
    assert code == 6 and f"{root / 'good'}: was launched before and was not over" in error
    assert f"remove {path} as well" in error
    assert not root.exists()


def test_copies_of_code_stay_while_a_sweep_cannot_be_read(root: Path, say: Say) -> None:
    copy = root.parent / "home" / "snapshots" / f"{'a' * 32}-0123abcd"
    copy.mkdir(parents=True)
    assert str(copy) in say("store", "gc", "--days", "-1")[1]
    (root / "bad" / "sweep.json").write_text("{")
    assert str(copy) not in say("store", "gc", "--days", "-1")[1]
    root.rename(root.parent / "away")
    assert str(copy) not in say("store", "gc", "--days", "-1")[1]
    root.mkdir()  # where a disk is mounted else
    assert str(copy) not in say("store", "gc", "--days", "-1")[1]


def test_no_events_are_read_of_a_sweep_that_is_not_there(root: Path) -> None:
    store = open_store(str(root))
    assert len(SweepFolder(store, "good").read_events()) == 1
    shutil.rmtree(root / "good" / "state")
    assert SweepFolder(store, "good").read_events() == {}  # nothing has happened yet
    for missing in (root / "good", root):
        shutil.rmtree(missing)
        with pytest.raises((NotFound, StoreError)):
            SweepFolder(LocalStore(str(root)), "good").read_events()


def test_a_root_that_is_away_is_told_and_the_others_are_shown(
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
    # But who types it where nothing was launched yet is told just that.
    monkeypatch.chdir(root.parent)
    monkeypatch.delenv("SWEEPER_ROOT")
    (root.parent / "sweeps").rename(root.parent / "others")
    code, _, error = say("status")
    assert code == 0 and "no sweep has been launched from this folder yet" in error


def test_a_log_that_cannot_be_read_hides_no_other(root: Path, say: Say) -> None:
    sweep = written.Written(root, "said", {"lr": [1, 2]})
    for lr in (1, 2):
        sweep.run({"lr": lr}, 0, [], log=f"this is {lr}\n")
    sweep.save()
    path = root / "said" / "attempts" / f"{sweep.document['runs'][0]['id']}.1" / "stdout.log"
    path.unlink()
    path.mkdir()
    code, shown, error = say("logs", "said")
    assert code == 6 and "this is 2" in shown and f"{path}: Is a directory" in error
