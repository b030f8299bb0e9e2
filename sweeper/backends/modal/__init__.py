"""The description of the Modal backend and its section of a grid. The other code is loaded when a
sweep is launched there."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import cast

from sweeper.backends import container_jobs
from sweeper.backends.base import Backend, BackendType, Batches, Capabilities, Check, Manifest
from sweeper.backends.modal.options import Options, asked_of
from sweeper.backends.secret_references import NO_VALUE, secrets_field
from sweeper.fields.kinds import Duration, Integer, Matching, Number, Text
from sweeper.fields.sections import Field, Reading, Section

__all__ = ["BACKEND"]

_OF_ALL = ("app", "environment", "image", "python", "secrets")
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_NOT_MODALS_OWN = r"(?!a[ks]-)"
_PLACE = r"[a-z][a-z0-9-]{0,40}"
_DAY = 24 * 3600.0


def _check(reading: Reading) -> None:
    container_jobs.check_same_for_all_runs(reading, _OF_ALL)
    limit = reading.values.get("timeout_s")
    if limit is not None and limit > _DAY:
        reading.problem("timeout", f"{reading.path('timeout')}: a sandbox lasts at most 24h")


_NAME = Text(_WORD, "{} is not a name at Modal: letters, digits, - _ and .")
_CLOUD = Text(_PLACE, "{} is not a cloud: aws, gcp, oci")
_SECRET = Matching(
    NO_VALUE + _NOT_MODALS_OWN + _WORD, "the name of a secret of Modal's, never the value"
)
_TIMEOUT = "Modal's time limit for a job, at most 24h; launch.timeout is the worker's."
SECTION = Section(
    container_jobs.image_field("An image in a registry that contains sweeper."),
    secrets_field("Variables, and the secrets that have them.", _SECRET, "tinker"),
    Field("app", _NAME, "The app that the sandboxes belong to.", "sweeper"),
    Field(
        "environment", _NAME, "Modal's environment. Default: the account's.", examples=("research",)
    ),
    container_jobs.PYTHON,
    Field("cpus", Number(0, 64, above=True), "CPUs of a job.", 1),
    Field("memory", Integer(128), "Memory of a job, in MiB.", 2048),
    Field(
        "region",
        container_jobs.texts_matching(_PLACE, "region: us, eu-west", least=1),
        "Regions where jobs may run; jobs may then be preempted.",
        examples=(["us-east"],),
    ),
    Field(
        "cloud", _CLOUD, "The cloud where jobs run; jobs may then be preempted.", examples=("aws",)
    ),
    Field("timeout", Duration(60), _TIMEOUT, "24h", key="timeout_s"),
    check=_check,
)


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.modal.backend import open_backend

    return open_backend(sweep, folder, _whole(options))


def _whole(given: Mapping[str, object]) -> Options:
    """Return the options with their defaults. Raises `UsageError` without an image."""
    return cast(Options, container_jobs.options_with_image(SECTION, given, "modal"))


def _capabilities(given: Mapping[str, object]) -> Capabilities:
    return container_jobs.capabilities(
        _whole(given), "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "MODAL_CONFIG_PATH"
    )


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.modal.doctor import checks

    return checks(cast(Options, SECTION.with_defaults(options)))


def _manifests(
    sweep: str, folder: str, options: Mapping[str, object], batches: Batches
) -> Iterator[Manifest]:
    """Yield the arguments of `modal.Sandbox.create` per job."""
    from sweeper.backends.modal.spec import Names, spec

    names, given = Names(sweep, folder), _whole(options)
    names.identity.preview()
    for job in chain.from_iterable(batches):
        made = spec(job, asked_of(given, job.resources), names)
        yield Manifest(f"Sandbox.create: {job.title}", made)


BACKEND = BackendType(
    "modal",
    "Options of Modal jobs: docs/modal.md.",
    _open,
    SECTION,
    by_run=True,
    capabilities=_capabilities,
    checks=_checks,
    manifests=_manifests,
)
