"""A stand-in for Kubernetes: an API server over HTTP and the controllers behind it, as far as
sweeper needs them.

The containers are processes of this machine. There is no etcd, no kubelet and no Docker, and
nothing here was compared with a real cluster: it is written from Kubernetes' documentation.

Jobs that do not fit Kubernetes' published schema (`kubernetes_job.json`), or that break further
rules (`_rules`), are refused. Listings have label and field selectors, and pages. A controller
makes pods of Jobs, by `suspend`, `backoffLimit`, `podFailurePolicy`, `activeDeadlineSeconds`, `ttl`
and foreground deletion; a scheduler assigns nodes; a kubelet resolves images, secrets and
`$(NAME)`, starts, stops and kills. Kueue admits the jobs in a queue.

    with Kubernetes(folder) as kube:      # kube.config: a kubeconfig; kube.options() for it
        kube.faults.append(Fault("POST", "jobs", 429, times=3))
        kube.silent = True                # nothing answers
        kube.shut_down(job)               # the node of its pod shuts down, as spot machines do
        kube.lose(job)                    # the same as by a power cut
        kube.held = True                  # no node has room
"""

import contextlib
import copy
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jsonschema

PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
NAMESPACE, TOKEN = "research", "a-token-of-the-stand-in"
SCHEMA = jsonschema.Draft202012Validator(
    json.loads(Path(__file__).with_name("kubernetes_job.json").read_text())
)
_DNS = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?\Z")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i?)?\Z")
_FIELDS = {
    "jobs": {"metadata.name": ("metadata", "name"), "status.successful": ("status", "succeeded")},
    "pods": {"status.phase": ("status", "phase"), "spec.nodeName": ("spec", "nodeName")},
    "events": {
        "involvedObject.kind": ("involvedObject", "kind"),
        "reason": ("reason",),
        "type": ("type",),
    },
}
Thing = dict[str, Any]


class Wrong(Exception):
    """An error as an answer: HTTP status, Kubernetes' reason, a message."""

    def __init__(self, status: int, reason: str, message: str, retry: str = "") -> None:
        super().__init__(message)
        self.status, self.reason, self.retry = status, reason, retry


@dataclass
class Fault:
    """An error in the next `times` requests with a method to a resource ("" any), except dry runs.
    `after`: the request takes effect all the same. Status 0: the connection is closed half-way."""

    method: str
    resource: str
    status: int
    times: int = 1
    after: bool = False
    message: str = "the stand-in was told to"


@dataclass
class Node:
    name: str
    cpus: float
    labels: dict[str, str] = field(default_factory=dict)
    taints: list[Thing] = field(default_factory=list)
    alive: bool = True


