"""The API server of the stand-in for Kubernetes: authorization, faults, checks, listings.

Jobs that do not fit Kubernetes' published schema (`kubernetes_job.json`), or that break further
rules (`_rules`), are refused. Listings have label and field selectors, and pages.
"""

import copy
import json
import re
import socket
import time
import uuid
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jsonschema
from support.stand_in import StandIn, take

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
    `after`: the request still takes effect. Status 0: the connection is closed half-way.
    `retry` is the `Retry-After` of status 429."""

    method: str
    resource: str
    status: int
    times: int = 1
    after: bool = False
    message: str = "the stand-in was told to"
    retry: str = "1"


class Api(StandIn):
    """Answers requests to one namespace."""

    nodes: list[Any]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.things: dict[str, dict[str, Thing]] = {}
        self.requests: list[tuple[str, str]] = []
        self._pages: dict[str, list[Thing]] = {}
        self._version = 0

    def reset_api(self) -> None:
        """Remove all faults and limits of requests."""
        self.faults: list[Fault] = []
        self.forgets = 0  # how many of the next `continue` parameters have expired
        self.page = 10**9  # the most things on a page of a listing
        self.silent = self.restricted = False
        self.mute_with_a_job = False  # silent once there is a job
        self.denied: set[tuple[str, str]] = set()  # (verb, resource)
        self.quota: int | None = None  # of pods
        self.most_jobs: int | None = None
        self.missing_kinds: set[str] = set()
        self.requests.clear()

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
            raise Wrong(
                fault.status, "Fault", fault.message, fault.retry if fault.status == 429 else ""
            )
        with self.lock:
            answer = self._do(method, resource, name, sub, query, headers, body)
        if fault is not None:
            raise Wrong(fault.status, "Fault", fault.message)
        return answer

    def _fault(self, method: str, resource: str) -> Fault | None:
        with self.lock:
            return take(
                fault
                for fault in self.faults
                if fault.method in ("", method) and fault.resource in ("", resource)
            )

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
            return self.log(name).read_text(errors="replace")
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
        # Each page shows the state at the beginning of the listing.
        items = copy.deepcopy(things[:limit])
        return {"items": items, "metadata": {"resourceVersion": str(self._version), **more}}

    def _create(self, resource: str, query: Thing, body: Thing) -> Thing:
        if query.get("dryRun") == "All" and resource == "pods":
            self.admit(body["spec"])
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
        job["metadata"] |= {"uid": uuid.uuid4().hex, "creationTimestamp": stamp(), "generation": 1}
        job["metadata"]["namespace"] = NAMESPACE
        job["status"] = {}
        jobs[name] = job
        return copy.deepcopy(job)

    def _delete(self, resource: str, thing: Thing, how: Thing) -> Thing:
        meta = thing["metadata"]
        if how.get("preconditions", {}).get("uid", meta["uid"]) != meta["uid"]:
            raise Wrong(409, "Conflict", "the UID in the precondition does not match")
        if how.get("propagationPolicy") == "Foreground":
            meta.setdefault("deletionTimestamp", stamp())
            meta["finalizers"] = ["foregroundDeletion"]
        else:
            del self.things[resource][meta["name"]]
        return {"kind": "Status", "status": "Success"}

    def admit(self, spec: Thing) -> None:
        """Check a new pod, from a client or from a controller. Raises `Wrong`."""
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
        going = sum(not ended(pod) for pod in self.things["pods"].values())
        if self.quota is not None and going >= self.quota:
            raise Wrong(
                403,
                "Forbidden",
                f'pods "x" is forbidden: exceeded quota: compute, used: pods={going}',
            )


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        cluster: Api = self.server.stand_in  # type: ignore[attr-defined]
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        if cluster.mute_with_a_job and cluster.things["jobs"]:
            cluster.silent = True
        if cluster.silent:
            self.close_connection = True
            return
        status, retry = 200, ""
        try:
            answer = cluster.answer(self.command, self.path, self.headers, body)
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


def ended(pod: Thing) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def stamp(later: float = 0.0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + later))


Api.handler = Handler
