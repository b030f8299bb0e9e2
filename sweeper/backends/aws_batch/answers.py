"""Types of AWS's answers, with the fields that sweeper reads. Fields marked as not required may be
missing. A class with a plural name, such as `JobQueues`, is the answer of an operation, here of
DescribeJobQueues."""

from collections.abc import Mapping
from typing import NotRequired, TypedDict

Answer = Mapping[str, object]
"""The answer of an operation for which this module declares no type."""


class EnvironmentOrder(TypedDict):
    """An entry of the list of compute environments in the description of a queue."""

    computeEnvironment: str


class JobQueue(TypedDict):
    jobQueueName: str
    jobQueueArn: str
    state: NotRequired[str]
    status: NotRequired[str]
    computeEnvironmentOrder: list[EnvironmentOrder]


class JobQueues(TypedDict):
    jobQueues: list[JobQueue]


class ComputeResources(TypedDict, total=False):
    """The machines of a compute environment."""

    type: str
    maxvCpus: int


class ComputeEnvironment(TypedDict):
    computeEnvironmentName: str
    type: NotRequired[str]
    state: NotRequired[str]
    status: NotRequired[str]
    computeResources: NotRequired[ComputeResources]


class ComputeEnvironments(TypedDict):
    computeEnvironments: list[ComputeEnvironment]


class Secret(TypedDict):
    """A variable of a container whose value is a secret."""

    name: str


class ContainerProperties(TypedDict, total=False):
    """The container settings of a job definition."""

    secrets: list[Secret]


class JobDefinition(TypedDict):
    """A revision of a job definition."""

    jobDefinitionName: str
    revision: int
    status: NotRequired[str]
    containerProperties: NotRequired[ContainerProperties]


class ArrayProperties(TypedDict, total=False):
    """The size of an array job, and the number of its children in each state."""

    size: int
    statusSummary: dict[str, int]


class JobSummary(TypedDict):
    """A job in a listing."""

    jobId: str
    jobName: str
    status: NotRequired[str]
    arrayProperties: NotRequired[ArrayProperties]


class LogConfiguration(TypedDict, total=False):
    """The destination of a container's output."""

    options: dict[str, str]


class Container(TypedDict, total=False):
    """The container in which Batch has started a job."""

    containerInstanceArn: str
    exitCode: int
    reason: str
    logStreamName: str
    logConfiguration: LogConfiguration


class Attempt(TypedDict, total=False):
    """An ended execution of a job. Batch may execute a job several times."""

    container: Container


class Job(TypedDict):
    """A job as Batch describes it. Times are in milliseconds since 1970."""

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
    jobs: list[Job]


class LogEvent(TypedDict):
    """A line of a log stream."""

    message: str


class LogEvents(TypedDict):
    events: list[LogEvent]
    nextForwardToken: NotRequired[str]


class Image(TypedDict, total=False):
    imagePushedAt: object


class Images(TypedDict):
    imageDetails: list[Image]


class Role(TypedDict):
    """An IAM role. `AssumeRolePolicyDocument` is the role's trust policy, as a dict or as
    URL-encoded JSON."""

    Arn: str
    AssumeRolePolicyDocument: NotRequired[object]


class FoundRole(TypedDict):
    Role: Role


class Parameter(TypedDict):
    """A parameter of Systems Manager, without its value."""

    Name: str


class Parameters(TypedDict):
    Parameters: list[Parameter]


class Quota(TypedDict):
    Value: float


class ServiceQuota(TypedDict):
    Quota: Quota
