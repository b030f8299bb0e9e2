"""Reads a plan's options for AWS Batch (`launch.aws_batch`) from `sweep.json`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from sweeper.common import codec
from sweeper.errors import UsageError
from sweeper.fields import config_file

PLACE = "launch.aws_batch"
"""The place of the options in a plan."""

RESTARTS = "AWS_BATCH_JOB_ATTEMPT"
"""Variable with the number of the job's start, from 1."""

INDEX = "AWS_BATCH_JOB_ARRAY_INDEX"
"""Variable with the index of an array job's child, from 0."""


class Options(NamedTuple):
    """Where and how jobs run. `memory` is in MiB, `timeout_s` in seconds. A job definition is
    either named or made from `image` and other options: `role` is the job's role, and
    `execution_role` the one that fetches its image and secrets and writes its logs. `secrets`
    maps a variable to the ARN of a secret or parameter. `array`: the least number of jobs that
    are submitted as an array job; 0: never. `python`: the interpreter in the image that has
    sweeper."""

    queue: str
    job_definition: str | None = None
    image: str | None = None
    role: str | None = None
    execution_role: str | None = None
    vcpus: float | None = None
    memory: int | None = None
    gpus: int | None = None
    timeout_s: float | None = None
    region: str | None = None
    profile: str | None = None
    secrets: Mapping[str, str] = MappingProxyType({})
    tags: Mapping[str, str] = MappingProxyType({})
    array: int = 10
    retries_on_interruption: int = 3
    python: str = "python"


def read_options(given: Mapping[str, object]) -> Options:
    """Return the options. Missing options are left to the job definition or to AWS. Raises
    `UsageError` without a queue or without exactly one of job definition and image, and
    `Damaged` for an option of another type."""
    if given.get("queue") is None:
        raise UsageError(
            "aws-batch: no queue is given: write `launch: "
            f'{{aws_batch: {{queue: NAME, image: IMAGE}}}}` in the grid, or queue = "NAME" '
            f"below [aws_batch] in {config_file.file()}"
        )
    options = codec.read(Options, dict(given), PLACE)
    if options.job_definition is None and options.image is None:
        raise UsageError(
            "aws-batch: no image is given: set launch.aws_batch.image, or job_definition to "
            "an existing one"
        )
    if options.job_definition is not None and options.image is not None:
        raise UsageError(
            "aws-batch: launch.aws_batch has an image and a job_definition: remove one of them"
        )
    return options
