"""Runs jobs on a Kubernetes cluster: see docs/kubernetes.md. Each attempt is a Job of its own,
identified by its name. One listing returns the sweep's Jobs, another its pods."""

import time
from calendar import timegm
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TypeVar
from uuid import uuid4

from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus, require
from sweeper.backends.container_jobs import process_exit_code, reason_of
from sweeper.backends.kubernetes.client import JOBS, KUEUES, PODS, Cluster, Kind, Refused
from sweeper.backends.kubernetes.manifest import SUBMISSION, TOKEN, Names, manifest, pod_spec
from sweeper.backends.kubernetes.objects import (
    Condition,
    ContainerState,
    Event,
    Job,
    Pod,
    PodStatus,
    Waiting,
    Workload,
)
from sweeper.backends.kubernetes.options import Options
from sweeper.backends.parallel_requests import for_each
from sweeper.common.backoff import Backoff, Freshness
from sweeper.errors import Unreachable
from sweeper.fields.options import over
from sweeper.sweep.folder import attempt_of

_LOST_SECONDS = 60.0
"""Seconds past a pod's deadline for deletion after which its node counts as unreachable."""
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
    """Return the status of `job`, whose pods are `pods`. `now` is the server's time. `whys` maps
    the name of a waiting Job that has no pod to the reason why the Job waits."""
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
    # A generation above 1 means that the Job was changed: its queue has admitted it, and then
    # suspended it again.
    if job["spec"].get("suspend") and not pod and job["metadata"].get("generation", 1) > 1:
        return _ENDED._replace(reason="suspended by its queue", preempted=True)
    return None


def _failed(condition: Condition | None, pod: Pod | None) -> JobStatus:
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
    return (pod.get("status") if pod else None) or {}


def _conditions(resource: Job | Pod | None) -> dict[str, Condition]:
    """Return a dict from type to condition, for the conditions whose status is "True"."""
    status = resource.get("status") if resource else None
    conditions = (status.get("conditions") if status else None) or ()
    return {
        condition["type"]: condition for condition in conditions if condition["status"] == "True"
    }


def _container(pod: Pod | None) -> ContainerState:
    containers = _pod_status(pod).get("containerStatuses") or ()
    return (containers[0].get("state") if containers else None) or {}


