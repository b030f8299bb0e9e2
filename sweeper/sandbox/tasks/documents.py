"""The types of a task in Harbor's format (`schema_version` 1.x), and the declared fields of
`task.toml`."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypedDict

from sweeper.fields.kinds import (
    Choice,
    Flag,
    Integer,
    Item,
    Kind,
    Matching,
    Names,
    Number,
    Shape,
    Text,
    Texts,
    wrong,
)
from sweeper.fields.nodes import Node, Problems, kind, plain
from sweeper.fields.sections import Field, Nested, Section

Network = Literal["public", "no-network", "allowlist"]
User = str | int | None
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}")
"""A variable of this machine in a text: `${NAME}`, or `${NAME:-default}` with a default."""


class Instruction(NamedTuple):
    """An instruction of a Dockerfile, such as `RUN make`, and its line number."""

    name: str
    text: str
    line: int


@dataclass(frozen=True)
class Dockerfile:
    """The last stage of a Dockerfile: the image that the last FROM names, and the later
    instructions."""

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
    """The environment of a task. `rootfs` is the folder of a prepared root file system
    (`environment/rootfs`). If a setting is None, the program that runs the task chooses it."""

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
    """The verifier of a step. The files in `folders`, among them the script `test.sh`, are copied
    to `/tests`. The commands in `collect` run before the script. `older` is the script of a task in
    Terminal-Bench's older format (`run-tests.sh`); its exit code is the result."""

    folders: tuple[str, ...]
    timeout_sec: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    user: User = None
    collect: tuple[str, ...] = ()
    older: str | None = None

    @property
    def script(self) -> str:
        """The path of the verifier's script."""
        return self.older or os.path.join(self.folders[-1], "test.sh")


@dataclass(frozen=True)
class Step:
    """A step of a task: the instruction for the agent, and the verifier. A task without `[[steps]]`
    has one step, without a name. If the step's rewards are below `min_reward`, the task ends."""

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
        """The path of the script with the reference solution. The field `solution` has this path
        or the script's folder."""
        solution = self.solution or ""
        return solution if solution.endswith(".sh") else os.path.join(solution, "solve.sh")


@dataclass(frozen=True)
class Task:
    """A task. `name` is from `task.toml`, or else the folder's name."""

    folder: str
    name: str
    steps: tuple[Step, ...]
    environment: TaskEnvironment
    schema_version: str = "1.4"
    description: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    solution_env: Mapping[str, str] = field(default_factory=dict[str, str])
    reward_strategy: Literal["mean", "final"] = "mean"


_SECONDS = Number(0.0, 1e7, above=True)
_AT_LEAST_ZERO = Number(0.0, 1e7)
_ENV = Names(
    "a table of strings", Matching(r"[A-Za-z_][A-Za-z0-9_]*", "a variable"), reserved=("SWEEPER_",)
)
_STRINGS = Texts(Item({}), most=1000)


class _Several:
    def __init__(self, item: Kind) -> None:
        self._item = item

    def read(self, node: Node, where: str, problems: Problems) -> list[object] | None:
        if node.items is None:
            wrong(node, where, "a list", problems)
            return None
        values = [
            self._item.read(item, f"{where}[{n}]", problems) for n, item in enumerate(node.items)
        ]
        return [value for value in values if value is not None]

    def schema(self) -> dict[str, object]:
        return {"type": "array", "items": self._item.schema()}


def _anything(node: Node, where: str, problems: Problems) -> object:
    del where, problems
    return plain(node)


def _any_text(node: Node, where: str, problems: Problems) -> str | None:
    if isinstance(node.value, str):
        return node.value
    wrong(node, where, "a string", problems)
    return None


def _size(node: Node, where: str, problems: Problems) -> int | None:
    """Read a size such as `2G` or `512M`, and return megabytes; None if the size has a mistake."""
    value = node.value
    units = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
    text = value.strip().upper() if isinstance(value, str) else ""
    try:
        return int(float(text[:-1]) * units[text[-1:]])
    except (KeyError, ValueError, OverflowError):
        problems.add(node.place, f"{where} is {kind(node)}; it takes a size such as '512M' or '2G'")
        return None


def _user(node: Node, where: str, problems: Problems) -> str | int | None:
    if isinstance(node.value, str) or type(node.value) is int:
        return node.value
    wrong(node, where, "a name or a number of a user", problems)
    return None


def _least(node: Node, where: str, problems: Problems) -> object:
    """Read a minimum reward: one number, or a table with a number for each reward."""
    if node.entries is not None:
        return {
            key: Number(-1e9, 1e9).read(item, f"{where}.{key}", problems)
            for key, (_, item) in node.entries.items()
        }
    return Number(-1e9, 1e9).read(node, where, problems)


