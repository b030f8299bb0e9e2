"""`sweeper plan --json` shows exactly what a launch on a real backend submits."""

import contextlib
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.typed import Typed

from sweeper.recipe import probe
from sweeper.store.documents import read_json
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder

pytestmark = pytest.mark.e2e

# Records a run's arguments, folder and environment, and its worker's command line.
TELL = """
import json, os, sys
told = {
    "argv": sys.argv, "cwd": os.getcwd(), "names": sorted(os.environ), "python": sys.executable,
    "worker": open(f"/proc/{os.getppid()}/cmdline").read().split("\\0")[:-1],
    "worker_cwd": os.readlink(f"/proc/{os.getppid()}/cwd"),
}
"""
MODULE = """
import chz
@chz.chz
class Config:
    out: str
    learning_rate: float = 0.1
    size: int = 1
    seed: int = 0
def main(config: Config) -> None:
    told["config"] = chz.asdict(config)
    json.dump(told, open(os.path.join(config.out, "told.json"), "w"))
if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""
COMMAND = """
json.dump(told, open(os.path.join(os.environ["SWEEPER_RUN_DIR"], "told.json"), "w"))
"""
GRIDS = {
    "module": {
        "recipe": "toy.py",
        "base": {"size": 3},
        "grid": {"learning_rate": [1e-4, 3e-4]},
        "seeds": 2,
        "launch": {"log_path_field": "out"},
    },
    "command": {
        "command": [sys.executable, "toy.py", "{text}", "{log_path}", "{seed}", "{run}.{attempt}"],
        "grid": {"text": ["a b", "$HOME;{{"]},
        "seeds": [5],
    },
}


def _grid(folder: Path, kind: str) -> Path:
    (folder / "toy.py").write_text(TELL + (MODULE if kind == "module" else COMMAND))
    grid = {"name": "told", "secrets": ["A_SECRET"], "service": "none", **GRIDS[kind]}
    given = {"backend": "local", "env": {"FROM_THE_GRID": "1"}, "timeout": "5m"}
    grid["launch"] = {**given, **GRIDS[kind].get("launch", {})}
    path = folder / "grid.yaml"
    path.write_text(json.dumps(grid))
    return path


def _sweeper(folder: Path, *arguments: str, code: int = 0) -> str:
    return Typed(folder, A_SECRET="hush-hush").complete(*arguments, code=code).stdout


@pytest.mark.parametrize("kind", GRIDS)
def test_a_launch_submits_what_the_plan_says(kind: str, tmp_path: Path) -> None:
    _grid(tmp_path, kind)
    before = json.loads(_sweeper(tmp_path, "plan", "grid.yaml", "--json"))
    assert not (tmp_path / "sweeps").exists()
    _sweeper(tmp_path, "launch", "grid.yaml", "--wait")
    folder = SweepFolder(LocalStore(str(tmp_path / "sweeps")), "told")

    recorded = read_json(folder.store, folder.plan)
    same = ("name", "recipe", "service", "secrets", "launch", "axes", "metric", "overrides")
    assert {key: before[key] for key in same} == {key: recorded[key] for key in same}
    identity = ("id", "name", "cell", "seed", "config")
    assert [[run[key] for key in identity] for run in before["runs"]] == [
        [run[key] for key in identity] for run in recorded["runs"]
    ]
    for run in before["runs"]:
        assert (run["state"], run["attempts"]) == ("planned", 0)
        _as_it_was(run, before, folder)

    after = json.loads(_sweeper(tmp_path, "plan", "grid.yaml", "--json"))
    assert {run["state"] for run in after["runs"]} == {"succeeded"}
    assert [run["job"] for run in after["runs"]] == [None] * len(after["runs"])
    assert "0 to start" in _sweeper(tmp_path, "plan", "grid.yaml")


def _as_it_was(run: dict[str, Any], plan: dict[str, Any], folder: SweepFolder) -> None:
    """Assert that backend, worker and recipe got the job that the plan shows."""
    planned = run["job"]
    record = json.loads((Path(planned["log_path"]) / "told.json").read_text())
    assert record["worker"] == planned["argv"]
    assert record["worker_cwd"] == planned["cwd"]
    assert record["cwd"] == plan["recipe"]["cwd"]
    assert set(record["names"]) - set(os.environ) - {"SWEEPER_HOME", "A_SECRET"} == set(
        plan["environment"]
    ) - set(os.environ) - {"A_SECRET"}
    assert {"A_SECRET", "FROM_THE_GRID"} <= set(plan["environment"]) <= set(record["names"])
    if planned["command"] is None:
        assert record["python"] == plan["recipe"]["python"]
        field = plan["recipe"]["log_path_field"]
        assert record["config"] == {**run["config"], field: planned["log_path"]}
    else:
        assert record["argv"] == planned["command"][1:]
        assert planned["command"][0] == sys.executable
    job = read_json(folder.store, folder.job(run["id"], planned["attempt"]))
    for key in ("name", "seed", "config"):
        assert job[key] == run[key]
    assert job["secrets"] == plan["secrets"]
    assert job["recipe"] == plan["recipe"]
    for key in ("env", "timeout_s", "grace_s", "resume"):
        assert job["settings"][key] == plan["launch"][key]


def test_full_has_the_same_commands(tmp_path: Path) -> None:
    _grid(tmp_path, "command")
    output = _sweeper(tmp_path, "plan", "grid.yaml", "--full")
    document = json.loads(_sweeper(tmp_path, "plan", "grid.yaml", "--json"))
    for run in document["runs"]:
        assert f"  command: {json.dumps(run['job']['command'])}\n" in output
    assert "hush-hush" not in output + json.dumps(document)


def test_a_package_of_the_users_is_the_one_that_counts(tmp_path: Path) -> None:
    """The interpreter starts early and loads chz, unless the recipe has its own."""
    _grid(tmp_path, "module")
    (tmp_path / "chz.py").write_text("raise ImportError('this one is mine')")
    for arguments in (("plan", "grid.yaml"), ("launch", "grid.yaml")):
        environment = {**os.environ, "A_SECRET": "x", "SWEEPER_HOME": str(tmp_path / "home")}
        command = [str(Path(sys.executable).parent / "sweeper"), *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "ImportError: this one is mine" in done.stderr


def test_a_module_of_the_users_counts_before_pythons_own(tmp_path: Path) -> None:
    """The interpreter that starts early has also loaded parts of the standard library."""
    _grid(tmp_path, "module")
    recipe = tmp_path / "toy.py"
    recipe.write_text(f"from random import MINE\n{recipe.read_text()}")
    (tmp_path / "random.py").write_text("MINE = True")
    assert "to start" in _sweeper(tmp_path, "plan", "grid.yaml")


def test_the_probe_works_in_parallel() -> None:
    done: list[bool] = []
    with probe.ahead(meanwhile=lambda: done.append(True)):
        pending = probe.probe(sys.executable, os.getcwd(), os.environ)
        assert done == []
        pending.ask(b"{", 30.0)
    assert done == [True]


def _children() -> set[str]:
    return {
        pid
        for path in Path("/proc/self/task").glob("*/children")
        for pid in path.read_text().split()
    }


def _open_files() -> set[tuple[str, str]]:
    opened: set[tuple[str, str]] = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            opened.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return opened


def test_an_unused_probe_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = _open_files()
    others = _children()
    with probe.ahead():
        (child,) = _children() - others
        monkeypatch.setenv("ANOTHER", "1")  # a changed environment needs a new probe
        with pytest.raises(TimeoutError):
            probe.probe(sys.executable, os.getcwd(), os.environ).ask(b"{", 0.0)
        assert child in _children()
    assert _children() == others
    # Threads of earlier tests may close their files meanwhile.
    assert _open_files() <= before


def test_an_interpreter_that_dies_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho not today >&2\nexit 3\n")
    broken.chmod(0o755)
    pending = probe.probe(str(broken), str(tmp_path), os.environ).ask(b"{}" * 1_000_000, 30.0)
    assert (pending.code, pending.output, pending.printed) == (3, b"", "not today\n")
