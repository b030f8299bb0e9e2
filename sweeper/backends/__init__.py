"""Backends by name, loaded when asked for: a row in the table, or an entry point of the group
`sweeper.backends` in any installed package. Either names a function that takes the sweep's name and
folder, and the backend's own options where the plan has some (`launch.aws_batch` for `aws-batch`),
and returns a `Backend`.

A backend whose jobs run elsewhere has a function `terms` in the same module, which takes these
options and says so (`Terms`) without asking anybody."""

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

from sweeper.backends.base import Backend
from sweeper.backends.terms import Terms
from sweeper.errors import UsageError
from sweeper.model.plan import Launch

__all__ = ["Terms", "backend_names", "check_name", "open_backend", "options_of", "terms_of"]

_BUILT_IN = {
    "aws-batch": "sweeper.backends.aws_batch:open_backend",
    "local": "sweeper.backends.local:open_backend",
    "slurm": "sweeper.backends.slurm:open_backend",
    "tmux": "sweeper.backends.tmux:open_backend",
}
_TERMS = {
    "aws-batch": "sweeper.backends.aws_batch_options:terms",
    "slurm": "sweeper.backends.slurm_options:terms",
}
"""Of those built in that have some: not to load the backend for it."""
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def backend_names() -> list[str]:
    """Every backend that `launch.backend` may name."""
    return sorted(_BUILT_IN | _plugins())


def options_of(launch: Launch) -> Mapping[str, Any]:
    """A plan's options of its backend."""
    return getattr(launch, launch.backend.replace("-", "_"), _NO_OPTIONS)


def open_backend(
    name: str, sweep: str, folder: str, options: Mapping[str, Any] = _NO_OPTIONS
) -> Backend:
    """The backend called `name`, for the sweep `sweep` whose folder (or URL) is `folder`.

    Raises `UsageError` for an unknown name and `EnvironmentFailure` where what it needs is missing.
    """
    target = check_name(name)
    opener = _function(target)
    return cast(Backend, opener(sweep, folder, options) if options else opener(sweep, folder))


def terms_of(name: str, options: Mapping[str, Any] = _NO_OPTIONS) -> Terms:
    """Where the jobs of the backend called `name` run, as far as a launch has to know. Raises
    `UsageError` for options that lack something."""
    if name in _BUILT_IN:
        target = _TERMS.get(name)
        return Terms() if target is None else cast(Terms, _function(target)(options))
    target = _plugins().get(name)
    if target is None:
        return Terms()
    found = getattr(importlib.import_module(target.partition(":")[0]), "terms", None)
    return Terms() if found is None else cast(Terms, found(options))


def check_name(name: str) -> str:
    """Where the opener of the backend called `name` is. Raises `UsageError` for an unknown name."""
    target = _BUILT_IN.get(name) or _plugins().get(name)
    if target is None:
        from difflib import get_close_matches

        known = backend_names()
        near = get_close_matches(name[:60], known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UsageError(f"no backend {name[:60]!r}{hint}: there is {', '.join(known)}")
    return target


def _function(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    return cast(Callable[..., Any], getattr(importlib.import_module(module), function))


def _plugins() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group="sweeper.backends")}
