"""What a second launch does to the runs of the first: their names, and which are dropped."""

import sys
from pathlib import Path
from typing import Any

import pytest

from sweeper.cli import main
from sweeper.errors import UsageError
from sweeper.launcher import preview
from sweeper.launcher.launching import launch
from sweeper.planner.plan import plan
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder

OK = [sys.executable, "-c", "pass", "{lr}", "{log_path}"]
BROKEN = [sys.executable, "-c", "1/0", "{lr}", "{log_path}"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def grid(command: list[str], *lrs: float) -> dict[str, Any]:
    local = {"backend": "local"}
    return {"name": "g", "command": command, "grid": {"lr": list(lrs)}, "launch": local}


def names(retired: bool = False) -> list[str]:
    runs = SweepFolder(LocalStore("sweeps"), "g").read_plan().runs
    return [run.name for run in runs if run.retired is retired]


def test_a_corrected_command_takes_over_the_names_of_failed_runs() -> None:
    launch(grid(BROKEN, 1, 2))
    survey = preview.survey(plan(grid(OK, 1, 2)), LocalStore("sweeps"))
    assert [shown.run.name for shown in survey.previews] == ["lr=1", "lr=2"]
    summary = launch(grid(OK, 1, 2)).summary
    assert summary is not None and summary.counts
    assert names() == ["lr=1", "lr=2"]
    assert all(name.startswith(("lr=1~", "lr=2~")) for name in names(retired=True))
    launch(grid(OK, 1, 2, 3))
    assert names() == ["lr=1", "lr=2", "lr=3"]


def test_a_run_with_a_result_keeps_its_name() -> None:
    launch(grid(OK, 1, 2))
    launch(grid([*OK, "more"], 1, 2), drop=True)
    assert all(name.startswith(("lr=1~", "lr=2~")) for name in names())
    assert names(retired=True) == ["lr=1", "lr=2"]


def test_dropping_finished_runs_needs_consent(capsys: pytest.CaptureFixture[str]) -> None:
    launch(grid(OK, 1, 2))
    with pytest.raises(UsageError, match="1 finished run is no longer in the grid"):
        launch(grid(OK, 1))
    assert names() == ["lr=1", "lr=2"]
    survey = preview.survey(plan(grid(OK, 1)), LocalStore("sweeps"))
    assert (survey.retired, survey.dropped) == (1, 1)
    Path("g.yaml").write_text(
        f"command: [{sys.executable}, -c, pass, '{{lr}}', '{{log_path}}']\n"
        "grid: {lr: [1, 2]}\nlaunch: {backend: local}\n"
    )
    assert main(["plan", "g.yaml", "lr=[1,3]"]) == 0
    dropped = "1 finished run is no longer in the grid: a launch removes"
    assert dropped in capsys.readouterr().out
    assert main(["launch", "g.yaml", "lr=[1,3]", "--wait", "--plain"]) == 2
    assert "To do that, launch with --drop" in capsys.readouterr().err
    assert main(["launch", "g.yaml", "lr=[1,3]", "--wait", "--plain", "--drop"]) == 0
    assert names() == ["lr=1", "lr=3"]
    # Runs that were dropped earlier need no consent.
    assert main(["launch", "g.yaml", "lr=[1,3]", "--wait", "--plain"]) == 0


def test_runs_without_a_result_are_dropped_silently() -> None:
    launch(grid(BROKEN, 1, 2))
    launch(grid(BROKEN, 1))
    assert names() == ["lr=1"]