class Kubernetes:
    """One namespace of one cluster."""

    def __init__(self, folder: Path, nodes: int = 4, cpus: float = 100) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.things: dict[str, dict[str, Thing]] = {}
        self.nodes = [Node(f"n{number}", cpus) for number in range(nodes)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.requests: list[tuple[str, str]] = []
        self._pages: dict[str, list[Thing]] = {}
        self._version = 0
        self._kill_at: dict[str, float] = {}
        self._over = threading.Event()
        self.recover()

    def recover(self) -> None:
        """Restore the initial state; running pods continue."""
        with self.lock:
            self.faults: list[Fault] = []
            self.forgets = 0  # number of the next pages of listings to forget
            self.page = 10**9  # the most things on a page of a listing
            self.lost_seconds = 0  # how much earlier the pods of a lost node were to end
            self.environment: dict[str, str] = {}  # variables that nodes give to their containers
            self.silent = self.held = self.restricted = False
            self.mute_with_a_job = False  # silent once there is a job
            self.denied: set[tuple[str, str]] = set()  # (verb, resource)
            self.images = {"sweeper"}
            self.quota: int | None = None  # of pods
            self.most_jobs: int | None = None
            self.open_queues = {"team"}
            self.missing_kinds: set[str] = set()
            for kind in ("events", "secrets", "serviceaccounts", "priorityclasses", "localqueues"):
                self.things[kind] = {}
            self.things.setdefault("jobs", {})
            self.things.setdefault("pods", {})
            self.things["workloads"] = {}
            self.add("localqueues", "team")
            self.requests.clear()

    def clear(self) -> None:
        """Restore the initial state and end all pods."""
        with self.lock:
            self.recover()
            self.things["jobs"].clear()  # their pods go after them

    def __enter__(self) -> "Kubernetes":
        kube = self

        class Handler(_Handler):
            cluster = kube

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.config = self.folder / "kubeconfig"
        self.config.write_text(json.dumps(self._kubeconfig()))
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.05,)),
            threading.Thread(target=self._control),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()
        for process in self.processes.values():
            _kill(process)
            process.wait()

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
        import sys

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
        """Shut down the node of the job's pod after this many seconds: spot, a drained node."""
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
                if other["spec"].get("nodeName") != node.name or _ended(other):
                    continue
                name = other["metadata"]["name"]
                if dead and name in self.processes:
                    _kill(self.processes[name])
                self._disrupt(
                    other,
                    "DeletionByTaintManager",
                    "Taint manager: deleting due to NoExecute taint",
                )
                grace = other["spec"]["terminationGracePeriodSeconds"]
                other["metadata"].setdefault("deletionTimestamp", _stamp(grace - self.lost_seconds))
                if forgotten:
                    self._disrupt(other, "DeletionByPodGC", "PodGC: node no longer exists")
                    other["status"]["phase"] = "Failed"
            return node

    def take_back(self, job: str) -> None:
        """Preempt a job by Kueue: it is suspended, and waits again."""
        with self.lock:
            self.open_queues.clear()
            self._change(self.things["jobs"][job], suspend=True)

    # Requests.

    def answer(self, method: str, url: str, headers: Any, body: Thing | None) -> Any:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        path = [part for part in parts.path.split("/") if part]
        resource, name, sub = _place(path)
        if headers.get("authorization") != f"Bearer {TOKEN}":
            raise Wrong(401, "Unauthorized", "Unauthorized")
        self.requests.append((method, resource))
        verb = {"POST": "create", "DELETE": "delete"}.get(method, "get" if name else "list")
        if (verb, "/".join(filter(None, (resource, sub)))) in self.denied:
            message = f'{resource} is forbidden: User "me" cannot {verb} resource "{resource}"'
            raise Wrong(
                403, "Forbidden", f'{message} in API group "" in the namespace "{NAMESPACE}"'
            )
        fault = None if "dryRun" in query else self._fault(method, resource)
        if fault is not None and not fault.after:
            raise Wrong(fault.status, "Fault", fault.message, "1" if fault.status == 429 else "")
        with self.lock:
            answer = self._do(method, resource, name, sub, query, headers, body)
        if fault is not None:
            raise Wrong(fault.status, "Fault", fault.message)
        return answer

    def _fault(self, method: str, resource: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if (
                    fault.times
                    and fault.method in ("", method)
                    and fault.resource in ("", resource)
                ):
                    fault.times -= 1
                    return fault
        return None

    def _do(  # noqa: PLR0911
        self, method: str, resource: str, name: str, sub: str, query: Thing, headers: Any, body: Any
    ) -> Any:
        if resource == "selfsubjectaccessreviews":
            attributes = body["spec"]["resourceAttributes"]
            what = "/".join(filter(None, (attributes["resource"], attributes.get("subresource"))))
            return {**body, "status": {"allowed": (attributes["verb"], what) not in self.denied}}
        if resource == "version":
            return {"major": "1", "minor": "37", "gitVersion": "v1.37.0"}
        if resource == "namespaces":
            return (
                {"metadata": {"name": name}} if name == NAMESPACE else self._lacks(resource, name)
            )
        if resource == "nodes":
            items = [{"metadata": {"name": n.name, "labels": n.labels}} for n in self.nodes]
            return {"items": items, "metadata": {}}
        if resource not in self.things or resource in self.missing_kinds:
            raise Wrong(404, "NotFound", "the server could not find the requested resource")
        if method == "POST":
            return self._create(resource, query, body)
        if not name:
            return self._list(resource, query)
        if name not in self.things[resource]:
            self._lacks(resource, name)
        thing = self.things[resource][name]
        if method == "DELETE":
            return self._delete(resource, thing, body or {})
        if sub == "log":
            if "startTime" not in thing["status"]:
                raise Wrong(
                    400, "BadRequest", f'container "run" in pod "{name}" is waiting to start'
                )
            return self._log(name).read_text(errors="replace")
        if resource == "secrets" and "PartialObjectMetadata" not in headers.get("accept", ""):
            raise AssertionError("the values of a secret were asked for")
        return thing

    def _lacks(self, resource: str, name: str) -> Any:
        raise Wrong(404, "NotFound", f'{resource} "{name}" not found')

    def _list(self, resource: str, query: Thing) -> Thing:
        limit = min(int(query.get("limit", 0)) or 10**9, self.page)
        if "continue" in query:
            things = self._pages.pop(query["continue"], None)
            if things is None or self.forgets > 0:
                self.forgets -= 1
                raise Wrong(410, "Expired", "The provided continue parameter is too old")
        else:
            labels = [_term(text) for text in query.get("labelSelector", "").split(",") if text]
            fields = [_term(text) for text in query.get("fieldSelector", "").split(",") if text]
            selectors = _FIELDS.get(resource, {})
            for key, _, _ in fields:
                if key not in selectors:
                    raise Wrong(400, "BadRequest", f'"{key}" is not a known field selector')
            things = [
                thing
                for thing in self.things[resource].values()
                if all(
                    (thing["metadata"].get("labels", {}).get(k) == v) is same
                    for k, v, same in labels
                )
                and all((_at(thing, selectors[k]) == v) is same for k, v, same in fields)
            ]
        more = {}
        if len(things) > limit:
            more = {"continue": uuid.uuid4().hex}
            self._pages[more["continue"]] = things[limit:]
        self._version += 1
        # A page is as of the beginning of the listing.
        items = copy.deepcopy(things[:limit])
        return {"items": items, "metadata": {"resourceVersion": str(self._version), **more}}

    def _create(self, resource: str, query: Thing, body: Thing) -> Thing:
        if query.get("dryRun") == "All" and resource == "pods":
            self._admit(body["spec"])
            return body
        assert resource == "jobs", "the backend makes nothing else"
        unknown = next(iter(SCHEMA.iter_errors(body)), None)
        if unknown is not None:
            raise Wrong(
                422, "Invalid", f"Job in version v1 cannot be handled: {unknown.message[:200]}"
            )
        name = body["metadata"]["name"]
        for message in _rules(body):
            raise Wrong(422, "Invalid", f'Job.batch "{name}" is invalid: {message}')
        jobs = self.things["jobs"]
        if name in jobs:
            raise Wrong(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        if self.most_jobs is not None and len(jobs) >= self.most_jobs:
            message = f'jobs.batch "{name}" is forbidden: exceeded quota: compute, requested: '
            raise Wrong(403, "Forbidden", f"{message}count/jobs.batch=1, used: {len(jobs)}")
        if query.get("dryRun") == "All":
            return body
        job = copy.deepcopy(body)
        job["metadata"] |= {"uid": uuid.uuid4().hex, "creationTimestamp": _stamp(), "generation": 1}
        job["metadata"]["namespace"] = NAMESPACE
        job["status"] = {}
        jobs[name] = job
        return copy.deepcopy(job)

    def _delete(self, resource: str, thing: Thing, how: Thing) -> Thing:
        meta = thing["metadata"]
        if how.get("preconditions", {}).get("uid", meta["uid"]) != meta["uid"]:
            raise Wrong(409, "Conflict", "the UID in the precondition does not match")
        if how.get("propagationPolicy") == "Foreground":
            meta.setdefault("deletionTimestamp", _stamp())
            meta["finalizers"] = ["foregroundDeletion"]
        else:
            del self.things[resource][meta["name"]]
        return {"kind": "Status", "status": "Success"}

    def _admit(self, spec: Thing) -> None:
        """Apply the checks that refuse a pod, whoever creates it."""
        for kind, key in (
            ("serviceaccounts", "serviceAccountName"),
            ("priorityclasses", "priorityClassName"),
        ):
            if spec.get(key) and spec[key] not in self.things[kind]:
                message = f'error looking up {kind}: "{spec[key]}" not found'
                raise Wrong(403, "Forbidden", f'pods "sweeper-" is forbidden: {message}')
        if self.restricted and not spec.get("securityContext", {}).get("runAsNonRoot"):
            raise Wrong(
                403, "Forbidden", 'pods "x" is forbidden: violates PodSecurity "restricted:latest"'
            )
        going = sum(not _ended(pod) for pod in self.things["pods"].values())
        if self.quota is not None and going >= self.quota:
            raise Wrong(
                403,
                "Forbidden",
                f'pods "x" is forbidden: exceeded quota: compute, used: pods={going}',
            )

    # Controllers.

    def _control(self) -> None:
        while not self._over.wait(0.02):
            with self.lock:
                try:
                    for pod in list(self.things["pods"].values()):
                        self._kubelet(pod)
                    for job in list(self.things["jobs"].values()):
                        self._sync(job)
                    uids = {job["metadata"]["uid"] for job in self.things["jobs"].values()}
                    pods = self.things["pods"].values()
                    self._remove([pod for pod in pods if _owner(pod) not in uids])
                except Exception as error:  # noqa: BLE001 - a thread: nobody would hear of it
                    print(f"the stand-in: {error!r}", flush=True)

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
                meta["deletionTimestamp"] = _stamp()
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
            if all(map(_ended, pods)):
                _set(job, "Failed", target["reason"], target["message"])
            return
        status["active"] = sum(not _ended(pod) for pod in pods)
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
        if all(map(_ended, pods)) and not _condition(job, "FailureTarget"):
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
            self._admit(spec)
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
                "creationTimestamp": _stamp(),
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
            if _ended(pod):
                self.things["pods"].pop(pod["metadata"]["name"], None)

    def _disrupt(self, pod: Thing, reason: str, message: str) -> None:
        _set(pod, "DisruptionTarget", reason, message)

    def _stop(self, pod: Thing, seconds: float | None = None) -> None:
        """Delete a pod: signal its process, and kill it at the end of its grace period."""
        name = pod["metadata"]["name"]
        if name in self._kill_at or _ended(pod):
            return
        if seconds is None:
            seconds = pod["spec"]["terminationGracePeriodSeconds"]
        pod["metadata"]["deletionTimestamp"] = _stamp(seconds)
        self._kill_at[name] = time.monotonic() + seconds
        if name in self.processes:
            with contextlib.suppress(ProcessLookupError):
                self.processes[name].send_signal(signal.SIGTERM)
        else:
            pod["status"]["phase"] = "Failed"

    def _kubelet(self, pod: Thing) -> None:
        """Do the work of the scheduler and the kubelet for a pod."""
        name, spec, status = pod["metadata"]["name"], pod["spec"], pod["status"]
        if _ended(pod):
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
            return  # nobody reports its state
        if name not in self.processes:
            self._begin(pod)
            return
        process = self.processes[name]
        if name in self._kill_at and time.monotonic() > self._kill_at[name]:
            _kill(process)
        code = process.poll()
        if code is not None:
            ended = {"exitCode": code if code >= 0 else 128 - code}
            ended["reason"] = "Completed" if code == 0 else "Error"
            self._container(pod, terminated=ended)
            status["phase"] = "Succeeded" if code == 0 else "Failed"

    def _fits(self, pod: Thing, node: Node) -> bool:
        spec = pod["spec"]
        tolerated = {toleration["key"] for toleration in spec.get("tolerations", ())}
        used = sum(
            _cpus(other)
            for other in self.things["pods"].values()
            if other["spec"].get("nodeName") == node.name and not _ended(other)
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
        environment = {key: os.environ[key] for key in PASSED if key in os.environ}
        environment |= self.environment
        for variable in container.get("env", ()):
            reference = variable["valueFrom"]["secretKeyRef"]
            secret = self.things["secrets"].get(reference["name"])
            if secret is None or reference["key"] not in secret["values"]:
                message = (
                    f'secret "{reference["name"]}" not found, or has no key {reference["key"]}'
                )
                return self._container(
                    pod, waiting={"reason": "CreateContainerConfigError", "message": message}
                )
            environment[variable["name"]] = secret["values"][reference["key"]]
        folder = self.folder / "containers" / name
        folder.mkdir(parents=True)
        environment |= {"HOME": str(folder), "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
        command = [_expanded(text, environment) for text in container["command"]]
        try:
            with self._log(name).open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            ended = {"exitCode": 128, "reason": "StartError", "message": f"exec: {error}"}
            pod["status"]["phase"] = "Failed"
            return self._container(pod, terminated=ended)
        pod["status"] |= {"phase": "Running", "startTime": _stamp()}
        return self._container(pod, running={"startedAt": _stamp()})

    def _container(self, pod: Thing, **state: Thing) -> None:
        pod["status"]["containerStatuses"] = [{"name": "run", "state": state}]

    def _log(self, pod: str) -> Path:
        return self.folder / "containers" / f"{pod}.log"


class _Handler(BaseHTTPRequestHandler):
    cluster: Kubernetes
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        if self.cluster.mute_with_a_job and self.cluster.things["jobs"]:
            self.cluster.silent = True
        if self.cluster.silent:
            self.close_connection = True
            return
        status, retry = 200, ""
        try:
            answer = self.cluster.answer(self.command, self.path, self.headers, body)
        except Wrong as error:
            status, retry = error.status, error.retry
            answer = {
                "kind": "Status",
                "message": str(error),
                "reason": error.reason,
                "code": status,
            }
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status or 200)
        self.send_header("content-length", str(len(data)))
        if retry:
            self.send_header("Retry-After", retry)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if status == 0 else data)
        self.close_connection |= status == 0

    do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def _rules(job: Thing) -> list[str]:  # noqa: PLR0912
    """Check Kubernetes' rules beyond its schema, for fields that the backend uses."""
    errors, spec, meta = [], job["spec"], job["metadata"]
    pod = spec["template"]["spec"]
    if not _DNS.match(meta["name"]):
        errors.append(f"metadata.name: Invalid value: {meta['name']!r}")
    for labels in (meta.get("labels", {}), spec["template"]["metadata"].get("labels", {})):
        errors += [f"metadata.labels: {v!r}" for v in labels.values() if not _LABEL.match(v)]
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        errors.append('spec.template.spec.restartPolicy: Required value: "OnFailure", "Never"')
    if "podFailurePolicy" in spec and pod["restartPolicy"] != "Never":
        errors.append("spec.podFailurePolicy: only with restartPolicy Never")
    if "podFailurePolicy" in spec and spec.get("podReplacementPolicy", "Failed") != "Failed":
        errors.append("spec.podReplacementPolicy: must be Failed")
    for seconds in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        if spec.get(seconds, 0) < 0:
            errors.append(f"spec.{seconds}: must be greater than or equal to 0")
    for container in pod["containers"]:
        if not container.get("image"):
            errors.append("image: Required value")
        limits = container["resources"]["limits"]
        for name, value in {**container["resources"]["requests"], **limits}.items():
            if not _QUANTITY.match(value):
                errors.append(f"resources.limits[{name}]: Invalid value: {value!r}")
            if "/" not in name and name not in ("cpu", "memory", "ephemeral-storage"):
                errors.append(f"resources.limits[{name}]: must be a standard resource type")
    for toleration in pod.get("tolerations", ()):
        if toleration.get("operator") == "Exists" and toleration.get("value"):
            errors.append("tolerations: value must be empty when operator is Exists")
    return errors


def _place(path: list[str]) -> tuple[str, str, str]:
    """Return the resource, name and subresource of a path below /api or /apis."""
    rest = path[2:] if path[0] == "api" else path[3:]
    if path == ["version"]:
        return "version", "", ""
    if rest[0] == "namespaces" and len(rest) > 2:
        if rest[1] != NAMESPACE:
            raise Wrong(404, "NotFound", f'namespaces "{rest[1]}" not found')
        rest = rest[2:]
    return (*rest, "", "")[:3]  # type: ignore[return-value]


def _term(text: str) -> tuple[str, str, bool]:
    key, sign, value = re.split(r"(!=|==|=)", text, maxsplit=1)
    return key, value, sign != "!="


def _at(thing: Thing, path: tuple[str, ...]) -> str:
    value: Any = thing
    for key in path:
        value = value.get(key) if value else None
    return str(value or 0) if path[-1] == "succeeded" else str(value or "")


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


def _ended(pod: Thing) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


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


def _stamp(later: float = 0.0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + later))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
