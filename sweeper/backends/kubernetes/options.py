"""The options of Kubernetes (`launch.kubernetes`)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple, Never

from sweeper.backends import container_jobs
from sweeper.backends.secret_references import secrets_option
from sweeper.common.json_values import table_of
from sweeper.fields.kinds import Duration, Integer, Matching, Names, Number, Shape, Text, wrong
from sweeper.fields.nodes import Node, Problems, plain
from sweeper.fields.options import Option, section_of
from sweeper.fields.sections import Reading

_OURS = {
    *("restartPolicy", "terminationGracePeriodSeconds", "containers", "name", "image"),
    *("command", "args", "env", "envFrom", "resources", "workingDir", "stdin", "lifecycle", ""),
}
_OF_ALL = ("namespace", "context", "python", "secrets")
_DNS = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_KEY = r"([a-z0-9][a-z0-9.-]{0,252}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
_QUANTITY = r"[0-9]{1,15}(\.[0-9]{1,9})?(m|k|[KMGTPE]i?)?"
_TAINT = rf"{_KEY}(={_VALUE})?(:(NoSchedule|PreferNoSchedule|NoExecute))?"
_SECRETS_DOC = "Variables, each with the secret that contains its value."
_TAINTS = "taint: key, key=value, key:NoSchedule, key=value:NoExecute"
_POD_DOC = (
    "More fields of a pod's spec, as in Kubernetes; fields of its container go below `container`."
)
_TIMEOUT_DOC = "Kubernetes' time limit for a job, at least 60s; launch.timeout is the worker's."
_NOT_OURS = {"type": "object", "propertyNames": {"not": {"enum": sorted(_OURS)}}}
_CONTAINER_DOC = "More fields of its container."
_POD_SCHEMA = {
    **_NOT_OURS,
    "properties": {"container": {**_NOT_OURS, "description": _CONTAINER_DOC}},
}


def _pod(node: Node, where: str, problems: Problems) -> dict[str, object] | None:
    """Read additional fields of a pod's spec. Refuse fields that sweeper sets; the API server
    checks all other fields."""
    values, inside = plain(node), node.entries
    if inside is None:
        wrong(node, where, "a mapping, as the spec of a pod in Kubernetes", problems)
        return None
    container = inside.get("container")
    keys = {*inside, *((container[1].entries or {"": ""}) if container else ())}
    for key in sorted(keys & _OURS):
        problems.add(node.place, f"{where}: {key or 'container'} is set by sweeper")
    return table_of(values)


def _mapping(of: str, values: Matching, ours: tuple[str, ...] = ()) -> Names:
    return Names(f"a mapping of {of}", Matching(_KEY, "it"), values=values, reserved=ours)


_CPUS = Number(0, 1024, above=True)
_NAME = Text(_DNS, "{} is not a name in Kubernetes: a-z, 0-9, - and .")
_NAMES = container_jobs.texts_matching(_DNS, "name of a secret", most=50)
_AMOUNT = Text(_QUANTITY, "{} is not an amount such as 4Gi or 512Mi")
_LABEL = Matching(_VALUE, "at most 63 letters, digits, - _ and .")
_LABELS = _mapping("labels to values", _LABEL)
_OUR_LABELS = _mapping("labels to values", _LABEL, ("sweeper/", "kueue.x-k8s.io/"))
_AMOUNTS = Matching(_QUANTITY, 'an amount, quoted: "1" or "10Gi"')
_RESOURCES = _mapping("resources to amounts", _AMOUNTS)
_TOLERATIONS = container_jobs.texts_matching(_TAINT, _TAINTS, most=50)
_REFERENCE = Matching(
    rf"{_DNS}/[A-Za-z0-9._-]{{1,253}}",
    "a secret of the namespace and a key in it, `secret/key`, never the value",
)
_DAY = 86400.0
_NONE: Mapping[str, Never] = MappingProxyType({})


class Options(NamedTuple):
    """Options of Kubernetes jobs. `secrets` maps variables to secrets, written `secret/key`. `pod`
    has additional fields of a pod's spec."""

    image: Annotated[
        str | None,
        container_jobs.image_option("An image that contains sweeper, preferably with its digest."),
    ] = None
    secrets: Annotated[
        Mapping[str, str], secrets_option(_SECRETS_DOC, _REFERENCE, "tinker/api-key")
    ] = _NONE
    namespace: Annotated[
        str | None, Option(_NAME, "The namespace. Default: the context's.", "research")
    ] = None
    context: Annotated[
        str | None,
        Option(
            container_jobs.LINE, "A context of the kubeconfig. Default: the current context.", "lab"
        ),
    ] = None
    python: Annotated[str, container_jobs.PYTHON] = "python"
    cpus: Annotated[float, Option(_CPUS, "CPUs that a job asks for.")] = 1
    memory: Annotated[
        str, Option(_AMOUNT, "Memory that a job asks for, which is also its limit.")
    ] = "2Gi"
    gpus: Annotated[int | None, Option(Integer(1, 64), "GPUs of a job, as nvidia.com/gpu.", 1)] = (
        None
    )
    resources: Annotated[
        Mapping[str, str], Option(_RESOURCES, "Other resources.", {"ephemeral-storage": "10Gi"})
    ] = _NONE
    node_selector: Annotated[
        Mapping[str, str], Option(_LABELS, "Labels of the nodes.", {"pool": "spot"})
    ] = _NONE
    tolerations: Annotated[
        tuple[str, ...], Option(_TOLERATIONS, "Taints of nodes.", ["spot=true:NoSchedule"])
    ] = ()
    priority_class: Annotated[
        str | None, Option(_NAME, "The priority class of the jobs.", "low")
    ] = None
    service_account: Annotated[
        str | None,
        Option(_NAME, "The service account of the jobs, with access to the bucket.", "runs"),
    ] = None
    queue: Annotated[
        str | None, Option(_NAME, "Kueue's local queue, which decides when jobs start.", "team")
    ] = None
    pull_secrets: Annotated[
        tuple[str, ...], Option(_NAMES, "Secrets for fetching the image.", ["registry"])
    ] = ()
    labels: Annotated[
        Mapping[str, str],
        Option(_OUR_LABELS, "Labels of jobs and pods.", {"team": "post-training"}),
    ] = _NONE
    pod: Annotated[
        Mapping[str, object],
        Option(Shape(_POD_SCHEMA, _pod), _POD_DOC, {"runtimeClassName": "nvidia"}),
    ] = _NONE
    timeout_s: Annotated[float | None, Option(Duration(60), _TIMEOUT_DOC, "2h")] = None
    ttl_s: Annotated[
        float, Option(Duration(600), "How long an ended job stays in the cluster.")
    ] = 7 * _DAY


def _check(reading: Reading) -> None:
    container_jobs.check_same_for_all_runs(reading, _OF_ALL)


SECTION = section_of(Options, check=_check)
