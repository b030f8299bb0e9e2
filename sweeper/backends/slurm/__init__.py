"""The description of the Slurm backend and its section of a grid. The backend's other modules are
loaded only when they are used."""

from collections.abc import Iterable, Iterator, Mapping, Set

from sweeper.backends.base import (
    Backend,
    BackendType,
    Batches,
    Capabilities,
    Check,
    Counter,
    Leftover,
    Manifest,
)
from sweeper.backends.configuration import configured
from sweeper.backends.slurm.options import SECTION

__all__ = ["BACKEND"]


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.slurm.backend import open_backend

    del options  # The options of a run come with its job.
    return open_backend(sweep, folder, configured(BACKEND))


def _capabilities(options: Mapping[str, object]) -> Capabilities:
    del options
    return Capabilities(
        here=False, restarts=Counter("SLURM_RESTART_COUNT"), credentials=("SLURM_JWT",)
    )


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.slurm.doctor import checks

    return checks(options, lambda: configured(BACKEND))


def _leftovers(folder: str, over: Set[str], well: Set[str]) -> Iterator[Leftover]:
    """Yield the files of submissions that are no longer needed. `over` are the ids of ended runs,
    and `well` the ids of succeeded runs."""
    from sweeper.backends.slurm.tables import Tables

    for paths in Tables(folder).spent(over, well):
        yield Leftover(paths, "Slurm job files of runs that are over")


def _manifests(
    sweep: str, folder: str, options: Mapping[str, object], batches: Batches
) -> Iterable[Manifest]:
    from sweeper.backends.slurm.submission import manifests

    del options  # The options of a run come with its job.
    return manifests(sweep, folder, configured(BACKEND), batches)


BACKEND = BackendType(
    "slurm",
    "Options of Slurm jobs: docs/slurm.md.",
    _open,
    SECTION,
    by_run=True,
    records_defaults=False,
    capabilities=_capabilities,
    checks=_checks,
    leftovers=_leftovers,
    manifests=_manifests,
)
