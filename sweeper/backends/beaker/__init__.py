"""The description of the Beaker backend and its section of a grid. The backend's other modules are
loaded only when they are used."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from sweeper.backends import container_jobs
from sweeper.backends.base import Backend, BackendType, Batches, Capabilities, Check, Manifest
from sweeper.backends.beaker.options import SECTION, Options, merged
from sweeper.fields.options import over, read_options

__all__ = ["BACKEND"]


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.beaker.backend import open_backend

    return open_backend(sweep, folder, _whole(options))


def _whole(plan_options: Mapping[str, object]) -> Options:
    return container_jobs.options_with_image(
        Options, plan_options, "beaker", "OWNER/NAME", "docker_image"
    )


def _capabilities(plan_options: Mapping[str, object]) -> Capabilities:
    return container_jobs.capabilities(_whole(plan_options), "BEAKER_TOKEN", "BEAKER_CONFIG")


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.beaker.doctor import checks

    return checks(read_options(Options, options, "launch.beaker"))


def _manifests(
    sweep: str, folder: str, options: Mapping[str, object], batches: Batches
) -> Iterator[Manifest]:
    """Yield the spec of each job's experiment. The experiment's name is not part of a spec, so
    `Manifest.about` contains the name."""
    from sweeper.backends.beaker.spec import Names, spec

    names, sweep_options = Names(sweep, folder), _whole(options)
    names.identity.preview()
    for job in chain.from_iterable(batches):
        about = f"{names.name(job.token)}: {job.title}"
        yield Manifest(about, spec(job, over(sweep_options, job.resources, merged), names))


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
