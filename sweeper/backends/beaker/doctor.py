"""Checks Beaker before the first job: the account, the workspace and its budget, the image, the
clusters and their nodes, datasets, secrets. Changes nothing in the workspace. A missing permission
for an optional check does not prevent a launch."""

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, overload

from sweeper.backends.base import Check
from sweeper.backends.beaker.client import Refused, Service
from sweeper.backends.beaker.options import Options
from sweeper.backends.beaker.status import word
from sweeper.backends.container_jobs import require_digest

if TYPE_CHECKING:
    from beaker.beaker_pb2 import Cluster
    from google.protobuf.message import Message

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MAY_NOT = "WORKSPACE_PERMISSION_NONE", "WORKSPACE_PERMISSION_READ"
_LEVELS = ("low", "normal", "high", "urgent", "immediate")


def checks(options: Options, service: Service | None = None) -> list[Check]:
    """Return the checks of `sweeper doctor --backend beaker` for jobs with these options."""

    @functools.cache
    def connected() -> Service:
        return service if service is not None else Service(options.workspace)

    def check(action: Callable[[Service, Options], str]) -> Callable[[], str]:
        return lambda: action(connected(), options)

    def check_named(action: Callable[[Service, Options, str], str], name: str) -> Callable[[], str]:
        return check(lambda service, options: action(service, options, name))

    steps = [
        Check("Beaker", True, check(_account)),
        Check("workspace", True, check(_workspace)),
        Check("permission", True, check(_permission)),
        Check("budget", True, check(_budget)),
        Check("image", options.docker_image is None, check(_image)),
    ]
    if options.priority is not None:
        steps.append(Check("priority", True, check_named(_priority, options.priority)))
    named = [name for name in options.clusters if "*" not in name]
    steps += [Check(f"cluster {name}", True, check_named(_cluster, name)) for name in named]
    if hostnames := options.hostnames:
        steps.append(Check("nodes", True, check(partial(_nodes, hostnames))))
    for path, name in sorted(options.datasets.items()):
        steps.append(Check(f"dataset {path}", True, check_named(_dataset, name)))
    for variable, name in sorted(options.secrets.items()):
        steps.append(Check(f"secret {variable}", True, check(partial(_secret, variable, name))))
    return steps


def _account(service: Service, options: Options) -> str:
    del options
    return f"{service.host}, as {service.ask('GetUser').user.name}"


def _workspace(service: Service, options: Options) -> str:
    del options
    try:
        workspace = service.ask("GetWorkspace", workspace_id=service.workspace_id).workspace
    except Refused as error:
        raise LookupError(f"the workspace {service.workspace}: {_reason(error)}") from error
    if workspace.archived:
        raise LookupError(f"the workspace {service.workspace} is archived: it runs no jobs")
    return service.workspace


def _permission(service: Service, options: Options) -> str:
    del options
    me = service.ask("GetUser").user.id
    try:
        answer = service.ask("GetWorkspacePermissions", workspace_id=service.workspace_id)
    except Refused as error:
        return f"cannot be read: {_reason(error)}"
    permissions = [word(entry, "permission") for entry in answer.permissions if entry.user.id == me]
    if permissions and all(role in _MAY_NOT for role in permissions):
        raise LookupError(
            f"you have only read access to the workspace {service.workspace}: ask its owner "
            "for write permission"
        )
    return "may run jobs"


def _budget(service: Service, options: Options) -> str:
    name = options.budget
    if name is None:
        budget_id = service.ask(
            "GetWorkspace", workspace_id=service.workspace_id
        ).workspace.budget_id
        if not budget_id:
            raise LookupError(
                f"the workspace {service.workspace} has no budget: set launch.beaker.budget"
            )
        return "the workspace's budget"
    budget = _find_object(service, "Budget", name)
    if budget is not None and budget.HasField("deprecated"):
        raise LookupError(
            f"the budget {name} is deprecated: set launch.beaker.budget to another budget"
        )
    return name


