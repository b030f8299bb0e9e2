"""A stand-in for Kubernetes: an API server over HTTP and the controllers behind it, as far as
sweeper needs them.

The containers are processes of this machine. There is no etcd, no kubelet and no Docker, and
nothing here was compared with a real cluster: it is written from Kubernetes' documentation.

A controller makes pods of Jobs, by `suspend`, `backoffLimit`, `podFailurePolicy`,
`activeDeadlineSeconds`, `ttl` and foreground deletion; a scheduler assigns nodes; a kubelet
resolves images, secrets and `$(NAME)`, starts, stops and kills. Kueue admits the jobs in a queue.

    with Kubernetes(folder) as kube:      # kube.config: a kubeconfig; kube.options() for it
        kube.faults.append(Fault("POST", "jobs", 429, times=3))
        kube.silent = True                # nothing answers
        kube.shut_down(job)               # the node of its pod shuts down, as spot machines do
        kube.lose(job)                    # its node loses power
        kube.held = True                  # no node has room
"""

import copy
import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from support.kubernetes_api import NAMESPACE, TOKEN, Api, Fault, Thing, Wrong, ended, stamp
from support.stand_in import kill, node_variables, terminate

__all__ = ["Fault", "Kubernetes"]


@dataclass
class Node:
    name: str
    cpus: float
    labels: dict[str, str] = field(default_factory=dict)
    taints: list[Thing] = field(default_factory=list)
    alive: bool = True


