"""The description of the Modal backend and its section of a grid. The backend's other modules are
loaded only when they are used."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from sweeper.backends import container_jobs
from sweeper.backends.base import Backend, BackendType, Batches, Capabilities, Check, Manifest
from sweeper.backends.modal.options import SECTION, Options
from sweeper.fields.options import over, read_options

__all__ = ["BACKEND"]


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.modal.backend import open_backend

    return open_backend(sweep, folder, _whole(options))


def _whole(plan_options: Mapping[str, object]) -> Options:
    return container_jobs.options_with_image(Options, plan_options, "modal")


def _capabilities(plan_options: Mapping[str, object]) -> Capabilities:
    return container_jobs.capabilities(
        _whole(plan_options), "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "MODAL_CONFIG_PATH"
    )


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.modal.doctor import checks

    return checks(read_options(Options, options, "launch.modal"))


def _manifests(
    sweep: str, folder: str, options: Mapping[str, object], batches: Batches
) -> Iterator[Manifest]:
    """Yield the arguments of `modal.Sandbox.create` for each job."""
    from sweeper.backends.modal.spec import Names, spec

    names, sweep_options = Names(sweep, folder), _whole(options)
    names.identity.preview()
    for job in chain.from_iterable(batches):
        arguments = spec(job, over(sweep_options, job.resources), names)
        yield Manifest(f"Sandbox.create: {job.title}", arguments)


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