def _seconds(stamp: str) -> float:
    return float(timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ")))


_WHY_SECONDS = 10.0
"""Seconds between two queries for the reason why a job has no pod."""
_ROOM_SECONDS = 5.0, 60.0
"""Backoff of a submission that exceeded a quota: first and longest wait."""
_ALONE = 20
"""Maximum number of missing jobs that are queried by name. If more are missing, all jobs are
listed."""
_EVENTS = Kind[Event]("/api/v1/namespaces/{}/events")
_WORKLOADS = "/apis/kueue.x-k8s.io/{}/namespaces/{{}}/workloads"
T = TypeVar("T", Job, Pod)
_TRIAL = JobSpec("000000000000-a1", "trial", ["true"], "/", {})


def open_backend(sweep: str, folder: str, options: Options) -> "KubernetesBackend":
    """Open the backend for one sweep. Raises `EnvironmentFailure` if the cluster does not
    answer."""
    cluster = Cluster(options.context, options.namespace)
    backend = KubernetesBackend(cluster, options, sweep, folder)
    backend.find([])
    return backend


class KubernetesBackend(Backend):
    """A backend (see `sweeper.backends.base.Backend`). A job's own options, `JobSpec.resources`,
    override `options`."""

    name = "kubernetes"

    def __init__(self, cluster: Cluster, options: Options, sweep: str, folder: str) -> None:
        self._cluster, self._options = cluster, options
        self._names = Names(sweep, folder)
        self._jobs: dict[str, Job | None] = {}  # by token, at the last listing
        self._pods: dict[str, list[Pod]] = {}
        self._over: dict[str, JobStatus] = {}
        self._withdrawn: set[str] = set()
        self._freshness = Freshness()
        self._reasons_at = float("-inf")
        self._whys: dict[str, str] = {}
        self._room = Backoff(*_ROOM_SECONDS)

    def location(self) -> dict[str, str]:
        return {"server": self._cluster.host, "namespace": self._cluster.namespace}

    def preflight(self, resources: Sequence[Mapping[str, object]]) -> None:
        """Let the API server validate a Job and a pod without creating them. Also run the checks of
        `doctor` that a launch requires, for jobs with these resources."""
        from sweeper.backends.kubernetes.doctor import checks

        for needs in resources:
            options = over(self._options, needs)
            self._try(options)
            require(checks(options, self._cluster), self.name)

    def _try(self, options: Options) -> None:
        job = manifest(_TRIAL, options, self._names, "trial")
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "sweeper-"},
            "spec": pod_spec(_TRIAL, options),
        }
        for path, body in ((JOBS.path, job), (PODS.path, pod)):
            try:
                self._cluster.call("POST", path, body, dryRun="All")
            except Refused as error:
                # Accept two refusals: a quota will have room again, and users need no permission to
                # create pods directly.
                if "exceeded quota" not in str(error) and not (
                    path is PODS.path and "cannot create resource" in str(error)
                ):
                    raise error.settled() from None

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        self._room.check()
        attempts = dict(attempt_of(job.token) for job in jobs)
        if any(attempt > 1 for attempt in attempts.values()):
            self._look(anew=True)
            listed = ((token, *attempt_of(token)) for token in self._jobs)
            earlier = [token for token, run, attempt in listed if attempt < attempts.get(run, 0)]
            # Cancel earlier Jobs of these runs. A queue may have suspended them, and would start
            # them again.
            self.cancel(earlier)
        submission = uuid4().hex
        self._names.identity.ensure()
        self._freshness.end()
        with self._room.tried(Refused):
            for_each(jobs, lambda job: self._submit(job, submission), Refused)

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        self._look(tokens, anew=True)
        existing = {
            token for token, job in self._jobs.items() if job is not None
        } | self._over.keys()
        return {token: self._names.name(token) for token in tokens if token in existing}

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        if not tokens:
            return {}
        self._look(tokens)
        statuses = {token: self._status(token) for token in tokens}
        if any(s.state is JobState.PENDING and t not in self._pods for t, s in statuses.items()):
            self._query_reasons()
            statuses = {token: self._status(token) for token in tokens}
        return statuses

    def cancel(self, tokens: Sequence[str]) -> None:
        self._look(tokens)
        jobs = [(t, job) for t in tokens if (job := self._jobs.get(t)) and not is_over(job)]
        self._freshness.end()
        for_each(jobs, lambda item: self._withdraw(*item), Refused)

    def forget(self, tokens: Sequence[str]) -> None:
        self._look(tokens, anew=True)
        over = [job for token in tokens if (job := self._jobs.get(token)) and is_over(job)]
        self._freshness.end()
        for_each(over, lambda job: self._delete(job, "Background"), Refused)

    def logs(self, token: str) -> Iterator[str]:
        """Yield the pod's current output; nothing if the pod is gone or its container has not
        started."""
        selector = f"{self._names.selector},{TOKEN}={token}"
        for pod in self._cluster.items(PODS, labelSelector=selector):
            # The container has not started, or the pod's node is unreachable.
            with suppress(Refused):
                log = f"{PODS.path}/{pod['metadata']['name']}/log"
                yield from self._cluster.text(log).splitlines()

    def _submit(self, job: JobSpec, submission: str) -> None:
        self._over.pop(job.token, None)
        self._withdrawn.discard(job.token)
        options = over(self._options, job.resources)
        body = manifest(job, options, self._names, submission)
        try:
            self._cluster.call("POST", JOBS.path, body)
        except Refused as error:
            if error.reason != "AlreadyExists":
                raise error.settled() from None
            if self._make_way(self._names.name(job.token), submission):
                self._cluster.call("POST", JOBS.path, body)

    def _make_way(self, name: str, submission: str) -> bool:
        """Free the name of a new Job after the server has refused the name. If an ended Job has the
        name, delete this Job. Return True if the name is free now. Return False if the name belongs
        to an unfinished Job of this sweep, or if this submission has already created the Job.
        Raises `Unreachable` while a Job of that name is being deleted, and `Refused` for an
        unfinished Job of an earlier sweep in the same folder."""
        existing = self._get(name)
        if existing is None:
            return True
        if existing["metadata"].get("annotations", {}).get(SUBMISSION) == submission:
            return False  # Our request created the Job, but the answer was lost.
        if not is_over(existing):
            if "deletionTimestamp" in existing["metadata"]:
                raise Unreachable(
                    f"kubernetes: the job {name} is being deleted: the launcher waits for that"
                )
            if not self._names.is_ours(existing):
                reason = f"the job {name} of an earlier sweep in this folder is still running"
                how = f"the launcher waits for its end; to stop it, run `kubectl delete job {name}`"
                raise Refused(f"kubernetes: {reason}: {how}", 409, "AlreadyExists")
            return False
        self._delete(existing, "Background")
        return True

    def _withdraw(self, token: str, job: Job) -> None:
        """Delete a Job. Its pod gets SIGTERM. The server keeps the Job until the pod has ended."""
        self._delete(job, "Foreground")
        self._withdrawn.add(token)

    def _delete(self, job: Job, way: str) -> None:
        how = {"propagationPolicy": way, "preconditions": {"uid": job["metadata"]["uid"]}}
        try:
            self._cluster.call("DELETE", f"{JOBS.path}/{job['metadata']['name']}", how)
        except Refused as error:
            if error.status not in (404, 409):  # 409: another Job has taken its name
                raise

    def _status(self, token: str) -> JobStatus:
        if token in self._over:
            return self._over[token]
        job = self._jobs.get(token)
        if job is None:
            gone = token in self._withdrawn
            return (
                JobStatus(JobState.ENDED, None, "withdrawn") if gone else JobStatus(JobState.ABSENT)
            )
        status = status_of(job, self._pods.get(token, ()), self._cluster.now(), self._whys)
        if is_over(job):
            self._over[token] = status
        return status

    def _look(self, wanted: Sequence[str] = (), *, anew: bool = False) -> None:
        """List the sweep's Jobs and pods if the last listing is outdated or `anew` is True. Query
        the Jobs of tokens in `wanted` that are not listed."""
        if anew or self._freshness.is_over():
            selector = self._names.selector
            with self._freshness.renewed():
                jobs = self._cluster.items(
                    JOBS, labelSelector=selector, fieldSelector="status.successful=0"
                )
                pods = self._cluster.items(
                    PODS, labelSelector=selector, fieldSelector="status.phase!=Succeeded"
                )
                self._jobs, self._pods = dict(_by_token(jobs)), {}
                for token, pod in _by_token(pods):
                    self._pods.setdefault(token, []).append(pod)
        missing = [t for t in wanted if t not in self._jobs and t not in self._over]
        if len(missing) > _ALONE:
            listed = self._cluster.items(JOBS, labelSelector=self._names.selector)
            everything = dict(_by_token(listed))
            self._jobs |= {token: everything.get(token) for token in missing}
        else:
            self._jobs |= {token: self._ours(token) for token in missing}

    def _ours(self, token: str) -> Job | None:
        job = self._get(self._names.name(token))
        return job if job is not None and self._names.is_ours(job) else None

    def _get(self, name: str) -> Job | None:
        try:
            return self._cluster.get(JOBS, name)
        except Refused as error:
            if error.status != 404:
                raise
            return None

    def _query_reasons(self) -> None:
        """Query why Jobs have no pod. Either the cluster refused the pod (a quota), or Kueue delays
        the Job. Do nothing if the last query was less than `_WHY_SECONDS` ago."""
        if time.monotonic() - self._reasons_at < _WHY_SECONDS:
            return
        self._reasons_at, self._whys = time.monotonic(), {}
        with suppress(Refused):
            selector = "involvedObject.kind=Job,reason=FailedCreate"
            for event in self._cluster.items(_EVENTS, fieldSelector=selector):
                self._whys[event["involvedObject"]["name"]] = reason_of(event["message"]) or ""
        for version in KUEUES if self._options.queue else ():
            with suppress(Refused):
                for workload in self._cluster.items(Kind[Workload](_WORKLOADS.format(version))):
                    for owner in workload["metadata"].get("ownerReferences", ()):
                        for condition in workload.get("status", {}).get("conditions", ()):
                            if (
                                condition["type"] == "QuotaReserved"
                                and condition["status"] != "True"
                            ):
                                self._whys[owner["name"]] = f"Kueue: {condition['message']}"[:200]
                break


def _by_token(resources: Iterable[T]) -> Iterator[tuple[str, T]]:
    return ((resource["metadata"]["labels"][TOKEN], resource) for resource in resources)
