"""The code, packages and data that each run executed are recorded, shown and compared."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.typed import Typed

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
""".replace("python", sys.executable)  # the PATH may have no `python`


class Project(Typed):
    """A folder with a program and a grid, and sweeper's commands in it."""

    def __init__(self, root: Path, home: Path) -> None:
        super().__init__(root, ("GIT_",), SWEEPER_HOME=str(home))
        self.root, self.home = root, home
        self.write("train.py", _TRAIN.replace("OFFSET", "0"))
        self.write("g.yaml", _GRID)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def git(self, *arguments: str, at: str = ".") -> str:
        given = ["-c", "user.name=n", "-c", "user.email=n@x", "-c", "protocol.file.allow=always"]
        command = ["git", "-C", str(self.root / at), *given, *arguments]
        done = subprocess.run(
            command, env=self.environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", "work")
        return self.git("rev-parse", "HEAD").strip()

    def launch(self, *, code: int = 0, **env: str) -> str:
        return self.run("launch", "g.yaml", "--wait", code=code, **env)

    def launch_and_change(self) -> tuple[str, str]:
        """Launch, then commit another program and a third run. Return both commits."""
        first = self.git("rev-parse", "HEAD").strip()
        self.launch()
        self.write("train.py", _TRAIN.replace("OFFSET", "5"))
        self.write("g.yaml", _GRID.replace("[1, 2]", "[1, 2, 3]"))
        return first, self.commit()

    def differences(self) -> list[Difference]:
        return differences(Registry(str(self.root / "sweeps")).sweep("g").runs)


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
    """A second launch with a fixed program must not change the records of earlier runs."""
    first, second = checkout.launch_and_change()
    output = checkout.launch()
    assert "the code has changed (train.py)" in output
    assert f"different code (train.py): 2 runs with {first[:8]}, 1 run with {second[:8]}" in output
    shown = [checkout.json("show", f"g/lr={lr}") for lr in (1, 3)]
    assert [run["provenance"]["commit"] for run in shown] == [first, second]
    assert [run["attempts"][0]["launch"]["commit"] for run in shown] == [first, second]
    runs = checkout.json("ls", "g")["runs"]
    assert [run["commit"] for run in runs] == [first, first, second]
    assert [run["code"] for run in runs] == [first[:8], first[:8], second[:8]]
    assert runs[0]["launched"] <= runs[2]["launched"]
    listed = checkout.complete("ls", "g").stdout
    assert first[:8] in listed and second[:8] in listed
    assert checkout.json("compare", "g/lr=1", "g/lr=3")["executed"] == {
        "code (train.py)": [first[:8], second[:8]]
    }
    assert checkout.json("compare", "g/lr=1", "g/lr=2")["executed"] == {}
    best = checkout.complete("best", "g").stdout
    assert f"different code (train.py): 2 runs with {first[:8]}, 1 run with {second[:8]}" in best
    assert len(checkout.json("best", "g")["differences"]) == 1
    compared = checkout.complete("compare", "g/lr=1", "g/lr=3", "--metric", "loss").stdout
    assert f"code (train.py): {first[:8]} in A, {second[:8]} in B" in compared
    analyzed = " ".join(checkout.complete("analyze", "g").stdout.split())
    assert "different code (train.py)" in analyzed
    report = (checkout.root / "sweeps" / "g" / "report" / "report.md").read_text()
    assert first in report and second in report
    document = json.loads((checkout.root / "sweeps/g/report/report.json").read_text())
    assert [run["commit"] for run in document["runs"]] == [first, first, second]
    frame = Registry(str(checkout.root / "sweeps")).runs("g")
    assert list(frame["commit"]) == [first, first, second]


def test_a_longer_grid_or_new_notes_are_not_other_code(checkout: Project) -> None:
    """No run executes grids or documentation, so no warning is due."""
    checkout.launch()
    checkout.write("g.yaml", _GRID.replace("[1, 2]", "[1, 2, 3]"))
    checkout.write("other.yaml", _GRID.replace("name: g", "name: other"))
    checkout.write("notes/plan.md", "what next\n")
    output = checkout.launch()
    assert "code has changed" not in output and "different" not in output
    assert checkout.differences() == []
    assert "code" not in checkout.complete("ls", "g").stdout.split("\n")[0]


def test_outside_of_git_the_digest_of_the_program_tells_code_apart(project: Project) -> None:
    """Without a copy or a commit, each attempt records what it found."""
    project.write("helper.py", "x = 1\n")
    project.launch()
    project.write("helper.py", "x = 2\n")
    project.write("g.yaml", _GRID.replace("[1, 2]", "[1, 2, 3]"))
    assert "the code has changed (helper.py)" in project.launch()
    (difference,) = project.differences()
    assert difference.kind == "code"
    assert [[run.name for run in runs] for _, runs in difference.groups] == [
        ["lr=1", "lr=2"],
        ["lr=3"],
    ]
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
    differences = {each.kind: each for each in checkout.differences()}
    assert set(differences) == {"packages", "variables", "data"}
    assert [label for label, _ in differences["packages"].groups] == ["thing 1.0", "thing 2.0"]
    assert [label for label, _ in differences["variables"].groups] == ["MODE=a", "MODE=b"]
    assert differences["data"].what == ("data.txt",)


def test_a_sweep_of_an_older_version_goes_by_the_times_of_its_launches(checkout: Project) -> None:
    """Its events do not name their launch, and its launches have no separate records."""
    first, second = checkout.launch_and_change()
    checkout.launch()
    top = checkout.root / "sweeps" / "g"
    plan = json.loads((top / "sweep.json").read_text())
    for launch, day in ((plan["launches"][0], "2026-01-01"), (plan["provenance"], "2026-01-02")):
        del launch["launch"], launch["program"]
        launch["time"] = f"{day}T00:00:00Z"
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


def test_finished_runs_can_be_run_again_after_a_fix(checkout: Project) -> None:
    """A launch skips them. A retry by state starts from scratch, and its values count."""
    begin = "import os, sys\nprint('found', os.listdir(sys.argv[2]))\n"
    program = _TRAIN + "with open(os.path.join(sys.argv[2], 'checkpoints.jsonl'), 'w') as file:\n"
    program += """    file.write('{"name": "final", "final": true}')\n"""
    checkout.write("train.py", begin + program.replace("OFFSET", "0"))
    checkout.commit()
    checkout.launch()
    checkout.write("train.py", begin + program.replace("OFFSET", "5"))
    output = checkout.complete("launch", "g.yaml")
    assert "nothing to start" in output.stdout
    assert "2 runs succeeded, but with a different version of the code (train.py)" in output.stderr
    assert "to start them again, use `sweeper retry g --state succeeded`" in output.stderr
    refused = checkout.complete("retry", "g", "lr=1", "--wait", code=2).stderr
    assert "add --state succeeded" in refused
    checkout.complete("retry", "g", "lr=1", "--state", "succeeded", "--wait")
    first, two = checkout.json("ls", "g")["runs"]
    assert (first["attempts"], first["state"], first["value"]) == (2, "succeeded", 6.0)
    assert (two["attempts"], two["value"]) == (1, 2.0)
    assert "found ['code.diff']" in checkout.complete("logs", "g/lr=1").stdout
    output = checkout.complete("launch", "g.yaml").stderr
    assert (
        "1 run succeeded, but with a different version of the code" in output
        and f'code != "{first["code"]}"' in output
    )
    rest = ["--state", "succeeded", "--where", f'code != "{first["code"]}"']
    checkout.complete("retry", "g", *rest, "--wait")
    assert [run["value"] for run in checkout.json("ls", "g")["runs"]] == [6.0, 7.0]
    assert checkout.differences() == []
    assert checkout.complete("launch", "g.yaml").stderr == ""


_IMPORTING = _TRAIN.replace("OFFSET", "lib.x").replace(
    "import json", "import time, lib\nimport json"
)


def _nested(project: Project, how: str) -> None:
    """Write a program that imports `lib` from a submodule, a repository, or among many files."""
    path = {"files": "lib.py"}.get(how, "vendor/lib.py")
    project.write(
        "train.py",
        _IMPORTING.replace(
            "import time",
            "import sys\nsys.path[:0] = [\n    __file__[:-8] + 'vendor']\nimport time",
        ),
    )
    project.commit()
    if how == "submodule":
        project.write("../origin/lib.py", "x = 1\n")
        project.git("init", "-q", at="../origin")
        project.git("add", "-A", at="../origin")
        project.git("commit", "-qm", "lib", at="../origin")
        project.git("submodule", "add", "-q", str(project.root.parent / "origin"), "vendor")
        project.commit()
    project.write(path, "x = 1\n")
    if how == "repository":
        project.git("init", "-q", at="vendor")
        project.git("add", "-A", at="vendor")
        project.git("commit", "-qm", "lib", at="vendor")
    for number in range(2_100 if how == "files" else 0):
        project.write(f"a_outputs/{number}.json", "{}")


@pytest.mark.parametrize("how", ["submodule", "repository", "files"])
def test_code_in_other_repositories_or_among_many_files_is_frozen_too(
    checkout: Project, how: str
) -> None:
    """An edit after the launch must not reach runs that start later."""
    _nested(checkout, how)
    path = "lib.py" if how == "files" else "vendor/lib.py"
    checkout.write("g.yaml", _GRID.replace("[1, 2]", "[1]"))
    output = checkout.launch()
    assert ("untracked files such as" in output) is (how == "files")
    checkout.write(path, "x = 7\n")
    checkout.complete("retry", "g", "--state", "succeeded", "--wait")
    (run,) = checkout.json("ls", "g")["runs"]
    assert (run["attempts"], run["value"]) == (2, 2.0)
    output = checkout.launch()
    assert f"the code has changed ({path})" in output
    checkout.complete("retry", "g", "--state", "succeeded", "--wait")
    assert checkout.json("ls", "g")["runs"][0]["value"] == 8.0
    if how == "submodule":
        provenance = checkout.json("show", "g/lr=1")["provenance"]
        diff = (checkout.root / "sweeps" / provenance["diff"]["path"]).read_text()
        assert "-x = 1\n+x = 7\n" in diff


def test_a_repository_that_is_too_large_to_copy_is_reported(checkout: Project) -> None:
    """Runs read it in place, so a later edit would reach them unnoticed."""
    _nested(checkout, "repository")
    for number in range(3):
        checkout.write(f"vendor/{number}.bin", "x" * 9_000_000)
        checkout.git("add", "-A", at="vendor")
    output = checkout.launch()
    assert "not in the copy of the code" in output and "vendor/ (more than 20 MB)" in output
    assert checkout.json("show", "g/lr=1")["provenance"]["code_linked"] == ["vendor/"]


def test_a_worktree_inside_the_checkout_is_no_code_of_it(checkout: Project) -> None:
    """Another user may be editing there."""
    checkout.git("worktree", "add", "-q", "-b", "other", "wt")
    checkout.launch()
    checkout.write("wt/train.py", "broken")
    assert "the code has changed" not in checkout.launch()
    worktree = Project(checkout.root / "wt", checkout.home)
    worktree.write("train.py", _TRAIN.replace("OFFSET", "5"))
    worktree.launch()
    (run, *_) = worktree.json("ls", "g")["runs"]
    assert (run["value"], run["commit"]) == (6.0, worktree.git("rev-parse", "HEAD").strip())


def test_git_ignores_the_results_and_no_record_of_the_code_has_them(checkout: Project) -> None:
    """`git add -A` commits no results, and committed results are no change of the code."""
    checkout.launch()
    assert checkout.git("status", "--porcelain") == ""
    assert [run["name"] for run in checkout.json("ls")["runs"]] == ["lr=1", "lr=2"]
    checkout.git("add", "-f", "sweeps/g")
    checkout.commit()
    checkout.write("g.yaml", _GRID.replace("[1, 2]", "[1, 2, 3]"))
    checkout.commit()
    checkout.launch()
    provenance = checkout.json("show", "g/lr=3")["provenance"]
    assert (provenance["dirty"], provenance["diff"]["bytes"], provenance["untracked"]) == (
        False,
        0,
        [],
    )
    files = json.loads((checkout.root / "sweeps" / provenance["files"]).read_text())
    assert [name for name in files if name.startswith("sweeps")] == []


def test_a_root_that_was_there_is_left_as_it_is(checkout: Project) -> None:
    """Its owner decides what git sees."""
    (checkout.root / "sweeps").mkdir()
    checkout.launch()
    assert sorted(os.listdir(checkout.root / "sweeps")) == ["g"]


def test_gc_leaves_the_code_that_a_sweep_of_another_folder_executes(
    checkout: Project, tmp_path: Path
) -> None:
    """Even with `--days 0`: the run imports one of its modules after the removal."""
    checkout.write("helper.py", "x = 0\n")
    checkout.write("flag.sh", "")
    waits = "import os, time\nwhile not os.path.exists(os.environ['GO']):\n    time.sleep(0.05)\n"
    begun = "open(os.environ['GO'] + '.begun', 'w').close()\n"
    text = _TRAIN.replace("OFFSET", "helper.x")
    checkout.write("train.py", f"import os\n{begun}{waits}import helper\n{text}")
    checkout.write("g.yaml", _GRID.replace("[1, 2]", "[1]"))
    checkout.commit()
    other = Project(tmp_path / "elsewhere", checkout.home)
    other.launch()  # so that its root has a sweep
    go = str(tmp_path / "go")
    checkout.complete("launch", "g.yaml", GO=go)
    while not os.path.exists(f"{go}.begun"):
        time.sleep(0.05)
    removed = other.json("store", "gc", "--delete", "--days", "0")
    assert [item for item in removed["items"] if "snapshots" in item["path"]] == []
    Path(go).touch()
    checkout.complete("status", "g", "--follow")
    (run,) = checkout.json("ls", "g")["runs"]
    assert (run["state"], run["attempts"], run["value"]) == ("succeeded", 1, 1.0)
    items = other.json("store", "gc", "--delete", "--days", "0")["items"]
    assert [item["why"] for item in items if "snapshots" in item["path"]] == [
        "code that no sweep of this root uses"
    ]
    assert not [p for p in (checkout.home / "snapshots").iterdir() if p.is_dir()]


def test_failed_runs_are_still_listed_after_their_command_was_fixed(checkout: Project) -> None:
    """A new command makes new runs, and the list names the old ones too."""
    checkout.write("g.yaml", _GRID.replace("train.py", "trian.py").replace("[1, 2]", "[1]"))
    checkout.launch(code=3)
    checkout.write("g.yaml", _GRID.replace("[1, 2]", "[1]"))
    checkout.launch()
    listed = checkout.complete("ls", "g").stdout
    where = "retired = true"
    assert f"1 run launched before and no longer in the grid; `sweeper ls g --where '{where}'`" in (
        listed
    )
    assert "failed" in checkout.complete("ls", "g", "--where", where).stdout
