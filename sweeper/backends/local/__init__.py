"""The description of the backend for plain processes on this machine. Its code is loaded when a
sweep is launched."""

from collections.abc import Mapping

from sweeper.backends.base import Backend, BackendType

__all__ = ["BACKEND"]


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.local.backend import LocalBackend

    del sweep, options  # the folder suffices
    return LocalBackend(folder)


BACKEND = BackendType("local", "Plain processes on this machine.", _open)
