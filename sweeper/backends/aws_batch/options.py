"""The options of AWS Batch (`launch.aws_batch`)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple, Never

from sweeper.backends.secret_references import secrets_option
from sweeper.common import codec
from sweeper.errors import UsageError
from sweeper.fields import config_file
from sweeper.fields.kinds import Duration, Integer, Matching, Names, Number, Text
from sweeper.fields.options import Option, section_of
from sweeper.fields.sections import Reading

PLACE = "launch.aws_batch"
"""The name of the section, for messages about a plan's options."""

RESTARTS = "AWS_BATCH_JOB_ATTEMPT"
"""Name of the variable with the number of the job's start, counted from 1."""

INDEX = "AWS_BATCH_JOB_ARRAY_INDEX"
"""Name of the variable with the index of a child in its array job, counted from 0."""

OF_AN_IMAGE = ("role", "execution_role")
_MOST_TAGS = 40  # Batch allows 50 tags, some of which sweeper sets.
_RESOURCE = r"[A-Za-z0-9][A-Za-z0-9_:/-]{0,255}"
_ROLE = Text(r"[A-Za-z0-9+=,.@_:/-]{1,512}", "{} is not a role's name or ARN")
_TAG = r"[A-Za-z0-9 +\-=._:/@]"
_QUEUE = Text(_RESOURCE, "{} is not a job queue's name or ARN")
_DEFINITION = Text(_RESOURCE, "{} is not a job definition's name, `name:revision` or ARN")
_DEFINITION_DOC = "An existing job definition: its name, name:revision or ARN. Or give an image."
_IMAGE = Text(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,1023}", "{} is not an image's address")
_IMAGE_DOC = "An image that contains sweeper: a job definition is made for it."
_ROLE_DOC = "The role of the jobs, with permission to use the bucket."
_EXECUTION_DOC = "The role that pulls the image, writes the logs and reads the secrets."
_REGION = Text(r"[a-z]{2,3}(-[a-z]+)+-[0-9]+", "{} is not a region such as eu-central-1")
_PROFILE = Text(r"[^\x00-\x1f\x7f]{1,200}", "{} is not a profile's name")
_PYTHON = Text(r"[^\x00-\x1f\x7f]{1,1000}", "{} is not an interpreter in the image")
_PYTHON_DOC = "The image's interpreter, in which sweeper is installed."
_TIMEOUT_DOC = "Batch's time limit for an attempt, at least 60s; launch.timeout is the worker's."
_SECRETS_DOC = (
    "Variables, each with the ARN of the secret that contains its value; never the value."
)
_ARN = Matching(
    r"arn:[a-z-]+:(secretsmanager|ssm):[A-Za-z0-9_.:/+=@!-]{1,2000}",
    "the ARN of a secret in Secrets Manager or of a parameter of Systems Manager, never the value",
)
_ARN_EXAMPLE = "arn:aws:ssm:REGION:ACCOUNT:parameter/NAME"
_TAGS = Names(
    f"a mapping of names to strings, at most {_MOST_TAGS}",
    Matching(rf"(?![aA][wW][sS]:|[sS][wW][eE][eE][pP][eE][rR]:){_TAG}{{1,128}}", "a tag"),
    values=Matching(
        f"{_TAG}{{0,256}}",
        "a string of at most 256 letters, digits, blanks and + - = . _ : / @",
    ),
    most=_MOST_TAGS,
)
_ARRAY_DOC = "The smallest number of jobs that are submitted as an array job; 0: never."
_RETRIES_DOC = "How many times Batch itself restarts a job whose machine was taken away."
_NONE: Mapping[str, Never] = MappingProxyType({})