def _image(service: Service, options: Options) -> str:
    if options.image is not None:
        return _committed(service, "Image", options.image)
    if options.docker_image is None:
        raise LookupError(
            "no image is given: set launch.beaker.image, or give the grid: --grid GRID"
        )
    return require_digest(options.docker_image)


def _priority(service: Service, options: Options, level: str) -> str:
    del options
    workspace = service.ask("GetWorkspace", workspace_id=service.workspace_id).workspace
    most = word(workspace, "maximum_workload_priority").rpartition("_")[2]
    if most.lower() in _LEVELS and _LEVELS.index(level) > _LEVELS.index(most.lower()):
        raise LookupError(
            f"the workspace {service.workspace} allows priorities up to {most.lower()}, not {level}"
        )
    return level


def _cluster(service: Service, options: Options, name: str) -> str:
    cluster = _find_object(service, "Cluster", name)
    if cluster is None:
        return f"{name}: cannot be read"
    shape = cluster.node_shape
    amount, unit = options.memory[:-3], options.memory[-3:]
    wanted = (
        ("GPUs", options.gpus or 0, shape.gpu_count),
        ("CPUs", options.cpus, shape.cpu_count),
        ("bytes of memory", round(float(amount) * _UNITS[unit]), shape.memory_bytes),
    )
    for kind, wanted_count, available in wanted if shape.cpu_count else ():
        if wanted_count > available:
            raise LookupError(
                f"the nodes of {name} have {available} {kind}, but a job asks for {wanted_count}"
            )
    most = cluster.max_task_timeout.ToSeconds()
    if most and (options.timeout_s or 0) > most:
        raise LookupError(
            f"{name} allows jobs of at most {most} s: set launch.beaker.timeout to {most}s or less"
        )
    return f"{name}: {cluster.node_count} nodes of {shape.cpu_count} CPUs, {shape.gpu_count} GPUs"


def _nodes(hostnames: Sequence[str], service: Service, options: Options) -> str:
    del options
    pages = service.pages("ListNodes")
    listed = {node.hostname for page in pages for node in page.nodes}
    missing = [name for name in hostnames if name not in listed]
    if missing:
        raise LookupError(f"no node {', '.join(missing)}")
    return ", ".join(hostnames)


def _dataset(service: Service, options: Options, name: str) -> str:
    del options
    return _committed(service, "Dataset", name)


def _committed(service: Service, kind: str, name: str) -> str:
    entry = _find_object(service, kind, name)
    if entry is not None and not entry.HasField("committed"):
        raise LookupError(
            f"the {kind.lower()} {name} is not committed: its upload was never completed"
        )
    return name


def _secret(variable: str, name: str, service: Service, options: Options) -> str:
    """Check that the secret exists. The message about a missing secret does not contain `name`,
    since users may have written a secret's value there."""
    del options
    try:
        service.ask("GetSecret", workspace_id=service.workspace_id, secret_name=name)
    except Refused as error:
        if error.status != "NOT_FOUND":
            return f"{name}: cannot be read"
        raise LookupError(
            f"the secret for {variable} in launch.beaker.secrets is not in the workspace "
            f"{service.workspace}: create it with `beaker secret write NAME`"
        ) from error
    return name


@overload
def _find_object(service: Service, kind: Literal["Cluster"], name: str) -> "Cluster | None": ...


@overload
def _find_object(service: Service, kind: str, name: str) -> "Message | None": ...


def _find_object(service: Service, kind: str, name: str) -> "Message | None":
    """Return the object called `name`; None if this user may not read the object. Raises
    `LookupError` if the object does not exist."""
    key = kind.lower()
    try:
        answer = service.ask(f"Get{kind}", **{f"{key}_id": service.identity(kind, name)})
    except Refused as error:
        if error.status == "PERMISSION_DENIED":
            return None
        raise LookupError(f"the {key} {name}: {_reason(error)}") from error
    return getattr(answer, key)


def _reason(error: Refused) -> str:
    return (
        "it does not exist" if error.status == "NOT_FOUND" else str(error).removeprefix("beaker: ")
    )
