"""Backends by name, loaded when asked for: a row in the table, or an entry point of the group
`sweeper.backends` in any installed package. Either names a function that takes the sweep's name and
folder, and returns a `Backend`."""

import importlib
from collections.abc import Callable
from typing import cast

from sweeper.backends.base import Backend
from sweeper.errors import UsageError

__all__ = ["backend_names", "open_backend"]

_BUILT_IN = {
    "local": "sweeper.backends.local:open_backend",
    "tmux": "sweeper.backends.tmux:open_backend",
}


def backend_names() -> list[str]:
    """Every backend that `launch.backend` may name."""
    return sorted(_BUILT_IN | _plugins())


def open_backend(name: str, sweep: str, folder: str) -> Backend:
    """The backend called `name`, for the sweep `sweep` whose folder (or URL) is `folder`.

    Raises `UsageError` for an unknown name and `EnvironmentFailure` where what it needs is missing.
    """
    target = _BUILT_IN.get(name) or _plugins().get(name)
    if target is None:
        known = ", ".join(backend_names())
        raise UsageError(f"no backend {name!r}: there is {known}")
    module, _, function = target.partition(":")
    opener = getattr(importlib.import_module(module), function)
    return cast(Callable[[str, str], Backend], opener)(sweep, folder)


def _plugins() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group="sweeper.backends")}
