"""The description of the AWS Batch backend and its section of a grid. The other code is loaded when
a sweep is launched there.

Defaults in the user's configuration file are recorded with the plan, so that later changes to the
file do not affect how a sweep's jobs are found.
"""

from collections.abc import Iterable, Mapping

from sweeper.backends.aws_batch.options import RESTARTS, Options, read_options
from sweeper.backends.base import (
    Backend,
    BackendType,
    Batches,
    Capabilities,
    Check,
    Counter,
    Manifest,
)
from sweeper.backends.secret_references import names_of, secrets_field
from sweeper.fields.kinds import Duration, Integer, Matching, Names, Number, Text
from sweeper.fields.sections import Field, Reading, Section

__all__ = ["BACKEND"]

_OF_AN_IMAGE = ("role", "execution_role")
_MOST_TAGS = 40  # Batch allows 50, some of which are sweeper's
_DEFAULT = Options("")
_RESOURCE = r"[A-Za-z0-9][A-Za-z0-9_:/-]{0,255}"
_ROLE = Text(r"[A-Za-z0-9+=,.@_:/-]{1,512}", "{} is not a role's name or ARN")
_TAG = r"[A-Za-z0-9 +\-=._:/@]"


def _check(reading: Reading) -> None:
    for key in ("image", *_OF_AN_IMAGE) if "job_definition" in reading.values else ():
        if key in reading.values:
            reading.problems.add(
                reading.entries[key][0],
                (
                    f"{reading.name}: a named job definition has its own {key}: remove one of the "
                    "two"
                ),
            )


SECTION = Section(
    Field(
        "queue",
        Text(_RESOURCE, "{} is not a job queue's name or ARN"),
        "The job queue, by name or ARN.",
        examples=("my-queue",),
    ),
    Field(
        "job_definition",
        Text(_RESOURCE, "{} is not a job definition's name, `name:revision` or ARN"),
        "An existing job definition: its name, name:revision or ARN. Or give an image.",
        examples=("my-definition:3",),
    ),
    Field(
        "image",
        Text(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,1023}", "{} is not an image's address"),
        "An image that contains sweeper: a job definition is made for it.",
        examples=("REGISTRY/sweeper:1",),
    ),
    Field(
        "role",
        _ROLE,
        "The role of the jobs, with permission to use the bucket.",
        examples=("sweeper-job",),
    ),
    Field(
        "execution_role",
        _ROLE,
        "The role that pulls the image, writes the logs and reads the secrets.",
        examples=("sweeper-execution",),
    ),
    Field(
        "region",
        Text(r"[a-z]{2,3}(-[a-z]+)+-[0-9]+", "{} is not a region such as eu-central-1"),
        "The region. Default: as AWS's own tools choose it.",
        examples=("eu-central-1",),
    ),
    Field(
        "profile",
        Text(r"[^\x00-\x1f\x7f]{1,200}", "{} is not a profile's name"),
        "A profile of ~/.aws. Default: as AWS's own tools choose it.",
        examples=("lab",),
    ),
    Field(
        "python",
        Text(r"[^\x00-\x1f\x7f]{1,1000}", "{} is not an interpreter in the image"),
        "The interpreter in the image that has sweeper.",
        _DEFAULT.python,
    ),
    Field("vcpus", Number(0, 1024, above=True), "CPUs of a job.", examples=(4,)),
    Field("memory", Integer(4), "Memory of a job, in MiB.", examples=(8192,)),
    Field("gpus", Integer(1), "GPUs of a job.", examples=(1,)),
    Field(
        "timeout",
        Duration(60),
        "Batch's time limit for an attempt, at least 60s; launch.timeout is the worker's.",
        examples=("2h",),
        key="timeout_s",
    ),
    secrets_field(
        "Variables, and the ARNs of the secrets that they hold. Never values.",
        Matching(
            r"arn:[a-z-]+:(secretsmanager|ssm):[A-Za-z0-9_.:/+=@!-]{1,2000}",
            "the ARN of a secret in Secrets Manager or of a parameter of Systems Manager, "
            "never the value",
        ),
        "arn:aws:ssm:REGION:ACCOUNT:parameter/NAME",
    ),
    Field(
        "tags",
        Names(
            f"a mapping of names to strings, at most {_MOST_TAGS}",
            Matching(rf"(?![aA][wW][sS]:|[sS][wW][eE][eE][pP][eE][rR]:){_TAG}{{1,128}}", "a tag"),
            values=Matching(
                f"{_TAG}{{0,256}}",
                "a string of at most 256 letters, digits, blanks and + - = . _ : / @",
            ),
            most=_MOST_TAGS,
        ),
        "Tags of the jobs.",
        examples=({"team": "post-training"},),
    ),
    Field(
        "array",
        Integer(0),
        "Submit jobs as an array job from this number on; 0: never.",
        _DEFAULT.array,
    ),
    Field(
        "retries_on_interruption",
        Integer(0, 9),  # Batch allows 10 attempts
        "How many times Batch itself restarts a job whose machine was taken away.",
        _DEFAULT.retries_on_interruption,
    ),
    check=_check,
    more={
        "if": {
            "required": ["job_definition"],
            "properties": {"job_definition": {"type": "string"}},
        },
        "then": {"properties": {key: {"type": "null"} for key in ("image", *_OF_AN_IMAGE)}},
    },
)


def _merged(defaults: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    merged = dict(defaults)
    if "job_definition" in given:  # it replaces a default image and its roles
        merged = {k: v for k, v in merged.items() if k not in ("image", *_OF_AN_IMAGE)}
    elif given.keys() & {"image", *_OF_AN_IMAGE}:
        merged.pop("job_definition", None)
    return {**merged, **given}


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.aws_batch.backend import open_backend

    return open_backend(sweep, folder, options)


def _capabilities(given: Mapping[str, object]) -> Capabilities:
    """Return the capabilities: jobs run on other machines and share no files with this one."""
    options = read_options(given)
    return Capabilities(
        here=False,
        files=False,
        python=options.python,
        secrets=names_of(given),
        restarts=Counter(RESTARTS, first=1),
    )


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.aws_batch.doctor import checks

    return checks(options)


def _manifests(
    sweep: str, folder: str, options: Mapping[str, object], batches: Batches
) -> Iterable[Manifest]:
    from sweeper.backends.aws_batch.job_request import manifests

    return manifests(sweep, folder, options, batches)


BACKEND = BackendType(
    "aws-batch",
    "AWS Batch: docs/aws-batch.md.",
    _open,
    SECTION,
    merge=_merged,
    capabilities=_capabilities,
    checks=_checks,
    manifests=_manifests,
)
