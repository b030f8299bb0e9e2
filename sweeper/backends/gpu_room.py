"""The GPUs of this machine, for backends whose jobs run on it."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence

from sweeper.backends.base import Check, JobSpec
from sweeper.common.gpus import Gpus
from sweeper.errors import EnvironmentFailure, Unreachable

_STARTING_SECONDS = 5.0
"""Seconds that a worker may take until it has locked its devices."""


class GpuRoom:
    """The room for more jobs on the GPUs of this machine. `options` are the backend's options. The
    jobs of a stage may have other options, which the methods take as `resources`. Options without
    `gpus` mean no limit. A job counts as using its GPUs as soon as it is submitted."""

    def __init__(self, options: Mapping[str, object], backend: str) -> None:
        self._backend, self._options = backend, options
        self._gpus_by_options: dict[tuple[object, object], Gpus | None] = {}
        self._submitted: list[float] = []

    def _of(self, options: Mapping[str, object]) -> Gpus | None:
        key = options.get("gpus"), options.get("per_gpu")
        if key not in self._gpus_by_options:
            self._gpus_by_options[key] = gpus_of(options)
        return self._gpus_by_options[key]

    def submitted(self, jobs: Sequence[JobSpec]) -> None:
        """Record that these jobs were submitted now. Jobs that get no GPUs are ignored."""
        with_gpus = [job for job in jobs if self._of(self._options) or self._of(job.resources)]
        self._submitted += [time.monotonic()] * len(with_gpus)

    def room(self, resources: Mapping[str, object] | None = None) -> int | None:
        """Return how many more jobs with the options `resources` (None: the backend's options) can
        start. Return None if there is no limit. Raises `Unreachable` if the GPUs cannot be listed
        now."""
        gpus = self._of(self._options if resources is None else resources)
        if gpus is None:
            return None
        now = time.monotonic()
        self._submitted = [at for at in self._submitted if now < at + _STARTING_SECONDS]
        try:
            return max(0, gpus.free() - len(self._submitted))
        except LookupError as error:
            raise Unreachable(f"{self._backend}: {error}") from error

    def check(self, resources: Iterable[Mapping[str, object]]) -> None:
        """Raise `EnvironmentFailure` if this machine has too few GPUs for a job with the backend's
        options or with one of `resources`, or if its GPUs cannot be listed."""
        try:
            for options in (self._options, *resources):
                if (gpus := self._of(options)) is not None:
                    gpus.check()
        except LookupError as error:
            raise EnvironmentFailure(f"{self._backend}: {error}") from error


def gpus_of(options: Mapping[str, object]) -> Gpus | None:
    """Return the GPUs for jobs with these options; None if the options do not ask for GPUs."""
    count, shared = options.get("gpus"), options.get("per_gpu")
    if not isinstance(count, int) or not count:
        return None
    return Gpus(count, shared if isinstance(shared, int) else 1, os.environ)


def checks(options: Mapping[str, object]) -> Iterable[Check]:
    """Return the checks of `sweeper doctor` for jobs with these options."""
    gpus = gpus_of(options)
    if gpus is None:
        return []

    def count() -> str:
        devices = gpus.check()
        return f"{len(devices)} GPUs, with room for {gpus.free()} more runs now"

    return [Check("GPUs", True, count)]
