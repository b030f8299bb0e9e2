"""Some of the fuzzers' cases; `make fuzz` runs ten thousand of each."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
FUZZ = Path(__file__).parents[1] / "fuzz"


def fuzz(program: str, *arguments: str) -> str:
    """Run a fuzzer, which must find nothing. Return what it printed."""
    command = [sys.executable, FUZZ / program, "--seed", "7", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_grid_is_a_bug_of_ours(tmp_path: Path) -> None:
    printed = fuzz("run.py", "--cases", "120", "--keep", str(tmp_path))
    match = re.search(r"120 cases \((\d+) refused\): 0 tracebacks, 0 failed", printed)
    assert match is not None, printed
    assert 30 < int(match.group(1)) < 0.9 * 120  # both happen often enough


def test_no_document_is_a_bug_of_ours() -> None:
    printed = fuzz("documents.py", "--cases", "60")
    assert "60 cases: 0 failed" in printed
    # Some were reported, and some did not change the answer.
    ended = dict(re.findall(r"(\d): (\d+)", printed))
    assert int(ended["0"]) > 60 and int(ended["6"]) > 5, printed


def test_what_a_plan_must_not_do_is_seen(tmp_path: Path) -> None:
    """The judge reports a recipe that writes a file while it is imported."""
    (tmp_path / "writes.py").write_text('open("owned", "w")\nif __name__ == "__main__": pass\n')
    (tmp_path / "grid.yaml").write_text("recipe: writes.py\n")
    request = {"cwd": str(tmp_path), "arguments": ["plan", "grid.yaml"], "real": False}
    done = subprocess.run(
        [sys.executable, FUZZ / "judge.py"],
        input=json.dumps(request) + "\n",
        capture_output=True,
        text=True,
        cwd=FUZZ.parents[1],
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["did"] == ["open 'owned'"]
    assert answer["code"] == 2
    assert answer["seconds"] > 0
