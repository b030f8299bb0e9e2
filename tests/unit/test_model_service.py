"""Warnings and errors of a plan without a model service, or whose service lacks a model."""

from pathlib import Path
from typing import Any

import pytest

from sweeper.common.last_line import cause, last_line
from sweeper.errors import GridError
from sweeper.launcher.preview import survey
from sweeper.planner.plan import plan
from sweeper.store.local import LocalStore

RECIPE = """
import chz
@chz.chz
class Config:
    log_path: str
    model_name: str = "tiny/qwen3"
    base_url: str | None = None
def main(config):
    pass
if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""


@pytest.fixture
def warnings(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "toy.py").write_text(RECIPE)

    def ask(**sections: Any) -> list[str]:
        grid = {"name": "g", "recipe": str(tmp_path / "toy.py"), **sections}
        return list(survey(plan(grid), LocalStore(str(tmp_path / "sweeps"))).plan.warnings)

    return ask


def test_a_recipe_without_a_service_or_key_gets_a_warning(
    warnings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    [warning] = warnings()
    assert warning == (
        "the recipe uses a model service, but none is set up: write `service: local` in the grid"
        " for an engine on this machine, or `service: tinker` and set TINKER_API_KEY"
    )
    assert warnings(service="local") == []
    assert warnings(base={"base_url": "http://127.0.0.1:1"}) == []
    assert warnings(launch={"env": {"TINKER_BASE_URL": "http://127.0.0.1:1"}}) == []
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    assert warnings() == []


def test_a_model_unknown_to_the_engine_is_refused(warnings: Any) -> None:
    grid = {"service": "local", "grid": {"model_name": ["gpt2", "Qwen/Qwen3-8B", "tiny/qwen3"]}}
    with pytest.raises(GridError) as caught:
        warnings(**grid)
    [problem] = caught.value.problems
    assert "the engine has no model gpt2, only tiny/qwen3, tiny/teacher and stand-ins" in problem
    assert problem.endswith("; `launch: {check_models: false}` starts the runs anyway")
    command = {"recipe": None, "command": ["true", "{model_name}"]}
    # The command may have its own model.
    [warning] = [line for line in warnings(**grid, **command) if "gpt2" in line]
    assert warning.startswith(
        "the engine has no model gpt2, only tiny/qwen3, tiny/teacher and stand-"
    )
    [warning] = warnings(**grid, launch={"check_models": False})
    assert warning.startswith(
        "the engine has no model gpt2, only tiny/qwen3, tiny/teacher and stand-"
    )
    assert warnings(service="local", base={"model_name": "tinker://x/weights"}) == []


def test_a_cause_drops_the_prefix_error() -> None:
    assert cause(b"error: no key\n") == last_line(b"x\nerror: no key") == "no key"
    assert last_line(b"error:\n") == "error:"
    assert last_line(b"Error: x") == "Error: x"  # the name of an exception
    assert last_line(b"ValueError: error: x") == "ValueError: error: x"
