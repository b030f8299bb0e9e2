import sys

import pytest

from sweeper.recipes import rundir, settings, tracking


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)


def test_without_a_project_wandb_is_not_even_imported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it would fail
    directory = rundir.RunDirectory(str(tmp_path), None)
    with tracking.tracked(settings.Settings(), directory, {}) as tracker:
        tracker.log(0, {"test/nll": 1.0})
    assert tracker.mark == {}
    assert list(tmp_path.iterdir()) == []


def test_a_wandb_that_cannot_be_imported_is_told_and_costs_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    directory = rundir.RunDirectory(str(tmp_path), {"batch": 3, tracking.RUN_ID: "abc"})
    config = settings.Settings(wandb_project="demo")
    with tracking.tracked(config, directory, {}) as tracker:
        tracker.log(3, {"test/nll": 1.0})
    # Checkpoints keep the id of the W&B run, for an attempt with a working W&B.
    assert tracker.mark == {tracking.RUN_ID: "abc"}
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[:2] for line in lines] == [
        ["W&B", " recorded on disk only"],
        ["W&B", " not recorded"],
    ]


def test_a_project_may_come_and_go_when_a_run_is_resumed():
    assert {"wandb_project", "wandb_name"} <= settings.FREE
