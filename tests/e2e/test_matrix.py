"""grids/matrix.yaml: every method with two models, one of them missing, and their table."""

import json
from pathlib import Path

import pytest
from support import shell as shells

from sweeper.engine import lifecycle

pytestmark = pytest.mark.e2e

GRID = Path(__file__).parents[2] / "grids" / "matrix.yaml"
STAGES = ("sft", "dpo", "reward", "rl", "distill", "eval")
MODELS = tuple(f"{stage}.model_name=[Qwen/Qwen3-8B,nobody/none]" for stage in STAGES)


def test_one_table_says_what_works_where(tmp_path: Path, engine: lifecycle.EngineInfo) -> None:
    shell = shells.Shell(tmp_path, "local")
    shell.environment |= {"SWEEPER_HOME": engine.home, "SWEEPER_QUOTA": str(tmp_path / "quota")}
    launch = ("launch", str(GRID), *MODELS, "launch.backend=local", "--wait")
    assert "the engine has no model nobody/none" in shell.run(*launch, code=2)
    # All runs with the missing model fail alike. Here, none may be held back for that.
    shell.run(*launch, "launch.check_models=false", code=3)
    document = json.loads(shell.run("ls", "matrix", "--by", "model_name", "--json"))
    assert document["columns"] == list(STAGES)
    assert {row["value"]: row["states"] for row in document["rows"]} == {
        "Qwen/Qwen3-8B": {stage: {"succeeded": 1} for stage in STAGES},
        "nobody/none": {stage: {"failed": 1} for stage in STAGES},
    }
    assert [row["column"] for row in document["failures"]] == list(STAGES)
    assert [
        row["reason"] for row in document["failures"] if "nobody/none" not in row["reason"]
    ] == []
    shown = shell.run("ls", "matrix", "--by", "model_name").splitlines()
    assert shown[0].split() == ["model_name", *STAGES]
    [works] = [line for line in shown if line.startswith("Qwen/Qwen3-8B ")]
    assert works.split()[1:] == ["succeeded"] * len(STAGES)
    assert sum("model_name=nobody/none: error" in line for line in shown) == len(STAGES)
    lost = shell.run("ls", "matrix", "--by", "model", code=5)
    assert "did you mean 'model_name'?" in lost
