"""A sweep that is launched again, and otherwise."""

from pathlib import Path

import pytest
from support import shell as shells

pytestmark = pytest.mark.e2e


def test_giving_a_default_is_warned_of_and_trains_again(tmp_path: Path) -> None:
    shell = shells.Shell(tmp_path, "local")
    small = ("grid.yaml", "seeds=1", "learning_rate=[0.3]", "seconds=0.01")
    shell.run("launch", *small, "--wait")
    warning = (
        "runs that differ from recorded ones only in giving fail, with the recipe's default: 1;"
        " they have new ids, and train again"
    )
    assert f"warning: {warning}" in shell.run("plan", *small, "fail=false")
    assert warning in shell.run("launch", *small, "fail=false", "--wait", "--drop")
    assert warning not in shell.run("plan", *small, "fail=false")  # they are on record by now
    assert len(shell.executed()) == 10


@pytest.mark.usefixtures("tmux_socket")
def test_another_backend_is_refused_while_a_run_may_have_a_job(tmp_path: Path) -> None:
    shell = shells.Shell(tmp_path, "local")
    small = ("grid.yaml", "seeds=1", "learning_rate=0.3", "seconds=0.01")
    shell.run("launch", *small, "--wait")
    # As the launcher left it that was killed just after it had submitted a second attempt.
    (state,) = (tmp_path / "sweeps/toys/state").iterdir()
    (state / "1.succeeded.json").rename(state / "2.submitted.json")
    output = shell.run("launch", *small, "--backend", "tmux", "--wait", code=2)
    assert "unfinished runs were submitted to local, and a launch to tmux would not" in output
    shell.run("cancel", "toys")
    shell.run("launch", *small, "--backend", "tmux", "--wait", code=3)
