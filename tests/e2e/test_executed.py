"""Which code, packages and data each run executed: recorded, shown, and told where runs are
compared."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sweeper.results.origins import Difference, differences
from sweeper.results.registry import Registry

pytestmark = pytest.mark.e2e

_TRAIN = """
import json, os, sys
with open(os.path.join(sys.argv[2], "metrics.jsonl"), "w") as file:
    file.write(json.dumps({"step": 1, "loss": float(sys.argv[1]) + OFFSET}) + "\\n")
"""
_GRID = """
name: g
command: [python, train.py, "{lr}", "{log_path}"]
grid: {lr: [1, 2]}
metric: {name: loss, goal: minimize}
launch: {backend: local}
"""


class Project:
    """A folder with a program and a grid, and sweeper's commands in it."""

    def __init__(self, root: Path, home: Path) -> None:
        self.root, self.home = root, home
        self.write("train.py", _TRAIN.replace("OFFSET", "0"))
        self.write("g.yaml", _GRID)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def git(self, *arguments: str, at: str = ".") -> str:
        given = ["-c", "user.name=n", "-c", "user.email=n@x", "-c", "protocol.file.allow=always"]
        return self._run(["git", *given, *arguments], at).stdout

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", "work")
        return self.git("rev-parse", "HEAD").strip()

    def sweeper(self, *arguments: str, code: int = 0, **env: str) -> Any:
        done = self._run([sys.executable, "-m", "sweeper", *arguments], ".", env, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def launch(self, *, code: int = 0, **env: str) -> str:
        done = self.sweeper("launch", "g.yaml", "--wait", code=code, **env)
        return str(done.stdout + done.stderr)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.sweeper(*arguments, "--json").stdout)

    def differences(self) -> list[Difference]:
        return differences(Registry(str(self.root / "sweeps")).sweep("g").runs)

    def _run(
        self, command: list[str], at: str, env: Mapping[str, str] = {}, *, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        kept |= {"SWEEPER_HOME": str(self.home), **env}
        cwd = self.root / at
        return subprocess.run(
            command, cwd=cwd, env=kept, check=check, capture_output=True, text=True
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    return Project(tmp_path / "project", tmp_path / "home")


@pytest.fixture
def checkout(project: Project) -> Project:
    project.git("init", "-q")
    project.commit()
    return project


def test_each_run_shows_the_code_that_it_ran_and_comparisons_say_that_it_differs(
    checkout: Project,
) -> None:
    """A second launch with a fixed program must not rewrite the history of the runs before it."""
    first = checkout.git("rev-parse", "HEAD").strip()
    checkout.launch()
    checkout.write("train.py", _TRAIN.replace("OFFSET", "5"))
    checkout.write("g.yaml", _GRID.replace("[1, 2]", "[1, 2, 3]"))
    second = checkout.commit()
    said = checkout.launch()
    assert "the code has changed (train.py)" in said
    assert f"different code (train.py): 2 runs {first[:8]}, 1 run {second[:8]}" in said
    shown = [checkout.json("show", f"g/lr={lr}") for lr in (1, 3)]
    assert [found["provenance"]["commit"] for found in shown] == [first, second]
    assert [found["attempts"][0]["launch"]["commit"] for found in shown] == [first, second]
    runs = checkout.json("ls", "g")["runs"]
    assert [run["commit"] for run in runs] == [first, first, second]
    assert [run["code"] for run in runs] == [first[:8], first[:8], second[:8]]
    assert runs[0]["launched"] <= runs[2]["launched"]
    listed = checkout.sweeper("ls", "g").stdout
    assert first[:8] in listed and second[:8] in listed
    assert checkout.json("diff", "g/lr=1", "g/lr=3")["executed"] == {
        "code (train.py)": [first[:8], second[:8]]
    }
    assert checkout.json("diff", "g/lr=1", "g/lr=2")["executed"] == {}
    compared = checkout.sweeper("compare", "g/lr=1", "g/lr=3").stdout
    assert f"code (train.py): {first[:8]} in A, {second[:8]} in B" in compared
    analyzed = " ".join(checkout.sweeper("analyze", "g").stdout.split())
    assert "different code (train.py)" in analyzed
    report = (checkout.root / "sweeps" / "g" / "report" / "report.md").read_text()
    assert first in report and second in report
    frame = Registry(str(checkout.root / "sweeps")).runs("g")
    assert list(frame["commit"]) == [first, first, second]


def test_a_longer_grid_or_new_notes_are_not_other_code(checkout: Project) -> None:
    """Grids and documentation lie in the same repository, and no run executes them: a warning
    about them would be noise."""
    checkout.launch()
    checkout.write("g.yaml", _GRID.replace("[1, 2]", "[1, 2, 3]"))
    checkout.write("other.yaml", _GRID.replace("name: g", "name: other"))
    checkout.write("notes/plan.md", "what next\n")
    said = checkout.launch()
    assert "code has changed" not in said and "different" not in said
    assert checkout.differences() == []
    assert "code" not in checkout.sweeper("ls", "g").stdout.split("\n")[0]


def test_outside_of_git_the_digest_of_the_program_tells_code_apart(project: Project) -> None:
    """There is no copy and no commit there, so each attempt records what it found."""
    project.write("helper.py", "x = 1\n")
    project.launch()
    project.write("helper.py", "x = 2\n")
    project.write("g.yaml", _GRID.replace("[1, 2]", "[1, 2, 3]"))
    assert "the code has changed (helper.py)" in project.launch()
    (found,) = project.differences()
    assert found.kind == "code"
    assert [[run.name for run in runs] for _, runs in found.groups] == [["lr=1", "lr=2"], ["lr=3"]]
    (run, *_) = project.json("ls", "g")["runs"]
    assert run["commit"] is None and len(run["code"]) == 8


def test_packages_variables_and_data_that_changed_are_named(checkout: Project) -> None:
    """The same code with another package, variable or data file gives other values."""
    checkout.write(".gitignore", "sweeps\nlib\ndata.txt\n")
    checkout.write("data.txt", "one\n")
    checkout.write("lib/thing-1.0.dist-info/METADATA", "")
    grid = _GRID.replace('"{log_path}"]', '"{log_path}", data.txt]')
    checkout.write("g.yaml", grid.replace("local}", "local, env: {MODE: a}}"))
    checkout.commit()
    path = str(checkout.root / "lib")
    checkout.launch(PYTHONPATH=path)
    checkout.write("data.txt", "two\n")
    (checkout.root / "lib" / "thing-1.0.dist-info").rename(
        checkout.root / "lib/thing-2.0.dist-info"
    )
    grid = grid.replace("local}", "local, env: {MODE: b}}").replace("[1, 2]", "[1, 2, 3]")
    checkout.write("g.yaml", grid)
    checkout.launch(PYTHONPATH=path)
    found = {each.kind: each for each in checkout.differences()}
    assert set(found) == {"packages", "variables", "data"}
    assert [label for label, _ in found["packages"].groups] == ["thing 1.0", "thing 2.0"]
    assert [label for label, _ in found["variables"].groups] == ["MODE=a", "MODE=b"]
    assert found["data"].what == ("data.txt",)


def test_a_sweep_of_an_older_version_goes_by_the_times_of_its_launches(checkout: Project) -> None:
    """Its events do not name their launch, and its launches have no records of their own."""
    first = checkout.git("rev-parse", "HEAD").strip()
    checkout.launch()
    checkout.write("train.py", _TRAIN.replace("OFFSET", "5"))
    checkout.write("g.yaml", _GRID.replace("[1, 2]", "[1, 2, 3]"))
    second = checkout.commit()
    checkout.launch()
    top = checkout.root / "sweeps" / "g"
    plan = json.loads((top / "sweep.json").read_text())
    for launch, time in ((plan["launches"][0], "2026-01-01"), (plan["provenance"], "2026-01-02")):
        del launch["launch"], launch["program"]
        launch["time"] = f"{time}T00:00:00Z"
    (top / "sweep.json").write_text(json.dumps(plan))
    for path in top.glob("state/*/*.json"):
        event = json.loads(path.read_text())
        event.pop("launch", None)
        later = path.parent.name == plan["runs"][2]["id"]
        event["time"] = f"2026-01-0{2 if later else 1}T12:00:00Z"
        path.write_text(json.dumps(event))
    runs = checkout.json("ls", "g")["runs"]
    assert [run["commit"] for run in runs] == [first, first, second]
    assert [each.kind for each in checkout.differences()] == ["code"]
