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

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
TOKEN = "a-token-of-the-stand-in"
OWNER, WORKSPACE, ME = "lab", "lab/sweeps", "someone"
_KILLED_SECONDS = 300.0
"""Seconds between the request to stop and the kill."""
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?(B|[KMGT]i?B)\Z")
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,127}\Z")
Spec = dict[str, Any]


@dataclass
class Fault:
    """An error in the next `times` requests: of a gRPC method, by a gRPC status (`INTERNAL`), or
    of "create", by an HTTP status (0: the connection is closed half-way). `after`: the request
    takes effect all the same."""

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
    """A job that executes an experiment's task: `message` is Beaker's message about it."""

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


class Wrong(Exception):
    """An HTTP error as an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Beaker:
    """One organisation, one workspace, one cluster, `lab/cpu`. `certificate` is a key for
    127.0.0.1 with its self-signed certificate (`certificates.py`)."""

    def __init__(
        self, folder: Path, certificate: tuple[bytes, bytes], nodes: int = 4, cpus: float = 100
    ) -> None:
        self.folder, self._certificate = folder, certificate
        self.lock = threading.RLock()
        self.nodes = [Node(f"n{number}.lab.org", cpus) for number in range(nodes)]
        self.experiments: dict[str, Experiment] = {}
        self.going: dict[str, Experiment] = {}
        self.pages: dict[str, tuple[int, list[Any]]] = {}
        self.requests: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self._over = threading.Event()
        self.recover()

    def recover(self) -> None:
        """Restore the initial state; running jobs continue."""
        with self.lock:
            self.faults: list[Fault] = []
            self.silent = self.hangs = self.held = self.archived = False
            self.denied: set[str] = set()
            self.environment: dict[str, str] = {}  # variables that nodes give to their containers
            self.most: int | None = None
            self.permission = "WORKSPACE_PERMISSION_FULL_CONTROL"
            self.most_priority = "JOB_PRIORITY_HIGH"
            self.workspace_budget = "lab/everyday"
            self.shape = {"cpu_count": 100, "memory_bytes": 2**40, "gpu_count": 8}
            self.most_seconds = 0
            self.page = 10**9  # the most workloads on a page of a listing
            self.secrets: dict[str, str] = {}
            self.things = {  # names to whether they are whole
                "Budget": {"lab/everyday": True, "lab/closed": False},
                "Cluster": {"lab/cpu": True},
                "Image": {"lab/sweeper": True, "lab/half": False},
                "Dataset": {"lab/prompts": True, "lab/half": False},
            }
            self.requests.clear()

    def __enter__(self) -> "Beaker":
        import grpc
        from beaker import beaker_pb2_grpc

        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        key, certificate = self._certificate
        roots, config = self.folder / "roots.pem", self.folder / "config.yml"
        roots.write_bytes(certificate)
        self._grpc = grpc.server(ThreadPoolExecutor(16), interceptors=[_interceptor(self)])
        beaker_pb2_grpc.add_BeakerServicer_to_server(_servicer(self), self._grpc)
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        port = self._grpc.add_secure_port("127.0.0.1:0", credentials)
        self._grpc.start()
        stand_in = self

        class Handler(_Handler):
            beaker = stand_in

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
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
        self._grpc.stop(None).wait()
        for thread in self._threads:
            thread.join()
        for process in self.processes:
            _kill(process)
            process.wait()

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
        """Lose the node, which no longer answers; Beaker knows it. Not `dead`: its processes
        continue.
        """
        with self.lock:
            node = self.experiments[experiment].jobs[-1].node
            assert node is not None
            node.alive = False
            for other in list(self.going.values()):
                job = other.jobs[-1] if other.jobs else None
                if job is not None and job.node is node:
                    if dead and job.process is not None:
                        _kill(job.process)
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
            for fault in self.faults:
                if fault.times and fault.method == method:
                    fault.times -= 1
                    return fault
        return None

    def create(self, workspace: str, name: str, spec: Spec) -> str:
        """Return the new experiment's id."""
        from beaker import beaker_pb2 as messages

        if "create" in self.denied or self.permission.endswith(("NONE", "READ")):
            raise Wrong(403, f"{ME} does not have permission to write to {WORKSPACE}")
        if workspace != _id("Workspace", WORKSPACE):
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

    def _control(self) -> None:
        while not self._over.wait(0.02):
            with self.lock:
                try:
                    for experiment in list(self.going.values()):
                        self._step(experiment)
                except Exception as error:  # noqa: BLE001 - a thread: nobody would hear of it
                    print(f"the stand-in: {error!r}", flush=True)

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
            _kill(job.process)
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
                job.message.assignment_details.node_id = _id("Node", node.name)
                job.message.status.scheduled.GetCurrentTime()
                experiment.message.status = "STATUS_INITIALIZING"
                return True
        job.message.status.failed_scheduling_message = f"no room on {len(self.nodes)} nodes"
        return False

    def _begin(self, experiment: Experiment, job: Job) -> None:
        task = experiment.task
        environment = {key: os.environ[key] for key in PASSED if key in os.environ}
        environment |= self.environment
        failure = ""
        image = task["image"].get("docker", "")
        if image.startswith("nowhere/"):
            failure = f"failed to pull image {image}: not found"
        for variable in task.get("envVars", ()):
            if variable["secret"] not in self.secrets:
                failure = f"secret {variable['secret']} not found"
            else:
                environment[variable["name"]] = self.secrets[variable["secret"]]
        folder = self.folder / "containers" / job.message.id
        folder.mkdir(parents=True)
        environment |= {"HOME": str(folder), "BEAKER_JOB_ID": job.message.id}
        try:
            if not failure:
                with self.log(job.message.id).open("wb") as log:
                    job.process = subprocess.Popen(
                        task["command"],
                        cwd=folder,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
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
            with contextlib.suppress(ProcessLookupError):
                job.process.send_signal(signal.SIGTERM)

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

    def log(self, job: str) -> Path:
        """Return the path of a job's log."""
        return self.folder / "containers" / f"{job}.log"


def _servicer(stand_in: Beaker) -> Any:
    """Return the service. Methods that are not needed keep the generated class's answer:
    unimplemented.
    """
    import grpc
    from beaker import beaker_pb2 as messages
    from beaker import beaker_pb2_grpc

    def lacks(context: Any, what: str) -> Any:
        context.abort(grpc.StatusCode.NOT_FOUND, f"{what} not found")

    class Servicer(beaker_pb2_grpc.BeakerServicer):
        def GetUser(self, request: Any, context: Any) -> Any:  # noqa: N802
            return messages.GetUserResponse(user={"id": _id("User", ME), "name": ME})

        def ResolveOrganizationName(self, request: Any, context: Any) -> Any:  # noqa: N802
            if request.organization_name != OWNER:
                return lacks(context, f"organization {request.organization_name}")
            made = messages.ResolveOrganizationNameResponse
            return made(organization_id=_id("Organization", OWNER))

        def ResolveWorkspaceName(self, request: Any, context: Any) -> Any:  # noqa: N802
            name = f"{request.owner_name}/{request.workspace_name}"
            if name != WORKSPACE:
                return lacks(context, f"workspace {name}")
            made = messages.ResolveWorkspaceNameResponse
            return made(workspace_id=_id("Workspace", WORKSPACE))

        def GetWorkspace(self, request: Any, context: Any) -> Any:  # noqa: N802
            if request.workspace_id != _id("Workspace", WORKSPACE):
                return lacks(context, f"workspace {request.workspace_id}")
            workspace = messages.Workspace(
                id=request.workspace_id,
                name=WORKSPACE,
                archived=stand_in.archived,
                maximum_workload_priority=stand_in.most_priority,
            )
            if stand_in.workspace_budget:
                workspace.budget_id = _id("Budget", stand_in.workspace_budget)
            return messages.GetWorkspaceResponse(workspace=workspace)

        def GetWorkspacePermissions(self, request: Any, context: Any) -> Any:  # noqa: N802
            made = messages.GetWorkspacePermissionsResponse()
            made.permissions.add(permission=stand_in.permission, user={"id": _id("User", ME)})
            return made

        def GetSecret(self, request: Any, context: Any) -> Any:  # noqa: N802
            if request.secret_name not in stand_in.secrets:
                return lacks(context, f"secret {request.secret_name}")
            return messages.GetSecretResponse(secret={"name": request.secret_name})

        def ListNodes(self, request: Any, context: Any) -> Any:  # noqa: N802
            nodes = [{"id": _id("Node", n.name), "hostname": n.name} for n in stand_in.nodes]
            return messages.ListNodesResponse(nodes=nodes)

        def GetNode(self, request: Any, context: Any) -> Any:  # noqa: N802
            for node in stand_in.nodes:
                if _id("Node", node.name) == request.node_id:
                    return messages.GetNodeResponse(
                        node={"id": request.node_id, "hostname": node.name}
                    )
            return lacks(context, f"node {request.node_id}")

        def ListWorkloads(self, request: Any, context: Any) -> Any:  # noqa: N802
            options = request.options
            complete = (
                options.organization_id == _id("Organization", OWNER) and options.workspace_id
            )
            if not (request.next_page_token or complete):  # a request has the one or the other
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "which organization?")

            def fits(workload: Any) -> bool:
                text = f"{workload.experiment.name}\n{workload.experiment.description}"
                return (
                    workload.experiment.workspace_id == options.workspace_id
                    and options.name_or_description_substring in text
                    and (not options.statuses or workload.status in options.statuses)
                )

            def begin() -> list[Any]:
                return [
                    experiment.message
                    for experiment in stand_in.experiments.values()
                    if fits(experiment.message)
                ]

            workloads, more = self._page(request, min(options.page_size, stand_in.page), begin)
            return messages.ListWorkloadsResponse(workloads=workloads, next_page_token=more)

        def ListJobs(self, request: Any, context: Any) -> Any:  # noqa: N802
            with stand_in.lock:
                identity = request.options.task_id.removeprefix("task-")
                jobs = [job.message for job in stand_in.experiments[identity].jobs]
                return messages.ListJobsResponse(jobs=jobs[::-1][: request.options.page_size])

        def CancelWorkloads(self, request: Any, context: Any) -> Any:  # noqa: N802
            with stand_in.lock:
                for identity in request.workload_ids:
                    stand_in.cancel(identity)
            return messages.CancelWorkloadsResponse(workload_ids=request.workload_ids)

        def DeleteWorkloads(self, request: Any, context: Any) -> Any:  # noqa: N802
            with stand_in.lock:
                for identity in request.workload_ids:
                    if identity in stand_in.going:
                        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it has not ended")
                    del stand_in.experiments[identity]
            return messages.DeleteWorkloadsResponse(workload_ids=request.workload_ids)

        def UpdateWorkload(self, request: Any, context: Any) -> Any:  # noqa: N802
            with stand_in.lock:
                workload = stand_in.experiments[request.workload_id].message
                workload.experiment.name = request.name
                return messages.UpdateWorkloadResponse(workload=workload)

        def StreamJobLogs(self, request: Any, context: Any) -> Any:  # noqa: N802
            with contextlib.suppress(FileNotFoundError):
                for line in stand_in.log(request.job_id).read_bytes().splitlines():
                    yield messages.JobLog(message=line + b"\n")

        def _page(self, request: Any, size: int, begin: Callable[[], list[Any]]) -> Any:
            """Return a page of the listing as of its first page."""
            with stand_in.lock:
                if request.next_page_token:
                    size, items = stand_in.pages.pop(request.next_page_token)
                else:
                    items = [type(item).FromString(item.SerializeToString()) for item in begin()]
                more = uuid.uuid4().hex if len(items) > size else ""
                if more:
                    stand_in.pages[more] = (size, items[size:])
                return items[:size], more

    for kind in stand_in.things:
        _add_things(Servicer, stand_in, kind, lacks)
    return Servicer()


