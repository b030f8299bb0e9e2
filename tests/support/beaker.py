"""A stand-in for Beaker: the gRPC service with the generated classes of beaker-py, over TLS, and
the HTTP request that creates experiments, as far as sweeper needs them.

The containers are processes of this machine. Nothing here was compared with Ai2's service: it is
written from its client, and from public descriptions.

Specs with fields that beaker-py's own dataclasses lack, or that break further rules (`_rules`), are
refused. Listings have filters and pages. A scheduler assigns jobs to nodes by clusters, host names
and CPUs; an executor resolves images and secrets, starts, stops and kills.

    with Beaker(folder, certificate) as beaker:  # beaker.environment_of_launchers for it
        beaker.faults.append(Fault("ListWorkloads", "INTERNAL", times=3))
        beaker.silent = True              # nothing answers
        beaker.preempt(experiment)        # its job is stopped for another one
        beaker.lose(experiment)           # its node is gone
        beaker.held = True                # no node has room
"""

import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Self

from support.beaker_service import (
    ME,
    OWNER,
    TOKEN,
    WORKSPACE,
    Handler,
    Wrong,
    id_of,
    interceptor,
    servicer,
    unknown,
)  # fmt: skip
from support.stand_in import StandIn, kill, node_variables, take, terminate

_KILLED_SECONDS = 300.0
"""Seconds between the request to stop and the kill."""
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?(B|[KMGT]i?B)\Z")
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,127}\Z")
Spec = dict[str, Any]


@dataclass
class Fault:
    """An error in the next `times` requests: of a gRPC method, by a gRPC status (`INTERNAL`), or
    of "create", by an HTTP status (0: the connection is closed half-way). `after`: the request
    still takes effect."""

    method: str
    status: str | int
    times: int = 1
    after: bool = False
    message: str = "the stand-in was told to"


@dataclass
class Node:
    name: str
    cpus: float
    alive: bool = True


@dataclass
class Job:
    """A job that executes an experiment's task; `message` is Beaker's description of it."""

    message: Any
    process: subprocess.Popen[bytes] | None = None
    node: Node | None = None
    kill_at: float = float("inf")


@dataclass
class Experiment:
    message: Any
    spec: Spec
    jobs: list[Job] = field(default_factory=list)

    @property
    def task(self) -> Spec:
        return self.spec["tasks"][0]


