"""Messages about AWS Batch, and the documented permissions compared with the code's calls."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import botocore.session
import pytest
from botocore import xform_name

from sweeper.backends.aws_batch.client import Aws, Refused
from sweeper.backends.aws_batch.definition import overrides
from sweeper.backends.aws_batch.jobs import Jobs, status_of
from sweeper.backends.aws_batch.names import as_tag
from sweeper.backends.aws_batch.options import Options
from sweeper.backends.base import JobState, JobStatus
from sweeper.testing import FakeClock

ROOT = Path(__file__).parents[2]
ENDED = JobState.ENDED
OOM = "OutOfMemoryError"


def _failed(why: str, **container: object) -> dict[str, object]:
    return {"status": "FAILED", "statusReason": why, "container": container}


STATUSES = [
    ({"status": "SUBMITTED"}, JobStatus(JobState.PENDING)),
    ({"status": "STARTING"}, JobStatus(JobState.PENDING)),
    (
        {"status": "RUNNABLE", "statusReason": "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - x"},
        JobStatus(JobState.PENDING, None, "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - x"),
    ),
    (
        {"status": "RUNNABLE", "createdAt": 1790000000000},
        JobStatus(JobState.PENDING, since="2026-09-21T14:13:20Z"),
    ),
    ({"status": "RUNNING"}, JobStatus(JobState.RUNNING)),
    (
        {"status": "RUNNING", "isTerminated": True, "container": {"containerInstanceArn": "a/i-1"}},
        JobStatus(JobState.STOPPING, node="i-1"),
    ),
    ({"status": "SUCCEEDED", "container": {"exitCode": 0}}, JobStatus(ENDED, 0)),
    (_failed("Essential container in task exited", exitCode=1), JobStatus(ENDED, 1)),
    (
        _failed("Essential container in task exited", exitCode=137, reason=f"{OOM}: Container ..."),
        JobStatus(ENDED, 137, "oom"),
    ),
    (_failed("Job attempt duration exceeded timeout"), JobStatus(ENDED, None, "timeout")),
    (
        _failed("Host EC2 (instance i-0a) terminated."),
        JobStatus(ENDED, None, "Host EC2 (instance i-0a) terminated", preempted=True),
    ),
    (
        _failed("Task failed to start", reason="CannotPullContainerError: no\n such image"),
        JobStatus(ENDED, None, "CannotPullContainerError: no such image"),
    ),
]


@pytest.mark.parametrize(("job", "status"), STATUSES)
def test_what_a_job_has_come_to(job, status):
    assert status_of(job) == status


_ROLE = "[profile a]\nrole_arn=arn:aws:iam::1:role/x\n"
_KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
_TOKEN_FILE = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/no/such", "AWS_ROLE_ARN": "arn:aws:iam::1:role/x"}
CONFIGURED: dict[str, tuple[str, str, dict[str, str]]] = {
    # the message: the profile, the configuration file, variables
    r"The config profile \(a\) could not be found: see launch.aws_batch.profile": ("a", "", {}),
    "no region: set launch.aws_batch.region, or AWS_DEFAULT_REGION": ("", "", {}),
    "region_name 'Frank furt' doesn't match": ("", "[default]\nregion=Frank furt", {}),
    "no usable credentials .*Unable to locate": ("", "[default]\nregion=us-east-1", {}),
    "no usable credentials .*missing: AWS_SECRET_ACCESS_KEY": ("", "", {"AWS_ACCESS_KEY_ID": "a"}),
    "Unable to parse config file: .*/config: see ~/.aws/config": ("", "[default\nregion=x", {}),
    'source_profile "b" referenced .* does not exist: see': ("a", f"{_ROLE}source_profile=b", {}),
    "missing: source_profile or credential_source": ("a", _ROLE, {}),
    'credential source "Cloud" .* is not valid: see': ("a", f"{_ROLE}credential_source=Cloud", {}),
    "Infinite loop in credential configuration":
        ("a", f"{_ROLE}source_profile=b\n{_ROLE.replace('e a', 'e b')}source_profile=a", {}),
    "no usable credentials .*custom-process":
        ("a", "[profile a]\ncredential_process=/bin/false", {}),
    "cannot be used: .*No such file.*'/no/such'":
        ("a", "[profile a]\ncredential_process=/no/such", {}),
    "Token for s does not exist":
        ("a", "[profile a]\nsso_session=s\nsso_account_id=1\nsso_role_name=r\n[sso-session s]\n"
         "sso_region=us-east-1\nsso_start_url=https://lab.example.com/start", {}),
    '"s" sso_session configuration does not exist: see': ("a", "[profile a]\nsso_session=s", {}),
    "Invalid endpoint: nonsense: see": ("", "", {**_KEYS, "AWS_ENDPOINT_URL": "nonsense"}),
    "no usable credentials .*No such file or directory: '/no/such'": ("", "", _TOKEN_FILE),
}  # fmt: skip


@pytest.mark.parametrize(("message", "given"), CONFIGURED.items())
def test_what_is_missing_here(message, given, tmp_path, monkeypatch):
    """The message is our own, and AWS gets no request."""
    profile, text, variables = given
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    region = None if message.startswith(("no region", "region_name")) else "eu-central-1"
    with pytest.raises(Refused, match=message) as caught:
        Aws(region, profile or None).call("batch", "describe_jobs", jobs=["1"])
    assert "\n" not in str(caught.value) and "does not answer" not in str(caught.value)


def test_numbers_are_written_out():
    request = overrides(Options("q", vcpus=0.25, memory=1_000_000), [], "r")
    values = [needed["value"] for needed in request.get("resourceRequirements", [])]
    assert values == ["0.25", "1000000"]


def test_a_restart_is_no_reason_to_list_again_and_again():
    clock, listings = FakeClock(), list[object]()

    class Service:
        """A stub of AWS that lists no jobs, and describes each job as succeeded."""

        def pages(self, *arguments: object, **_: object) -> list[object]:
            listings.append(arguments)
            return []

        def call(self, *_: object, jobs: list[str]) -> dict[str, object]:
            return {"jobs": [{"jobId": job, "status": "SUCCEEDED"} for job in jobs]}

    names: Any = SimpleNamespace(prefix="p-")
    jobs = Jobs(cast("Any", Service()), names, "q", clock=clock)

    def rounds(tokens: list[str]) -> int:
        listings.clear()
        for _ in range(120):  # two minutes
            clock.sleep(1)
            jobs.refresh_for(tokens)
        return len(listings)

    jobs.add("1", ["aaaaaaaaaaaa-a1"], array=False)
    assert rounds(["aaaaaaaaaaaa-a1"]) == 0 and rounds(["aaaaaaaaaaaa-a1", "aaaaaaaaaaaa-a2"]) == 1
    assert rounds(["aaaaaaaaaaaa-a2", "bbbbbbbbbbbb-a1"]) == 12
    assert jobs.statuses(["aaaaaaaaaaaa-a1"]) == {"aaaaaaaaaaaa-a1": JobStatus(ENDED, 0)}
    assert rounds(["aaaaaaaaaaaa-a2"]) == 12


def test_a_title_as_a_tag():
    assert as_tag("lr=1e-4,x='a b' 本") == "lr=1e-4_x=_a b_ _" and len(as_tag("x" * 1000)) == 256


_CALL = re.compile(r"\.(?:call|submit|pages)\(\s*\"([\w-]+)\",\s*\"(\w+)\"")
_ASKED = re.compile(r"aws\.(?:call|submit|pages)\(")
_PREFIX = {"service-quotas": "servicequotas"}
# Needed by other actions, or by the store.
_BESIDES = {
    *("batch:TagResource", "iam:PassRole", "s3:ListBucket", "s3:AbortMultipartUpload"),
    *("s3:GetObject", "s3:PutObject", "s3:DeleteObject"),
}


def _actions(path: Path) -> set[str]:
    document = json.loads(path.read_text())
    assert document["Version"] == "2012-10-17"
    names: set[str] = set()
    for statement in document["Statement"]:
        assert statement["Effect"] == "Allow" and statement["Resource"]
        actions = statement["Action"]
        names |= {actions} if isinstance(actions, str) else set(actions)
    return names


def test_the_policy_allows_what_the_code_calls_and_nothing_else():
    session: Any = botocore.session.Session()
    called: set[str] = set()
    for path in (ROOT / "sweeper" / "backends" / "aws_batch").glob("*.py"):
        text = path.read_text()
        calls = _CALL.findall(text)
        assert len(calls) == len(_ASKED.findall(text)), f"{path}: a call that is not written out"
        for service, operation in calls:
            names = session.get_service_model(service).operation_names
            action = {xform_name(name): name for name in names}[operation]
            called.add(f"{_PREFIX.get(service, service)}:{action}")
    called.remove("sts:GetCallerIdentity")  # needs no permission
    assert {"batch:SubmitJob", "logs:GetLogEvents", "ecr:DescribeImages"} <= called
    assert _actions(ROOT / "docs" / "aws-batch-policy.json") == called | _BESIDES
    store = {action for action in _BESIDES if action.startswith("s3:")}
    assert _actions(ROOT / "docs" / "aws-batch-job-policy.json") == store


def test_what_it_takes_is_loaded_when_it_is_used():
    code = "import sweeper.backends.aws_batch, sys; print('botocore' in sys.modules)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
