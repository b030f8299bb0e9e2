"""The description of the Kubernetes backend and its section of a grid. The backend's other modules
are loaded only when they are used."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from sweeper.backends import container_jobs
from sweeper.backends.base import Backend, BackendType, Batches, Capabilities, Check, Manifest
from sweeper.backends.kubernetes.options import SECTION, Options
from sweeper.fields.options import over, read_options

__all__ = ["BACKEND"]


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.kubernetes.backend import open_backend

    return open_backend(sweep, folder, _whole(options))


def _whole(plan_options: Mapping[str, object]) -> Options:
    return container_jobs.options_with_image(Options, plan_options, "kubernetes")


def _capabilities(plan_options: Mapping[str, object]) -> Capabilities:
    return container_jobs.capabilities(_whole(plan_options), "KUBECONFIG")


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.kubernetes.doctor import checks

    return checks(read_options(Options, options, "launch.kubernetes"))


def _manifests(
    sweep: str, folder: str, options: Mapping[str, object], batches: Batches
) -> Iterator[Manifest]:
    """Yield a Kubernetes Job for each job."""
    from sweeper.backends.identity import NOT_YET
    from sweeper.backends.kubernetes.manifest import Names, manifest

    names, sweep_options = Names(sweep, folder), _whole(options)
    names.identity.preview()
    for job in chain.from_iterable(batches):
        body = manifest(job, over(sweep_options, job.resources), names, NOT_YET)
        yield Manifest(job.title, body)


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
