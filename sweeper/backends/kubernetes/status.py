"""Derives a job's status from the conditions of its Job and from its pod."""

import time
from calendar import timegm
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sweeper.backends.base import JobState, JobStatus
from sweeper.backends.container_jobs import process_exit_code, reason_of
from sweeper.backends.kubernetes.objects import (
    Condition,
    ContainerState,
    Job,
    Pod,
    PodStatus,
    Waiting,
)

_LOST_SECONDS = 60.0
"""How long a pod may outlive its deadline for deletion before its node counts as unreachable."""
_STARTING = (None, "ContainerCreating", "PodInitializing")
_PLAIN = (None, "Error", "Completed")
_ENDED = JobStatus(JobState.ENDED)
_STOPPING = JobStatus(JobState.STOPPING)
_NO_WHYS: Mapping[str, str] = MappingProxyType({})


def is_over(job: Job) -> bool:
    """Return whether the Job has ended and has no processes any more."""
    return not _conditions(job).keys().isdisjoint(("Complete", "Failed"))


def status_of(
    job: Job, pods: Sequence[Pod], now: float, whys: Mapping[str, str] = _NO_WHYS
) -> JobStatus:
    """Return the status of a Job with these pods. `now` is the server's time. `whys` maps names of
    Jobs without a pod to what they wait for."""
    pod = max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"], default=None)
    status = _ended(job, pod, now) or _stopping(job, pod) or _waiting(job, pod, whys)
    status = status or JobStatus(JobState.RUNNING)
    spec = pod.get("spec") if pod else None
    return status._replace(node=spec.get("nodeName") if spec else None)


def _ended(job: Job, pod: Pod | None, now: float) -> JobStatus | None:
    conditions, phase = _conditions(job), _pod_status(pod).get("phase")
    if "Complete" in conditions:
        return _ENDED._replace(code=0)
    if "Failed" in conditions or phase == "Failed":
        return _failed(conditions.get("Failed") or conditions.get("FailureTarget"), pod)
    gone = pod["metadata"].get("deletionTimestamp") if pod else None
    if gone and now > _seconds(gone) + _LOST_SECONDS:
        return _ENDED._replace(reason="its node does not answer", preempted=True)
    # Each change of a Job is a generation: the queue admitted it and then suspended it again.
    if job["spec"].get("suspend") and not pod and job["metadata"].get("generation", 1) > 1:
        return _ENDED._replace(reason="suspended by its queue", preempted=True)
    return None


def _failed(condition: Condition | None, pod: Pod | None) -> JobStatus:
    """Return the status of a Job that failed with the condition `told`, or whose pod failed."""
    failure, why = (
        (condition.get("reason"), condition.get("message")) if condition else (None, None)
    )
    disrupted = _conditions(pod).get("DisruptionTarget")
    if disrupted or failure == "PodFailurePolicy":
        reason = reason_of(disrupted.get("message") if disrupted else why)
        return _ENDED._replace(reason=reason, preempted=True)
    if failure == "DeadlineExceeded":
        return _ENDED._replace(reason="timeout")
    end = _container(pod).get("terminated") or {}
    code, kind = end.get("exitCode"), end.get("reason")
    if code is not None:
        why, code = None, process_exit_code(code)
    if kind == "OOMKilled":
        why = "oom"
    elif kind not in _PLAIN:
        why = f"{kind}: {end.get('message', '')}"  # StartError: the program does not exist
    return _ENDED._replace(code=code, reason=reason_of(_pod_status(pod).get("message") or why))


def _stopping(job: Job, pod: Pod | None) -> JobStatus | None:
    ends = "deletionTimestamp" in job["metadata"] or "FailureTarget" in _conditions(job)
    if pod and "deletionTimestamp" in pod["metadata"]:
        disrupted = _conditions(pod).get("DisruptionTarget")
        return _STOPPING._replace(reason=reason_of(disrupted.get("message") if disrupted else None))
    if pod and job["spec"].get("suspend"):
        return _STOPPING._replace(reason="suspended")
    return _STOPPING if ends else None


def _waiting(job: Job, pod: Pod | None, whys: Mapping[str, str]) -> JobStatus | None:
    """Return the status of a Job that waits: for a refused pod, a queue, a node, an image or a
    secret."""
    meta, reason = job["metadata"], None
    if not pod:
        queue = (meta.get("labels") or {}).get("kueue.x-k8s.io/queue-name")
        reason = f"waits in Kueue's queue {queue}" if queue else "suspended"
        reason = whys.get(meta["name"]) or (reason if job["spec"].get("suspend") else None)
    elif _pod_status(pod).get("phase", "Pending") != "Pending":
        return None
    else:
        waits: Waiting | Condition | None = _container(pod).get("waiting")
        if waits is None or waits.get("reason") in _STARTING:
            conditions = _pod_status(pod).get("conditions") or ()
            unscheduled = (
                c for c in conditions if (c["type"], c["status"]) == ("PodScheduled", "False")
            )
            waits = next(unscheduled, None)
        if waits:
            reason = reason_of(f"{waits.get('reason', '')}: {waits.get('message', '')}")
    return JobStatus(JobState.PENDING, None, reason, since=meta["creationTimestamp"])


def _pod_status(pod: Pod | None) -> PodStatus:
    """Return the status of a pod, empty if there is none."""
    return (pod.get("status") if pod else None) or {}


def _conditions(thing: Job | Pod | None) -> dict[str, Condition]:
    """Return the conditions that hold, by type."""
    status = thing.get("status") if thing else None
    conditions = (status.get("conditions") if status else None) or ()
    return {one["type"]: one for one in conditions if one["status"] == "True"}


def _container(pod: Pod | None) -> ContainerState:
    """Return the state of the pod's one container, empty if it is not known."""
    containers = _pod_status(pod).get("containerStatuses") or ()
    return (containers[0].get("state") if containers else None) or {}


def _seconds(stamp: str) -> float:
    return float(timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ")))
