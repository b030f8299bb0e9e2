"""Objects of Kubernetes, as far as sweeper reads them: of what is not required here the API server
leaves out what there is nothing to say of."""

from typing import Generic, NotRequired, Required, TypedDict, TypeVar

__all__ = ["Condition", "ContainerState", "Event", "Job", "Metadata", "Page", "Pod", "Workload"]

T = TypeVar("T")


class Owner(TypedDict):
    """Who has made an object."""

    name: str


class Metadata(TypedDict, total=False):
    """What every object has; times as `2026-01-31T12:01:03Z`."""

    name: Required[str]
    uid: Required[str]
    creationTimestamp: Required[str]
    deletionTimestamp: str
    generation: int
    labels: Required[dict[str, str]]
    annotations: dict[str, str]
    ownerReferences: list[Owner]


class Condition(TypedDict):
    """Something that holds of an object (`status` is "True"), or does not."""

    type: str
    status: str
    reason: NotRequired[str]
    message: NotRequired[str]


class JobSpec(TypedDict, total=False):
    """What a Job is to do."""

    suspend: bool


class JobStatus(TypedDict, total=False):
    """What has become of a Job."""

    conditions: list[Condition]


class Job(TypedDict):
    """A Job."""

    metadata: Metadata
    spec: JobSpec
    status: NotRequired[JobStatus]


class Waiting(TypedDict, total=False):
    """Why a container does not run yet."""

    reason: str
    message: str


class Terminated(TypedDict, total=False):
    """How a container has ended."""

    exitCode: int
    reason: str
    message: str


class ContainerState(TypedDict, total=False):
    """A container waits, runs or has ended."""

    waiting: Waiting
    terminated: Terminated


class ContainerStatus(TypedDict, total=False):
    """What has become of a container."""

    state: ContainerState


class PodStatus(TypedDict, total=False):
    """What has become of a pod."""

    phase: str
    message: str
    conditions: list[Condition]
    containerStatuses: list[ContainerStatus]


class PodSpec(TypedDict, total=False):
    """What a pod is to do, and where."""

    nodeName: str


class Pod(TypedDict):
    """A pod."""

    metadata: Metadata
    spec: NotRequired[PodSpec]
    status: NotRequired[PodStatus]


class Event(TypedDict):
    """Something that was met with an object."""

    involvedObject: Owner
    message: str


class QueueCondition(TypedDict):
    """A condition of Kueue's, which always says why."""

    type: str
    status: str
    message: str


class WorkloadStatus(TypedDict, total=False):
    """How a workload stands in its queue."""

    conditions: list[QueueCondition]


class Workload(TypedDict):
    """A workload of Kueue's."""

    metadata: Metadata
    status: NotRequired[WorkloadStatus]


PageMetadata = TypedDict("PageMetadata", {"continue": NotRequired[str]})
"""What there is to say of a page: how to ask for the next, unless it is the last."""


class Page(TypedDict, Generic[T]):
    """A page of a listing."""

    items: list[T]
    metadata: PageMetadata
