"""A task as its folder says it, with types: Harbor's format (`schema_version` 1.x)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = [
    "VARIABLE",
    "Dockerfile",
    "Healthcheck",
    "Instruction",
    "Network",
    "Step",
    "Task",
    "TaskEnvironment",
    "Verifier",
]

Network = Literal["public", "no-network", "allowlist"]
User = str | int | None
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}")
"""A variable of this machine in a text, `${NAME}`, or with its default, `${NAME:-default}`."""


class Instruction(NamedTuple):
    """A line of a Dockerfile: `RUN make`, and the number of the line."""

    name: str
    text: str
    line: int


@dataclass(frozen=True)
class Dockerfile:
    """What a Dockerfile does to its image, in order; `image` is that of the last FROM."""

    path: str
    image: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Healthcheck:
    """A command that must succeed before anybody works in the environment. Times in seconds."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


@dataclass(frozen=True)
class TaskEnvironment:
    """Where a task is worked on. What is None is up to whoever runs it; `rootfs` is a prepared root
    (`environment/rootfs`)."""

    folder: str
    dockerfile: Dockerfile | None = None
    rootfs: str | None = None
    docker_image: str | None = None
    os: str = "linux"
    build_timeout_sec: float = 600.0
    cpus: int | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int = 0
    network_mode: Network = "public"
    allowed_hosts: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    healthcheck: Healthcheck | None = None
    mcp_servers: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True)
class Verifier:
    """How a step is judged: the folders whose files are put into `/tests`, one of them with the
    script `test.sh`, what it gets, how long it may take. `collect` are commands that come before
    it."""

    folders: tuple[str, ...]
    timeout_sec: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    user: User = None
    collect: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """What is asked for, and how it is judged. A task without `[[steps]]` has one, without a name.
    A step whose rewards are below `min_reward` is the last one."""

    name: str
    instruction: str
    verifier: Verifier
    solution: str | None = None
    timeout_sec: float | None = None
    user: User = None
    min_reward: float | Mapping[str, float] | None = None
    workdir: str | None = None
    healthcheck: Healthcheck | None = None


@dataclass(frozen=True)
class Task:
    """A folder with `task.toml`. `name` is the one that it gives itself, else the folder's."""

    folder: str
    name: str
    steps: tuple[Step, ...]
    environment: TaskEnvironment
    schema_version: str = "1.4"
    description: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    solution_env: Mapping[str, str] = field(default_factory=dict[str, str])
    reward_strategy: Literal["mean", "final"] = "mean"