_ANYTHING = Shape({}, _anything)
_ANY_TEXT = Shape({"type": "string"}, _any_text)
_SIZE = Shape({"type": "string"}, _size)
_USER = Shape({"type": ["string", "integer"]}, _user)
_NETWORK = (
    Field("network_mode", Choice("public", "no-network", "allowlist")),
    Field("allowed_hosts", _STRINGS),
)
_HEALTHCHECK = Nested(
    Section(
        Field("command", Text()),
        Field("interval_sec", _AT_LEAST_ZERO),
        Field("timeout_sec", _SECONDS),
        Field("start_period_sec", _AT_LEAST_ZERO),
        Field("start_interval_sec", _AT_LEAST_ZERO),
        Field("retries", Integer(1, 1000)),
        needs={"command": "a command"},
    )
)
_MCP = Nested(
    Section(
        Field("name", Text()),
        Field("transport", Choice("stdio", "sse", "streamable-http", "http")),
        Field("url", Text()),
        Field("command", Text()),
        Field("args", _STRINGS),
        needs={"name": "a name"},
    )
)
_ENVIRONMENT = Section(
    *_NETWORK,
    Field("build_timeout_sec", _SECONDS),
    Field("docker_image", Text()),
    Field("os", Text()),
    Field("cpus", Integer(1, 10_000)),
    Field("memory_mb", Integer(1, 100_000_000)),
    Field("storage_mb", Integer(1, 1_000_000_000)),
    Field("memory", _SIZE, key="memory"),
    Field("storage", _SIZE, key="storage"),
    Field("allow_internet", Flag()),
    Field("gpus", Integer(0, 1000)),
    Field("gpu_types", _STRINGS),
    Field("tpu", _ANYTHING),
    Field("skills_dir", Text()),
    Field("env", _ENV),
    Field("workdir", Text(r"/.*", "{} is not an absolute path")),
    Field("healthcheck", _HEALTHCHECK),
    Field("mcp_servers", _Several(_MCP)),
)
_COLLECT = Nested(
    Section(
        Field("command", Text()),
        Field("service", Text()),
        Field("timeout_sec", _SECONDS),
        Field("user", _USER),
        needs={"command": "a command"},
    )
)
_AGENT = Section(*_NETWORK, Field("timeout_sec", _SECONDS), Field("user", _USER))
_VERIFIER = Section(
    *_NETWORK,
    Field("timeout_sec", _SECONDS),
    Field("env", _ENV),
    Field("user", _USER),
    Field("environment_mode", Choice("shared", "separate")),
    Field("environment", Nested(_ENVIRONMENT)),
    Field("collect", _Several(_COLLECT)),
)
_STEP = Nested(
    Section(
        Field("name", _ANY_TEXT),
        Field("agent", Nested(_AGENT)),
        Field("verifier", Nested(_VERIFIER)),
        Field("min_reward", Shape({}, _least)),
        Field("healthcheck", _HEALTHCHECK),
        Field("artifacts", _ANYTHING),
        needs={"name": "a name"},
    )
)
_ABOUT = Section(
    Field("name", Text()),
    Field("version", Text()),
    Field("description", _ANY_TEXT),
    Field("authors", _ANYTHING),
    Field("keywords", _STRINGS),
    needs={"name": "a name, org/name"},
)
TASK = Section(
    Field("schema_version", Text(r"1\.\d+", "{} is not 1.0 to 1.4")),
    Field("version", Text(r"1\.\d+", "{} is not 1.0 to 1.4"), key="schema_version"),
    Field("task", Nested(_ABOUT)),
    Field("metadata", _ANYTHING),
    Field("agent", Nested(_AGENT)),
    Field("verifier", Nested(_VERIFIER)),
    Field("environment", Nested(_ENVIRONMENT)),
    Field("solution", Nested(Section(Field("env", _ENV)))),
    Field("source", _ANY_TEXT),
    Field("multi_step_reward_strategy", Choice("mean", "final")),
    Field("steps", _Several(_STEP)),
    Field("artifacts", _ANYTHING),
)


class HealthcheckTable(TypedDict, total=False):
    """The values of `[environment.healthcheck]`, or of `healthcheck` in a step."""

    command: str
    interval_sec: float
    timeout_sec: float
    start_period_sec: float
    start_interval_sec: float
    retries: int


class AgentTable(TypedDict, total=False):
    """The values of `[agent]`."""

    network_mode: str
    allowed_hosts: list[str]
    timeout_sec: float
    user: str | int


class CollectTable(TypedDict, total=False):
    """The values of `[[verifier.collect]]`."""

    command: str
    service: str
    timeout_sec: float
    user: str | int


class VerifierTable(TypedDict, total=False):
    """The values of `[verifier]`."""

    network_mode: str
    allowed_hosts: list[str]
    timeout_sec: float
    env: Mapping[str, str]
    user: str | int
    environment_mode: str
    environment: Mapping[str, object]
    collect: list[CollectTable]


class StepTable(TypedDict, total=False):
    """The values of `[[steps]]`."""

    name: str
    agent: AgentTable
    verifier: VerifierTable
    min_reward: float | Mapping[str, float]
    healthcheck: HealthcheckTable
    artifacts: object


class AboutTable(TypedDict, total=False):
    """The values of `[task]`."""

    name: str
    version: str
    description: str
    authors: object
    keywords: list[str]


class SolutionTable(TypedDict, total=False):
    """The values of `[solution]`."""

    env: Mapping[str, str]


class TaskTable(TypedDict, total=False):
    """The values of `task.toml`."""

    schema_version: str
    task: AboutTable
    metadata: Mapping[str, object]
    agent: AgentTable
    verifier: VerifierTable
    environment: Mapping[str, object]
    solution: SolutionTable
    source: str
    multi_step_reward_strategy: Literal["mean", "final"]
    steps: list[StepTable]
    artifacts: object
