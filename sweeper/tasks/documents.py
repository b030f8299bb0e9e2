"""The types of a task's contents, in Harbor's format (`schema_version` 1.x)."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Network = Literal["public", "no-network", "allowlist"]
User = str | int | None
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}")
"""A variable of this machine in a text: `${NAME}`, or with a default, `${NAME:-default}`."""


class Instruction(NamedTuple):
    """An instruction of a Dockerfile, such as `RUN make`, and its line number."""

    name: str
    text: str
    line: int


@dataclass(frozen=True)
class Dockerfile:
    """The instructions of a Dockerfile, in order. `image` is that of the last FROM."""

    path: str
    image: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Healthcheck:
    """A command that must succeed before work in the environment begins. Times are in seconds."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


@dataclass(frozen=True)
class TaskEnvironment:
    """The environment of a task. A value of None is up to the program that runs the task. `rootfs`
    is a prepared root (`environment/rootfs`)."""

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
    """The verifier of a step: the folders whose files are put into `/tests` (one of them has the
    script `test.sh`), its variables, and its time limit. `collect` are commands to run before
    it. `older` is the script `run-tests.sh` of a task in the older format, whose exit code
    judges."""

    folders: tuple[str, ...]
    timeout_sec: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    user: User = None
    collect: tuple[str, ...] = ()
    older: str | None = None

    @property
    def script(self) -> str:
        """The path of the script that judges."""
        return self.older or os.path.join(self.folders[-1], "test.sh")


@dataclass(frozen=True)
class Step:
    """An instruction and its verifier. A task without `[[steps]]` has one step, without a name. If
    a step's rewards are below `min_reward`, the task ends there."""

    name: str
    instruction: str
    verifier: Verifier
    solution: str | None = None
    timeout_sec: float | None = None
    user: User = None
    min_reward: float | Mapping[str, float] | None = None
    workdir: str | None = None
    healthcheck: Healthcheck | None = None

    @property
    def solve_script(self) -> str:
        """The path of the reference solution. `solution` is its folder, or in the older format the
        script itself."""
        solution = self.solution or ""
        return solution if solution.endswith(".sh") else os.path.join(solution, "solve.sh")


@dataclass(frozen=True)
class Task:
    """A folder with `task.toml`. `name` is the task's own name, else the folder's."""

    folder: str
    name: str
    steps: tuple[Step, ...]
    environment: TaskEnvironment
    schema_version: str = "1.4"
    description: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    solution_env: Mapping[str, str] = field(default_factory=dict[str, str])
    reward_strategy: Literal["mean", "final"] = "mean"
