"""What a backend is. The launcher knows nothing else about where jobs execute.

A backend starts jobs, says what has become of them, and stops them. It holds no state of its own:
after a restart it finds its jobs by their tokens, wherever the jobs themselves are recorded (the
process table, a tmux server, a scheduler's queue).
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = ["Backend", "Display", "JobSpec", "JobState", "JobStatus", "Placed"]


class JobSpec(NamedTuple):
    """A job to start. `argv` is executed as it stands, never by a shell; its last element is the
    token. `title` is for people; `resources` holds what a scheduler may want to know (unused by
    local and tmux). Jobs with the same `window` are to be shown together, where there is something
    to be seen."""

    token: str
    title: str
    argv: Sequence[str]
    cwd: str
    resources: Mapping[str, object]
    window: str | None = None


class JobState(Enum):
    """What a backend knows of a job."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    ABSENT = "absent"  # the backend answered, and knows no such job


class JobStatus(NamedTuple):
    """`code` and `reason` only where the backend itself knows them (never so for tmux).
    `preempted`: it ended because its machine was taken away or failed, not because of the run."""

    state: JobState
    code: int | None = None
    reason: str | None = None
    preempted: bool = False


class Backend(Protocol):
    """Where jobs execute.

    Every method raises `sweeper.errors.Unreachable` when the backend does not answer, which is
    never to be mistaken for ABSENT.
    """

    name: str

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        """Start the jobs. Not idempotent by itself: ask `find` first when in doubt."""
        ...

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        """Token -> the backend's own id, for those of `tokens` that it has ever accepted and
        still remembers."""
        ...

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        """The status of every one of `tokens`, in one call however many."""
        ...

    def cancel(self, tokens: Sequence[str]) -> None:
        """Ask the jobs to stop (SIGTERM to the worker); tokens it does not know are passed over."""
        ...

    def logs(self, token: str) -> Iterator[str]:
        """Lines that the backend itself kept of a job; none where it keeps nothing."""
        ...


@runtime_checkable
class Display(Protocol):
    """What a backend may have besides, where its jobs can be looked at."""

    def show(self, status: str, words: Mapping[str, str]) -> None:
        """Show a line on how the sweep stands, and beside jobs (by token) a word on how they do:
        a state, `stale`, `paused: <why>`. Called when something has changed, with that alone."""
        ...


@runtime_checkable
class Placed(Protocol):
    """What a backend has besides, where there are several places in which its jobs may wait."""

    def place(self) -> Mapping[str, str]:
        """What tells this one from the others (`{"cluster": "a"}`), and stays the same."""
        ...
