"""What has become of a Job: from its own conditions, else from its pod."""

import time
from calendar import timegm
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.backends.base import JobState, JobStatus
from sweeper.backends.exit_codes import of_process

__all__ = ["is_over", "status_of"]

_LOST_SECONDS = 60.0
"""How long after it should be gone a pod is believed to be ending: then nobody answers there."""
_STARTING = (None, "ContainerCreating", "PodInitializing")
_PLAIN = (None, "Error", "Completed")
_ENDED = JobStatus(JobState.ENDED)
_STOPPING = JobStatus(JobState.STOPPING)
_NOTHING: Mapping[str, Any] = {}
Thing = Mapping[str, Any]


def is_over(job: Thing) -> bool:
    """Whether the Job has ended, and has no processes any more."""
    return not _conditions(job).keys().isdisjoint(("Complete", "Failed"))


def status_of(
    job: Thing, pods: Sequence[Thing], now: float, whys: Mapping[str, str] = _NOTHING
) -> JobStatus:
    """The status of a Job with these pods. `now` is the server's time; `whys` says, by their names,
    what jobs wait for that have no pod."""
    pod = max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"], default=_NOTHING)
    found = _ended(job, pod, now) or _stopping(job, pod) or _waiting(job, pod, whys)
    found = found or JobStatus(JobState.RUNNING)
    return found._replace(node=_part(pod, "spec").get("nodeName"))


def _ended(job: Thing, pod: Thing, now: float) -> JobStatus | None:
    told, phase = _conditions(job), _part(pod, "status").get("phase")
    if "Complete" in told:
        return _ENDED._replace(code=0)
    if "Failed" in told or phase == "Failed":
        return _failed(told.get("Failed") or told.get("FailureTarget") or _NOTHING, pod)
    gone = _part(pod, "metadata").get("deletionTimestamp")
    if gone and now > _seconds(gone) + _LOST_SECONDS:
        return _ENDED._replace(reason="its node does not answer", preempted=True)
    # Each change of a Job is a generation: the second let it go, and then it was taken back.
    if job["spec"].get("suspend") and not pod and job["metadata"].get("generation", 1) > 1:
        return _ENDED._replace(reason="suspended by its queue", preempted=True)
    return None


def _failed(told: Thing, pod: Thing) -> JobStatus:
    """Of a Job that failed, as `told` has it, or whose pod has."""
    why, disrupted = told.get("message"), _conditions(pod).get("DisruptionTarget")
    if disrupted or told.get("reason") == "PodFailurePolicy":
        said = _line(disrupted["message"] if disrupted else why)
        return _ENDED._replace(reason=said, preempted=True)
    if told.get("reason") == "DeadlineExceeded":
        return _ENDED._replace(reason="timeout")
    end = _container(pod, "terminated")
    code, kind = end.get("exitCode"), end.get("reason")
    if code is not None:
        why, code = None, of_process(code)
    if kind == "OOMKilled":
        why = "oom"
    elif kind not in _PLAIN:
        why = f"{kind}: {end.get('message', '')}"  # StartError: there is no such program
    return _ENDED._replace(code=code, reason=_line(_part(pod, "status").get("message") or why))


def _stopping(job: Thing, pod: Thing) -> JobStatus | None:
    ends = "deletionTimestamp" in job["metadata"] or "FailureTarget" in _conditions(job)
    if "deletionTimestamp" in _part(pod, "metadata"):
        why = _conditions(pod).get("DisruptionTarget", _NOTHING).get("message")
        return _STOPPING._replace(reason=_line(why))
    if pod and job["spec"].get("suspend"):
        return _STOPPING._replace(reason="suspended")
    return _STOPPING if ends else None


def _waiting(job: Thing, pod: Thing, whys: Mapping[str, str]) -> JobStatus | None:
    """For what refused a pod, for a queue, a node, an image or a secret."""
    meta, reason = job["metadata"], None
    if not pod:
        queue = _part(meta, "labels").get("kueue.x-k8s.io/queue-name")
        reason = f"waits in Kueue's queue {queue}" if queue else "suspended"
        reason = whys.get(meta["name"]) or (reason if job["spec"].get("suspend") else None)
    elif _part(pod, "status").get("phase", "Pending") != "Pending":
        return None
    else:
        waits = _container(pod, "waiting")
        if waits.get("reason") in _STARTING:
            found = _part(pod, "status").get("conditions") or ()
            unscheduled = (
                c for c in found if (c["type"], c["status"]) == ("PodScheduled", "False")
            )
            waits = next(unscheduled, _NOTHING)
        reason = _line(f"{waits['reason']}: {waits.get('message', '')}") if waits else None
    return JobStatus(JobState.PENDING, None, reason, since=meta["creationTimestamp"])


def _part(thing: Thing, key: str) -> Thing:
    found: Thing | None = thing.get(key)
    return found or _NOTHING


def _conditions(thing: Thing) -> dict[str, Thing]:
    """Those that hold, by their type."""
    found = _part(thing, "status").get("conditions") or ()
    return {one["type"]: one for one in found if one["status"] == "True"}


def _container(pod: Thing, state: str) -> Thing:
    """What is known of the pod's one container, in this state."""
    found: Sequence[Thing] = _part(pod, "status").get("containerStatuses") or ()
    return _part(_part(found[0], "state"), state) if found else _NOTHING


def _seconds(stamp: str) -> float:
    return float(timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ")))


def _line(text: object) -> str | None:
    return " ".join(str(text or "").split()).removesuffix(":")[:200] or None
