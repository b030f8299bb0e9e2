"""The data that the parts of a scheduler share."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from sweeper.backends.base import Backend
from sweeper.metrics.sources import ListedOnce
from sweeper.store.base import Store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.plan import Plan


@dataclass(frozen=True)
class Context:
    """The folder of a sweep, and its backend (or a dict from names to backends). `clock` returns
    monotonic seconds, `wall` returns seconds since 1970, and `sleep` waits."""

    folder: SweepFolder
    backend: Backend | Mapping[str, Backend]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    wall: Callable[[], float] = time.time

    @cached_property
    def plan(self) -> Plan:
        """The sweep's plan, read once. Raises `NotFound`, `StoreError`."""
        return self.folder.read_plan()

    @cached_property
    def listed(self) -> ListedOnce:
        """A cache of the files of ended attempts, shared by parts of the scheduler."""
        return ListedOnce(self.store)

    @cached_property
    def backends(self) -> Mapping[str, Backend]:
        """The plan's backends by name, in the order in which they get jobs."""
        if isinstance(self.backend, Backend):
            return {self.plan.launch.places[0]: self.backend}
        return {place: self.backend[place] for place in self.plan.launch.places}

    @property
    def store(self) -> Store:
        """The sweep's store."""
        return self.folder.store

    @property
    def sweep(self) -> str:
        """The sweep's name."""
        return self.folder.name
