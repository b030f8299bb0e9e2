"""Backends by name, loaded when asked for: a row in the table, or an entry point of the group
`sweeper.backends` in any installed package. Either names a `BackendType`; nothing more is known of
a backend anywhere, whoever wrote it."""

import functools
import importlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from sweeper.backends.base import Backend, BackendType, Capabilities
from sweeper.errors import UsageError
from sweeper.model.plan import Launch

__all__ = [
    "BackendType",
    "Capabilities",
    "backend_names",
    "backend_type",
    "capabilities_of",
    "every_backend",
    "may_restart",
    "open_backend",
    "options_of",
    "with_key",
]

_BUILT_IN = {
    "aws-batch": "sweeper.backends.aws_batch:BACKEND",
    "kubernetes": "sweeper.backends.kubernetes:BACKEND",
    "local": "sweeper.backends.local:BACKEND",
    "ray": "sweeper.backends.ray:BACKEND",
    "slurm": "sweeper.backends.slurm:BACKEND",
    "tmux": "sweeper.backends.tmux:BACKEND",
}
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def backend_names() -> list[str]:
    """Every backend that `launch.backend` may name."""
    return sorted({*_BUILT_IN, *_plugins()})


def every_backend() -> Iterator[BackendType]:
    """The description of every one, those left out that cannot be loaded."""
    for name in backend_names():
        try:
            yield backend_type(name)
        except UsageError:
            continue


def backend_type(name: str) -> BackendType:
    """The description of the backend called `name`. Raises `UsageError` where there is none, or
    none that can be loaded."""
    target = _BUILT_IN.get(name) or _plugins().get(name)
    if target is None:
        from sweeper.fields.kinds import nearest

        known = backend_names()
        raise UsageError(
            f"no backend {name[:60]!r}{nearest(name, known)}: there is {', '.join(known)}"
        )
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise UsageError(f"the backend {name!r} cannot be loaded from {target}: {told}") from error
    if not isinstance(found, BackendType):
        raise UsageError(
            f"the backend {name!r}: {target} is no sweeper.backends.base.BackendType, which its "
            "entry point has to name"
        )
    return found


def with_key(key: str) -> BackendType | None:
    """The backend whose section of `launch` would be called `key`; None where there is none.
    Raises `UsageError` for one that cannot be loaded."""
    name = key.replace("_", "-")
    if name in _BUILT_IN or name in _plugins():
        return backend_type(name)
    return None


def options_of(launch: Launch) -> Mapping[str, object]:
    """A plan's options of its backend."""
    return launch.options.get(launch.backend.replace("-", "_"), _NO_OPTIONS)


def open_backend(
    name: str, sweep: str, folder: str, options: Mapping[str, object] = _NO_OPTIONS
) -> Backend:
    """The backend called `name`, for the sweep `sweep` whose folder (or URL) is `folder`.

    Raises `UsageError` for an unknown name and `EnvironmentFailure` where what it needs is missing.
    """
    return backend_type(name).open(sweep, folder, options)


def capabilities_of(name: str, options: Mapping[str, object] = _NO_OPTIONS) -> Capabilities:
    """What jobs of the backend called `name` can do, as far as a launch has to know. Raises
    `UsageError` for an unknown name, and for options that lack something."""
    return backend_type(name).capabilities(options)


def may_restart(launch: Launch) -> bool:
    """Whether jobs of a plan with this section `launch` may be started again by their backend
    itself, which asks no launcher. One that is not to be found here might."""
    try:
        return capabilities_of(launch.backend, options_of(launch)).restarts is not None
    except UsageError:
        return True


@functools.cache
def _plugins() -> Mapping[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group="sweeper.backends")}
