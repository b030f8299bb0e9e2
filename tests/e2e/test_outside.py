"""sweeper installed from a wheel, used in a folder with its own `recipes/` package."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from sweeper.engine.lifecycle import client_key

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]

MINE = '''
"""A recipe of the user's, in a package that is called like ours."""
import json, os
import chz
from recipes.helpers import quadratic

@chz.chz
class Config:
    log_path: str
    learning_rate: float = 0.1
    steps: int = 20
    seed: int = 0

def main(config: Config) -> None:
    x = 1.0 + config.seed
    with open(os.path.join(config.log_path, "metrics.jsonl"), "w") as file:
        for step in range(config.steps):
            loss, slope = quadratic(x)
            x -= config.learning_rate * slope
            file.write(json.dumps({"step": step, "loss": loss}) + "\\n")
    print("trained to", loss)

if __name__ == "__main__":
    chz.nested_entrypoint(main)
'''
HELPERS = "def quadratic(x):\n    return x * x, 2 * x\n"
GRID = """
name: mine
recipe: recipes.mine
service: none
base: {steps: 30}
grid: {learning_rate: [0.05, 0.2, 0.4]}
seeds: 3
metric: {name: loss, goal: minimize}
launch: {backend: local, max_parallel: 4}
"""
SCRIPT = """
import sweeper
launched = sweeper.launch("grid.yaml", root="from-python", overrides={"steps": 5}, wait=True)
frame = sweeper.Registry("from-python").runs(sweep="mine", state="succeeded")
print(launched.name, len(frame), frame["steps"].unique().tolist())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of an environment with sweeper's wheel and our dependencies."""
    folder = tmp_path_factory.mktemp("elsewhere")
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*wheel, "--wheel-dir", str(folder), str(ROOT)], check=True)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True
    )
    python = folder / "venv" / "bin" / "python"
    places = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(places, capture_output=True, text=True, check=True).stdout.strip()
    Path(site, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    built = next(folder.glob("tinker_sweeper-*.whl"))
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", str(built)], check=True)
    return python.parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the user's folder."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "__init__.py").write_text("")
    (tmp_path / "recipes" / "mine.py").write_text(MINE)
    (tmp_path / "recipes" / "helpers.py").write_text(HELPERS)
    (tmp_path / "grid.yaml").write_text(GRID)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def _run(project: Path, *command: str | Path, code: int = 0) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean["SWEEPER_HOME"] = str(project / ".home")
    result = subprocess.run(
        command, cwd=project, env=clean, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout


def test_ones_own_recipe(environment: Path, project: Path) -> None:
    sweeper = environment / "sweeper"
    where = _run(project, environment / "python", "-c", "import sweeper; print(sweeper.__file__)")
    assert str(environment.parent) in where
    _run(project, sweeper, "launch", "grid.yaml", "--wait")
    status = json.loads(_run(project, sweeper, "status", "mine", "--json"))
    assert [run["state"] for run in status["runs"]] == ["succeeded"] * 9
    _run(project, sweeper, "analyze", "mine")
    report = json.loads((project / "sweeps/mine/report/report.json").read_text())
    assert report["verdict"]["best"] == "lr=0.4"
    assert "trained to" in _run(project, sweeper, "logs", "mine/lr=0.4,seed=0")


def test_from_python(environment: Path, project: Path) -> None:
    assert _run(project, environment / "python", "script.py").strip() == "mine 9 [5]"


def test_what_agents_read_is_in_the_wheel(environment: Path, project: Path) -> None:
    _run(project, environment / "sweeper", "agent", "skill", "--install", "skills")
    skill = (project / "skills" / "sweeper-research" / "SKILL.md").read_text()
    assert skill == (ROOT / "sweeper" / "agents" / "SKILL.md").read_text()
    output = _run(project, environment / "sweeper", "agent", "skill", "--agents-md")
    assert output == (ROOT / "AGENTS.md").read_text()


def test_the_built_in_recipe_is_not_shadowed(environment: Path, project: Path, engine) -> None:
    (project / "sft.yaml").write_text(
        "name: theirs\nrecipe: sft\nservice: none\n"
        f"base: {{base_url: '{engine.url}', max_steps: 2, eval_every: 0, test_size: 4}}\n"
        f"launch: {{backend: local, env: {{TINKER_API_KEY: {client_key(engine.home)}}}}}\n"
    )
    _run(project, environment / "sweeper", "launch", "sft.yaml", "--wait")
    listed = json.loads(_run(project, environment / "sweeper", "ls", "theirs", "--json"))
    assert [run["state"] for run in listed["runs"]] == ["succeeded"]


def test_nothing_of_ours_lies_beside_the_package(environment: Path) -> None:
    """A user's folder `analysis` or `recipes` hides no module and is not hidden."""
    [site] = environment.parent.glob("lib/python*/site-packages")
    usual = ("pip", "setuptools", "distutils", "_distutils_hack", "pkg_resources", "borrowed")
    names = {path.name for path in site.iterdir() if not path.name.startswith((*usual, "__"))}
    assert names == {"sweeper", next(n for n in names if n.startswith("tinker_sweeper-"))}
    assert (site / "sweeper" / "analysis" / "templates" / "report.css").is_file()
    assert (site / "sweeper" / "recipes" / "sft.py").is_file()


def test_any_command(environment: Path, project: Path) -> None:
    program = "import json, sys; open(sys.argv[1] + '/metrics.jsonl', 'w')"
    program += ".write(json.dumps({'step': 0, 'loss': float(sys.argv[2])}) + chr(10))"
    (project / "command.yaml").write_text(
        "name: command\nservice: none\n"
        f'command: [python3, -c, "{program.replace("{", "{{").replace("}", "}}")}", '
        "'{log_path}', '{x}']\n"
        "grid: {x: [3, 1, 2]}\nmetric: {name: loss, goal: minimize}\nlaunch: {backend: local}\n"
    )
    _run(project, environment / "sweeper", "launch", "command.yaml", "--wait")
    listed = json.loads(_run(project, environment / "sweeper", "ls", "command", "--json"))
    assert {run["config"]["x"]: run["value"] for run in listed["runs"]} == {3: 3.0, 1: 1.0, 2: 2.0}