class Kubernetes(Api):
    """One namespace of one cluster."""

    def __init__(self, folder: Path, nodes: int = 4, cpus: float = 100) -> None:
        super().__init__(folder)
        self.nodes = [Node(f"n{number}", cpus) for number in range(nodes)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kill_at: dict[str, float] = {}
        self.recover()

    def recover(self) -> None:
        """Restore the initial state; running pods continue."""
        with self.lock:
            self.reset_api()
            self.lost_seconds = 0  # subtracted from the deletion time of a lost node's pods
            self.environment = {}
            self.held = False
            self.images = {"sweeper"}
            self.open_queues = {"team"}
            for kind in ("events", "secrets", "serviceaccounts", "priorityclasses", "localqueues"):
                self.things[kind] = {}
            self.things.setdefault("jobs", {})
            self.things.setdefault("pods", {})
            self.things["workloads"] = {}
            self.add("localqueues", "team")

    def clear(self) -> None:
        """Restore the initial state and end all pods."""
        with self.lock:
            self.recover()
            self.things["jobs"].clear()  # the controller then removes their pods

    def __enter__(self) -> Self:
        super().__enter__()
        self.config = self.folder / "kubeconfig"
        self.config.write_text(json.dumps(self._kubeconfig()))
        return self

    def containers(self) -> Iterable[subprocess.Popen[bytes]]:
        return self.processes.values()

    def _kubeconfig(self) -> Thing:
        context = {"cluster": "here", "user": "me", "namespace": NAMESPACE}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": TOKEN}}],
            "contexts": [
                {"name": "here", "context": context},
                {"name": "other", "context": {**context, "namespace": "nowhere"}},
            ],
        }

    def options(self, **more: Any) -> dict[str, Any]:
        """Return the backend's options for this stand-in."""
        return {"image": "sweeper", "python": sys.executable, "cpus": 1.0} | more

    # Faults.

    def add(self, kind: str, name: str, **more: Any) -> Thing:
        """Add an object: a secret with its `values`, a service account."""
        made = {"metadata": {"name": name, "namespace": NAMESPACE, "uid": uuid.uuid4().hex}, **more}
        self.things[kind][name] = made
        return made

    def pods_of(self, job: str) -> list[Thing]:
        uid = self.things["jobs"][job]["metadata"]["uid"]
        return [pod for pod in self.things["pods"].values() if _owner(pod) == uid]

    def shut_down(self, job: str, seconds: float = 1.0) -> None:
        """Shut down the node of the job's pod after this many seconds, as when it is drained."""
        with self.lock:
            for pod in self.pods_of(job):
                self._disrupt(
                    pod,
                    "TerminationByKubelet",
                    "Pod was terminated in response to imminent node shutdown.",
                )
                self._stop(pod, seconds)

    def lose(self, job: str, *, forgotten: bool = True, dead: bool = True) -> Node:
        """Lose the node of the job's pod, which no longer answers. `forgotten`: it is also deleted
        from the cluster, as clouds do. Not `dead`: its processes continue."""
        with self.lock:
            (pod,) = self.pods_of(job)
            (node,) = [n for n in self.nodes if n.name == pod["spec"]["nodeName"]]
            node.alive = False
            for other in list(self.things["pods"].values()):
                if other["spec"].get("nodeName") != node.name or ended(other):
                    continue
                name = other["metadata"]["name"]
                if dead and name in self.processes:
                    kill(self.processes[name])
                self._disrupt(
                    other,
                    "DeletionByTaintManager",
                    "Taint manager: deleting due to NoExecute taint",
                )
                grace = other["spec"]["terminationGracePeriodSeconds"]
                other["metadata"].setdefault("deletionTimestamp", stamp(grace - self.lost_seconds))
                if forgotten:
                    self._disrupt(other, "DeletionByPodGC", "PodGC: node no longer exists")
                    other["status"]["phase"] = "Failed"
            return node

    def take_back(self, job: str) -> None:
        """Preempt a job as Kueue does: suspend it, so that it waits again."""
        with self.lock:
            self.open_queues.clear()
            self._change(self.things["jobs"][job], suspend=True)

    # Controllers.

    def work(self) -> None:
        for pod in list(self.things["pods"].values()):
            self._kubelet(pod)
        for job in list(self.things["jobs"].values()):
            self._sync(job)
        uids = {job["metadata"]["uid"] for job in self.things["jobs"].values()}
        pods = self.things["pods"].values()
        self._remove([pod for pod in pods if _owner(pod) not in uids])

    def _sync(self, job: Thing) -> None:  # noqa: PLR0912
        """Do the work of the Job controller, Kueue and the garbage collector for a Job."""
        meta, spec, status = job["metadata"], job["spec"], job["status"]
        pods = self.pods_of(meta["name"])
        if "deletionTimestamp" in meta:
            self._remove(pods)
            if not self.pods_of(meta["name"]):
                del self.things["jobs"][meta["name"]]
            return
        if done := _condition(job, "Complete") or _condition(job, "Failed"):
            if time.time() > done["time"] + spec.get("ttlSecondsAfterFinished", 10**9):
                meta["deletionTimestamp"] = stamp()
            return
        queue = meta["labels"].get("kueue.x-k8s.io/queue-name")
        if queue is not None:
            self._kueue(job, queue)
        if spec.get("suspend"):
            _set(job, "Suspended", "JobSuspended", "Job suspended")
            self._remove(pods)
            return
        status.setdefault("startTime", time.time())
        deadline = spec.get("activeDeadlineSeconds")
        if deadline is not None and time.time() > status["startTime"] + deadline:
            _set(
                job,
                "FailureTarget",
                "DeadlineExceeded",
                "Job was active longer than specified deadline",
            )
        if target := _condition(job, "FailureTarget"):
            for pod in pods:
                self._stop(pod)
            if all(map(ended, pods)):
                _set(job, "Failed", target["reason"], target["message"])
            return
        status["active"] = sum(not ended(pod) for pod in pods)
        for pod in pods:
            if pod["status"]["phase"] == "Succeeded":
                status["succeeded"] = 1
                _set(
                    job,
                    "Complete",
                    "CompletionsReached",
                    "Reached expected number of succeeded pods",
                )
                return
            if pod["status"]["phase"] == "Failed" and "counted" not in pod:
                pod["counted"] = True
                self._failed(job, pod)
        if all(map(ended, pods)) and not _condition(job, "FailureTarget"):
            self._make_pod(job)

    def _failed(self, job: Thing, pod: Thing) -> None:
        status, where = job["status"], f"{NAMESPACE}/{pod['metadata']['name']}"
        for index, rule in enumerate(job["spec"].get("podFailurePolicy", {}).get("rules", ())):
            for wanted in rule.get("onPodConditions", ()):
                if _condition(pod, wanted["type"]):
                    if rule["action"] == "FailJob":
                        message = (
                            f"Pod {where} has condition {wanted['type']} matching FailJob rule"
                        )
                        message += f" at index {index}"
                        _set(job, "FailureTarget", "PodFailurePolicy", message)
                    if rule["action"] != "Count":
                        return
        status["failed"] = status.get("failed", 0) + 1
        if status["failed"] > job["spec"].get("backoffLimit", 6):
            _set(
                job,
                "FailureTarget",
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            )

    def _make_pod(self, job: Thing) -> None:
        name = job["metadata"]["name"]
        spec = copy.deepcopy(job["spec"]["template"]["spec"])
        try:
            self.admit(spec)
        except Wrong as error:
            about = {"kind": "Job", "name": name}
            message = f"Error creating: {error}"
            self.add(
                "events", f"{name}.1", involvedObject=about, reason="FailedCreate", message=message
            )
            return
        self.things["pods"][f"{name}-{uuid.uuid4().hex[:5]}"] = pod = {
            "metadata": {
                "uid": uuid.uuid4().hex,
                "creationTimestamp": stamp(),
                "labels": dict(job["spec"]["template"]["metadata"]["labels"]),
                "ownerReferences": [{"kind": "Job", "name": name, "uid": job["metadata"]["uid"]}],
            },
            "spec": spec,
            "status": {"phase": "Pending", "conditions": []},
        }
        pod["metadata"]["name"] = list(self.things["pods"])[-1]

    def _kueue(self, job: Thing, queue: str) -> None:
        name = job["metadata"]["name"]
        if job["spec"].get("suspend") and queue in self.open_queues:
            self._change(job, suspend=False)
            self.things["workloads"].pop(f"job-{name}", None)
        elif job["spec"].get("suspend") and f"job-{name}" not in self.things["workloads"]:
            made = self.add("workloads", f"job-{name}")
            made["metadata"]["ownerReferences"] = [{"kind": "Job", "name": name}]
            message = "couldn't assign flavors to pod set main: insufficient quota for cpu"
            condition = {"type": "QuotaReserved", "status": "False", "message": message}
            made["status"] = {"conditions": [condition]}

    def _change(self, job: Thing, **spec: Any) -> None:
        job["spec"] |= spec
        job["metadata"]["generation"] += 1
        job["status"].pop("startTime", None)
        if not spec.get("suspend", True):
            conditions = job["status"].get("conditions", [])
            for condition in conditions:
                if condition["type"] == "Suspended":
                    condition["status"] = "False"

    def _remove(self, pods: list[Thing]) -> None:
        for pod in pods:
            self._stop(pod)
            if ended(pod):
                self.things["pods"].pop(pod["metadata"]["name"], None)

    def _disrupt(self, pod: Thing, reason: str, message: str) -> None:
        _set(pod, "DisruptionTarget", reason, message)

    def _stop(self, pod: Thing, seconds: float | None = None) -> None:
        """Delete a pod: signal its process, and kill it at the end of its grace period."""
        name = pod["metadata"]["name"]
        if name in self._kill_at or ended(pod):
            return
        if seconds is None:
            seconds = pod["spec"]["terminationGracePeriodSeconds"]
        pod["metadata"]["deletionTimestamp"] = stamp(seconds)
        self._kill_at[name] = time.monotonic() + seconds
        if name in self.processes:
            terminate(self.processes[name])
        else:
            pod["status"]["phase"] = "Failed"

    def _kubelet(self, pod: Thing) -> None:
        """Do the work of the scheduler and the kubelet for a pod."""
        name, spec, status = pod["metadata"]["name"], pod["spec"], pod["status"]
        if ended(pod):
            return
        if "nodeName" not in spec:
            node = next((node for node in self.nodes if self._fits(pod, node)), None)
            if node is None:
                why = (
                    f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient cpu."
                )
                _set(pod, "PodScheduled", "Unschedulable", why, "False")
                return
            spec["nodeName"] = node.name
            _set(pod, "PodScheduled", "", "")
        node = next((node for node in self.nodes if node.name == spec["nodeName"]), None)
        if node is None or not node.alive:
            return  # no kubelet reports the pod's state
        if name not in self.processes:
            self._begin(pod)
            return
        process = self.processes[name]
        if name in self._kill_at and time.monotonic() > self._kill_at[name]:
            kill(process)
        code = process.poll()
        if code is not None:
            end = {"exitCode": code if code >= 0 else 128 - code}
            end["reason"] = "Completed" if code == 0 else "Error"
            self._container(pod, terminated=end)
            status["phase"] = "Succeeded" if code == 0 else "Failed"

    def _fits(self, pod: Thing, node: Node) -> bool:
        spec = pod["spec"]
        tolerated = {toleration["key"] for toleration in spec.get("tolerations", ())}
        used = sum(
            _cpus(other)
            for other in self.things["pods"].values()
            if other["spec"].get("nodeName") == node.name and not ended(other)
        )
        return (
            node.alive
            and not self.held
            and all(taint["key"] in tolerated for taint in node.taints)
            and all(node.labels.get(k) == v for k, v in spec.get("nodeSelector", {}).items())
            and used + _cpus(pod) <= node.cpus
        )

    def _begin(self, pod: Thing) -> None:
        name, (container,) = pod["metadata"]["name"], pod["spec"]["containers"]
        if container["image"] not in self.images:
            message = f'Back-off pulling image "{container["image"]}"'
            return self._container(pod, waiting={"reason": "ImagePullBackOff", "message": message})
        environment = node_variables() | self.environment
        for variable in container.get("env", ()):
            reference = variable["valueFrom"]["secretKeyRef"]
            secret = self.things["secrets"].get(reference["name"])
            if secret is None or reference["key"] not in secret["values"]:
                waiting = {"reason": "CreateContainerConfigError"}
                waiting["message"] = f'secret "{reference["name"]}" not found, or lacks a key'
                return self._container(pod, waiting=waiting)
            environment[variable["name"]] = secret["values"][reference["key"]]
        environment["HOME"] = str(self.folder / "containers" / name)
        environment["KUBERNETES_SERVICE_HOST"] = "127.0.0.1"
        command = [_expanded(text, environment) for text in container["command"]]
        try:
            self.processes[name] = self.run(name, command, environment)
        except OSError as error:
            end = {"exitCode": 128, "reason": "StartError", "message": f"exec: {error}"}
            pod["status"]["phase"] = "Failed"
            return self._container(pod, terminated=end)
        pod["status"] |= {"phase": "Running", "startTime": stamp()}
        return self._container(pod, running={"startedAt": stamp()})

    def _container(self, pod: Thing, **state: Thing) -> None:
        pod["status"]["containerStatuses"] = [{"name": "run", "state": state}]


def _expanded(text: str, environment: dict[str, str]) -> str:
    """Expand `$(NAME)` as Kubernetes does: `$$` is a `$`, and unknown names stay."""

    def put(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return environment.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", put, text)


def _owner(pod: Thing) -> str:
    return str(pod["metadata"]["ownerReferences"][0]["uid"])


def _cpus(pod: Thing) -> float:
    return float(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def _condition(thing: Thing, kind: str) -> Thing | None:
    for condition in thing["status"].get("conditions", ()):
        if condition["type"] == kind and condition["status"] == "True":
            return condition
    return None


def _set(thing: Thing, kind: str, reason: str, message: str, status: str = "True") -> None:
    conditions = thing["status"].setdefault("conditions", [])
    there = any(
        condition["type"] == kind and condition["status"] == status for condition in conditions
    )
    if there and kind != "DisruptionTarget":
        return
    conditions[:] = [condition for condition in conditions if condition["type"] != kind]
    made = {"type": kind, "status": status, "reason": reason, "message": message}
    conditions.append({**made, "time": time.time()})
