"""Checks of `sweeper doctor --backend aws-batch`, without an account (botocore's Stubber)."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from sweeper.backends.aws_batch import doctor as aws_batch_doctor
from sweeper.backends.aws_batch.doctor import checks
from sweeper.backends.aws_batch.options import Options
from sweeper.commands import doctor
from sweeper.errors import UsageError

SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:tinker-AbCdEf"


def test_the_doctor_looks_at_what_it_can():
    """Without a queue, it still makes its other checks, and says where to name a queue."""
    (_, _, _), (name, needed, look) = checks({"region": "eu-central-1"})
    assert (name, needed) == ("launch.aws_batch", True)
    with pytest.raises(LookupError, match=r"no queue is given: .*config\.toml; .* --grid GRID"):
        look()


@pytest.fixture
def environments(stubbed: Any) -> Callable[..., str]:
    """Return a function from options and environments (type, size) to the problem reported."""

    def problem(options: dict[str, Any], *given: tuple[str, int], state: str = "ENABLED") -> str:
        stubbed.queue()
        described = [
            {
                "computeEnvironmentName": f"ce{number}",
                "computeEnvironmentArn": "arn",
                "state": state,
                "status": "VALID",
                "computeResources": {"type": kind, "maxvCpus": most, "subnets": []},
            }
            for number, (kind, most) in enumerate(given)
        ]
        answer = {"computeEnvironments": described}
        stubbed.answer("describe_compute_environments", answer, {"computeEnvironments": []})
        return aws_batch_doctor.environments_of(stubbed.aws, Options("q", **options))

    return problem


def test_one_environment_that_takes_such_jobs_is_enough(environments):
    options = {"image": "i", "vcpus": 8.0}
    assert environments(options, ("SPOT", 4), ("EC2", 16)) == (
        "ce0 (SPOT, up to 4 vCPUs, ENABLED, VALID), ce1 (EC2, up to 16 vCPUs, ENABLED, VALID)"
    )
    with pytest.raises(LookupError, match=r"ce1 \(EC2, up to 7 .*: a job asks for 8 vCPUs"):
        environments(options, ("SPOT", 4), ("EC2", 7))
    with pytest.raises(LookupError, match="it is disabled or invalid"):
        environments(options, ("SPOT", 16), state="DISABLED")
    with pytest.raises(LookupError, match="has no compute environment"):
        environments(options)


@pytest.mark.parametrize("kind", ["FARGATE", "FARGATE_SPOT"])
def test_fargate_takes_no_job_by_image(environments, kind):
    with pytest.raises(LookupError, match="set `job_definition` to one of your own"):
        environments({"image": "i"}, (kind, 16))
    assert kind in environments({"job_definition": "d"}, (kind, 16))


def _reached(root: str, grid: str | None) -> str:
    request = doctor.trial_request("aws-batch", grid)
    checks = {name: look for name, needed, look in doctor.declared_checks(request, root) if needed}
    return checks["what jobs reach"]()


def test_what_a_launch_would_refuse_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SWEEPER_ENGINE_URL", raising=False)
    grid, root = tmp_path / "grid.yaml", "s3://bucket/prefix"

    def write(service: str, **more: Any) -> str:
        launch = {"aws_batch": {"queue": "q", "image": "i"} | more}
        grid.write_text(json.dumps({"command": ["a"], "service": service, "launch": launch}))
        return str(grid)

    assert _reached(root, write("none")) == root
    with pytest.raises(UsageError, match="jobs cannot read the folder"):
        _reached(str(tmp_path), write("none"))
    with pytest.raises(UsageError, match="say where jobs find TINKER_API_KEY"):
        _reached(root, write("tinker"))
    with pytest.raises(UsageError, match="needs an engine that the jobs can reach"):
        _reached(root, write("local"))
    given = write("tinker", secrets={"TINKER_API_KEY": SECRET})
    assert _reached(root, given) == f"{root}, TINKER_API_KEY"
    # Without a grid, the root is still checked.
    config = tmp_path / "sweeper" / "config.toml"
    config.parent.mkdir()
    config.write_text('[aws_batch]\nqueue = "q"\nimage = "i"\n')
    assert _reached(root, None) == root
    with pytest.raises(UsageError, match="jobs cannot read the folder"):
        _reached(str(tmp_path), None)
