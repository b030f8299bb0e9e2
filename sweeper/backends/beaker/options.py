"""The options of Beaker (`launch.beaker`), and how they are merged."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple, Never

from sweeper.backends import container_jobs
from sweeper.backends.secret_references import NO_VALUE, secrets_option
from sweeper.fields import kinds
from sweeper.fields.kinds import Matching, Names, Text
from sweeper.fields.options import Option, section_of
from sweeper.fields.sections import Reading

APART = ("image", "docker_image"), ("min_runtime", "preemptible")
"""Pairs of options that exclude each other."""

_OF_ALL = ("workspace", "python", "secrets")
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_OWNED = rf"({_WORD}/)?{_WORD}"
_NEVER_VALUES = "the name of a secret of the workspace, never the value"
_TIMEOUT_DOC = "Beaker's time limit for a job, at least 60s; launch.timeout is the worker's."
_PREEMPTIBLE_DOC = (
    "Whether jobs may be preempted by others. The launcher then restarts them. Default: true."
)


def _mounts(pattern: str, targets: str) -> Names:
    path = Matching(r"/[^\x00-\x1f\x7f:]{1,250}", "a path in the container")
    return Names(
        f"a mapping of paths to {targets}", path, values=Matching(pattern, f"one of {targets}")
    )


_OWN = Text(_OWNED, "{} is not a name in Beaker: owner/name, or an id")
_SIZE = Text(r"[0-9]{1,9}(\.[0-9]{1,3})?[KMGT]iB", "{} is not an amount such as 4GiB or 512MiB")
_CLUSTER = rf"{_WORD}/[A-Za-z0-9_.*-]{{1,127}}"
_CLUSTERS = container_jobs.texts_matching(_CLUSTER, "name of a cluster: owner/name", least=1)
_HOSTS = container_jobs.texts_matching(_WORD, "name of a node", least=1)
_LEVELS = kinds.Choice("low", "normal", "high", "urgent", "immediate")
_SECRET = Matching(NO_VALUE + _WORD, _NEVER_VALUES)
_DATASETS, _WEKA = _mounts(_OWNED, "the datasets"), _mounts(_WORD, "Weka's buckets")
_MINUTE = kinds.Duration(60)
_SECRETS_DOC = "Variables, each with the secret that contains its value."
_NONE: Mapping[str, Never] = MappingProxyType({})


class Options(NamedTuple):
    """Options of Beaker jobs. `secrets` maps variables to names of secrets. `datasets` and `weka`
    map paths in the container to the datasets and buckets that are mounted there."""

    image: Annotated[
        str | None, Option(_OWN, "An image in Beaker that contains sweeper.", "lab/sweeper")
    ] = None
    docker_image: Annotated[
        str | None,
        container_jobs.image_option("Alternatively, an image in a registry, with its digest."),
    ] = None
    secrets: Annotated[
        Mapping[str, str], secrets_option(_SECRETS_DOC, _SECRET, "TINKER_API_KEY")
    ] = _NONE
    workspace: Annotated[
        str | None,
        Option(_OWN, "The workspace. Default: that of your Beaker configuration.", "lab/sweeps"),
    ] = None
    budget: Annotated[
        str | None, Option(_OWN, "The budget that pays. Default: the workspace's.", "lab/training")
    ] = None
    clusters: Annotated[
        tuple[str, ...], Option(_CLUSTERS, "Where jobs may run.", ["lab/a100"])
    ] = ()
    hostnames: Annotated[
        tuple[str, ...],
        Option(
            _HOSTS,
            "Nodes where jobs may run. Default: all nodes of the clusters.",
            ["node-3.lab.org"],
        ),
    ] = ()
    priority: Annotated[str | None, Option(_LEVELS, "The priority of the jobs.", "normal")] = None
    preemptible: Annotated[bool | None, Option(kinds.Flag(), _PREEMPTIBLE_DOC, True)] = None
    min_runtime_s: Annotated[
        float | None, Option(_MINUTE, "How long a job is protected from preemption.", "1h")
    ] = None
    python: Annotated[str, container_jobs.PYTHON] = "python"
    cpus: Annotated[float, Option(kinds.Number(0, 1024, above=True), "CPUs of a job.")] = 1
    memory: Annotated[str, Option(_SIZE, "Memory of a job.")] = "2GiB"
    gpus: Annotated[int | None, Option(kinds.Integer(1, 64), "GPUs of a job.", 1)] = None
    shared_memory: Annotated[
        str | None, Option(_SIZE, "Shared memory of a job (/dev/shm).", "10GiB")
    ] = None
    datasets: Annotated[
        Mapping[str, str],
        Option(_DATASETS, "Beaker datasets, by path in the container.", {"/data": "lab/prompts"}),
    ] = _NONE
    weka: Annotated[
        Mapping[str, str],
        Option(_WEKA, "Weka buckets, by path in the container.", {"/weka/models": "models"}),
    ] = _NONE
    timeout_s: Annotated[float | None, Option(_MINUTE, _TIMEOUT_DOC, "2h")] = None


def _check(reading: Reading) -> None:
    container_jobs.check_same_for_all_runs(reading, _OF_ALL)
    for key, other in APART:
        if reading.given(key) and reading.given(other):
            message = f"{reading.path(key)} and {other} exclude each other: remove one"
            reading.problem(key, message)


def _both(keys: tuple[str, str]) -> dict[str, object]:
    present = {key: {"not": {"type": "null"}} for key in keys}
    return {"type": "object", "required": list(keys), "properties": present}


SECTION = section_of(
    Options, check=_check, more={"not": {"anyOf": [_both(keys) for keys in APART]}}
)


def merged(before: Mapping[str, object], later: Mapping[str, object]) -> dict[str, object]:
    """Return `before` merged with `later`, which takes precedence. Leave out the options of
    `before` that cannot be combined with an option of `later` (`APART`)."""
    keys = {key.removesuffix("_s") for key in later}
    gone = {key for pair in APART if not keys.isdisjoint(pair) for key in pair}
    return {k: v for k, v in before.items() if k.removesuffix("_s") not in gone} | dict(later)
