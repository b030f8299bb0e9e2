"""`retry` without failed runs says what to do instead."""

from pathlib import Path

import pytest
from support import written

from sweeper.cli import main


def test_retry_points_to_resume_if_runs_wait_for_a_launcher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = written.Written(tmp_path, "study", {"lr": [0.1, 0.2]})
    sweep.run({"lr": 0.1})
    sweep.save()
    verb = ["retry", "study", "--root", str(tmp_path)]
    assert main(verb) == 0
    assert "not started yet" not in capsys.readouterr().err
    sweep.run({"lr": 0.2}, state="planned")
    sweep.save()
    assert main(verb) == 0
    hint = f"`sweeper resume study --root {tmp_path}`"
    assert f"1 run not started yet: {hint}" in capsys.readouterr().err
