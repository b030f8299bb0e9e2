"""What AWS Batch (emulated) refuses before anything is submitted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sweeper.backends import open_backend
from sweeper.errors import SweeperError

DEFINED: dict[str, Any] = {"image": None}
ARN = "arn:aws:batch:us-east-1:123456789012"
DENIED = "AccessDeniedException: User: me is not authorized"
OLD = "the credentials have expired or are not valid: renew them"
REFUSED: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"queue": "nope"}, {}, "no job queue nope in us-east-1"),
    ({"queue": f"{ARN}:job-queue/nope"}, {}, f"no job queue {ARN}:job-queue/nope in us-east-1"),
    ({"region": "eu-west-1"}, {}, "no job queue queue-.* in eu-west-1"),
    ({}, {"queue": "closed"}, "queue-.* is DISABLED, VALID"),
    ({**DEFINED, "job_definition": "nope"}, {}, "no active job definition nope"),
    ({**DEFINED, "job_definition": "nope:3"}, {}, "no active job definition nope:3"),
    ({**DEFINED, "job_definition": f"{ARN}:job-definition/nope:1"}, {}, "no active job definition"),
    ({"image": "lab/sweper"}, {"registerjobdefinition": "Invalid image"}, "Invalid image"),
    ({"role": "nobody"}, {"registerjobdefinition": "Role nobody is not valid"}, "Role nobody is"),
    (
        {"execution_role": "nobody"},
        {"registerjobdefinition": "executionRoleArn nobody is not valid"},
        "executionRoleArn nobody is not valid",
    ),
    ({"vcpus": 0.3}, {"registerjobdefinition": "VCPU 0.3 is not supported"}, "VCPU 0.3 is not"),
    ({"memory": 4}, {"registerjobdefinition": "MEMORY 4 is too small"}, "MEMORY 4 is too small"),
    ({"gpus": 64}, {"registerjobdefinition": "GPU 64 is too large"}, "GPU 64 is too large"),
    ({}, {"describejobqueues": DENIED}, "not allowed: .*docs/aws-batch.md has the permissions"),
    ({}, {"describejobdefinitions": DENIED}, "not allowed: .*aws-batch.md has the permissions"),
    ({}, {"registerjobdefinition": DENIED}, "not allowed: .*aws-batch.md has the permissions"),
    ({}, {"describejobqueues": "ExpiredTokenException: x"}, OLD),
    ({}, {"describejobqueues": "UnrecognizedClientException: x"}, OLD),
    ({}, {"describejobqueues": "InvalidSignatureException: x"}, "correct this machine's clock"),
    ({}, {"registerjobdefinition": "ExpiredTokenException: x"}, OLD),
    ({}, {"queue": "silent"}, "AWS Batch: ServiceUnavailable at describe_job_queues: it is away"),
]


@pytest.mark.parametrize(("options", "service", "message"), REFUSED)
def test_preflight_refuses_in_one_line_and_submits_nothing(
    batch: Any, tmp_path: Path, options: dict[str, Any], service: Mapping[str, str], message: str
) -> None:
    before = len(batch.jobs())
    rules = dict(service)
    batch.open(rules.get("queue") != "closed")
    batch.silent = rules.pop("queue", "") == "silent"
    batch.refused.update(rules)
    with pytest.raises(SweeperError, match=message) as caught:
        open_backend("aws-batch", "sweep", str(tmp_path), batch.options(**options)).preflight([{}])
    assert "\n" not in str(caught.value)
    batch.recover()
    assert len(batch.jobs()) == before
