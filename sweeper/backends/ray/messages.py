"""Types of the messages between the launcher and the driver, and of a plan's options for Ray."""

from collections.abc import Mapping, Sequence
from typing import NotRequired, Required, TypedDict


class Options(TypedDict, total=False):
    """A plan's `launch.ray`; `memory` in MiB. `secrets` maps variables to `env:NAME` or
    `file:/path` of a node."""

    address: str
    python: str
    num_cpus: float
    num_gpus: float
    memory: int
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    placement: str
    files: bool
    wait_for_nodes: bool
    secrets: Mapping[str, str]
    overrides: Sequence[Mapping[str, object]]


class Asked(TypedDict, total=False):
    """An actor's options in Ray's format; `memory` in bytes."""

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
    asked: Asked


class Node(TypedDict):
    """A live node; `has` are its total resources, memory in bytes."""

    name: str
    id: str
    has: Mapping[str, float]
    labels: Mapping[str, str]


class End(TypedDict):
    """A worker's exit code (None: it never began) and its last output."""

    code: int | None
    tail: list[str]


class Death(TypedDict, total=False):
    """Why an actor is gone, in Ray's terms."""

    kind: str
    message: str
    reason: str


class About(TypedDict):
    """The state of a job: Ray's state of its actor, its current or last node, how its worker ended,
    and why the actor is gone."""

    state: str
    node: NotRequired[str | None]
    end: NotRequired[End]
    death: NotRequired[Death]
