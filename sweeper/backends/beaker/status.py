"""Derives a job's status from the status of its Beaker experiment and from the experiment's newest
job."""

from typing import TYPE_CHECKING

from sweeper.backends.base import JobState, JobStatus
from sweeper.backends.container_jobs import process_exit_code, reason_of

if TYPE_CHECKING:
    from beaker.beaker_pb2 import Job
    from beaker.beaker_pb2 import JobStatus as BeakerStatus
    from google.protobuf.message import Message

WAITS = ("STATUS_SUBMITTED", "STATUS_QUEUED", "STATUS_READY_TO_START", "STATUS_INITIALIZING")
ENDS = ("STATUS_CANCELED", "STATUS_SUCCEEDED", "STATUS_FAILED")
_STOPS = ("STATUS_STOPPING", "STATUS_UPLOADING_RESULTS")
_TAKEN = (
    *("SYSTEM_PREEMPTION", "USER_PREEMPTION"),
    *("NODE_UNAVAILABLE", "NODE_UNHEALTHY", "HEALTHCHECK_FAILED"),
)
"""Cancellation codes of jobs whose machine was taken away or failed."""
_ENDED = JobStatus(JobState.ENDED)


def word(message: "Message", field: str) -> str:
    """Return Beaker's name for the value of an enum field, such as `STATUS_RUNNING`. Return the
    value as text if this client has no name for the value."""
    value, kind = getattr(message, field), message.DESCRIPTOR.fields_by_name[field].enum_type
    if kind is None or value not in kind.values_by_number:
        return str(value)
    return kind.values_by_number[value].name


def is_over(job: "Job | None") -> bool:
    """Return whether a job has no processes any more. None stands for a job that was never
    created."""
    return job is None or job.status.HasField("finalized") or job.status.HasField("exited")


def status_of(state: str, job: "Job | None", node: str | None) -> JobStatus:
    """Return the status of a job whose experiment has the status `state` in Beaker. `job` is the
    experiment's newest job (None: no job yet), and `node` is the job's machine (None: unknown)."""
    if state in WAITS:
        return JobStatus(JobState.PENDING, None, _why(state, job), False, node, _at(job, "created"))
    if state == "STATUS_SUCCEEDED":
        return _ENDED._replace(code=0, node=node)
    if state in ENDS and is_over(job):
        return (_ENDED if job is None else _ended(job.status))._replace(node=node)
    if state in ENDS or state in _STOPS:
        return JobStatus(JobState.STOPPING, node=node, since=_at(job, "canceled"))
    return JobStatus(JobState.RUNNING, node=node)


def _ended(status: "BeakerStatus") -> JobStatus:
    why = reason_of(status.canceled_for or status.message)
    cancelled = word(status, "canceled_code").removeprefix("CANCELATION_CODE_")
    if cancelled in _TAKEN:
        return _ENDED._replace(reason=why or cancelled.lower().replace("_", " "), preempted=True)
    if cancelled == "TIMEOUT":
        return _ENDED._replace(reason="timeout")
    if cancelled != "UNSPECIFIED":
        return _ENDED._replace(
            reason=reason_of(f"{cancelled.lower().replace('_', ' ')}: {why or ''}")
        )
    if status.HasField("exit_code"):
        ended = process_exit_code(status.exit_code)
        return _ENDED._replace(code=ended, reason=reason_of(status.message))
    return _ENDED._replace(reason=why)


def _why(state: str, job: "Job | None") -> str | None:
    message = "" if job is None else job.status.failed_scheduling_message or job.status.message
    return reason_of(message) or ("initializing" if state == "STATUS_INITIALIZING" else None)


def _at(job: "Job | None", field: str) -> str | None:
    if job is None or not job.status.HasField(field):
        return None
    return f"{getattr(job.status, field).ToDatetime():%Y-%m-%dT%H:%M:%SZ}"
