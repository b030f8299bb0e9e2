"""The description of the AWS Batch backend and its section of a grid. The backend's other modules
are loaded only when they are used."""

from collections.abc import Iterable, Mapping

from sweeper.backends.aws_batch.options import OF_AN_IMAGE, RESTARTS, SECTION, read_options
from sweeper.backends.base import (
    Backend,
    BackendType,
    Batches,
    Capabilities,
    Check,
    Counter,
    Manifest,
)

__all__ = ["BACKEND"]


def _merged(defaults: Mapping[str, object], later: Mapping[str, object]) -> dict[str, object]:
    merged = dict(defaults)
    if "job_definition" in later:  # It replaces a default image and its roles.
        merged = {k: v for k, v in merged.items() if k not in ("image", *OF_AN_IMAGE)}
    elif later.keys() & {"image", *OF_AN_IMAGE}:
        merged.pop("job_definition", None)
    return {**merged, **later}


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.aws_batch.backend import open_backend

    return open_backend(sweep, folder, options)


def _capabilities(plan_options: Mapping[str, object]) -> Capabilities:
    options = read_options(plan_options)
    return Capabilities(
        here=False,
        files=False,
        python=options.python,
        secrets=frozenset(options.secrets),
        restarts=Counter(RESTARTS, first=1),
    )


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.aws_batch.doctor import checks

    return checks(options)


def _manifests(
    sweep: str, folder: str, options: Mapping[str, object], batches: Batches
) -> Iterable[Manifest]:
    from sweeper.backends.aws_batch.job_request import manifests

    return manifests(sweep, folder, options, batches)


BACKEND = BackendType(
    "aws-batch",
    "AWS Batch: docs/aws-batch.md.",
    _open,
    SECTION,
    merge=_merged,
    capabilities=_capabilities,
    checks=_checks,
    manifests=_manifests,
)
