"""Types of the messages between the launcher and the driver."""

from collections.abc import Mapping
from typing import NotRequired, Required, TypedDict


class ActorOptions(TypedDict, total=False):
    """An actor's options in Ray's format. `memory` is in bytes."""

    num_cpus: Required[float]
    num_gpus: float
    resources: Mapping[str, float]
    label_selector: Mapping[str, str]
    memory: int
    scheduling_strategy: str


class Described(TypedDict):
    """A job to submit."""

    name: str
    token: str
    argv: list[str]
    cwd: str
    secrets: Mapping[str, str]
    options: ActorOptions


class Node(TypedDict):
    """A live node. `has` is its total resources, with memory in bytes."""

    name: str
    id: str
    has: Mapping[str, float]
    labels: Mapping[str, str]


class End(TypedDict):
    """A worker's exit code (None if the worker did not start) and its last output."""

    code: int | None
    tail: list[str]


class Death(TypedDict, total=False):
    """The reason why an actor is gone, in Ray's terms."""

    kind: str
    message: str
    reason: str


class About(TypedDict):
    """The state of a job. `state` is Ray's state of the job's actor, and `node` is the actor's
    current or last node. `end` has the worker's exit code and last output. `death` is the reason
    why the actor is gone."""

    state: str
    node: NotRequired[str | None]
    end: NotRequired[End]
    death: NotRequired[Death]
