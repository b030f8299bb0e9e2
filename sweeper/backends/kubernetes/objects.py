"""Types of Kubernetes objects, with the fields that sweeper reads. Fields marked as not required
may be missing."""

from typing import Generic, NotRequired, Required, TypedDict, TypeVar

T = TypeVar("T")


class Owner(TypedDict):
    """A reference to an object, such as the owner of another object."""

    name: str


class Metadata(TypedDict, total=False):
    """Metadata of every object. Times are written `2026-01-31T12:01:03Z`."""

    name: Required[str]
    uid: Required[str]
    creationTimestamp: Required[str]
    deletionTimestamp: str
    generation: int
    labels: Required[dict[str, str]]
    annotations: dict[str, str]
    ownerReferences: list[Owner]


class Condition(TypedDict):
    """A condition of an object. The condition holds if `status` is "True"."""

    type: str
    status: str
    reason: NotRequired[str]
    message: NotRequired[str]


class JobSpec(TypedDict, total=False):
    suspend: bool


class JobStatus(TypedDict, total=False):
    conditions: list[Condition]


class Job(TypedDict):
    metadata: Metadata
    spec: JobSpec
    status: NotRequired[JobStatus]


class Waiting(TypedDict, total=False):
    """The reason why a container does not run yet."""

    reason: str
    message: str


class Terminated(TypedDict, total=False):
    """The end of a container."""

    exitCode: int
    reason: str
    message: str


class ContainerState(TypedDict, total=False):
    """The state of a container. At most one of the fields is set."""

    waiting: Waiting
    terminated: Terminated


class ContainerStatus(TypedDict, total=False):
    state: ContainerState


class PodStatus(TypedDict, total=False):
    phase: str
    message: str
    conditions: list[Condition]
    containerStatuses: list[ContainerStatus]


class PodSpec(TypedDict, total=False):
    nodeName: str


class Pod(TypedDict):
    metadata: Metadata
    spec: NotRequired[PodSpec]
    status: NotRequired[PodStatus]


class Event(TypedDict):
    involvedObject: Owner
    message: str


class QueueCondition(TypedDict):
    """A condition of a workload in Kueue."""

    type: str
    status: str
    message: str


class WorkloadStatus(TypedDict, total=False):
    conditions: list[QueueCondition]


class Workload(TypedDict):
    """A workload of Kueue."""

    metadata: Metadata
    status: NotRequired[WorkloadStatus]


PageMetadata = TypedDict("PageMetadata", {"continue": NotRequired[str]})
"""Metadata of a page: the token of the next page, if there is one."""


class Page(TypedDict, Generic[T]):
    items: list[T]
    metadata: PageMetadata