def _add_things(servicer: Any, stand_in: Beaker, kind: str, lacks: Callable[..., Any]) -> None:
    """Add `Resolve<kind>Name` and `Get<kind>`."""
    from beaker import beaker_pb2 as messages

    key = kind.lower()
    whole = {"Budget": "", "Cluster": ""}.get(kind, "committed")

    def resolve(self: Any, request: Any, context: Any) -> Any:
        owner = {"Budget": "organization_name", "Cluster": "owner_name"}.get(kind, "author_name")
        name = f"{getattr(request, owner)}/{getattr(request, key + '_name')}"
        if name not in stand_in.things[kind]:
            return lacks(context, f"{key} {name}")
        return getattr(messages, f"Resolve{kind}NameResponse")(**{f"{key}_id": _id(kind, name)})

    def get(self: Any, request: Any, context: Any) -> Any:
        for name, good in stand_in.things[kind].items():
            if _id(kind, name) == getattr(request, f"{key}_id"):
                message = getattr(messages, kind)(id=_id(kind, name), name=name)
                if whole and good:
                    getattr(message, whole).GetCurrentTime()
                if kind == "Budget" and not good:
                    message.deprecated.GetCurrentTime()
                if kind == "Cluster":
                    message.node_shape.MergeFrom(messages.NodeShape(**stand_in.shape))
                    message.max_task_timeout.FromSeconds(stand_in.most_seconds)
                    message.node_count = len(stand_in.nodes)
                return getattr(messages, f"Get{kind}Response")(**{key: message})
        return lacks(context, f"{key} {getattr(request, key + '_id')}")

    setattr(servicer, f"Resolve{kind}Name", resolve)
    setattr(servicer, f"Get{kind}", get)


