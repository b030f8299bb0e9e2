"""Checks an AWS account before the first job: the identity, the queue and its machines, the job
definition, the image, the roles, the secrets, the quota. Changes nothing in the account. A missing
permission for an optional check does not prevent a launch."""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from sweeper.backends.aws_batch.answers import ComputeEnvironment, JobQueue
from sweeper.backends.aws_batch.client import Aws, Refused
from sweeper.backends.aws_batch.definition import find_definition
from sweeper.backends.aws_batch.options import PLACE, Options, read_options
from sweeper.backends.base import Check
from sweeper.common import codec
from sweeper.errors import UsageError

_ECR = re.compile(
    r"(\d{12})\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?/([^:@]+)(?::([^@]+))?(?:@(.+))?\Z"
)
_QUOTAS = {
    "EC2": ("ec2", "L-1216C47A", "vCPUs of standard instances"),
    "SPOT": ("ec2", "L-34B43A08", "vCPUs of standard spot instances"),
    "FARGATE": ("fargate", "L-3032A538", "vCPUs"),
    "FARGATE_SPOT": ("fargate", "L-36FBB829", "vCPUs of Fargate Spot"),
}
_TASKS = "ecs-tasks.amazonaws.com"


class _Account(NamedTuple):
    region: str | None
    profile: str | None


def checks(plan_options: Mapping[str, object]) -> list[Check]:
    """Return the checks of `sweeper doctor --backend aws-batch`, for the options of a plan."""
    aws = Aws(*codec.read(_Account, dict(plan_options), PLACE))
    identity = Check("AWS identity", True, lambda: _identity(aws))
    try:
        options = read_options(plan_options)
    except UsageError as error:
        message = f"{error}; or give the grid: --grid GRID"

        def lacking() -> str:
            raise LookupError(message)

        return [identity, Check("launch.aws_batch", True, lacking)]
    steps = [
        identity,
        Check("job queue", True, lambda: _queue(aws, options)),
        Check("compute environments", True, lambda: environments_of(aws, options)),
        Check("job definition", True, lambda: _definition(aws, options)),
    ]
    if options.image is not None:
        steps.append(Check("image", True, lambda: _image(aws, options.image or "")))
    for label, role in (("job role", options.role), ("execution role", options.execution_role)):
        if role is not None:
            steps.append(Check(label, True, lambda role=role: _role(aws, role)))
    for name, arn in options.secrets.items():
        steps.append(Check(f"secret {name}", True, lambda arn=arn: _secret(aws, arn)))
    steps.append(Check("quota", False, lambda: _quota(aws, options)))
    return steps


def _identity(aws: Aws) -> str:
    identity = aws.call("sts", "get_caller_identity")
    return f"{identity['Arn']} in {aws.region}"


def _queue(aws: Aws, options: Options) -> str:
    queue = _described_queue(aws, options)
    if queue.get("state") != "ENABLED" or queue.get("status") != "VALID":
        raise LookupError(f"{options.queue} is {queue.get('state')}, {queue.get('status')}")
    return f"{queue['jobQueueName']}, enabled"


def _described_queue(aws: Aws, options: Options) -> JobQueue:
    queues = aws.call("batch", "describe_job_queues", jobQueues=[options.queue])["jobQueues"]
    if not queues:
        raise LookupError(f"there is no queue {options.queue} in {aws.region}")
    return queues[0]


def _described_environments(aws: Aws, options: Options) -> list[ComputeEnvironment]:
    order = _described_queue(aws, options)["computeEnvironmentOrder"]
    names = [item["computeEnvironment"] for item in order]
    answer = aws.call("batch", "describe_compute_environments", computeEnvironments=names)
    return answer["computeEnvironments"]


