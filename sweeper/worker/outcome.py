"""Decides how an attempt ended: its event, and the reason. Pure but for the counter of memory
kills.

Reasons of `failed`: `error` (the recipe's exit code; the detail is its exception, or what it
printed last), `killed` (by a signal that was not ours), `oom` (by the kernel, for memory),
`timeout`, `incomplete` (exit 0 without its final checkpoint), `start` (it could not be started),
`quota` (the service refused it more), `service` (its engine went away: `engine.blame`). Of
`preempted`: `terminated`, `superseded` by a newer attempt, `limit` (the machine had no process,
thread, file or room on a disk for it). Of `cancelled`: `cancelled` on request, `interrupted` at the
keyboard.
"""

import os
import signal
from typing import NamedTuple, NotRequired, TypedDict

from sweeper.cause import cause
from sweeper.model.states import Event
from sweeper.worker.rate_limits import is_quota_error

__all__ = ["LIMIT", "Ending", "Judged", "MemoryKills", "crowded_out", "failure", "judge"]

LIMIT = "limit"
"""The reason of an attempt that the machine had no room for, which is no fault of the run's."""
_CGROUPS = "/sys/fs/cgroup"


class Ending(NamedTuple):
    """What is known when the recipe has ended. `code` is negative for a signal, as Python has it,
    and None when it never started; `final` is as `checkpoint_resume.has_final_checkpoint` says;
    `tail` is the end of its output. `killed_by_us`: we sent SIGKILL before it had ended. `unsynced`
    says what a store elsewhere has not taken, and why."""

    code: int | None
    final: bool | None
    superseded: bool = False
    cancelled: bool = False
    stopped: int | None = None
    timeout_s: float | None = None
    killed_by_us: bool = False
    memory_kills: int = 0
    tail: bytes = b""
    unsynced: str | None = None

    @property
    def asked(self) -> bool:
        """Whether the worker stopped the recipe."""
        return (
            self.superseded
            or self.cancelled
            or self.stopped is not None
            or self.timeout_s is not None
        )


class Judged(TypedDict):
    """The outcome of an attempt: its event, and what is written with it. `code` or `signal` as the
    recipe ended (None: it never started), `detail` in a sentence; `unsynced` where something is.
    `max_rss_bytes` is the most memory that it had, `log_lost_bytes` what of its output was not
    kept."""

    event: Event
    code: int | None
    signal: str | None
    reason: str | None
    detail: str | None
    unsynced: NotRequired[str]
    max_rss_bytes: NotRequired[int | None]
    log_lost_bytes: NotRequired[int]


def judge(ending: Ending) -> Judged:
    """Make the outcome."""
    code = ending.code
    # A recipe that was asked to stop and exits with 0 is done only if its records say so too.
    done = code == 0 and (ending.final or (ending.final is None and not ending.asked))
    if ending.cancelled and ending.unsynced:
        done = False  # the user did not want to wait for the rest
    if done:
        outcome = _outcome(Event.SUCCEEDED, code, None)
    else:
        outcome = _stopped(ending) if ending.asked else _failed(ending)
    if ending.unsynced:
        detail = f"not in the store, but kept on this machine: {ending.unsynced}"
        outcome["detail"] = "; ".join(filter(None, (outcome["detail"], detail)))
        outcome["unsynced"] = ending.unsynced
    return outcome


def _stopped(ending: Ending) -> Judged:
    if ending.superseded:
        return _outcome(Event.PREEMPTED, ending.code, "superseded")
    if ending.cancelled:
        return _outcome(Event.CANCELLED, ending.code, "cancelled")
    if ending.timeout_s is not None:
        detail = f"longer than launch.timeout ({ending.timeout_s:g} s)"
        return _outcome(Event.FAILED, ending.code, "timeout", detail)
    if ending.stopped == signal.SIGINT:
        return _outcome(Event.CANCELLED, ending.code, "interrupted")
    return _outcome(Event.PREEMPTED, ending.code, "terminated")


def _failed(ending: Ending) -> Judged:
    code = ending.code
    if code == 0:
        detail = "exit 0, but the last record in checkpoints.jsonl is not final"
        return _outcome(Event.FAILED, code, "incomplete", detail)
    if code == -signal.SIGKILL and ending.memory_kills and not ending.killed_by_us:
        return _outcome(Event.FAILED, code, "oom", "killed by the kernel: out of memory")
    if code is not None and code < 0:
        return _outcome(Event.FAILED, code, "killed")
    details = [cause(ending.tail)]
    if ending.memory_kills:  # a process of the recipe's perhaps, or another run's
        details.append("meanwhile the kernel killed a process of this cgroup: out of memory")
    reason = "quota" if is_quota_error(ending.tail) else "error"
    return _outcome(Event.FAILED, code, reason, "; ".join(filter(None, details)) or None)


def _outcome(
    event: Event, code: int | None, reason: str | None, detail: str | None = None
) -> Judged:
    name = None
    if code is not None and code < 0:
        code, name = None, _signal_name(-code)
    return {"event": event, "code": code, "signal": name, "reason": reason, "detail": detail}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has a number only
        return f"signal {number}"


def failure(reason: str, detail: str) -> Judged:
    """The outcome of an attempt that could not start, or that broke sweeper itself."""
    return _outcome(Event.FAILED, None, reason, detail)


def crowded_out(detail: str) -> Judged:
    """The outcome of an attempt for which its machine had no room."""
    return _outcome(Event.PREEMPTED, None, LIMIT, detail)


class MemoryKills:
    """Counts the processes of our control group that the kernel killed for memory since this was
    made; 0 where the kernel does not say. All runs of a tmux server usually share a group, and the
    count: so it is asked only about a recipe that was killed."""

    def __init__(self, groups: str = _CGROUPS, membership: str = "/proc/self/cgroup") -> None:
        self._path = _counter(groups, membership)
        self._before = self._read()

    def count(self) -> int:
        """How many were killed since."""
        return max(0, self._read() - self._before)

    def _read(self) -> int:
        if self._path is None:
            return 0
        try:
            with open(self._path, encoding="ascii") as file:
                for line in file:
                    name, _, number = line.partition(" ")
                    if name == "oom_kill":
                        return int(number)
        except (OSError, ValueError):
            pass
        return 0


def _counter(groups: str, membership: str) -> str | None:
    """The file that counts kills for our group: version 2's, or that of version 1's memory
    controller."""
    try:
        with open(membership, encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except (OSError, ValueError):
        return None
    for fields in lines:
        if len(fields) != 3:
            continue
        _, controllers, group = fields
        if "memory" in controllers.split(","):
            base, name = os.path.join(groups, "memory"), "memory.oom_control"
        elif not controllers:
            base, name = groups, "memory.events"
        else:
            continue
        # A container may see its own group as the root of what is mounted.
        for folder in (os.path.join(base, group.lstrip("/")), base):
            if os.path.exists(path := os.path.join(folder, name)):
                return path
    return None
