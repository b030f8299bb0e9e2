"""Decides how many jobs of a sweep may run: the number that was asked for, or less if the
account's quota or this machine requires it."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

from sweeper.errors import StoreError, Unreachable
from sweeper.scheduler.account import governor_of
from sweeper.scheduler.context import Context
from sweeper.scheduler.governor import Jobs
from sweeper.scheduler.limiter import Limiter, Load
from sweeper.sweep.launcher import Service
from sweeper.sweep.quota import Learned


class Lowered(NamedTuple):
    """`limit` jobs at once are fewer than were asked for. `why` is a key of `labels.LOWERED`."""

    limit: int
    why: str


class Parallelism:
    """The limits of one launcher. `most` is what the plan or a later request asks for. `needed`:
    whether the launcher starts anything; if not, it takes no slots."""

    def __init__(self, context: Context, service: Service, *, needed: bool) -> None:
        self._planned = self.most = context.plan.launch.max_parallel
        self._governor = governor_of(context, service) if needed else None
        self._machine = Limiter(context.clock)
        self._borne = Learned()
        self._slots = 0
        self.lowered: Lowered | None = None

    @property
    def here(self) -> int:
        """How many jobs this launcher would run, regardless of the quota."""
        return self.most if self._borne.limit is None else min(self.most, self._borne.limit)

    @property
    def jobs(self) -> int:
        """How many jobs may run, as of the last look."""
        return min(self.here, self._slots)

    def ask(self, most: int | None) -> None:
        """Sets the number of jobs at once; None means the number in the plan."""
        self.most = self._planned if most is None else most

    def look(
        self, busy: int, startable: int, *, paused: int = 0, refused: str | None = None
    ) -> None:
        """Adapts to the load: `busy` jobs run, the service holds back `paused` of them, and
        `startable` more could start. `refused` is what rejected a job: the service or the
        machine. Raises `Unreachable` if the place of the quota does not answer; then nothing more
        may start."""
        crowded = "machine" if refused == "machine" else None
        self._borne = self._machine.see(self._borne, Load(busy, 0, startable, crowded))
        if self._borne.limit is not None and self._borne.limit >= self.most:
            self._borne = self._borne._replace(limit=None, step=1)
        self.lowered = None
        if self.here != self._planned:
            self.lowered = Lowered(self.here, "machine" if self.here < self.most else "asked")
        if self._governor is None:
            return
        self._slots = busy
        wanted = max(0, min(startable, self.here - busy))
        try:
            found = self._governor.look(
                Jobs(busy, wanted, self.most, paused, refused=refused == "service")
            )
        except StoreError as error:
            raise Unreachable(f"the quota's place: {error}") from error
        self._slots = found.slots
        if found.share < self.here:
            self.lowered = Lowered(found.share, found.why)

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keeps the slots meanwhile, however long a step takes."""
        with nullcontext() if self._governor is None else self._governor.kept():
            yield

    def leave(self) -> None:
        """Gives the slots back when nothing of the sweep is running."""
        if self._governor is not None:
            self._governor.leave()
