"""Secrets from the file `.env` beside the grid: they reach runs, and no record has their values."""

from pathlib import Path
from typing import Any

import pytest
from support.shell import Shell

pytestmark = pytest.mark.e2e

GRID = """
name: s
command: [sh, -c, 'echo "$MY_KEY" | wc -c > {folder}/length; echo "$OTHER" > {folder}/other']
secrets: [MY_KEY]
service: none
launch: {{backend: local, retries: 0}}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    made = Shell(tmp_path, "local")
    grids = tmp_path / "grids"
    grids.mkdir()
    (grids / "s.yaml").write_text(GRID.format(folder=tmp_path))
    return made


def test_a_secret_beside_the_grid_reaches_runs_and_is_not_recorded(shell: Any) -> None:
    file = shell.folder / "grids" / ".env"
    file.write_text("# keys\nnot a line\nOTHER=1\nexport MY_KEY = 'canary 5f0c1d # 2e' # mine\n")
    printed = shell.run("launch", "grids/s.yaml", "--wait")
    assert f"from {file}: MY_KEY" in printed and "canary" not in printed
    assert (shell.folder / "length").read_text().strip() == str(len("canary 5f0c1d # 2e") + 1)
    assert (shell.folder / "other").read_text() == "\n"  # only the secrets named in the grid
    for path in (shell.folder / "sweeps").rglob("*"):
        assert not path.is_file() or b"canary" not in path.read_bytes(), path
    shell.environment["MY_KEY"] = "the environment's goes before"
    shell.run("retry", "s", "--state", "succeeded", "--wait")
    assert (shell.folder / "length").read_text().strip() == "30"


def test_mistakes_are_one_line(shell: Any) -> None:
    refused = shell.run("launch", "grids/s.yaml", "--wait", code=6)
    assert "the secret MY_KEY is not set" in refused and ".env beside the grid" in refused
    file = shell.folder / "grids" / ".env"
    file.write_text("OTHER=1\nMY_KEY='0penended\n")
    refused = shell.run("launch", "grids/s.yaml", "--wait", code=2)
    assert f"{file}:2: the line of MY_KEY cannot be read: write MY_KEY=VALUE, or " in refused
    assert "0penended" not in refused.splitlines()[-1]
