"""The exact output of `sweeper plan` for the hostile grids in `tests/corpus`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus"
GRIDS = sorted(path.name for path in CORPUS.glob("*.yaml"))


def parse_expected(expected: str) -> dict[str, list[str]]:
    """Return the messages of each grid in `expected.txt`, where its name is in brackets."""
    messages: dict[str, list[str]] = {}
    for line in expected.splitlines():
        if line.startswith("["):
            messages[line[1:-1]] = []
        elif line:
            messages[list(messages)[-1]].append(line)
    return messages


EXPECTED = parse_expected((CORPUS / "expected.txt").read_text())


@pytest.fixture(scope="module")
def judge() -> Iterator[Any]:
    """Yield a function from a folder and arguments to the answer of tests/fuzz/judge.py."""
    command = [sys.executable, str(ROOT / "tests" / "fuzz" / "judge.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None
        wants, says = process.stdin, process.stdout

        def ask(folder: Path, *arguments: str) -> Any:
            given = ["plan", "--root", "nowhere", *arguments]
            request = {"cwd": str(folder), "arguments": given, "real": True}
            wants.write(json.dumps(request) + "\n")
            wants.flush()
            return json.loads(says.readline())

        yield ask
        wants.close()


def lines(answer: Any) -> list[str]:
    """Return the mistakes that were printed, else the plan's warnings and counts."""
    text = answer["err"].removeprefix("sweeper: ").replace("sweeper: warning", "warning")
    output = text.replace(sys.executable, "PYTHON").replace(str(ROOT), "ROOT").splitlines()
    return output + [line for line in answer["out"].splitlines() if line.endswith(" to start")]


def test_every_grid_is_in_the_table_and_many_mistakes_are() -> None:
    assert sorted(EXPECTED) == GRIDS
    mistakes = {line.partition(": ")[2] for expected in EXPECTED.values() for line in expected}
    assert len(mistakes) >= 100


def _files() -> list[Path]:
    """Return the files of the corpus, without Python's caches."""
    return sorted(path for path in CORPUS.rglob("*") if "__pycache__" not in path.parts)


@pytest.mark.parametrize("grid", GRIDS)
def test_a_grid_has_the_expected_messages(judge: Any, grid: str) -> None:
    before = _files()
    answer = judge(CORPUS, grid)
    assert lines(answer) == EXPECTED[grid]
    assert answer["code"] == (0 if EXPECTED[grid][-1].endswith(" to start") else 2)
    assert answer["did"] == []
    assert answer["megabytes"] < 200
    assert _files() == before


def test_what_is_not_a_file_is_refused(judge: Any, tmp_path: Path) -> None:
    command = "command: [x]\n"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.yaml").symlink_to("linked.yaml")
    (tmp_path / "dangling.yaml").symlink_to("nowhere.yaml")
    for name, target in {
        "piped": "pipe",
        "linked": "link.yaml",
        "dangles": "dangling.yaml",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(f"{command}extends: {target}\n")
    for number in range(1000):
        (tmp_path / f"c{number}.yaml").write_text(f"{command}extends: c{number + 1}.yaml\n")
    for grid, message in {
        "piped.yaml": "piped.yaml:2:10: extends: pipe is not a file",
        "linked.yaml": "linked.yaml:2:10: extends: link.yaml extends itself in a cycle",
        "dangles.yaml": "dangles.yaml:2:10: extends: dangling.yaml: No such file or directory",
        "c0.yaml": "c8.yaml:2:10: extends forms a chain of more than 8 files",
        "/dev/zero": "/dev/zero: larger than the limit of 131072 bytes for a grid",
        ".": ".: Is a directory",
        "nowhere.yaml": "nowhere.yaml: No such file or directory",
    }.items():
        answer = judge(tmp_path, grid)
        assert (lines(answer), answer["code"], answer["did"]) == ([message], 2, [])
