"""A sweep that is launched again with a value written out which the recipe takes anyway."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


def test_giving_a_default_is_warned_of_and_trains_again(shells: Any, tmp_path: Path) -> None:
    shell = shells.Shell(tmp_path, "local")
    small = ("grid.yaml", "seeds=1", "learning_rate=[0.3]", "seconds=0.01")
    shell.run("launch", *small, "--wait")
    warning = (
        "runs that differ from recorded ones only in giving fail, with the recipe's default: 1;"
        " they are other runs, and train again"
    )
    assert f"warning: {warning}" in shell.run("plan", *small, "fail=false")
    assert warning in shell.run("launch", *small, "fail=false", "--wait")
    assert warning not in shell.run("plan", *small, "fail=false")  # they are on record by now
    assert len(shell.executed()) == 10
