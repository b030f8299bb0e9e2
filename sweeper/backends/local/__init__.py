"""Processes of this machine: what they say of themselves. The rest is loaded when a sweep is
launched."""

from collections.abc import Mapping

from sweeper.backends.base import Backend, BackendType

__all__ = ["BACKEND"]


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.local.backend import LocalBackend

    del sweep, options  # the folder says it all
    return LocalBackend(folder)


BACKEND = BackendType("local", "Plain processes of this machine.", _open)
