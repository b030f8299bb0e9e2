"""The commands of the README's tour, unchanged."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.commands import VERBS

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```(bash|python|yaml)\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
)

NOT_IN_THE_TOUR = {
    # They need a terminal, a client or an agent.
    *("watch", "attach", "agent mcp", "agent start", "chat", "endpoint"),
    # The tour samples nothing, has no tasks, notifies nobody.
    *("rollouts", "doctor tasks", "doctor notify"),
    *("launch", "retry", "sweep", "sweep rename", "sweep delete", "sweep archive"),
}
"""Verbs whose `--help` examples are not run on the tour's sweep."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tour")
    shutil.copytree(ROOT / "grids", made / "grids")
    return made


@pytest.mark.timeout(900)
def test_the_tour(folder: Path, tmux_socket: str) -> None:
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        "SWEEPER_HOME": str(folder / "home"),
        "SWEEPER_TMUX_SOCKET": tmux_socket,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
    }
    environment.pop("SWEEPER_ROOT", None)
    try:
        for language, text in BLOCKS:
            if language == "bash":
                if "engine stop" in text:
                    for name in sorted(VERBS.keys() - NOT_IN_THE_TOUR):
                        _works(["bash", "-euc", VERBS[name].example], folder, environment)
                _works(["bash", "-euc", text], folder, environment)
            elif language == "python":
                _works([sys.executable, "-c", text], folder, environment)
    finally:
        stop = [sys.executable, "-P", "-m", "sweeper.engine", "stop"]
        subprocess.run(stop, env=environment, capture_output=True, check=False)
    _quickstart_holds(folder / "sweeps" / "quickstart")


def _works(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr


def _quickstart_holds(sweep: Path) -> None:
    """Assert that all 18 runs trained, the best test/nll fell by 80 %, and there is a report."""
    falls: list[float] = []
    for path in sorted(sweep.glob("runs/*.1/metrics.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        scores = [row["test/nll"] for row in rows if "test/nll" in row]
        assert len({row["step"] for row in rows}) == len(rows) >= 80
        falls.append(1 - scores[-1] / scores[0])
    assert len(falls) == 18
    assert max(falls) >= 0.8
    report = json.loads((sweep / "report" / "report.json").read_text())
    assert report["schema"] == 1
    assert (sweep / "report" / "report.html").stat().st_size > 100_000


def test_the_grid_in_the_readme_is_the_quickstarts(folder: Path) -> None:
    """It has the same runs as grids/quickstart.yaml."""
    from sweeper.planner.plan import plan

    (folder / "readme.yaml").write_text(next(text for kind, text in BLOCKS if kind == "yaml"))
    shown = plan(folder / "readme.yaml")
    real = plan(ROOT / "grids" / "quickstart.yaml")
    assert shown.name == real.name
    assert [run.id for run in shown.runs] == [run.id for run in real.runs]
    assert shown.launch == real.launch


def test_the_map_has_a_line_for_every_package() -> None:
    """It may leave out files, but every file that it names exists."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tree = text[text.index("```\nsweeper/ ") :]
    folders = {*re.findall(r"^ *(\w+)/", tree, re.M)}
    packages = {
        path.name for path in (ROOT / "sweeper").iterdir() if (path / "__init__.py").exists()
    }
    assert (packages | {"grids"}) - folders == set()
    listed = {*re.findall(r"^ +([\w.]+\.(?:py|yaml))", tree, re.M)}
    tops = ("sweeper", "recipes", "analysis", "grids")
    files = {path.name for top in tops for path in (ROOT / top).rglob("*")}
    assert listed <= files
