"""Looks up backends by name and loads them on demand: built-in ones, and entry points of the group
`sweeper.backends`. A place is one of the backends that a plan may use."""

import functools
import importlib
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

from sweeper.backends.base import Backend, BackendType, Capabilities, JobSpec, JobStatus
from sweeper.errors import EnvironmentFailure, Unreachable, UsageError, is_silence
from sweeper.sweep.launch_settings import Launch

__all__ = [
    "Away",
    "BackendType",
    "Capabilities",
    "backend_names",
    "backend_type",
    "capabilities_at",
    "capabilities_of",
    "capabilities_together",
    "every_backend",
    "may_restart",
    "open_backend",
    "open_places",
    "options_of",
    "registered",
    "restarts_at",
    "with_key",
]

_BUILT_IN = {
    "aws-batch": "sweeper.backends.aws_batch:BACKEND",
    "beaker": "sweeper.backends.beaker:BACKEND",
    "kubernetes": "sweeper.backends.kubernetes:BACKEND",
    "local": "sweeper.backends.local:BACKEND",
    "modal": "sweeper.backends.modal:BACKEND",
    "ray": "sweeper.backends.ray:BACKEND",
    "slurm": "sweeper.backends.slurm:BACKEND",
    "ssh": "sweeper.backends.ssh:BACKEND",
    "tmux": "sweeper.backends.tmux:BACKEND",
}
_REGISTERED: dict[str, BackendType] = {}
_AGAIN_SECONDS = 30.0
"""Seconds to wait before opening an unavailable place again."""
_NO_OPTIONS: Mapping[str, object] = MappingProxyType({})


def backend_names() -> list[str]:
    """Return every name that `launch.backend` may have."""
    return sorted({*_BUILT_IN, *_REGISTERED, *_plugins()})


def every_backend() -> Iterator[BackendType]:
    """Yield the descriptions of all backends that can be loaded."""
    for name in backend_names():
        try:
            yield backend_type(name)
        except UsageError:
            continue


