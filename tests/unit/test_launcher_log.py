"""Launchers log what they wait for, in a bounded file, without secrets."""

import os
import sys
from pathlib import Path

import pytest

from sweeper.cli import main
from sweeper.common.logs import MOST_BYTES, Changes, Log, level, logging_to
from sweeper.common.redaction import Redactor
from sweeper.errors import UsageError
from sweeper.scheduler.context import Context
from sweeper.scheduler.loop import Scheduler
from sweeper.sweep.states import Event


def _messages(path: Path) -> list[str]:
    """Return the messages in a log, without time and level."""
    return [line.split(" ", 2)[2] for line in path.read_text().splitlines()]


def test_a_launcher_that_waits_says_for_what_and_says_it_once(make_scene, tmp_path):
    scene = make_scene(1)
    run = scene.ids[0]
    seconds = iter(range(10_000))

    def sleep(_: float) -> None:
        scene.clock.now += 1
        second = next(seconds)
        scene.backend.reachable = second > 5
        if second == 8:
            scene.finish(run)

    context = Context(scene.folder, scene.backend, scene.clock, sleep)
    with logging_to(str(tmp_path / "log"), str):
        Scheduler(context).run()
    lines = _messages(tmp_path / "log")
    waiting = [line for line in lines if "no answer" in line]
    assert len(waiting) == 1 and waiting[0].startswith("sweeper.scheduler.loop: ")
    assert sum("everything answers again" in line for line in lines) == 1
    assert f"sweeper.scheduler.submitter: submitted to fake: {run}-a1" in lines
    assert "sweeper.scheduler.loop: runs: 1 succeeded" in lines


def test_a_lost_job_is_logged(make_scene, tmp_path):
    scene = make_scene(1)
    run = scene.ids[0]
    with logging_to(str(tmp_path / "log"), str):
        scene.step()
        scene.worker(run, 1, Event.CLAIMED)
        scene.beat(run)
        scene.step()
        scene.backend.lose(f"{run}-a1")
        for _ in range(3):
            scene.step(100)
    lost = [
        line for line in _messages(tmp_path / "log") if f"{run}-a1 is lost: the backend" in line
    ]
    assert len(lost) == 1


def test_the_file_is_bounded_and_holds_no_secrets(tmp_path):
    path = tmp_path / "log"
    with logging_to(str(path), Redactor(["a-secret-value"]).text):
        for number in range(1000):
            Log("sweeper.test").info("message %d with a-secret-value %s", number, "x" * 3000)
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1"]
    text = path.read_text() + (tmp_path / "log.1").read_text()
    assert MOST_BYTES < len(text) <= 2 * MOST_BYTES
    assert "message 999 with ***" in text and "a-secret-value" not in text


def test_the_level_is_that_of_the_variable(tmp_path, monkeypatch):
    log = Log("sweeper.test")
    for name, expected in (("", "iw"), ("debug", "diw"), ("warning", "w")):
        monkeypatch.setenv("SWEEPER_LOG", name)
        path = tmp_path / (name or "none")
        with logging_to(str(path), str):
            log.debug("d")
            log.info("i")
            log.warning("w")
        assert "".join(line[-1] for line in path.read_text().splitlines()) == expected
    log.warning("to nobody")
    monkeypatch.setenv("SWEEPER_LOG", "loud")
    with pytest.raises(UsageError, match="debug, info, warning, error"):
        level()


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path, capfd):
    with logging_to(str(tmp_path), str):  # a folder
        Changes(Log("sweeper.test"), "held", "not held").see("by a test")
    assert capfd.readouterr().err == ""


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.yaml").write_text(
        f"command: [{sys.executable}, -c, pass, '{{lr}}', '{{log_path}}']\n"
        "grid: {lr: [1]}\nlaunch: {backend: local}\n"
    )


def test_logs_shows_the_launcher_log(grid, capsys):
    assert main(["launch", "g.yaml", "--wait", "--plain"]) == 0
    capsys.readouterr()
    assert main(["logs", "g", "--launcher"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith("; places of the jobs: local; runs: 1")
    assert shown[-1].endswith("the launcher ends: nothing is left to do")
    assert main(["logs", "g", "--launcher", "--grep", "submitted to local", "-n", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main(["logs", "g", "--launcher", "--json"]) == 2


def test_a_wrong_level_is_refused_before_anything_is_written(grid, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SWEEPER_LOG", "loud")
    assert main(["launch", "g.yaml", "--wait", "--plain"]) == 2
    assert "SWEEPER_LOG='loud' is not one of debug, info" in capsys.readouterr().err
    assert not (tmp_path / "sweeps" / "g").exists()
