"""Finds the job definition that the options name, or makes a definition from an image. A definition
made from an image is named by a hash of its content, so that later launches find it."""

import hashlib
import json
from collections.abc import Mapping
from typing import NotRequired, TypedDict

from sweeper.backends.aws_batch.answers import JobDefinition
from sweeper.backends.aws_batch.client import Aws, Refused
from sweeper.backends.aws_batch.options import INDEX, Options
from sweeper.errors import EnvironmentFailure, UsageError

INTERRUPTIONS = ("Host EC2*", "Your Spot Task was interrupted*")
"""Patterns of Batch's status reasons for a job whose machine was taken away or failed (EC2,
Fargate)."""
_VCPUS, _MEMORY = 1.0, 2048
_LEAST_TIMEOUT = 60


class Overrides(TypedDict):
    """The settings of a job that replace settings of its definition."""

    command: list[str]
    environment: list[dict[str, str]]
    resourceRequirements: NotRequired[list[dict[str, str]]]


def definition(aws: Aws, options: Options) -> str:
    """Return the name and revision of the job definition. If the options give an image and the
    definition does not exist yet, make the definition. Raises `Unreachable`. Raises
    `EnvironmentFailure` if AWS does not accept the definition, and `UsageError` if the definition
    named in the options does not exist or lacks a secret that runs need."""
    existing = find_definition(aws, options)
    if existing is not None:
        return f"{existing['jobDefinitionName']}:{existing['revision']}"
    if options.job_definition is not None:
        raise UsageError(f"aws-batch: no active job definition {options.job_definition}")
    try:
        # Two launches may register the definition twice. That is harmless: the name determines the
        # content, and the newest revision is used.
        registered = aws.call("batch", "register_job_definition", **registration(options))
    except Refused as error:
        if not error.for_good:
            raise
        raise EnvironmentFailure(str(error)) from error
    return f"{registered['jobDefinitionName']}:{registered['revision']}"


def registration(options: Options) -> dict[str, object]:
    """Return the parameters of RegisterJobDefinition for a definition made from an image."""
    return {
        "jobDefinitionName": called(options),
        "type": "container",
        "containerProperties": _container(options),
        "propagateTags": True,
        "tags": {"sweeper": "job definition"},
    }


def find_definition(aws: Aws, options: Options) -> JobDefinition | None:
    """Return the newest active revision of the job definition; None if no revision is active.
    Raises `UsageError` if a definition named in the options lacks a secret that runs need."""
    named = options.job_definition
    if named is None:
        query: dict[str, object] = {"jobDefinitionName": called(options), "status": "ACTIVE"}
    elif ":" in named:  # an ARN, or a name and a revision
        query = {"jobDefinitions": [named]}
    else:
        query = {"jobDefinitionName": named, "status": "ACTIVE"}
    definitions = aws.pages("batch", "describe_job_definitions", "jobDefinitions", **query)
    active = [item for item in definitions if item.get("status", "ACTIVE") == "ACTIVE"]
    newest = max(active, key=lambda item: item["revision"], default=None)
    if newest is not None and named is not None:
        container = newest.get("containerProperties", {})
        present = {secret["name"] for secret in container.get("secrets", ())}
        for name in sorted(options.secrets.keys() - present):
            raise UsageError(
                f"aws-batch: the job definition {named} has no secret {name}: add the secret to "
                "the definition, or set launch.aws_batch.image instead of job_definition"
            )
    return newest


def called(options: Options) -> str:
    """Return the name of the job definition. If the definition is made from an image, the name
    contains a hash of the definition's content."""
    if options.job_definition is not None:
        return options.job_definition
    text = json.dumps(_container(options), sort_keys=True)
    return f"sweeper-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def _container(options: Options) -> dict[str, object]:
    container: dict[str, object] = {
        "image": options.image,
        "resourceRequirements": _resources(
            options.vcpus or _VCPUS, options.memory or _MEMORY, options.gpus
        ),
    }
    if options.role is not None:
        container["jobRoleArn"] = options.role
    if options.execution_role is not None:
        container["executionRoleArn"] = options.execution_role
    if options.secrets:
        secrets = sorted(options.secrets.items())
        container["secrets"] = [{"name": name, "valueFrom": arn} for name, arn in secrets]
    return container


def _resources(vcpus: float | None, memory: int | None, gpus: int | None) -> list[dict[str, str]]:
    amounts = (("VCPU", vcpus), ("MEMORY", memory), ("GPU", gpus))
    return [
        {"type": kind, "value": str(value) if isinstance(value, int) else f"{value:g}"}
        for kind, value in amounts
        if value is not None
    ]


def overrides(options: Options, command: list[str], region: str) -> Overrides:
    """Return the settings of a job that replace settings of its definition."""
    overridden: Overrides = {
        "command": command,
        "environment": [
            {"name": "AWS_DEFAULT_REGION", "value": region},
            {"name": "SWEEPER_INDEX", "value": INDEX},
        ],
    }
    resources = _resources(options.vcpus, options.memory, options.gpus)
    if resources:
        overridden["resourceRequirements"] = resources
    return overridden


def retry_strategy(options: Options) -> dict[str, object]:
    """Return a retry strategy with which Batch restarts a job only if its machine was taken away or
    failed."""
    if not options.retries_on_interruption:
        return {"attempts": 1}
    again = [{"onStatusReason": text, "action": "RETRY"} for text in INTERRUPTIONS]
    return {
        "attempts": 1 + options.retries_on_interruption,
        "evaluateOnExit": [*again, {"onReason": "*", "action": "EXIT"}],
    }


def timeout(options: Options) -> Mapping[str, object]:
    """Return Batch's time limit for each start of a job, as parameters of SubmitJob; empty without
    `timeout_s`."""
    if options.timeout_s is None:
        return {}
    seconds = max(_LEAST_TIMEOUT, round(options.timeout_s))
    return {"timeout": {"attemptDurationSeconds": seconds}}
