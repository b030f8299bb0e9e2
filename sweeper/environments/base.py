"""The protocol of all environments, and its types."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

Ended = Literal["", "timeout", "shell", "memory", "files"]
"""Why a command ended without an exit code: it ran out of time; its shell ended (`exit`, `exec`, or
killed); it used too much memory or created too many files."""


class Died(Exception):
    """The environment is gone or does not answer, which says nothing about the work in it."""


class NotThere(Exception):
    """This machine lacks something that this kind of environment needs. The message says how to get
    it."""


class Result(NamedTuple):
    """The result of a command: its exit code, or None if `ended` says why there is none; and its
    output (standard output and standard error together). The middle of a long output is left out:
    `lost` bytes. Without an exit code, the state of the shell is lost too, since the next command
    gets a new shell."""

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
        """The last line of the output."""
        return self.text.strip().rpartition("\n")[2]


@dataclass(frozen=True)
class Limits:
    """Limits on all processes of an environment together. `cpus` of None means all of the
    machine's."""

    memory_mb: int = 1024
    storage_mb: int = 512
    processes: int = 128
    files: int = 100_000
    cpus: int | None = None


@dataclass(frozen=True)
class Made:
    """The description of an environment: `root`, a folder with a Linux file system (None: this
    machine's programs), the folder in which commands start, variables, and limits. For kinds that
    build a Dockerfile: the task's `folder`, its ready-made `image`, the time limit of the
    build, and the folder of the Dockerfile if it is another than `environment`."""

    root: str | None = None
    workdir: str = "/app"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: Limits = Limits()
    folder: str | None = None
    image: str | None = None
    build_seconds: float = 600.0
    context: str | None = None


class Environment(Protocol):
    """An isolated place to work in. Its paths are absolute (`/app/x`).

    Every method except `stop` raises `Died` if the environment is gone. One thread uses it at a
    time; another one may call `stop`. `root` is the prefix of its paths in commands, empty if the
    environment has its own root. `built`: a started environment has already executed the task's
    Dockerfile.
    """

    root: str
    built: bool

    def start(self) -> None:
        """Start the environment. Raises `NotThere` if this machine cannot, and `Died` if it did
        not start."""
        ...

    def exec(self, command: str, seconds: float, keep: int = 65_536) -> Result:
        """Execute a command in the shell, which keeps the state of earlier commands. The command
        is ended after `seconds`. At most `keep` bytes of its output are kept."""
        ...

    def reset(self) -> None:
        """End all processes, and start a new shell without the state of the old one."""
        ...

    def put(self, files: Mapping[str, bytes], seconds: float = 60.0) -> None:
        """Write files by path, executable if they start with `#!`. Creates folders as needed.
        Raises OSError on failure (no space left)."""
        ...

    def get(self, path: str, most: int = 1 << 20, seconds: float = 10.0) -> bytes | None:
        """Read the first `most` bytes of a file, or return None if there is no regular file."""
        ...

    def stop(self) -> None:
        """End the environment and everything in it. May be called at any time, and repeatedly."""
        ...
