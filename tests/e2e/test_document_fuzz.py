"""Sixty of the cases that change what a store holds; `make fuzz` runs ten thousand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
RUN = Path(__file__).parents[1] / "fuzz" / "documents.py"


def test_no_document_is_a_bug_of_ours() -> None:
    done = subprocess.run(
        [sys.executable, RUN, "--cases", "60", "--seed", "7"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 cases: 0 failed" in done.stdout
    # Some were told, and some made no difference to what was asked.
    ended = dict(re.findall(r"(\d): (\d+)", done.stdout))
    assert int(ended["0"]) > 60 and int(ended["6"]) > 5, done.stdout
