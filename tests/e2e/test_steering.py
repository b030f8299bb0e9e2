"""Cancel, retry, smoke runs and stored code, with real jobs."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.shell import Shell

pytestmark = pytest.mark.e2e


def _left(shell: Shell) -> list[Path]:
    """Return the files with environments that were not removed."""
    return list((shell.folder / "home" / "environments").glob("*"))


@pytest.mark.parametrize("killed", [False, True], ids=["launcher", "alone"])
def test_cancel(shell: Shell, killed: bool) -> None:
    """With and without a running launcher."""
    launcher = shell.start("launch", "grid.yaml", "seconds=60", "--wait")
    shell.until(lambda: len(shell.executed()) >= 2)
    if killed:
        launcher.kill()
        launcher.communicate()
    output = shell.run("cancel", "toys", "lr=0.1*")
    assert "toys: 3 cancelled" in output
    states = shell.states()
    assert states["cancelled"] == 3
    if killed:
        assert states == {"cancelled": 3, "planned": 3}
    assert "toys: 6 cancelled" in shell.run("cancel", "toys")
    document = json.loads(shell.run("cancel", "toys", "--json"))
    assert {run["state"] for run in document["runs"]} == {"cancelled"}
    assert shell.states() == {"cancelled": 6}
    assert "none of the 6 runs" in shell.run("cancel", "toys", "--state", "running")
    if not killed:
        assert launcher.wait(90) == 3
        launcher.communicate()
    assert not _left(shell)
    shell.run("status", "toys", code=3)
    before = shell.executed()
    assert "3 cancelled" in shell.run("cancel", "toys", "lr=0.1*")
    assert shell.executed() == before
    shell.run("launch", "grid.yaml", "seconds=60", "--wait", code=3)  # they stay cancelled
    assert shell.executed() == before


def test_retry_what_was_cancelled_and_what_failed(shell: Shell) -> None:
    shell.run("launch", "grid.yaml", f"flag={shell.folder}/flag", "--wait", code=4)
    assert shell.states()["failed"] >= 3
    (shell.folder / "flag").write_text("mended")
    output = shell.run("retry", "toys", "--wait")
    assert "6/6 succeeded" in output
    assert not _left(shell)
    assert "0 runs will start again" in shell.run("retry", "toys")
    output = shell.run("retry", "toys", "lr=0.1,seed=0", code=2)
    assert "lr=0.1,seed=0 of toys has succeeded: add --state succeeded" in output


def test_a_retry_is_taken_up_by_the_launcher_at_work(shell: Shell) -> None:
    shell.hold.touch()
    launcher = shell.start("launch", "grid.yaml", "--wait")
    shell.until(lambda: len(shell.executed()) >= 2)
    shell.run("cancel", "toys", "lr=0.3,seed=2")
    printed = shell.run("retry", "toys", "lr=0.3,seed=2")
    assert "the running launcher starts them" in printed
    shell.hold.unlink()
    output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, output + errors
    assert shell.states() == {"succeeded": 6}
    assert set(shell.executed().values()) == {1}


def test_smoke(shell: Shell) -> None:
    output = shell.run("launch", "grid.yaml", "fail=true", "--smoke", "--wait", code=4)
    assert "the first run, lr=0.1,seed=0, failed" in output
    assert len({run for run, _, _ in shell.executed()}) == 1
    shell.run("launch", "grid.yaml", "--smoke", "--wait")
    assert len({run for run, _, _ in shell.executed()}) == 7


def _git(folder: Path, *arguments: str) -> None:
    command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=n@x", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def test_what_runs_is_the_code_as_it_was_at_launch(shell: Shell) -> None:
    toy = shell.folder / "toy.py"
    old = toy.read_text().replace("def main", 'VERSION = "old"\n\ndef main')
    old = old.replace("    attempt =", "    print(VERSION, os.path.exists('data'))\n    attempt =")
    toy.write_text(old)
    (shell.folder / ".gitignore").write_text("data\nhome\nsweeps\nledger\n")
    (shell.folder / "data").mkdir()
    _git(shell.folder, "init", "-q")
    _git(shell.folder, "add", "-A")
    _git(shell.folder, "commit", "-qm", "one")
    launcher = shell.start("launch", "grid.yaml", "seconds=0.4", "--wait")
    shell.until(shell.ledger.exists)
    toy.write_text("raise SystemExit('half-saved')\n")
    output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, output + errors
    assert "old True" in shell.run("logs", "toys/lr=0.3,seed=2")
    toy.write_text(old.replace('"old"', '"new"'))
    printed = shell.run(
        "launch", "grid.yaml", "seconds=0.4", "learning_rate=[0.1,0.9]", "--wait", "--drop"
    )
    assert "the code has changed (toy.py): attempts from now on use the new code" in printed
    assert "new True" in shell.run("logs", "toys/lr=0.9,seed=0")
    diffs = list((shell.folder / "sweeps" / "toys" / "runs").glob("*/code.diff"))
    assert len(diffs) == 9
    assert any('+VERSION = "new"' in path.read_text() for path in diffs)
    toy.write_text(old.replace('"old"', '"live"'))
    shell.run("launch", "grid.yaml", "learning_rate=[0.7,0.8]", "--wait", "--live", "--drop")
    assert "live True" in shell.run("logs", "toys/lr=0.7,seed=0")


def test_a_retry_tells_that_the_code_has_changed(shell: Shell, tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("home\nsweeps\nledger\nflag\n")
    shell.run("launch", "grid.yaml", f"flag={tmp_path}/flag", "--wait", code=4)
    (tmp_path / "flag").write_text("mended")
    assert "has changed" not in shell.run("retry", "toys", "lr=0.1,seed=0", "--wait", code=3)
    (tmp_path / "notes.md").write_text("no run executes this\n")
    assert "has changed" not in shell.run("retry", "toys", "lr=0.1,seed=1", "--wait", code=3)
    (tmp_path / "toy.py").write_text("raise SystemExit('changed')\n")
    output = shell.run("retry", "toys", "--wait")
    assert "the code has changed since the launch" in output
    assert shell.states() == {"succeeded": 6}


def test_a_secret_in_the_grid_is_refused(shell: Shell, tmp_path: Path) -> None:
    grid = (tmp_path / "grid.yaml").read_text()
    (tmp_path / "grid.yaml").write_text(grid + "secrets: [MY_KEY]\n")
    shell.environment["MY_KEY"] = "canary-0815"
    output = shell.run("launch", "grid.yaml", "ledger=canary-0815", code=2)
    assert "contains the value of the secret MY_KEY" in output
    assert "canary" not in output
    assert not any(
        b"canary" in path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and not os.path.islink(path)
    )


def test_a_sweep_is_paused_widened_stopped_and_resumed(shell: Shell) -> None:
    """While its launcher is running. None of this stops a run or starts one twice."""
    shell.hold.touch()
    launcher = shell.start("launch", "grid.yaml", "--wait")
    shell.until(lambda: len(shell.executed()) >= 2)
    assert "toys: paused: nothing new is started, running jobs continue" in shell.run(
        "pause", "toys"
    )
    shell.hold.unlink()
    shell.until_states({"succeeded": 2, "planned": 4})
    # The launcher records this in its next round.
    shell.until(lambda: "held: paused by " in shell.run("status", "toys", code=4))
    assert launcher.poll() is None
    shell.hold.touch()
    wider = ("grid.yaml", "learning_rate=[0.1,0.3,0.5]")
    joined = "the running launcher continues the sweep"
    assert joined in shell.run("launch", *wider)
    assert sum(shell.states().values()) == 9
    again = shell.run("launch", *wider)
    assert joined in again and "the running launcher starts no runs now: paused by " in again
    assert "toys: at most 4 jobs at once" in shell.run("parallel", "toys", "4")
    assert "toys: continued" in shell.run("resume", "toys")
    shell.until(lambda: len({run for run, *_ in shell.executed()}) >= 4)
    assert "the launcher has ended; running jobs continue" in shell.run("stop", "toys")
    assert launcher.wait(90) == 4
    launcher.communicate()
    assert "no launcher is running" in shell.run("stop", "toys")
    assert "continued by a new launcher" in shell.run("resume", "toys")
    shell.hold.unlink()
    shell.until_states({"succeeded": 9})
    assert set(shell.executed().values()) == {1}
    shell.until(lambda: not _left(shell))
    # Until its launcher ends, the sweep belongs to it and is not paused.
    shell.until(lambda: "nothing is left to do" in shell.run("resume", "toys"))
