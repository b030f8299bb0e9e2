"""Decides how an attempt ended: its event and reason. Does no I/O, except for the count of
out-of-memory kills and the check of the engine."""

# Reasons of `failed`: `error` (the recipe's exit code; the detail is its exception or its last
# output), `killed` (by a signal that we did not send), `oom` (killed by the kernel because memory
# was full), `timeout`, `incomplete` (exit 0 without a final checkpoint), `start` (it could not be
# started), `quota` (the service refused further requests), `service` (its engine ended or
# restarted, see `blame`). Reasons of `preempted`: `terminated`, `superseded` by a newer attempt,
# `limit` (the machine had no process, thread, file or disk space left for it). Reasons of
# `cancelled`: `cancelled` on request, `interrupted` at the keyboard.

import os
import signal
from typing import NamedTuple, NotRequired, TypedDict

from sweeper.common.last_line import cause
from sweeper.sweep.job import Job
from sweeper.sweep.states import Event
from sweeper.worker.rate_limits import is_quota_error

LIMIT = "limit"
"""The reason of attempts that ended because the machine had no room for them."""
_CRASHES = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS}
)
"""Signals of programs that crash. Compiled parts of the SDK may crash while Python exits after
an error of the recipe. Users then need to see the recipe's error."""
_CGROUPS = "/sys/fs/cgroup"


class Ending(NamedTuple):
    """What the worker knows when the recipe has ended. `code` is the exit code: negative for a
    signal, None if the recipe never started. `final` says whether the last recorded checkpoint is
    final (None: no checkpoint file). `stopped` is the signal that stopped the worker. `timeout_s`
    is the time limit, if the recipe exceeded it. `tail` is the end of the output. `unsynced` says
    which files are missing in a remote store."""

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
    def stop_requested(self) -> bool:
        """Whether the worker has asked the recipe to stop."""
        return (
            self.superseded
            or self.cancelled
            or self.stopped is not None
            or self.timeout_s is not None
        )


class Judged(TypedDict):
    """The outcome of an attempt. `code` or `signal` says how the recipe ended; both are None if it
    never started. `detail` explains the outcome to users. `unsynced` says which files are missing
    in the store. `max_rss_bytes` is the peak memory. `log_lost_bytes` is the number of output bytes
    that are missing in the log."""

    event: Event
    code: int | None
    signal: str | None
    reason: str | None
    detail: str | None
    unsynced: NotRequired[str]
    max_rss_bytes: NotRequired[int | None]
    log_lost_bytes: NotRequired[int]


def judge(ending: Ending) -> Judged:
    """Decide the outcome of an attempt."""
    code = ending.code
    # A recipe that was asked to stop and exits with 0 has succeeded only if its records also say
    # so.
    done = code == 0 and (ending.final or (ending.final is None and not ending.stop_requested))
    if ending.cancelled and ending.unsynced:
        done = False  # The user did not want to wait for the rest.
    if done:
        outcome = _outcome(Event.SUCCEEDED, code, None)
    else:
        outcome = _stopped(ending) if ending.stop_requested else _failed(ending)
    if ending.unsynced:
        detail = f"stored on this machine but not in the store: {ending.unsynced}"
        outcome["detail"] = "; ".join(filter(None, (outcome["detail"], detail)))
        outcome["unsynced"] = ending.unsynced
    return outcome


def _stopped(ending: Ending) -> Judged:
    if ending.superseded:
        return _outcome(Event.PREEMPTED, ending.code, "superseded")
    if ending.cancelled:
        return _outcome(Event.CANCELLED, ending.code, "cancelled")
    if ending.timeout_s is not None:
        detail = f"ran longer than launch.timeout ({ending.timeout_s:g} s)"
        return _outcome(Event.FAILED, ending.code, "timeout", detail)
    if ending.stopped == signal.SIGINT:
        return _outcome(Event.CANCELLED, ending.code, "interrupted")
    return _outcome(Event.PREEMPTED, ending.code, "terminated")


def _failed(ending: Ending) -> Judged:
    code = ending.code
    if code == 0:
        detail = "exit code 0, but the last checkpoint in checkpoints.jsonl is not final"
        return _outcome(Event.FAILED, code, "incomplete", detail)
    if code == -signal.SIGKILL and ending.memory_kills and not ending.killed_by_us:
        return _outcome(Event.FAILED, code, "oom", "killed by the kernel: out of memory")
    if code is not None and code < 0 and -code not in _CRASHES:
        return _outcome(Event.FAILED, code, "killed")
    # Imported late, since most workers do not need it.
    from sweeper.worker.service_errors import meaning

    error = cause(ending.tail)
    details = [f"{error}: {advice}" if (advice := meaning(error)) else error]
    if code is not None and code < 0:
        details.append(f"the program crashed ({_signal_name(-code)})")
    if ending.memory_kills:  # The killed process may have belonged to the recipe or to another run.
        details.append("the kernel also killed a process of this cgroup: out of memory")
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
    except ValueError:  # Real-time signals have no names.
        return f"signal {number}"


def failure(reason: str, detail: str) -> Judged:
    """Return the outcome of an attempt that could not start, or that a bug in sweeper ended."""
    return _outcome(Event.FAILED, None, reason, detail)


def crowded_out(detail: str) -> Judged:
    """Return the outcome of an attempt that ended because the machine had reached a limit."""
    return _outcome(Event.PREEMPTED, None, LIMIT, detail)


class MemoryKills:
    """A counter of the processes in this worker's control group that the kernel kills because
    memory is full. A new counter is 0. It stays 0 if the kernel does not report kills.
    The runs of a tmux server usually share one control group, so a killed process may belong to
    another run."""

    def __init__(self, groups: str = _CGROUPS, membership: str = "/proc/self/cgroup") -> None:
        self._path = _counter(groups, membership)
        self._before = self._read()

    def count(self) -> int:
        """Return the number of processes killed since this object was made."""
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
    """Return the path of the file in which the kernel counts kills, for cgroup v2 or v1. Return
    None if there is no such file."""
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
        # A container may see its own group as the root of the mount.
        for folder in (os.path.join(base, group.lstrip("/")), base):
            if os.path.exists(path := os.path.join(folder, name)):
                return path
    return None


_REASONS = frozenset({"error", "incomplete", "timeout"})
_ASK_SECONDS = 5.0


def blame(job: Job, outcome: Judged) -> Judged:
    """Return `outcome`. If the job's local engine (its model service) has ended or was restarted
    since the job was submitted, set the reason of a failure to `service`. Only the reasons `error`,
    `incomplete` and `timeout` are replaced."""
    began = job.engine
    if began is None or outcome["event"] is not Event.FAILED or outcome["reason"] not in _REASONS:
        return outcome
    from sweeper.engine.lifecycle import knock  # imported late, since most workers do not need it

    url = began.url
    started = knock(url, _ASK_SECONDS)
    if started == began.started:
        return outcome
    how = "does not answer any more" if started is None else "was restarted during the run"
    return {**outcome, "reason": "service", "detail": f"the engine at {url} {how}"}
