"""The protocol that all environments implement, and its types."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

Ended = Literal["", "timeout", "shell", "memory", "files"]
"""Why a command has no exit code: it timed out; its shell ended (`exit`, `exec`, or killed); it
used too much memory; or it created too many files. Empty if it has an exit code."""


class Died(Exception):
    """The error of an environment that has ended or does not answer. The model is not at fault."""


class NotThere(Exception):
    """The requested environment cannot be made on this machine. The message gives the reason."""


class Result(NamedTuple):
    """The result of a command: its exit code, and its output (standard output and standard error
    together). `lost` is the number of bytes that were left out in the middle of a long output. If
    the command has no exit code, `ended` is the reason, and the next command gets a new shell."""

    code: int | None
    output: bytes
    lost: int = 0
    ended: Ended = ""

    @property
    def text(self) -> str:
        """The output as text. Invalid bytes become U+FFFD."""
        return self.output.decode(errors="replace")

    @property
    def last_line(self) -> str:
        """The last line of the output; empty if there is no output."""
        return self.text.strip().rpartition("\n")[2]


@dataclass(frozen=True)
class Limits:
    """Limits on all processes of an environment together. With `cpus=None` they may use all CPUs
    of the machine."""

    memory_mb: int = 1024
    storage_mb: int = 512
    processes: int = 128
    files: int = 100_000
    cpus: int | None = None


@dataclass(frozen=True)
class Made:
    """The description of an environment. `root` is a folder with a Linux file system (None: use
    this machine's programs). Commands start in `workdir`, with the variables `env`. `folder` is the
    task's folder. A container's image is built from the Dockerfile in `context` (default:
    `environment` in `folder`) within `build_seconds`. Without a Dockerfile, `image` is used."""

    root: str | None = None
    workdir: str = "/app"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: Limits = Limits()
    folder: str | None = None
    image: str | None = None
    build_seconds: float = 600.0
    context: str | None = None


class Environment(Protocol):
    """An isolated environment. Its paths are absolute (`/app/x`).

    Every method except `stop` raises `Died` if the environment has ended. Only one thread at a time
    may use the environment, but any thread may call `stop`. Commands must put `root` before each
    path of the environment. (It is empty if the environment has its own root folder.) If `built` is
    True, `start` executes the task's Dockerfile.
    """

    root: str
    built: bool

    def start(self) -> None:
        """Start the environment. Raises `NotThere` if this machine lacks something that the
        environment needs, and `Died` if the start fails."""
        ...

    def exec(self, command: str, seconds: float, keep: int = 65_536) -> Result:
        """Execute a command in the environment's shell, which keeps its state between commands. The
        command is ended after `seconds`. At most `keep` bytes of its output are kept."""
        ...

    def reset(self) -> None:
        """End all processes, and start a new shell without the state of the old one."""
        ...

    def put(self, files: Mapping[str, bytes], seconds: float = 60.0) -> None:
        """Write `files` (path -> content), and create their folders. Files that start with `#!`
        become executable. Raises OSError on failure, for example if no space is left."""
        ...

    def get(self, path: str, most: int = 1 << 20, seconds: float = 10.0) -> bytes | None:
        """Read the first `most` bytes of a file, or return None if there is no regular file."""
        ...

    def stop(self) -> None:
        """End the environment and everything in it. May be called at any time, and repeatedly."""
        ...
