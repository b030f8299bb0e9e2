"""What every environment can do, and the words in which it tells what happened."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

__all__ = [
    "Died",
    "Ended",
    "Environment",
    "Limits",
    "Made",
    "NotThere",
    "Result",
]

Ended = Literal["", "timeout", "shell", "memory", "files"]
"""What ended a command, or the shell with it, before the command had an exit code: its time was up;
the shell itself has ended (`exit`, `exec`, killed); it took more memory, or made more files, than
it may."""


class Died(Exception):
    """The environment is gone, or does not answer: that says nothing about who works in it."""


class NotThere(Exception):
    """What this kind of environment needs is not on this machine; the message says how to get
    it."""


class Result(NamedTuple):
    """What a command did: its exit code, None where `ended` says why there is none; what it wrote
    (standard output and standard error as one), the middle of which is left out where it was too
    long: `lost` bytes. Where there is no code, what the shell knew is lost too: it is a new one."""

    code: int | None
    output: bytes
    lost: int = 0
    ended: Ended = ""

    @property
    def text(self) -> str:
        """What it wrote, as text; bytes that are none become U+FFFD."""
        return self.output.decode(errors="replace")

    @property
    def last_line(self) -> str:
        """The last line of that."""
        return self.text.strip().rpartition("\n")[2]


@dataclass(frozen=True)
class Limits:
    """What all processes of an environment may take together."""

    memory_mb: int = 1024
    storage_mb: int = 512
    processes: int = 128
    files: int = 100_000


@dataclass(frozen=True)
class Made:
    """What an environment is made of: `root`, a folder with the file system of a Linux (None: the
    programs of this machine), the folder in which commands start, variables, and limits. For kinds
    that carry out a Dockerfile: the task's `folder`, its ready `image`, how long that may take."""

    root: str | None = None
    workdir: str = "/app"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: Limits = Limits()
    folder: str | None = None
    image: str | None = None
    build_seconds: float = 600.0


class Environment(Protocol):
    """A place to work in, apart from this machine. Paths in it are absolute (`/app/x`).

    Every method but `stop` raises `Died` when it is gone. One thread uses it at a time; another one
    may call `stop`. `root` is what its paths begin with for commands in it: nothing, where it has a
    root of its own. `built` says that it has carried out the task's Dockerfile once it is started.
    """

    root: str
    built: bool

    def start(self) -> None:
        """Make it. Raises `NotThere` where this machine cannot, `Died` where it did not start."""
        ...

    def exec(self, command: str, seconds: float, keep: int = 65_536) -> Result:
        """Have the shell execute a command, which sees what earlier ones have set, and is ended
        after so many seconds. Of its output `keep` bytes are kept."""
        ...

    def reset(self) -> None:
        """End all processes, and have a new shell, which knows nothing of the last one."""
        ...

    def put(self, files: Mapping[str, bytes], seconds: float = 60.0) -> None:
        """Write files, by path, executable if they begin with `#!`; folders are made as needed.
        Raises OSError where that is refused (no space left)."""
        ...

    def get(self, path: str, most: int = 1 << 20, seconds: float = 10.0) -> bytes | None:
        """The first `most` bytes of a file; None if there is no regular file."""
        ...

    def stop(self) -> None:
        """End it, with all that is in it. May be called at any time, and again."""
        ...
