"""How a sandbox has ended: by its exit code, and by what Modal says of it."""

from contextlib import suppress
from types import ModuleType
from typing import Any, Protocol

from sweeper.backends.base import JobState, JobStatus
from sweeper.backends.container_jobs import process_exit_code, reason_of
from sweeper.backends.modal.client import Method

__all__ = ["ended"]

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
"""By the name of Modal's status; of all others the exit code tells."""
_PREFIX = "GENERIC_STATUS_"


class Sandbox(Protocol):
    """A sandbox, as far as its end is asked for."""

    @property
    def poll(self) -> Method[int | None]: ...

    @property
    def wait(self) -> Method[object]: ...


async def ended(modal: ModuleType, sandbox: Sandbox) -> JobStatus | None:
    """How this sandbox has ended, by the client `modal`; None: it has not."""
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
    told = _SAYS.get(status)
    if told is None:
        return _ENDED._replace(code=process_exit_code(code))
    if told.reason in ("oom", "timeout") or not why:
        return told
    return told._replace(reason=f"{told.reason}: {why}")


def _result(sandbox: Any) -> tuple[str, str]:
    """The name of its status and what Modal says beside it, one line. The client has both, and no
    public name for them: where they are not to be found, the exit code has to do."""
    with suppress(AttributeError, ValueError):
        inner = sandbox._sync_synchronizer._translate_in(sandbox)
        result = inner._impl.result if hasattr(inner, "_impl") else inner._result
        of = result.__class__
        kind = str(of.GenericStatus.Name(result.status)).removeprefix(_PREFIX)
        return kind, reason_of(result.exception) or ""
    return "", ""
