"""`sweeper doctor` on an emulated account."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
TRUST = json.dumps(
    {
        "Statement": [
            {"Principal": {"Service": "ecs-tasks.amazonaws.com"}, "Action": "sts:AssumeRole"}
        ]
    }
)


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
    checks = json.loads(_sweeper(folder, *given, code=code))["checks"]
    return {check["name"]: check for check in checks}


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
    refused = _checks(tmp_path, "--grid", "grid.yaml", "--root", "sweeps", code=6)
    assert "cannot read the folder" in refused["what jobs reach"]["found"]
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
    assert wrong["image"] == f"{image}: no such image"
    assert "does not trust ecs-tasks.amazonaws.com" in wrong["job role"]
    assert wrong["secret TINKER_API_KEY"] == f"{nothing} does not exist"
    assert "tml-hush" not in json.dumps(checks)
    _sweeper(tmp_path, "doctor", "--backend", "nope", code=2)