def environments_of(aws: Aws, options: Options) -> str:
    """Check that at least one of the queue's compute environments can run the jobs. Return a line
    about all compute environments. Raises `LookupError` if none can run the jobs."""
    sentences: list[str] = []
    wrong: list[str] = []
    for environment in _described_environments(aws, options):
        resources = environment.get("computeResources", {})
        kind = resources.get("type") or environment.get("type")
        most = resources.get("maxvCpus")
        size = f", up to {most} vCPUs" if most is not None else ""
        sentences.append(
            f"{environment['computeEnvironmentName']} ({kind}{size}, {environment.get('state')}, "
            f"{environment.get('status')})"
        )
        why = _unusable(environment, options)
        wrong += [f"{sentences[-1]}: {why}"] if why else []
    if not sentences:
        raise LookupError("the queue has no compute environment")
    if len(wrong) == len(sentences):
        raise LookupError(
            f"no compute environment of the queue can run this grid's jobs: {'; '.join(wrong)}"
        )
    return ", ".join(sentences)


def _unusable(environment: ComputeEnvironment, options: Options) -> str | None:
    if environment.get("state") != "ENABLED" or environment.get("status") != "VALID":
        return "it is disabled or invalid"
    resources = environment.get("computeResources", {})
    if str(resources.get("type")).startswith("FARGATE") and options.image is not None:
        return "Fargate cannot run jobs made from `image`: set `job_definition` to one of your own"
    vcpus, most = options.vcpus or 1, resources.get("maxvCpus")
    return f"a job asks for {vcpus:g} vCPUs" if most is not None and vcpus > most else None


def _definition(aws: Aws, options: Options) -> str:
    existing = find_definition(aws, options)
    if existing is not None:
        return f"{existing['jobDefinitionName']}:{existing['revision']}"
    if options.job_definition is not None:
        raise LookupError(f"there is no active job definition {options.job_definition}")
    return "made from the image at the first launch"


def _image(aws: Aws, image: str) -> str:
    match = _ECR.match(image)
    if match is None:
        return f"{image}: not checked, since it is not in ECR"
    registry, repository, tag, digest = match.groups()
    wanted = {"imageDigest": digest} if digest else {"imageTag": tag or "latest"}
    try:
        images = aws.call(
            "ecr",
            "describe_images",
            registryId=registry,
            repositoryName=repository,
            imageIds=[wanted],
        )["imageDetails"]
    except Refused as error:
        if error.code in ("RepositoryNotFoundException", "ImageNotFoundException"):
            raise LookupError(f"{image}: no such image") from error
        raise
    return f"{repository}, pushed {images[0].get('imagePushedAt', 'at an unknown time')}"


def _role(aws: Aws, role: str) -> str:
    name = role.rpartition("/")[2]
    try:
        answer = aws.call("iam", "get_role", RoleName=name)["Role"]
    except Refused as error:
        if error.code == "NoSuchEntity":
            raise LookupError(f"no role {name}") from error
        raise
    trusted = answer.get("AssumeRolePolicyDocument")
    if _TASKS not in unquote(str(trusted)):
        raise LookupError(
            f"jobs cannot assume the role {name}: add {_TASKS} to the role's trust policy"
        )
    return answer["Arn"]


def _secret(aws: Aws, arn: str) -> str:
    """Check that the secret exists, without reading its value."""
    service = arn.split(":")[2]
    try:
        if service == "secretsmanager":
            # The ARN may be followed by a key of a JSON secret and a stage: `:key:stage:version`.
            whole = ":".join(arn.split(":")[:7])
            return str(aws.call("secretsmanager", "describe_secret", SecretId=whole)["Name"])
        name = arn.partition(":parameter")[2]
        wanted = [{"Key": "Name", "Values": [name]}]
        parameters = aws.call("ssm", "describe_parameters", ParameterFilters=wanted)["Parameters"]
    except Refused as error:
        if error.code == "ResourceNotFoundException":
            raise LookupError(f"{arn} does not exist") from error
        raise
    if not parameters:
        raise LookupError(f"no parameter {name}")
    return parameters[0]["Name"]


def _quota(aws: Aws, options: Options) -> str:
    kinds = [
        str(environment.get("computeResources", {}).get("type"))
        for environment in _described_environments(aws, options)
    ]
    sentences: list[str] = []
    for kind in dict.fromkeys(kinds):
        if kind in _QUOTAS:
            service, code, unit = _QUOTAS[kind]
            quotas = aws.call(
                "service-quotas", "get_service_quota", ServiceCode=service, QuotaCode=code
            )
            sentences.append(f"{quotas['Quota']['Value']:g} {unit}")
    return ", ".join(sentences) or "runs on your own machines: no quota to check"