def _interceptor(stand_in: Beaker) -> Any:
    """Check credentials and permissions, and apply faults."""
    import grpc

    class Interceptor(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, call: Any) -> Any:
            method = call.method.rpartition("/")[2]
            wrong = self._wrong(method, dict(call.invocation_metadata))
            if wrong is None:
                return continuation(call)

            def abort(request: Any, context: Any) -> Any:
                if stand_in.hangs:
                    stand_in._over.wait(60)
                context.abort(getattr(grpc.StatusCode, wrong[0]), wrong[1])

            if method == "StreamJobLogs":
                return grpc.unary_stream_rpc_method_handler(abort)
            return grpc.unary_unary_rpc_method_handler(abort)

        def _wrong(self, method: str, about: dict[str, Any]) -> tuple[str, str] | None:
            if stand_in.silent or stand_in.hangs:
                return "UNAVAILABLE", "failed to connect to all addresses"
            if about.get("authorization") != f"bearer {TOKEN}":
                return "UNAUTHENTICATED", "invalid token"
            fault = stand_in.fault(method)
            if method in stand_in.denied:
                return "PERMISSION_DENIED", f"{ME} does not have permission: {method}"
            return None if fault is None else (str(fault.status), fault.message)

    return Interceptor()


class _Handler(BaseHTTPRequestHandler):
    beaker: Beaker

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers["content-length"]))
        match = re.fullmatch(r"/api/v3/workspaces/([^/]+)/experiments", parts.path)
        if self.beaker.silent or match is None:
            return
        status, answer = 200, {}
        fault = self.beaker.fault("create")
        try:
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                raise Wrong(401, "invalid token")
            if fault is None or fault.after:
                name = parse_qs(parts.query)["name"][0]
                answer = {"id": self.beaker.create(match[1], name, json.loads(body))}
            if fault is not None:
                raise Wrong(int(fault.status), fault.message)
        except Wrong as error:
            status, answer = error.status, {"message": str(error)}
        data = json.dumps(answer).encode()
        self.send_response(status or 200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data if status else data[: len(data) // 2])

    def log_message(self, *_: object) -> None:
        pass


def unknown(spec: Any) -> Iterator[str]:
    """Return fields of a spec that beaker-py's dataclasses lack or type differently."""
    from beaker.types import BeakerExperimentSpec

    return _unknown(spec, BeakerExperimentSpec, "spec")


def _unknown(value: Any, kind: Any, where: str) -> Iterator[str]:
    if isinstance(kind, types.UnionType):
        tried = [list(_unknown(value, item, where)) for item in typing.get_args(kind)]
        if all(tried):  # errors of the first alternative, which is the one meant
            yield tried[0][0]
    elif typing.get_origin(kind) is list and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(item, typing.get_args(kind)[0], f"{where}[{index}]")
    elif dataclasses.is_dataclass(kind) and isinstance(value, dict):
        yield from _unknown_fields(value, kind, where)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        if value not in {item.name for item in kind}:
            yield f"{where}: {value!r} is not one of {kind.__name__}"
    else:
        takes = (int, float) if kind is float else typing.get_origin(kind) or kind
        if not isinstance(value, takes) or (isinstance(value, bool) and kind is not bool):
            yield f"{where}: {value!r} is no {getattr(kind, '__name__', kind)}"


def _unknown_fields(value: dict[str, Any], kind: Any, where: str) -> Iterator[str]:
    from beaker.common import to_lower_camel

    hints = typing.get_type_hints(kind, vars(sys.modules[kind.__module__]))
    hints_by_name = {to_lower_camel(name): hint for name, hint in hints.items()}
    for key, item in value.items():
        if key not in hints_by_name:
            yield f"{where}.{key} is not known"
        else:
            yield from _unknown(item, hints_by_name[key], f"{where}.{key}")


def _cancelled(job: Job, code: str, why: str) -> None:
    status = job.message.status
    status.canceled.GetCurrentTime()
    status.canceled_code, status.canceled_for = f"CANCELATION_CODE_{code}", why


def _id(kind: str, name: str) -> str:
    return f"{kind.lower()}-{name.replace('/', '-')}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
