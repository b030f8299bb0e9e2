"""The description of the backend for plain processes on this machine. The backend's other modules
are loaded only when they are used."""

from collections.abc import Iterable, Mapping

from sweeper.backends.base import Backend, BackendType, Check

__all__ = ["BACKEND"]


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.local.backend import LocalBackend

    del sweep  # The folder identifies the sweep.
    return LocalBackend(folder, options)


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.gpu_room import checks

    return checks(options)


BACKEND = BackendType(
    "local", "Plain processes on this machine.", _open, checks=_checks, pins_gpus=True
)