class Options(NamedTuple):
    """Options of jobs at AWS Batch. `memory` is in MiB, `timeout_s` in seconds. Jobs use the
    definition called `job_definition`, or one that is made from `image` and other options. Jobs
    have the IAM role `role`. Batch uses the IAM role `execution_role` to fetch images and secrets
    and to write logs. `secrets` maps a variable to the ARN of a secret or parameter. `array` is the
    smallest number of jobs that are submitted as an array job (0: never). `python` is the image's
    interpreter in which sweeper is installed."""

    queue: Annotated[str, Option(_QUEUE, "The job queue, by name or ARN.", "my-queue")]
    job_definition: Annotated[
        str | None, Option(_DEFINITION, _DEFINITION_DOC, "my-definition:3")
    ] = None
    image: Annotated[str | None, Option(_IMAGE, _IMAGE_DOC, "REGISTRY/sweeper:1")] = None
    role: Annotated[str | None, Option(_ROLE, _ROLE_DOC, "sweeper-job")] = None
    execution_role: Annotated[str | None, Option(_ROLE, _EXECUTION_DOC, "sweeper-execution")] = None
    region: Annotated[
        str | None,
        Option(_REGION, "The region. Default: as AWS's own tools choose it.", "eu-central-1"),
    ] = None
    profile: Annotated[
        str | None,
        Option(_PROFILE, "A profile of ~/.aws. Default: as AWS's own tools choose it.", "lab"),
    ] = None
    python: Annotated[str, Option(_PYTHON, _PYTHON_DOC)] = "python"
    vcpus: Annotated[float | None, Option(Number(0, 1024, above=True), "CPUs of a job.", 4)] = None
    memory: Annotated[int | None, Option(Integer(4), "Memory of a job, in MiB.", 8192)] = None
    gpus: Annotated[int | None, Option(Integer(1), "GPUs of a job.", 1)] = None
    timeout_s: Annotated[float | None, Option(Duration(60), _TIMEOUT_DOC, "2h")] = None
    secrets: Annotated[Mapping[str, str], secrets_option(_SECRETS_DOC, _ARN, _ARN_EXAMPLE)] = _NONE
    tags: Annotated[
        Mapping[str, str], Option(_TAGS, "Tags of the jobs.", {"team": "post-training"})
    ] = _NONE
    array: Annotated[int, Option(Integer(0), _ARRAY_DOC)] = 10
    retries_on_interruption: Annotated[
        int,
        Option(Integer(0, 9), _RETRIES_DOC),  # Batch allows 10 attempts
    ] = 3


def _check(reading: Reading) -> None:
    for key in ("image", *OF_AN_IMAGE) if "job_definition" in reading.values else ():
        if key in reading.values:
            reading.problems.add(
                reading.entries[key][0],
                f"{reading.name}: job_definition and {key} exclude each other: remove one",
            )


SECTION = section_of(
    Options,
    check=_check,
    more={
        "if": {
            "required": ["job_definition"],
            "properties": {"job_definition": {"type": "string"}},
        },
        "then": {"properties": {key: {"type": "null"} for key in ("image", *OF_AN_IMAGE)}},
    },
)


def read_options(plan_options: Mapping[str, object]) -> Options:
    """Read a plan's options. Options that are not given are left to the job definition or to AWS.
    Raises `UsageError` if the queue is missing, or if `job_definition` and `image` are both given
    or both missing. Raises `Damaged` if an option has the wrong type."""
    if plan_options.get("queue") is None:
        raise UsageError(
            "aws-batch: no queue is given: write `launch: "
            f'{{aws_batch: {{queue: NAME, image: IMAGE}}}}` in the grid, or queue = "NAME" '
            f"below [aws_batch] in {config_file.file()}"
        )
    options = codec.read(Options, dict(plan_options), PLACE)
    if options.job_definition is None and options.image is None:
        raise UsageError(
            "aws-batch: no image is given: set launch.aws_batch.image, or set job_definition to "
            "an existing definition"
        )
    if options.job_definition is not None and options.image is not None:
        raise UsageError(
            "aws-batch: launch.aws_batch has an image and a job_definition: remove one of them"
        )
    return options
