"""How many jobs of a sweep may be at work: what was asked for, and below that what the account's
quota and this machine bear."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

from sweeper.errors import StoreError, Unreachable
from sweeper.model.launcher import Service
from sweeper.model.quota import Learned
from sweeper.scheduler.account import governor_of
from sweeper.scheduler.context import Context
from sweeper.scheduler.governor import Jobs
from sweeper.scheduler.limiter import Limiter, Load

__all__ = ["Lowered", "Parallelism"]


class Lowered(NamedTuple):
    """`limit` jobs at once are fewer than were asked for; `why` is a key of `labels.LOWERED`."""

    limit: int
    why: str


class Parallelism:
    """The limits of one launcher. `most` is asked for, by the plan or since. `needed`: whether it
    starts anything; else it takes no slots."""

    def __init__(self, context: Context, service: Service, *, needed: bool) -> None:
        self._planned = self.most = context.plan.launch.max_parallel
        self._governor = governor_of(context, service) if needed else None
        self._machine = Limiter(context.clock)
        self._borne = Learned()
        self._slots = 0
        self.lowered: Lowered | None = None

    @property
    def here(self) -> int:
        """How many jobs this launcher would have at work, whatever the quota."""
        return self.most if self._borne.limit is None else min(self.most, self._borne.limit)

    @property
    def jobs(self) -> int:
        """How many may be at work, as of the last look."""
        return min(self.here, self._slots)

    def ask(self, most: int | None) -> None:
        """Have so many jobs at once; None: as many as the plan says."""
        self.most = self._planned if most is None else most

    def look(
        self, busy: int, startable: int, *, paused: int = 0, refused: str | None = None
    ) -> None:
        """Adapt to what was seen: `busy` jobs are at work, `paused` of them held back by the
        service, and `startable` more could be started. `refused` is what turned a job away, the
        service or the machine. Raises `Unreachable` where the quota's place does not answer: then
        nothing more may be started."""
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
        """Keep the slots meanwhile, however long a step takes."""
        with nullcontext() if self._governor is None else self._governor.kept():
            yield

    def leave(self) -> None:
        """Give the slots back: nothing of the sweep is at work any more."""
        if self._governor is not None:
            self._governor.leave()
