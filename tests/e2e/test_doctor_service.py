"""`sweeper doctor --service` and the requests of `plan`, against the real engine."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.shell import Shell

from sweeper.engine import lifecycle

pytestmark = pytest.mark.e2e

GRID = (
    "name: s\nrecipe: sft\nservice: tinker\nbase: {model_name: MODEL}\ngrid: {lora_rank: [8, 16]}\n"
)


@pytest.fixture
def shell(tmp_path: Path, engine: lifecycle.EngineInfo) -> Any:
    made = Shell(tmp_path, "local")
    made.environment |= {
        "SWEEPER_HOME": engine.home,
        "TINKER_BASE_URL": engine.url,
        "TINKER_API_KEY": lifecycle.client_key(engine.home),
    }
    return made


def write(shell: Any, model: str) -> None:
    (shell.folder / "s.yaml").write_text(GRID.replace("MODEL", model))


def test_each_step_is_measured_and_its_findings_shown(shell: Any) -> None:
    write(shell, "tiny/qwen3")
    printed = shell.run("doctor", "--service", "--grid", "s.yaml")
    names = [line.split()[0] for line in printed.splitlines()]
    assert names == ["reach", "models", "grid", "session", "train", "sample"]
    assert "tiny/qwen3, rank 8" in printed and "the service works" in printed
    document = json.loads(shell.run("doctor", "--service", "local", "--json"))
    assert document["error"] is None
    assert "tiny/qwen3" in {model["model_name"] for model in document["models"]}
    del shell.environment["TINKER_API_KEY"]
    assert "the service works" in shell.run("doctor", "--service")  # tries the engine


def test_a_model_that_is_not_there_is_named_before_any_run_starts(shell: Any) -> None:
    write(shell, "Qwen/Qwen3-8C")
    planned = shell.run("plan", "s.yaml", code=2)
    assert planned.startswith("sweeper: s.yaml:")
    assert "the service has no model Qwen/Qwen3-8C (`sweeper doctor --service`" in planned
    assert "did you mean 'Qwen/Qwen3-8B'?" in planned
    assert shell.run("launch", "s.yaml", code=2) == planned
    assert "warning: the service" in shell.run("plan", "s.yaml", "launch.check_models=false")
    failed = shell.run("doctor", "--service", "--grid", "s.yaml", code=6)
    assert failed.splitlines()[-1] == "sweeper: s: the service has no model Qwen/Qwen3-8C"
    write(shell, "Qwen/Qwen3-8B")
    assert "the service has no model" not in shell.run("plan", "s.yaml")


def test_a_service_that_does_not_work_is_one_line(shell: Any) -> None:
    write(shell, "tiny/qwen3")
    shell.environment["TINKER_API_KEY"] = "tml-wrong"
    assert "rejects this key (401)" in shell.run("doctor", "--service", code=6)
    assert "were not checked: " in shell.run("plan", "s.yaml")
    shell.environment["TINKER_BASE_URL"] = "http://127.0.0.1:9"
    failed = shell.run("doctor", "--service", code=6)
    assert "http://127.0.0.1:9 does not answer" in failed and len(failed.splitlines()) == 1
    document = json.loads(shell.run("doctor", "--service", "--json", code=6))
    assert document["steps"] == [] and "does not answer" in document["error"]


def test_packages_are_of_the_versions_that_sweeper_takes(shell: Any) -> None:
    checks = json.loads(shell.run("doctor", "--json"))["checks"]
    packages = next(check for check in checks if check["name"] == "packages")
    assert packages["good"] and "packages, all in supported versions" in packages["found"]
    site = shell.folder / "site"
    old = site / "s3fs-0.4.2.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: s3fs\nVersion: 0.4.2\n")
    shell.environment["PYTHONPATH"] = str(site)
    failed = shell.run("doctor", code=6)
    assert "s3fs 0.4.2 (0.4.2, which pip installs with boto3" in failed
    assert "`pip install 's3fs>=2026.9'`" in failed
