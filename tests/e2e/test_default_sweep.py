"""Verbs without a sweep, launches while a launcher is at work, and their messages."""

import os
from pathlib import Path

import pytest
from support import written

from sweeper.cli import main
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.lock import holding_sweep

pytestmark = pytest.mark.e2e

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with two sweeps. `late` was launched last and has a planned run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPER_ROOT", raising=False)
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    for name, created in (("early", "2026-11-20T01:02:03Z"), ("late", "2026-11-21T01:02:03Z")):
        sweep = written.Written(tmp_path / "sweeps", name, {"lr": [1, 2]}, created=created)
        for lr in (1, 2):
            rows = [{"step": step, "test/nll": lr + step} for step in range(3)]
            state = "planned" if (name, lr) == ("late", 2) else "succeeded"
            sweep.run({"lr": lr}, 0, rows, state=state)
        sweep.save()
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "verb", [["analyze", "--no-pictures"], ["logs"], ["logs", "-n", "2"], ["alarms"]]
)
def test_verbs_that_read_take_the_newest_sweep(verb: list[str], capfd: Captured) -> None:
    named = main([verb[0], "late", *verb[1:]]), capfd.readouterr()
    assert (main(verb), capfd.readouterr()) == named
    assert named[0] == 0


@pytest.mark.usefixtures("here")
def test_the_runs_of_a_sweep_may_follow_flags(capfd: Captured) -> None:
    assert main(["alarms", "--json", "early", "lr=1,seed=0"]) == 0
    assert '"sweep": "early"' in capfd.readouterr().out
    assert main(["alarms", "--json", "early", "no-such-run"]) == 5


@pytest.mark.parametrize("verb", ["pause", "retry", "resume", "stop"])
def test_verbs_that_change_a_sweep_guess_none(here: Path, verb: str, capfd: Captured) -> None:
    """They take the only sweep; `pause` and `stop` also the only one with a launcher."""
    assert main([verb]) == 2
    assert "name one of the sweeps: early, late" in capfd.readouterr().err
    if verb == "pause":
        with holding_sweep(SweepFolder(open_store("sweeps"), "early")):
            assert main([verb]) == 0
        assert "early: paused" in capfd.readouterr().out
    os.rename(here / "sweeps/late", here / "late")
    if verb in ("retry", "stop"):
        assert main([verb]) == 0
        assert "early: " in capfd.readouterr().out


def test_no_windows_are_looked_for_where_a_backend_has_none(here: Path, capfd: Captured) -> None:
    assert main(["attach"]) == 5
    line = "late has no tmux windows: its backend is local; `sweeper watch late` shows the sweep"
    assert capfd.readouterr().err == f"sweeper: {line}\n"


def test_a_report_says_that_open_runs_will_not_start(here: Path, capfd: Captured) -> None:
    """The advice "let the open run finish" would be wrong."""
    assert main(["analyze", "late", "--no-pictures"]) == 0
    output = " ".join(capfd.readouterr().out.split())
    assert "1 open run, but no launcher is running: no runs are started until `sweeper" in output
    assert main(["pause", "late"]) == 0
    capfd.readouterr()
    assert main(["analyze", "late", "--no-pictures"]) == 0
    output = " ".join(capfd.readouterr().out.split())
    assert "1 open run, but paused by " in output
    with holding_sweep(SweepFolder(open_store("sweeps"), "early")):
        assert main(["analyze", "early", "--no-pictures"]) == 0
    assert "open run" not in capfd.readouterr().out


def test_a_report_in_a_bucket_says_how_to_open_it(
    s3_root: str, tmp_path: Path, capfd: Captured
) -> None:
    sweep = written.Written(tmp_path, "far", {"lr": [1, 2]})
    for lr in (1, 2):
        sweep.run({"lr": lr}, 0, [{"step": 0, "test/nll": lr}])
    sweep.save()
    store = open_store(s3_root)
    for path in (tmp_path / "far").rglob("*"):
        if path.is_file():
            store.upload(str(path.relative_to(tmp_path)), str(path))
    assert main(["analyze", "far", "--root", s3_root, "--no-pictures"]) == 0
    output = capfd.readouterr().out
    assert f"report: {s3_root}/far/report/report.html" in output and "--out FOLDER" in output
    out = str(tmp_path / "out")
    assert main(["analyze", "far", "--root", s3_root, "--no-pictures", "--out", out]) == 0
    assert "--out FOLDER" not in capfd.readouterr().out


def test_a_waiting_launch_and_retry_end_with_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    root = str(tmp_path / "my runs")
    script = 'echo "{\\"step\\": 1, \\"loss\\": $2}" > "$1/metrics.jsonl"; test -e good -o $2 = 1'
    (tmp_path / "run.sh").write_text(script)
    (tmp_path / "g.yaml").write_text(
        "command: [sh, run.sh, '{log_path}', '{lr}']\n"
        "grid: {lr: [1, 2]}\nmetric: {name: loss, goal: minimize}\n"
        "launch: {backend: local, retries: 0}\n"
    )
    verb = ["--wait", "--plain", "--root", root]
    assert main(["launch", "g.yaml", *verb]) == 3
    first = capfd.readouterr()
    assert f"`sweeper logs g --state failed --root '{root}'` shows their output" in first.err
    assert f"`sweeper retry g --root '{root}'` starts them again" in first.err
    (tmp_path / "good").touch()
    assert main(["retry", *verb]) == 0
    for printed in (first, capfd.readouterr()):
        verdict, pointer = printed.out.splitlines()[-2:]
        assert verdict.startswith("g: ")
        assert pointer == f"`sweeper analyze g --root '{root}'` writes the report"
