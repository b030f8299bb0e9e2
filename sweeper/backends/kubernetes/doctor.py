"""Checks a cluster before the first job: the account and its permissions, the image's address, the
secrets, the service account, the priority class, the queue, the nodes. Changes nothing in the
cluster. A missing permission for an optional check does not prevent a launch."""

import functools
from collections.abc import Callable, Iterator

from sweeper.backends.base import Check
from sweeper.backends.container_jobs import require_digest
from sweeper.backends.kubernetes.client import JOBS, KUEUES, METADATA, Cluster, Kind, Refused
from sweeper.backends.kubernetes.options import Options
from sweeper.common.json_values import table_of

NEEDED = (
    *(("create", "batch", "jobs"), ("get", "batch", "jobs"), ("list", "batch", "jobs")),
    *(("delete", "batch", "jobs"), ("list", "", "pods")),
)
"""Permissions that a launcher requires: verb, group, resource."""
OF_USE = (
    (("get", "", "pods/log"), "`logs` shows nothing for a job that never started"),
    (("create", "", "pods"), "a pod that the cluster refuses is noticed only after the launch"),
    (("get", "", "secrets"), "a missing secret is noticed only when a job waits for it"),
    (("list", "", "events"), "it is unknown why a job has no pod"),
)
_KUEUE = ("list", "kueue.x-k8s.io", "workloads"), "it is unknown why Kueue does not admit a job"
_KUEUE_API, _QUEUES = "/apis/kueue.x-k8s.io", "namespaces/{}/localqueues"
_NODES = Kind[object]("/api/v1/nodes")
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def checks(options: Options, connected: Cluster | None = None) -> list[Check]:
    """Return the checks of `sweeper doctor --backend kubernetes` for jobs with these options."""

    @functools.cache
    def cluster() -> Cluster:
        if connected is not None:
            return connected
        return Cluster(options.context, options.namespace)

    def check(action: Callable[[Cluster, Options], str]) -> Callable[[], str]:
        return lambda: action(cluster(), options)

    steps = [
        Check("API server", True, check(_server)),
        Check("permissions", True, check(_permissions)),
        Check("optional permissions", False, check(_of_use)),
        Check("image", options.image is None, check(_image)),
        Check("nodes", False, check(_nodes)),
    ]
    if options.queue:
        steps.append(Check("Kueue's queue", True, check(_queue)))
    for label, key, path in _named(options):
        steps.append(Check(label, True, lambda p=path, k=key: _check_object(cluster(), p, k)))
    return steps


def _named(options: Options) -> Iterator[tuple[str, str, str]]:
    """Yield a tuple (label, option, API path) for each object that an option refers to."""
    namespace = "/api/v1/namespaces/{}"
    if options.service_account is not None:
        account = f"{namespace}/serviceaccounts/{options.service_account}"
        yield "service account", "service_account", account
    if options.priority_class is not None:
        priority = f"/apis/scheduling.k8s.io/v1/priorityclasses/{options.priority_class}"
        yield "priority class", "priority_class", priority
    for name in options.pull_secrets:
        yield f"secret {name}", "pull_secrets", f"{namespace}/secrets/{name}"
    for variable, reference in sorted(options.secrets.items()):
        secret = reference.partition("/")[0]
        yield f"secret {variable}", "secrets", f"{namespace}/secrets/{secret}"


def _server(cluster: Cluster, options: Options) -> str:
    del options
    version = cluster.call("GET", "/version")["gitVersion"]
    return f"{cluster.host}, {version}, namespace {cluster.namespace}"


def _allowed(cluster: Cluster, permission: tuple[str, str, str]) -> bool:
    verb, group, resource = permission
    resource, _, below = resource.partition("/")
    attributes = {
        "namespace": cluster.namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
    }
    attributes |= {"subresource": below} if below else {}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    try:
        return bool(table_of(cluster.call("POST", _REVIEWS, body)["status"])["allowed"])
    except Refused as error:
        if error.status != 403:
            raise
        # This account may not query its own permissions. If one is missing, the request that needs
        # it fails.
        return True


def _permissions(cluster: Cluster, options: Options) -> str:
    del options
    lacking = [f"{v} {r}" for v, g, r in NEEDED if not _allowed(cluster, (v, g, r))]
    if lacking:
        raise LookupError(
            f"not allowed in namespace {cluster.namespace}: {', '.join(lacking)}. The role in "
            "docs/kubernetes.md allows all that sweeper needs"
        )
    # List jobs, so that this check fails if the server does not answer.
    next(cluster.items(JOBS, labelSelector="sweeper/sweep=none"), None)
    return ", ".join(f"{verb} {resource}" for verb, _, resource in NEEDED)


def _of_use(cluster: Cluster, options: Options) -> str:
    wanted = (*OF_USE, _KUEUE) if options.queue else OF_USE
    for (verb, group, resource), without in wanted:
        if not _allowed(cluster, (verb, group, resource)):
            raise LookupError(f"not allowed to {verb} {resource}, so {without}")
    return ", ".join(f"{verb} {resource}" for (verb, _, resource), _ in wanted)


def _image(cluster: Cluster, options: Options) -> str:
    del cluster
    if options.image is None:
        raise LookupError(
            "no image is given: set launch.kubernetes.image, or give the grid: --grid GRID"
        )
    return require_digest(options.image)


def _nodes(cluster: Cluster, options: Options) -> str:
    selector = options.node_selector
    wanted = ",".join(f"{key}={value}" for key, value in selector.items())
    nodes = list(cluster.items(_NODES, labelSelector=wanted))
    if not nodes:
        raise LookupError(
            f"no node has {wanted or 'joined the cluster'}: jobs wait until there is one"
        )
    return f"{len(nodes)} with {wanted}" if wanted else f"{len(nodes)}"


def _queue(cluster: Cluster, options: Options) -> str:
    """Check that Kueue's queue exists. A job in a missing queue would stay suspended forever."""
    name = options.queue
    for version in KUEUES:
        try:
            return _check_object(cluster, f"{_KUEUE_API}/{version}/{_QUEUES}/{name}", "queue")
        except LookupError as error:
            if f'"{name}" not found' in str(error):
                raise
    raise LookupError(
        "the cluster has no Kueue, so no job would start: see launch.kubernetes.queue"
    )


def _check_object(cluster: Cluster, path: str, key: str) -> str:
    """Return the name of the object at `path`, with a note if this user may not read the object.
    The option `key` refers to the object. Raises `LookupError` if the object does not exist."""
    name = path.rpartition("/")[2]
    try:
        cluster.call("GET", path, accept=METADATA)
    except Refused as error:
        if error.status == 403:
            return f"{name}: cannot be read: {error}"
        if error.status != 404:
            raise
        message = str(error).removeprefix("kubernetes: ")
        raise LookupError(f"{message}: see launch.kubernetes.{key}") from error
    return name
