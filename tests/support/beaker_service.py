"""The requests that the stand-in for Beaker answers: the gRPC service with the generated classes of
beaker-py, over TLS, and the HTTP request that creates experiments.
"""

import contextlib
import dataclasses
import json
import re
import sys
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from enum import Enum
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

if typing.TYPE_CHECKING:
    from support.beaker import Beaker

TOKEN = "a-token-of-the-stand-in"
OWNER, WORKSPACE, ME = "lab", "lab/sweeps", "someone"


class Wrong(Exception):
    """An HTTP error as an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def servicer(stand_in: "Beaker") -> Any:
    """Return the service. Methods that are not needed keep the generated class's answer:
    unimplemented."""
    import grpc
    from beaker import beaker_pb2 as messages
    from beaker import beaker_pb2_grpc

    def lacks(context: Any, what: str) -> Any:
        context.abort(grpc.StatusCode.NOT_FOUND, f"{what} not found")

    class Servicer(beaker_pb2_grpc.BeakerServicer):
        def GetUser(self, request: Any, context: Any) -> Any:  # noqa: N802
            return messages.GetUserResponse(user={"id": id_of("User", ME), "name": ME})

        def ResolveOrganizationName(self, request: Any, context: Any) -> Any:  # noqa: N802
            if request.organization_name != OWNER:
                return lacks(context, f"organization {request.organization_name}")
            made = messages.ResolveOrganizationNameResponse
            return made(organization_id=id_of("Organization", OWNER))

        def ResolveWorkspaceName(self, request: Any, context: Any) -> Any:  # noqa: N802
            name = f"{request.owner_name}/{request.workspace_name}"
            if name != WORKSPACE:
                return lacks(context, f"workspace {name}")
            made = messages.ResolveWorkspaceNameResponse
            return made(workspace_id=id_of("Workspace", WORKSPACE))

        def GetWorkspace(self, request: Any, context: Any) -> Any:  # noqa: N802
            if request.workspace_id != id_of("Workspace", WORKSPACE):
                return lacks(context, f"workspace {request.workspace_id}")
            workspace = messages.Workspace(
                id=request.workspace_id,
                name=WORKSPACE,
                archived=stand_in.archived,
                maximum_workload_priority=stand_in.most_priority,
            )
            if stand_in.workspace_budget:
                workspace.budget_id = id_of("Budget", stand_in.workspace_budget)
            return messages.GetWorkspaceResponse(workspace=workspace)

        def GetWorkspacePermissions(self, request: Any, context: Any) -> Any:  # noqa: N802
            made = messages.GetWorkspacePermissionsResponse()
            made.permissions.add(permission=stand_in.permission, user={"id": id_of("User", ME)})
            return made

        def GetSecret(self, request: Any, context: Any) -> Any:  # noqa: N802
            if request.secret_name not in stand_in.secrets:
                return lacks(context, f"secret {request.secret_name}")
            return messages.GetSecretResponse(secret={"name": request.secret_name})

        def ListNodes(self, request: Any, context: Any) -> Any:  # noqa: N802
            nodes = [{"id": id_of("Node", n.name), "hostname": n.name} for n in stand_in.nodes]
            return messages.ListNodesResponse(nodes=nodes)

        def GetNode(self, request: Any, context: Any) -> Any:  # noqa: N802
            for node in stand_in.nodes:
                if id_of("Node", node.name) == request.node_id:
                    return messages.GetNodeResponse(
                        node={"id": request.node_id, "hostname": node.name}
                    )
            return lacks(context, f"node {request.node_id}")

        def ListWorkloads(self, request: Any, context: Any) -> Any:  # noqa: N802
            options = request.options
            complete = (
                options.organization_id == id_of("Organization", OWNER) and options.workspace_id
            )
            if not (request.next_page_token or complete):  # one of the two is required
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
            """Return a page of the listing; all pages show the state at the first one."""
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


def _add_things(servicer: Any, stand_in: "Beaker", kind: str, lacks: Callable[..., Any]) -> None:
    """Add `Resolve<kind>Name` and `Get<kind>`."""
    from beaker import beaker_pb2 as messages

    key = kind.lower()
    whole = {"Budget": "", "Cluster": ""}.get(kind, "committed")

    def resolve(self: Any, request: Any, context: Any) -> Any:
        owner = {"Budget": "organization_name", "Cluster": "owner_name"}.get(kind, "author_name")
        name = f"{getattr(request, owner)}/{getattr(request, key + '_name')}"
        if name not in stand_in.things[kind]:
            return lacks(context, f"{key} {name}")
        return getattr(messages, f"Resolve{kind}NameResponse")(**{f"{key}_id": id_of(kind, name)})

    def get(self: Any, request: Any, context: Any) -> Any:
        for name, good in stand_in.things[kind].items():
            if id_of(kind, name) == getattr(request, f"{key}_id"):
                message = getattr(messages, kind)(id=id_of(kind, name), name=name)
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


def interceptor(stand_in: "Beaker") -> Any:
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
                    stand_in.over.wait(60)
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


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        beaker: Beaker = self.server.stand_in  # type: ignore[attr-defined]
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers["content-length"]))
        match = re.fullmatch(r"/api/v3/workspaces/([^/]+)/experiments", parts.path)
        if beaker.silent or match is None:
            return
        status, answer = 200, {}
        fault = beaker.fault("create")
        try:
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                raise Wrong(401, "invalid token")
            if fault is None or fault.after:
                name = parse_qs(parts.query)["name"][0]
                answer = {"id": beaker.create(match[1], name, json.loads(body))}
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


def id_of(kind: str, name: str) -> str:
    return f"{kind.lower()}-{name.replace('/', '-')}"
