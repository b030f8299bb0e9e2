"""`sweeper launch` and the verbs around it, with a toy recipe that keeps a ledger."""

import json
import os
import signal
import subprocess
import uuid
from pathlib import Path

import pytest
from support.shell import Shell

pytestmark = pytest.mark.e2e


def test_a_sweep_from_start_to_end(shell: Shell) -> None:
    assert "6 to start" in shell.run("plan", "grid.yaml")
    assert not (shell.folder / "sweeps").exists()  # a plan leaves nothing behind
    output = shell.run("launch", "grid.yaml", "--wait")
    assert "6/6 succeeded" in output
    assert shell.states() == {"succeeded": 6}
    done = shell.executed()
    assert len(done) == 30
    assert set(done.values()) == {1}
    assert "0 to start, 6 succeeded" in shell.run("plan", "grid.yaml")
    shell.run("launch", "grid.yaml", "--wait")
    assert shell.executed() == done
    listed = json.loads(shell.run("ls", "toys", "--where", "learning_rate < 0.2", "--json"))
    assert [run["value"] for run in listed["runs"]] == [0.2] * 3
    assert "toys" in shell.run("status")


def test_failures_are_reported(shell: Shell) -> None:
    # Some runs never started.
    output = shell.run("launch", "grid.yaml", "fail=true", "--wait", code=4)
    assert "failed with the same error (error: RuntimeError: the toy was told to fail)" in output
    assert shell.states()["planned"] > 0
    assert "held: the first runs failed" in shell.run("status", "toys", code=4)
    output = shell.run("launch", "grid.yaml", "fail=true", "--wait", code=3)
    assert "6 failed" in output
    status = shell.run("status", "toys", code=3)
    assert "error" in status
    assert "RuntimeError: the toy was told to fail" in shell.run("logs", "toys/lr=0.1,seed=0")
    assert "error: RuntimeError: the toy was told to fail" in shell.run("status", "toys", code=3)
    output = shell.run("launch", "grid.yaml", "fail=true", "--wait", code=3)
    assert {attempt for _, attempt, _ in shell.executed()} == {"1"}  # not retried
    again = "6 runs failed: `sweeper logs toys --state failed` shows their output, `sweeper retry"
    assert again in output
    assert again in shell.run("launch", "grid.yaml", "fail=true")


def test_one_launcher_at_a_time(shell: Shell) -> None:
    shell.hold.touch()
    first = shell.start("launch", "grid.yaml", "--wait")
    shell.until(shell.ledger.exists)
    second = shell.start("launch", "grid.yaml", "--wait")
    follows = "a launcher is already running: following it until it ends"
    assert any(follows in line for line in second.stderr)
    joined = "the running launcher continues the sweep; watch it with `sweeper watch toys`"
    assert joined in shell.run("launch", "grid.yaml")
    assert "running" in shell.run("status", "toys", code=4)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "running jobs continue, nothing new is started; `sweeper resume toys` starts" in errors
    shell.hold.unlink()
    output, errors = second.communicate(timeout=60)
    assert second.returncode == 4, output + errors  # unfinished, since the first launcher has ended
    assert "6/6 succeeded" in shell.run("launch", "grid.yaml", "--wait")
    assert set(shell.executed().values()) == {1}


def test_without_waiting_the_launcher_continues_by_itself(shell: Shell) -> None:
    assert "sweeper watch toys" in shell.run("launch", "grid.yaml")
    shell.until_states({"succeeded": 6})
    assert set(shell.executed().values()) == {1}
    followed = shell.run("status", "toys", "--follow")
    assert "toys: 6 succeeded" in followed
    again = shell.run("launch", "grid.yaml")
    assert ": 0 to start, 6 succeeded\n" in again
    assert "nothing to start" in again
    assert "launched" not in again


def test_runs_that_leave_the_grid_are_looked_after_until_they_end(shell: Shell) -> None:
    shell.hold.touch()
    first = shell.start("launch", "grid.yaml", "seconds=0.4", "--wait")
    shell.until(lambda: len({run for run, _, _ in shell.executed()}) == 2)
    first.kill()
    first.communicate()
    second = shell.start("launch", "grid.yaml", "--wait")
    plan = shell.folder / "sweeps" / "toys" / "sweep.json"
    shell.until(lambda: '"retired":true' in plan.read_text().replace(" ", ""))
    shell.hold.unlink()
    output, errors = second.communicate(timeout=120)
    printed = output + errors
    assert second.returncode == 0, printed
    assert "launched before, but no longer in the grid: 2 runs; 2 still running" in printed
    done = shell.executed()
    assert len(done) == 8 * 5  # two running runs ended, and six new runs ran
    assert set(done.values()) == {1}
    for where, count in (("retired == false", 6), ("retired == true", 2)):
        command = ("ls", "toys", "--state", "succeeded", "--where", where, "--json")
        assert len(json.loads(shell.run(*command))["runs"]) == count