class Beaker(StandIn):
    """One organisation, one workspace, one cluster, `lab/cpu`. `certificate` is a key for
    127.0.0.1 with its self-signed certificate (`certificates.py`)."""

    handler = Handler

    def __init__(
        self, folder: Path, certificate: tuple[bytes, bytes], nodes: int = 4, cpus: float = 100
    ) -> None:
        super().__init__(folder)
        self._certificate = certificate
        self.nodes = [Node(f"n{number}.lab.org", cpus) for number in range(nodes)]
        self.experiments: dict[str, Experiment] = {}
        self.going: dict[str, Experiment] = {}
        self.pages: dict[str, tuple[int, list[Any]]] = {}
        self.requests: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.recover()

    def recover(self) -> None:
        """Restore the initial state; running jobs continue."""
        with self.lock:
            self.faults: list[Fault] = []
            self.silent = self.hangs = self.held = self.archived = False
            self.denied: set[str] = set()
            self.environment = {}
            self.most: int | None = None
            self.permission = "WORKSPACE_PERMISSION_FULL_CONTROL"
            self.most_priority = "JOB_PRIORITY_HIGH"
            self.workspace_budget = "lab/everyday"
            self.shape = {"cpu_count": 100, "memory_bytes": 2**40, "gpu_count": 8}
            self.most_seconds = 0
            self.page = 10**9  # the most workloads on a page of a listing
            self.secrets: dict[str, str] = {}
            self.things = {  # name -> whether it is complete
                "Budget": {"lab/everyday": True, "lab/closed": False},
                "Cluster": {"lab/cpu": True},
                "Image": {"lab/sweeper": True, "lab/half": False},
                "Dataset": {"lab/prompts": True, "lab/half": False},
            }
            self.requests.clear()

    def __enter__(self) -> Self:
        import grpc
        from beaker import beaker_pb2_grpc

        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        key, certificate = self._certificate
        roots, config = self.folder / "roots.pem", self.folder / "config.yml"
        roots.write_bytes(certificate)
        self._grpc = grpc.server(ThreadPoolExecutor(16), interceptors=[interceptor(self)])
        beaker_pb2_grpc.add_BeakerServicer_to_server(servicer(self), self._grpc)
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        port = self._grpc.add_secure_port("127.0.0.1:0", credentials)
        self._grpc.start()
        super().__enter__()
        self.settings = {
            "user_token": TOKEN,
            "agent_address": self.url,
            "rpc_address": f"127.0.0.1:{port}",
            "default_org": OWNER,
            "default_workspace": WORKSPACE,
        }
        config.write_text(json.dumps(self.settings))
        self.environment_of_launchers = {
            "BEAKER_CONFIG": str(config),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(roots),
        }
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._grpc.stop(None).wait()

    def containers(self) -> Iterable[subprocess.Popen[bytes]]:
        return self.processes

    def options(self, **more: Any) -> dict[str, Any]:
        """Return the backend's options for this stand-in."""
        return {"image": "lab/sweeper", "python": sys.executable, "cpus": 1.0} | more

    # Faults.

    def preempt(self, experiment: str, seconds: float = 1.0) -> None:
        """Preempt the experiment's job after this many seconds."""
        with self.lock:
            job = self.experiments[experiment].jobs[-1]
            _cancelled(
                job, "SYSTEM_PREEMPTION", "This job was preempted by a job of urgent priority."
            )
            self._stop(job, seconds)

    def lose(self, experiment: str, *, dead: bool = True) -> Node:
        """Make the job's node unavailable, as Beaker then reports. Not `dead`: its processes
        continue."""
        with self.lock:
            node = self.experiments[experiment].jobs[-1].node
            assert node is not None
            node.alive = False
            for other in list(self.going.values()):
                job = other.jobs[-1] if other.jobs else None
                if job is not None and job.node is node:
                    if dead and job.process is not None:
                        kill(job.process)
                    _cancelled(job, "NODE_UNAVAILABLE", "The node has sent no heartbeat.")
                    self._end(other, job, "STATUS_CANCELED")
            return node

    def shown(self) -> str:
        """Return everything that Beaker shows of experiments."""
        experiments = self.experiments.values()
        jobs = [str(job.message) for experiment in experiments for job in experiment.jobs]
        return json.dumps(
            [*((experiment.spec, str(experiment.message)) for experiment in experiments), *jobs]
        )

    # Requests.

    def fault(self, method: str) -> Fault | None:
        """Record a request and return its fault, if any."""
        with self.lock:
            self.requests.append(method)
            return take(fault for fault in self.faults if fault.method == method)

    def create(self, workspace: str, name: str, spec: Spec) -> str:
        """Return the new experiment's id."""
        from beaker import beaker_pb2 as messages

        if "create" in self.denied or self.permission.endswith(("NONE", "READ")):
            raise Wrong(403, f"{ME} does not have permission to write to {WORKSPACE}")
        if workspace != id_of("Workspace", WORKSPACE):
            raise Wrong(404, f"workspace {workspace} not found")
        for error in (*unknown(spec), *self._rules(name, spec)):
            raise Wrong(400, f"invalid experiment: {error}")
        with self.lock:
            if any(other.message.experiment.name == name for other in self.experiments.values()):
                raise Wrong(409, f"the name {name} is already in use")
            if self.most is not None and len(self.going) >= self.most:
                raise Wrong(429, f"{WORKSPACE} has too many unfinished experiments: {self.most}")
            made = messages.Workload(status="STATUS_SUBMITTED")
            made.experiment.id = identity = uuid.uuid4().hex[:26].upper()
            made.experiment.name, made.experiment.description = name, spec.get("description", "")
            made.experiment.workspace_id = workspace
            made.experiment.tasks.add(id=f"task-{identity}", experiment_id=identity, name="run")
            made.experiment.created.GetCurrentTime()
            self.experiments[identity] = self.going[identity] = Experiment(made, spec)
            return identity

    def _rules(self, name: str, spec: Spec) -> Iterator[str]:
        """Return errors beyond the dataclasses, in fields that the backend uses."""
        if not _NAME.match(name):
            yield f"invalid name {name!r}"
        if spec.get("version") != "v2" or len(spec.get("tasks", ())) != 1:
            yield "the version is v2, and there is a task"
        if spec.get("budget", self.workspace_budget) not in self.things["Budget"]:
            yield "a budget is required"
        for task in spec.get("tasks", ()):
            yield from self._rules_of(task)

    def _rules_of(self, task: Spec) -> Iterator[str]:
        context, variables = task["context"], task.get("envVars", ())
        if "preemptible" in context and {"minRuntime", "autoResume"} & context.keys():
            yield "preemptible, and minRuntime or autoResume"
        for size in ("memory", "sharedMemory"):
            if not _SIZE.match(task.get("resources", {}).get(size, "1B")):
                yield f"{size} is no amount"
        for cluster in task.get("constraints", {}).get("cluster", ()):
            if not any(fnmatch(name, cluster) for name in self.things["Cluster"]):
                yield f"cluster {cluster} not found"
        one_of = [("image", task["image"])]
        one_of += [(v["name"], v.keys() & {"value", "secret"}) for v in variables]
        one_of += [(mount["mountPath"], mount["source"]) for mount in task.get("datasets", ())]
        yield from (f"{what}: one of its sources" for what, given in one_of if len(given) != 1)

    def cancel(self, identity: str) -> None:
        """Stop running jobs and withdraw waiting ones."""
        experiment = self.going.get(identity)
        if experiment is None:
            return
        job = experiment.jobs[-1] if experiment.jobs else None
        if job is not None:
            _cancelled(job, "MANUAL", f"Canceled by {ME}.")
        if job is None or job.process is None:
            self._end(experiment, job, "STATUS_CANCELED")
        else:
            experiment.message.status = "STATUS_STOPPING"
            self._stop(job, _KILLED_SECONDS)

    # Scheduler and executor.

    def work(self) -> None:
        for experiment in list(self.going.values()):
            self._step(experiment)

    def _step(self, experiment: Experiment) -> None:
        """Run the scheduler, and then the node's executor, for an experiment."""
        if not experiment.jobs:
            self._queue(experiment)
            return
        job = experiment.jobs[-1]
        if job.process is None:
            if job.node is None and not self._schedule(experiment, job):
                return
            self._begin(experiment, job)
            return
        if time.monotonic() > job.kill_at:
            kill(job.process)
        code = job.process.poll()
        if code is None or (job.node is not None and not job.node.alive):
            return
        status = job.message.status
        if not status.HasField("exited"):
            status.exited.GetCurrentTime()
            status.exit_code = code if code >= 0 else 128 - code
            experiment.message.status = "STATUS_UPLOADING_RESULTS"
            return
        if status.canceled_code:
            self._end(experiment, job, "STATUS_CANCELED")
        else:
            self._end(experiment, job, "STATUS_FAILED" if code else "STATUS_SUCCEEDED")

    def _queue(self, experiment: Experiment) -> None:
        from beaker import beaker_pb2 as messages

        task = experiment.message.experiment.tasks[0].id
        made = messages.Job(id=f"job-{uuid.uuid4().hex[:12]}", task_id=task)
        made.status.created.GetCurrentTime()
        experiment.jobs.append(Job(made))
        experiment.message.status = "STATUS_QUEUED"

    def _schedule(self, experiment: Experiment, job: Job) -> bool:
        wanted = experiment.task.get("constraints", {})
        hosts = wanted.get("hostname", [node.name for node in self.nodes])
        for node in self.nodes:
            going = (o.jobs[-1] for o in self.going.values() if o.jobs and o.jobs[-1].node is node)
            used = sum(1 for other in going if not other.message.status.HasField("finalized"))
            room = used + experiment.task["resources"]["cpuCount"] <= node.cpus
            if node.alive and not self.held and room and node.name in hosts:
                job.node = node
                job.message.assignment_details.node_id = id_of("Node", node.name)
                job.message.status.scheduled.GetCurrentTime()
                experiment.message.status = "STATUS_INITIALIZING"
                return True
        job.message.status.failed_scheduling_message = f"no room on {len(self.nodes)} nodes"
        return False

    def _begin(self, experiment: Experiment, job: Job) -> None:
        task = experiment.task
        environment = node_variables() | self.environment
        failure = ""
        image = task["image"].get("docker", "")
        if image.startswith("nowhere/"):
            failure = f"failed to pull image {image}: not found"
        for variable in task.get("envVars", ()):
            if variable["secret"] not in self.secrets:
                failure = f"secret {variable['secret']} not found"
            else:
                environment[variable["name"]] = self.secrets[variable["secret"]]
        environment["BEAKER_JOB_ID"] = job.message.id
        try:
            if not failure:
                job.process = self.run(job.message.id, task["command"], environment)
                self.processes.append(job.process)
        except OSError as error:
            failure = f"failed to start: {error}"
        if failure:
            job.message.status.message = failure
            job.message.status.failed.GetCurrentTime()
            self._end(experiment, job, "STATUS_FAILED")
        else:
            job.message.status.started.GetCurrentTime()
            experiment.message.status = "STATUS_RUNNING"

    def _stop(self, job: Job, seconds: float) -> None:
        if job.process is not None and job.kill_at == float("inf"):
            job.kill_at = time.monotonic() + seconds
            terminate(job.process)

    def _end(self, experiment: Experiment, job: Job | None, status: str) -> None:
        """End the job, and the experiment with it, unless it is resumed or retried."""
        taken = job is not None and job.message.status.canceled_code not in (0, 4)
        if job is not None:
            job.message.status.finalized.GetCurrentTime()
        retries = experiment.spec.get("retry", {}).get("allowedTaskRetries", 0)
        resumed = taken and experiment.task["context"].get("autoResume", True)
        resumed &= "preemptible" not in experiment.task["context"]
        if resumed or (status == "STATUS_FAILED" and len(experiment.jobs) <= retries):
            self._queue(experiment)
            return
        experiment.message.status = status
        self.going.pop(experiment.message.experiment.id, None)


def _cancelled(job: Job, code: str, why: str) -> None:
    status = job.message.status
    status.canceled.GetCurrentTime()
    status.canceled_code, status.canceled_for = f"CANCELATION_CODE_{code}", why
