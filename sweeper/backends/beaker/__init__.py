"""The description of the Beaker backend and its section of a grid. The other code is loaded when a
sweep is launched there."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import cast

from sweeper.backends import container_jobs
from sweeper.backends.base import Backend, BackendType, Batches, Capabilities, Check, Manifest
from sweeper.backends.beaker.options import APART, Options, asked_of, merged
from sweeper.backends.secret_references import NO_VALUE, secrets_field
from sweeper.fields import kinds
from sweeper.fields.kinds import Matching, Names, Text
from sweeper.fields.sections import Field, Reading, Section

__all__ = ["BACKEND"]

_OF_ALL = ("workspace", "python", "secrets")
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_OWNED = rf"({_WORD}/)?{_WORD}"
_NEVER_VALUES = "the name of a secret of the workspace, never the value"
_TIMEOUT = "Beaker's time limit for a job, at least 60s; launch.timeout is the worker's."
_PREEMPTIBLE = (
    "Whether others may take a job's place; the launcher then restarts it. Default: true."
)


def _mounts(pattern: str, of: str) -> Names:
    path = Matching(r"/[^\x00-\x1f\x7f:]{1,250}", "a path in the container")
    return Names(f"a mapping of paths to {of}", path, values=Matching(pattern, f"one of {of}"))


def _check(reading: Reading) -> None:
    container_jobs.check_same_for_all_runs(reading, _OF_ALL)
    for one, other in APART:
        if reading.given(one) and reading.given(other):
            reading.problem(
                one, (f"{reading.path(one)} and {other} exclude each other: remove one")
            )


def _both(keys: tuple[str, str]) -> dict[str, object]:
    given = {key: {"not": {"type": "null"}} for key in keys}
    return {"type": "object", "required": list(keys), "properties": given}


_OWN = Text(_OWNED, "{} is not a name in Beaker: owner/name, or an id")
_SIZE = Text(r"[0-9]{1,9}(\.[0-9]{1,3})?[KMGT]iB", "{} is not an amount such as 4GiB or 512MiB")
_CLUSTER = rf"{_WORD}/[A-Za-z0-9_.*-]{{1,127}}"
_CLUSTERS = container_jobs.texts_matching(_CLUSTER, "name of a cluster: owner/name", least=1)
_HOSTS = container_jobs.texts_matching(_WORD, "name of a node", least=1)
_LEVELS = kinds.Choice("low", "normal", "high", "urgent", "immediate")
_SECRET = Matching(NO_VALUE + _WORD, _NEVER_VALUES)
_DATASETS, _WEKA = _mounts(_OWNED, "the datasets"), _mounts(_WORD, "Weka's buckets")
_MINUTE = kinds.Duration(60)
SECTION = Section(
    Field("image", _OWN, "An image in Beaker that contains sweeper.", examples=("lab/sweeper",)),
    container_jobs.image_field("Or an image in a registry, by its digest.", "docker_image"),
    secrets_field("Variables, and the secrets that hold them.", _SECRET, "TINKER_API_KEY"),
    Field(
        "workspace", _OWN, "Default: that of your Beaker configuration.", examples=("lab/sweeps",)
    ),
    Field(
        "budget",
        _OWN,
        "The budget that pays. Default: the workspace's.",
        examples=("lab/training",),
    ),
    Field("clusters", _CLUSTERS, "Where jobs may run.", examples=(["lab/a100"],)),
    Field("hostnames", _HOSTS, "The nodes, if it matters which.", examples=(["node-3.lab.org"],)),
    Field("priority", _LEVELS, "The priority of the jobs.", examples=("normal",)),
    Field("preemptible", kinds.Flag(), _PREEMPTIBLE, examples=(True,)),
    Field(
        "min_runtime",
        _MINUTE,
        "How long others may not preempt a job.",
        None,
        ("1h",),
        "min_runtime_s",
    ),
    container_jobs.PYTHON,
    Field("cpus", kinds.Number(0, 1024, above=True), "CPUs of a job.", 1),
    Field("memory", _SIZE, "Memory of a job.", "2GiB"),
    Field("gpus", kinds.Integer(1, 64), "GPUs of a job.", examples=(1,)),
    Field("shared_memory", _SIZE, "Its shared memory, /dev/shm.", examples=("10GiB",)),
    Field(
        "datasets",
        _DATASETS,
        "Beaker datasets, by path in the container.",
        examples=({"/data": "lab/prompts"},),
    ),
    Field(
        "weka",
        _WEKA,
        "Weka buckets, by path in the container.",
        examples=({"/weka/models": "models"},),
    ),
    Field("timeout", _MINUTE, _TIMEOUT, None, ("2h",), "timeout_s"),
    check=_check,
    more={"not": {"anyOf": [_both(keys) for keys in APART]}},
)


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.beaker.backend import open_backend

    return open_backend(sweep, folder, _whole(options))


def _whole(given: Mapping[str, object]) -> Options:
    """Return the options with their defaults. Raises `UsageError` without an image."""
    options = container_jobs.options_with_image(
        SECTION, given, "beaker", "OWNER/NAME", "docker_image"
    )
    return cast(Options, options)


def _capabilities(given: Mapping[str, object]) -> Capabilities:
    return container_jobs.capabilities(_whole(given), "BEAKER_TOKEN", "BEAKER_CONFIG")


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.beaker.doctor import checks

    return checks(cast(Options, SECTION.with_defaults(options)))


def _manifests(
    sweep: str, folder: str, options: Mapping[str, object], batches: Batches
) -> Iterator[Manifest]:
    """Yield an experiment per job. Its spec does not have its name, so `about` does."""
    from sweeper.backends.beaker.spec import Names, spec

    names, given = Names(sweep, folder), _whole(options)
    names.identity.preview()
    for job in chain.from_iterable(batches):
        about = f"{names.name(job.token)}: {job.title}"
        yield Manifest(about, spec(job, asked_of(given, job.resources), names))


BACKEND = BackendType(
    "beaker",
    "Options of Beaker jobs: docs/beaker.md.",
    _open,
    SECTION,
    by_run=True,
    merge=merged,
    capabilities=_capabilities,
    checks=_checks,
    manifests=_manifests,
)
