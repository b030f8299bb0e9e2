"""Types of Kubernetes objects, with the fields that sweeper reads. The API server may leave out
fields that are not required here."""

from typing import Generic, NotRequired, Required, TypedDict, TypeVar

T = TypeVar("T")


class Owner(TypedDict):
    """The object that owns another."""

    name: str


class Metadata(TypedDict, total=False):
    """The metadata of every object; times as `2026-01-31T12:01:03Z`."""

    name: Required[str]
    uid: Required[str]
    creationTimestamp: Required[str]
    deletionTimestamp: str
    generation: int
    labels: Required[dict[str, str]]
    annotations: dict[str, str]
    ownerReferences: list[Owner]


class Condition(TypedDict):
    """A condition of an object. It holds if `status` is "True"."""

    type: str
    status: str
    reason: NotRequired[str]
    message: NotRequired[str]


class JobSpec(TypedDict, total=False):
    """The specification of a Job."""

    suspend: bool


class JobStatus(TypedDict, total=False):
    """The status of a Job."""

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
    """How a container ended."""

    exitCode: int
    reason: str
    message: str


class ContainerState(TypedDict, total=False):
    """The state of a container: it waits, runs or has ended."""

    waiting: Waiting
    terminated: Terminated


class ContainerStatus(TypedDict, total=False):
    """The status of a container."""

    state: ContainerState


class PodStatus(TypedDict, total=False):
    """The status of a pod."""

    phase: str
    message: str
    conditions: list[Condition]
    containerStatuses: list[ContainerStatus]


class PodSpec(TypedDict, total=False):
    """The specification of a pod."""

    nodeName: str


class Pod(TypedDict):
    """A pod."""

    metadata: Metadata
    spec: NotRequired[PodSpec]
    status: NotRequired[PodStatus]


class Event(TypedDict):
    """An event that concerns an object."""

    involvedObject: Owner
    message: str


class QueueCondition(TypedDict):
    """A condition of Kueue, always with a message."""

    type: str
    status: str
    message: str


class WorkloadStatus(TypedDict, total=False):
    """The status of a workload in its queue."""

    conditions: list[QueueCondition]


class Workload(TypedDict):
    """A workload of Kueue."""

    metadata: Metadata
    status: NotRequired[WorkloadStatus]


PageMetadata = TypedDict("PageMetadata", {"continue": NotRequired[str]})
"""Metadata of a page: the token of the next page, unless it is the last."""


class Page(TypedDict, Generic[T]):
    """A page of a listing."""

    items: list[T]
    metadata: PageMetadata
