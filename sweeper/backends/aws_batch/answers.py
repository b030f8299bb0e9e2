"""Answers of AWS, as far as sweeper reads them. What is not required here AWS leaves out where
there is nothing to say of it."""

from collections.abc import Mapping
from typing import NotRequired, TypedDict

__all__ = [
    "Answer",
    "ComputeEnvironment",
    "ComputeEnvironments",
    "DescribedJobs",
    "FoundRole",
    "Images",
    "Job",
    "JobDefinition",
    "JobQueue",
    "JobQueues",
    "JobSummary",
    "LogEvents",
    "Parameters",
    "ServiceQuota",
]

Answer = Mapping[str, object]
"""One of which little is read."""


class EnvironmentOrder(TypedDict):
    """A compute environment of a queue's, by its ARN."""

    computeEnvironment: str


class JobQueue(TypedDict):
    """A job queue."""

    jobQueueName: str
    jobQueueArn: str
    state: NotRequired[str]
    status: NotRequired[str]
    computeEnvironmentOrder: list[EnvironmentOrder]


class JobQueues(TypedDict):
    """DescribeJobQueues."""

    jobQueues: list[JobQueue]


class ComputeResources(TypedDict, total=False):
    """The machines of a compute environment."""

    type: str
    maxvCpus: int


class ComputeEnvironment(TypedDict):
    """A compute environment."""

    computeEnvironmentName: str
    type: NotRequired[str]
    state: NotRequired[str]
    status: NotRequired[str]
    computeResources: NotRequired[ComputeResources]


class ComputeEnvironments(TypedDict):
    """DescribeComputeEnvironments."""

    computeEnvironments: list[ComputeEnvironment]


class Secret(TypedDict):
    """A variable of a container's that holds a secret."""

    name: str


class ContainerProperties(TypedDict, total=False):
    """What the containers of a job definition have in common."""

    secrets: list[Secret]


class JobDefinition(TypedDict):
    """A revision of a job definition."""

    jobDefinitionName: str
    revision: int
    status: NotRequired[str]
    containerProperties: NotRequired[ContainerProperties]


class ArrayProperties(TypedDict, total=False):
    """What an array job is, and how many of its children are in which state."""

    size: int
    statusSummary: dict[str, int]


class JobSummary(TypedDict):
    """A job in a listing."""

    jobId: str
    jobName: str
    status: NotRequired[str]
    arrayProperties: NotRequired[ArrayProperties]


class LogConfiguration(TypedDict, total=False):
    """Where what a container prints goes."""

    options: dict[str, str]


class Container(TypedDict, total=False):
    """A container of a job's, or of an attempt's before."""

    containerInstanceArn: str
    exitCode: int
    reason: str
    logStreamName: str
    logConfiguration: LogConfiguration


class Attempt(TypedDict, total=False):
    """A start of a job that has ended."""

    container: Container


class Job(TypedDict):
    """A job as it is described; times in milliseconds since 1970."""

    jobId: str
    status: str
    statusReason: NotRequired[str]
    createdAt: NotRequired[int]
    isCancelled: NotRequired[bool]
    isTerminated: NotRequired[bool]
    container: NotRequired[Container]
    attempts: NotRequired[list[Attempt]]
    arrayProperties: NotRequired[ArrayProperties]


class DescribedJobs(TypedDict):
    """DescribeJobs."""

    jobs: list[Job]


class LogEvent(TypedDict):
    """A line of a log stream."""

    message: str


class LogEvents(TypedDict):
    """GetLogEvents."""

    events: list[LogEvent]
    nextForwardToken: NotRequired[str]


class Image(TypedDict, total=False):
    """An image in ECR."""

    imagePushedAt: object


class Images(TypedDict):
    """DescribeImages."""

    imageDetails: list[Image]


class Role(TypedDict):
    """A role, and whom it trusts: a document, or the text of one."""

    Arn: str
    AssumeRolePolicyDocument: NotRequired[object]


class FoundRole(TypedDict):
    """GetRole."""

    Role: Role


class Parameter(TypedDict):
    """A parameter of Systems Manager, without its value."""

    Name: str


class Parameters(TypedDict):
    """DescribeParameters."""

    Parameters: list[Parameter]


class Quota(TypedDict):
    """A quota."""

    Value: float


class ServiceQuota(TypedDict):
    """GetServiceQuota."""

    Quota: Quota
