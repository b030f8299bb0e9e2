"""The description of the Kubernetes backend and its section of a grid. The other code is loaded
when a sweep is launched there."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import cast

from sweeper.backends import container_jobs
from sweeper.backends.base import Backend, BackendType, Batches, Capabilities, Check, Manifest
from sweeper.backends.kubernetes.options import Options, asked_of
from sweeper.backends.secret_references import secrets_field
from sweeper.common.json_values import table_of
from sweeper.fields.kinds import (
    Duration,
    Integer,
    Matching,
    Names,
    Number,
    Shape,
    Text,
    wrong,
)
from sweeper.fields.nodes import Node, Problems, plain
from sweeper.fields.sections import Field, Reading, Section

__all__ = ["BACKEND"]

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
_TAINTS = "taint: key, key=value, key:NoSchedule, key=value:NoExecute"
_POD = "More fields of a pod's spec, as in Kubernetes; under container, those of its container."
_TIMEOUT = "Kubernetes' time limit for a job, at least 60s; launch.timeout is the worker's."
_NOT_OURS = {"type": "object", "propertyNames": {"not": {"enum": sorted(_OURS)}}}
_C = "More fields of its container."
_POD_SCHEMA = {**_NOT_OURS, "properties": {"container": {**_NOT_OURS, "description": _C}}}


def _pod(node: Node, where: str, problems: Problems) -> dict[str, object] | None:
    """Read further fields of a pod's spec. The API server checks them; only sweeper's own fields
    are refused here."""
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


def _check(reading: Reading) -> None:
    container_jobs.check_same_for_all_runs(reading, _OF_ALL)


_OPTIONAL = (
    Field("namespace", _NAME, "The namespace. Default: the context's.", examples=("research",)),
    Field(
        "context",
        container_jobs.LINE,
        "A context of the kubeconfig. Default: the current.",
        examples=("lab",),
    ),
    container_jobs.PYTHON,
    Field("cpus", Number(0, 1024, above=True), "CPUs that a job asks for.", 1),
    Field("memory", _AMOUNT, "Memory that a job asks for, which is also its limit.", "2Gi"),
    Field("gpus", Integer(1, 64), "GPUs of a job, as nvidia.com/gpu.", examples=(1,)),
    Field("resources", _RESOURCES, "Other resources.", examples=({"ephemeral-storage": "10Gi"},)),
    Field("node_selector", _LABELS, "Labels of the nodes.", examples=({"pool": "spot"},)),
    Field("tolerations", _TOLERATIONS, "Taints of nodes.", examples=(["spot=true:NoSchedule"],)),
    Field("priority_class", _NAME, "The priority class of the jobs.", examples=("low",)),
    Field(
        "service_account",
        _NAME,
        ("The service account of the jobs, with access to the bucket."),
        examples=("runs",),
    ),
    Field(
        "queue", _NAME, "Kueue's local queue, which decides when jobs start.", examples=("team",)
    ),
    Field("pull_secrets", _NAMES, "Secrets for fetching the image.", examples=(["registry"],)),
    Field("labels", _OUR_LABELS, "Labels of jobs and pods.", examples=({"team": "post-training"},)),
    Field("pod", Shape(_POD_SCHEMA, _pod), _POD, examples=({"runtimeClassName": "nvidia"},)),
    Field("timeout", Duration(60), _TIMEOUT, examples=("2h",), key="timeout_s"),
    Field("ttl", Duration(600), "How long an ended job stays in the cluster.", "7d", key="ttl_s"),
)
SECTION = Section(
    container_jobs.image_field("An image that contains sweeper, best by its digest."),
    secrets_field("Variables, and the secrets that hold them.", _REFERENCE, "tinker/api-key"),
    *_OPTIONAL,
    check=_check,
)


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.kubernetes.backend import open_backend

    return open_backend(sweep, folder, _whole(options))


def _whole(given: Mapping[str, object]) -> Options:
    """Return the options with their defaults. Raises `UsageError` without an image."""
    return cast(Options, container_jobs.options_with_image(SECTION, given, "kubernetes"))


def _capabilities(given: Mapping[str, object]) -> Capabilities:
    return container_jobs.capabilities(_whole(given), "KUBECONFIG")


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.kubernetes.doctor import checks

    return checks(cast(Options, SECTION.with_defaults(options)))


def _manifests(
    sweep: str, folder: str, options: Mapping[str, object], batches: Batches
) -> Iterator[Manifest]:
    """Yield a Job per job."""
    from sweeper.backends.identity import NOT_YET
    from sweeper.backends.kubernetes.manifest import Names, manifest

    names, given = Names(sweep, folder), _whole(options)
    names.identity.preview()
    for job in chain.from_iterable(batches):
        made = manifest(job, asked_of(given, job.resources), names, NOT_YET)
        yield Manifest(job.title, made)


BACKEND = BackendType(
    "kubernetes",
    "Options of Kubernetes jobs: docs/kubernetes.md.",
    _open,
    SECTION,
    by_run=True,
    capabilities=_capabilities,
    checks=_checks,
    manifests=_manifests,
)
