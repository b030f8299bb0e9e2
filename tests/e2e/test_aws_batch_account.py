"""`sweeper doctor` on an emulated account, and the quickstart with the engine on this machine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import analysis
from sweeper.engine import lifecycle
from sweeper.registry import Registry

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
TRUST = json.dumps(
    {
        "Statement": [
            {"Principal": {"Service": "ecs-tasks.amazonaws.com"}, "Action": "sts:AssumeRole"}
        ]
    }
)
TOKEN = "tml-a-token-of-the-test-0123456789"


def _sweeper(folder: Path, *arguments: str, code: int = 0, **more: str) -> str:
    command = [str(Path(sys.executable).parent / "sweeper"), *arguments]
    environment = os.environ | {"SWEEPER_HOME": str(folder / "home")} | more
    output = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert output.returncode == code, output.stdout
    return output.stdout


def _checks(folder: Path, *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    given = ("doctor", "--backend", "aws-batch", "--json", *arguments)
    found = json.loads(_sweeper(folder, *given, code=code))["checks"]
    return {check["name"]: check for check in found}


def test_the_doctor(batch: Any, tmp_path: Path) -> None:
    iam, ecr = batch.client("iam"), batch.client("ecr")
    role = iam.create_role(RoleName="runs", AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
    stranger = iam.create_role(RoleName="stranger", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    ecr.create_repository(repositoryName="sweeper")
    secret = batch.client("secretsmanager").create_secret(Name="tinker", SecretString="tml-hush")
    options = {
        "queue": batch.queue,
        "image": "sweeper:latest",
        "role": role,
        "secrets": {"TINKER_API_KEY": secret["ARN"]},
    }
    grid = tmp_path / "grid.yaml"
    grid.write_text(f"command: [a]\nlaunch: {{aws_batch: {json.dumps(options)}}}\n")
    root = ("--root", batch.root)
    checks = _checks(tmp_path, "--grid", "grid.yaml", *root)
    assert all(check["good"] for check in checks.values() if check["needed"]), checks
    assert "123456789012" in checks["AWS identity"]["found"]
    assert "ENABLED, VALID" in checks["compute environments"]["found"]
    assert checks["job definition"]["found"] == "made from the image at the first launch"
    assert checks["secret TINKER_API_KEY"]["found"] == "tinker"
    # The same from the configuration file, with a mistake in each.
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "sweeper" / "config.toml"
    config.parent.mkdir(parents=True)
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/sweeper:nope"
    nothing = secret["ARN"].replace(":tinker", ":nothing")
    config.write_text(
        f'[aws_batch]\nqueue = "nope"\nimage = "{image}"\nrole = "{stranger}"\n'
        f'secrets = {{TINKER_API_KEY = "{nothing}"}}\n'
    )
    checks = _checks(tmp_path, *root, code=6)
    wrong = {name: check["found"] for name, check in checks.items() if not check["good"]}
    assert wrong["job queue"] == "there is no queue nope in us-east-1"
    assert wrong["image"] == f"{image}: there is no such image"
    assert "does not trust ecs-tasks.amazonaws.com" in wrong["job role"]
    assert wrong["secret TINKER_API_KEY"] == f"there is no {nothing}"
    assert "tml-hush" not in json.dumps(checks)
    _sweeper(tmp_path, "doctor", "--backend", "nope", code=2)


def test_the_quickstart(batch: Any, tmp_path: Path) -> None:
    """A part of it, for real: the recipe `sft`, with an engine at an address that jobs are told."""
    work = tmp_path / "work"
    shutil.copytree(ROOT / "grids", work / "grids")
    home = {"SWEEPER_ENGINE_TOKEN": TOKEN, "SWEEPER_HOME": str(tmp_path / "engine")}
    _sweeper(work, "engine", "start", **home)
    try:
        engine = lifecycle.find(home["SWEEPER_HOME"])
        assert engine is not None
        url = engine.url
        told = {"SWEEPER_ENGINE_URL": url, "SWEEPER_ENGINE_TOKEN": TOKEN}
        arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:engine-AbCdEf"
        batch.secrets[arn] = TOKEN
        options = batch.options(secrets={"TINKER_API_KEY": arn}, array=2)
        grid = work / "grids" / "quickstart.yaml"
        hub = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "engine" / "hub")}
        base = {"extends": "quickstart.yaml", "name": "quickstart", "seeds": 1}
        launch = {"backend": "aws-batch", "aws_batch": options, "env": hub}
        grid.with_name("batch.yaml").write_text(json.dumps(base | {"launch": launch}))
        given = ["launch", "grids/batch.yaml", "~lora_rank", "learning_rate=[2e-3,8e-3]"]
        given += ["max_steps=6", "eval_every=3", "--root", batch.root, "--wait"]
        said = _sweeper(work, *given, code=2, SWEEPER_ENGINE_TOKEN=TOKEN)
        assert "2/2 succeeded" in _sweeper(work, *given, **told)
        report = analysis.analyze(batch.root, "quickstart")
        assert report.html_path == f"{batch.root}/quickstart/report/report.html"
        runs = Registry(batch.root, cache=False).runs(sweep="quickstart")
        assert set(runs["state"]) == {"succeeded"}
        assert (runs["value"] > 0).all() if "value" in runs else True
        described = json.dumps([job.describe() for job in batch.jobs()], default=str)
        assert TOKEN not in described + said
    finally:
        _sweeper(work, "engine", "stop", **home)
