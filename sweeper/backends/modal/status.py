"""Derives how a sandbox ended from its exit code and Modal's status."""

from contextlib import suppress
from types import ModuleType
from typing import Any, Protocol

from sweeper.backends.base import JobState, JobStatus
from sweeper.backends.container_jobs import process_exit_code, reason_of
from sweeper.backends.modal.client import Method

_ENDED = JobStatus(JobState.ENDED)
_SAYS = {
    "TERMINATED": _ENDED._replace(
        reason="terminated: its machine was taken away, or somebody stopped it", preempted=True
    ),
    "INTERNAL_FAILURE": _ENDED._replace(reason="Modal itself failed", preempted=True),
    "MEMORY_MANAGER_EVICTION": _ENDED._replace(
        reason="its machine had too little memory for all on it", preempted=True
    ),
    "TIMEOUT": _ENDED._replace(reason="timeout"),
    "KERNEL_OOM_KILL": _ENDED._replace(reason="oom"),
    "MEMORY_THRASHING_EVICTION": _ENDED._replace(reason="oom"),
    "INIT_FAILURE": _ENDED._replace(reason="Modal could not start it"),
    "IDLE_TIMEOUT": _ENDED._replace(reason="Modal stopped it, since it was idle"),
}
"""By the name of Modal's status; with any other status the exit code decides."""
_PREFIX = "GENERIC_STATUS_"


class Sandbox(Protocol):
    """The methods of a sandbox that report its end."""

    @property
    def poll(self) -> Method[int | None]: ...

    @property
    def wait(self) -> Method[object]: ...


async def ended(modal: ModuleType, sandbox: Sandbox) -> JobStatus | None:
    """Return how this sandbox ended, by the client `modal`; None if it has not."""
    code = await sandbox.poll.aio()
    if code is None:
        return None
    status, why = _result(sandbox)
    try:
        await sandbox.wait.aio()
    except modal.exception.SandboxTimeoutError:
        status = "TIMEOUT"
    except modal.exception.SandboxTerminatedError:
        status = "TERMINATED"
    meaning = _SAYS.get(status)
    if meaning is None:
        return _ENDED._replace(code=process_exit_code(code))
    if meaning.reason in ("oom", "timeout") or not why:
        return meaning
    return meaning._replace(reason=f"{meaning.reason}: {why}")


def _result(sandbox: Any) -> tuple[str, str]:
    """Return the name of its status and Modal's message as one line. The client has no public
    names for them. If they cannot be found, the exit code must suffice."""
    with suppress(AttributeError, ValueError):
        inner = sandbox._sync_synchronizer._translate_in(sandbox)
        result = inner._impl.result if hasattr(inner, "_impl") else inner._result
        of = result.__class__
        kind = str(of.GenericStatus.Name(result.status)).removeprefix(_PREFIX)
        return kind, reason_of(result.exception) or ""
    return "", ""