def test_an_interrupted_terminal_takes_no_job_with_it(shell: Shell) -> None:
    """Ctrl-C reaches every process of the terminal's group, not only the launcher."""
    shell.hold.touch()
    first = shell.start("launch", "grid.yaml", "--wait", start_new_session=True)
    shell.until(lambda: len(shell.executed()) >= 2)
    os.killpg(first.pid, signal.SIGINT)
    first.communicate(timeout=60)
    assert first.returncode == 130
    shell.hold.unlink()
    assert "6/6 succeeded" in shell.run("launch", "grid.yaml", "--wait")
    assert set(shell.executed().values()) == {1}
    assert {attempt for _, attempt, _ in shell.executed()} == {"1"}


def test_secrets_are_nowhere_to_be_seen(tmp_path: Path, tmux_socket: str) -> None:
    shell = Shell(tmp_path, "tmux")
    grid = (tmp_path / "grid.yaml").read_text()
    (tmp_path / "grid.yaml").write_text(grid + "secrets: [MY_KEY]\n")
    assert "the secret MY_KEY is not set" in shell.run("launch", "grid.yaml", code=6)
    # Unique to this test: the command lines of parallel tests contain canaries.
    secret = f"canary-{uuid.uuid4().hex}"
    shell.environment["MY_KEY"] = secret
    shell.hold.touch()
    launcher = shell.start("launch", "grid.yaml", "--wait")
    shell.until(lambda: len(shell.executed()) >= 2)
    tmux = ["tmux", "-L", tmux_socket]
    for command in (["show-environment", "-g"], ["show-environment", "-t", "toys"]):
        shown = subprocess.run([*tmux, *command], capture_output=True, text=True, check=True)
        assert secret not in shown.stdout
    form = "#{pane_start_command} #{pane_title} #{window_name}"
    starts = [*tmux, "list-panes", "-a", "-F", form]
    needle = secret.encode()
    assert needle not in subprocess.run(starts, capture_output=True, check=True).stdout
    assert not any(needle in _read(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
    files = list((tmp_path / "home" / "environments").iterdir())
    assert len(files) == 1
    assert files[0].stat().st_mode & 0o077 == 0
    shell.hold.unlink()
    launcher.communicate(timeout=120)
    stored = [path for path in (tmp_path / "sweeps").rglob("*") if path.is_file()]
    assert stored
    assert not any(needle in _read(path) for path in stored)
    assert not list((tmp_path / "home" / "environments").iterdir())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["launch", "nothing.yaml"], 2, "nothing.yaml"),
        (["launch", "grid.yaml", "lerning_rate=1"], 2, "did you mean 'learning_rate'?"),
        (["launch", "grid.yaml", "learning_rate=fast"], 2, "learning_rate"),
        (["launch", "grid.yaml", "--backend", "slrum"], 2, "slrum"),
        (["status", "nothing"], 5, "no sweep 'nothing'"),
        (["logs", "nothing/x"], 5, "no run 'nothing/x'"),
        (["launch", "grid.yaml", "--root", "ftp://bucket"], 6, "no store for ftp://"),
        (["frobnicate"], 2, "no verb 'frobnicate'"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, tmux_socket: str, arguments: list[str], code: int, message: str
) -> None:
    shell = Shell(tmp_path, "local")
    output = shell.run(*arguments, code=code)
    assert message in output
    assert "Traceback" not in output
    assert not (tmp_path / "sweeps").exists()
    assert not shell.ledger.exists()


def test_giving_a_default_is_warned_of_and_trains_again(shell: Shell) -> None:
    small = ("grid.yaml", "seeds=1", "learning_rate=[0.3]", "seconds=0.01")
    shell.run("launch", *small, "--wait")
    warning = (
        "1 run will train again: the grid now sets fail explicitly, to the recipe's "
        "default, which gives runs new ids"
    )
    assert f"warning: {warning}" in shell.run("plan", *small, "fail=false")
    assert warning in shell.run("launch", *small, "fail=false", "--wait", "--drop")
    assert warning not in shell.run("plan", *small, "fail=false")  # the new runs are recorded
    assert len(shell.executed()) == 10


@pytest.mark.usefixtures("tmux_socket")
def test_another_backend_is_refused_while_a_run_may_have_a_job(shell: Shell) -> None:
    small = ("grid.yaml", "seeds=1", "learning_rate=0.3", "seconds=0.01")
    shell.run("launch", *small, "--wait")
    # The state after a launcher was killed just after it submitted a second attempt.
    (state,) = (shell.folder / "sweeps/toys/state").iterdir()
    (state / "1.succeeded.json").rename(state / "2.submitted.json")
    output = shell.run("launch", *small, "--backend", "tmux", "--wait", code=2)
    assert "unfinished runs were submitted to local, and a launch to tmux would not" in output
    shell.run("cancel", "toys")
    shell.run("launch", *small, "--backend", "tmux", "--wait", code=3)