def backend_type(name: str) -> BackendType:
    """Return the description of the backend called `name`. Raises `UsageError` if the backend does
    not exist or cannot be loaded."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    target = _BUILT_IN.get(name) or _plugins().get(name)
    if target is None:
        from sweeper.fields.kinds import nearest

        names = backend_names()
        raise UsageError(f"no backend {name[:60]!r}: use {', '.join(names)}{nearest(name, names)}")
    module, _, attribute = target.partition(":")
    try:
        value = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"the backend {name!r} cannot be loaded from {target}: {message}"
        ) from error
    if not isinstance(value, BackendType):
        raise UsageError(
            f"the entry point of the backend {name!r} names {target}, which is not a "
            "sweeper.backends.base.BackendType"
        )
    return value


def with_key(key: str) -> BackendType | None:
    """Return the description of the backend whose key in `launch` is `key`, such as `aws_batch` for
    `aws-batch`; None if there is no such backend. Raises `UsageError` if the backend cannot be
    loaded."""
    name = key.replace("_", "-")
    if name in _BUILT_IN or name in _REGISTERED or name in _plugins():
        return backend_type(name)
    return None


@contextmanager
def registered(kind: BackendType) -> Generator[None]:
    """Make a backend available under its name in this process while the `with` block runs. For
    tests."""
    before = dict(_REGISTERED)
    _REGISTERED[kind.name] = kind
    try:
        yield
    finally:
        _REGISTERED.clear()
        _REGISTERED.update(before)


def options_of(launch: Launch, place: str) -> Mapping[str, object]:
    """Return the plan's options for its backend `place`. If the plan sets `gpus`, the options also
    contain `gpus` and `per_gpu`."""
    options = launch.options.get(place.replace("-", "_"), _NO_OPTIONS)
    if not launch.gpus:
        return options
    return {**options, "gpus": launch.gpus, "per_gpu": launch.per_gpu}


def open_backend(
    name: str, sweep: str, folder: str, options: Mapping[str, object] = _NO_OPTIONS
) -> Backend:
    """Open the backend called `name` for the sweep `sweep`, whose folder (or URL) is `folder`.
    Raises `UsageError` for an unknown name and `EnvironmentFailure` if the backend cannot be
    used."""
    return backend_type(name).open(sweep, folder, options)


def open_places(
    launch: Launch,
    sweep: str,
    folder: str,
    *,
    any_place: bool = False,
    quiet: bool = False,
    accept: Callable[[str, Backend], None] | None = None,
) -> dict[str, Backend]:
    """Open the backends of a plan, and return a dict from name to backend.

    By default, the error of the first backend that cannot be opened is raised. `any_place` and
    `quiet` change this, but only if the plan lists its backends in `launch.backends`. A backend
    then also fails if `accept(name, backend)` raises `EnvironmentFailure`. `any_place`: return an
    `Away` for each backend that fails. `quiet`: return an `Away` for each backend that does not
    answer, but raise `Unreachable` if no backend is left.
    """
    backends: dict[str, Backend] = {}
    for place in launch.places:
        opened = partial(open_backend, place, sweep, folder, options_of(launch, place))
        if not ((any_place or quiet) and launch.backends):
            backends[place] = opened()
            continue

        def accepted(place: str = place, opened: Callable[[], Backend] = opened) -> Backend:
            backend = opened()
            if accept is not None:
                accept(place, backend)
            return backend

        try:
            backends[place] = accepted()
        except EnvironmentFailure as error:
            if not (any_place or is_silence(error)):
                raise
            backends[place] = Away(place, accepted, str(error))
    away = [backend.why for backend in backends.values() if isinstance(backend, Away)]
    if quiet and len(away) == len(backends):
        raise Unreachable("; ".join(dict.fromkeys(away)))
    return backends


class Away(Backend):
    """A stand-in for a backend that could not be opened, for the reason `why`. Each call tries to
    open the backend if the last try was at least `_AGAIN_SECONDS` ago, and raises `Unreachable` if
    the backend is still not open. `room` and `location` do not try to open the backend: before
    another call opens it, `room` returns None and `location` returns an empty mapping."""

    def __init__(
        self,
        name: str,
        opened: Callable[[], Backend],
        why: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.why = name, why
        self._open, self._clock = opened, clock
        self._again = clock() + _AGAIN_SECONDS
        self._opened: Backend | None = None

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        self._reopened().submit(jobs)

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        return self._reopened().find(tokens)

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        return self._reopened().poll(tokens)

    def cancel(self, tokens: Sequence[str]) -> Collection[str] | None:
        return self._reopened().cancel(tokens)

    def logs(self, token: str) -> Iterator[str]:
        return self._reopened().logs(token)

    def preflight(self, resources: Sequence[Mapping[str, object]]) -> None:
        self._reopened().preflight(resources)

    def forget(self, tokens: Sequence[str]) -> None:
        self._reopened().forget(tokens)

    def room(self, resources: Mapping[str, object] | None = None) -> int | None:
        return None if self._opened is None else self._opened.room(resources)

    def location(self) -> Mapping[str, str]:
        return {} if self._opened is None else self._opened.location()

    def _reopened(self) -> Backend:
        if self._opened is None:
            if self._clock() < self._again:
                raise Unreachable(self.why)
            try:
                self._opened = self._open()
            except EnvironmentFailure as error:
                self.why = str(error)
                self._again = self._clock() + _AGAIN_SECONDS
                raise Unreachable(self.why) from error
        return self._opened


def capabilities_of(name: str, options: Mapping[str, object] = _NO_OPTIONS) -> Capabilities:
    """Return the capabilities of jobs of the backend called `name`. Raises `UsageError` if the
    backend is unknown or the options are incomplete."""
    return backend_type(name).capabilities(options)


def capabilities_at(launch: Launch, place: str) -> Capabilities:
    """Return the capabilities of the plan's jobs at its backend `place`."""
    return capabilities_of(place, options_of(launch, place))


def capabilities_together(launch: Launch) -> Capabilities:
    """Return the capabilities that a plan's jobs have at each of the plan's backends. If there are
    several backends, `credentials` lists the variables of all, `restarts` is the value of the first
    backend that restarts jobs, and `python` is None."""
    capabilities = [capabilities_at(launch, place) for place in launch.places]
    if len(capabilities) == 1:
        return capabilities[0]
    secrets = (place.secrets for place in capabilities)
    return Capabilities(
        here=all(place.here for place in capabilities),
        files=all(place.files for place in capabilities),
        secrets=frozenset[str].intersection(*secrets),
        restarts=next((at.restarts for at in capabilities if at.restarts is not None), None),
        credentials=tuple(dict.fromkeys(name for at in capabilities for name in at.credentials)),
    )


def may_restart(launch: Launch) -> bool:
    """Return whether any backend of a plan may restart jobs by itself. Return True also if a
    backend is not installed on this machine or its options are incomplete."""
    return any(restarts_at(launch, place) for place in launch.places)


def restarts_at(launch: Launch, place: str) -> bool:
    """Return whether the plan's backend `place` may restart jobs by itself. Return True also if the
    backend is not installed on this machine or its options are incomplete."""
    try:
        return capabilities_at(launch, place).restarts is not None
    except UsageError:
        return True


@functools.cache
def _plugins() -> Mapping[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group="sweeper.backends")}
