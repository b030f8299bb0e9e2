"""Some of the fuzzer's cases; `make fuzz` runs ten thousand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
RUN = Path(__file__).parents[1] / "fuzz" / "run.py"


def test_no_grid_is_a_bug_of_ours(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, RUN, "--cases", "120", "--seed", "7", "--keep", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    match = re.search(r"120 cases \((\d+) refused\): 0 tracebacks, 0 failed", done.stdout)
    assert match is not None, done.stdout
    assert 30 < int(match.group(1)) < 0.9 * 120  # both happens often enough to say something


def test_what_a_plan_must_not_do_is_seen(tmp_path: Path) -> None:
    """The judge itself: a recipe that writes while it is imported is caught at it."""
    import json

    (tmp_path / "writes.py").write_text('open("owned", "w")\nif __name__ == "__main__": pass\n')
    (tmp_path / "grid.yaml").write_text("recipe: writes.py\n")
    request = {"cwd": str(tmp_path), "arguments": ["plan", "grid.yaml"], "real": False}
    done = subprocess.run(
        [sys.executable, RUN.with_name("judge.py")],
        input=json.dumps(request) + "\n",
        capture_output=True,
        text=True,
        cwd=RUN.parents[2],
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["did"] == ["open 'owned'"]
    assert answer["code"] == 2
    assert answer["seconds"] > 0
