"""Sweeps that share an account, in one process: real launchers, each with a fake backend, one fake
clock, and a modelled service that gives a number of jobs a seat and holds the others back.

Launchers are killed at calls of their store, their backend and the account's record, and started
again some seconds later. A seed decides everything.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from harness.ledger import Verdict
from harness.simulation import Job, World
from sweeper.errors import StoreError
from sweeper.scheduler import account, parallelism
from sweeper.scheduler.loop import Scheduler
from sweeper.store.local import LocalStore
from sweeper.sweep.observation import Kind
from sweeper.testing import FakeClock, Fault, Faults, FaultyStore, Killed

TICK = 0.5


class Seats:
    """The service: `cap` jobs at once have a seat, the others wait in order."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.taken: set[object] = set()
        self.queue: OrderedDict[object, None] = OrderedDict()

    def ask(self, who: object) -> bool:
        """Return whether the job has a seat, or gets one."""
        if who not in self.taken:
            self.queue.setdefault(who)
            while self.queue and len(self.taken) < self.cap:
                self.taken.add(self.queue.popitem(last=False)[0])
        return who in self.taken

    def leave(self, who: object) -> None:
        self.taken.discard(who)
        self.queue.pop(who, None)


class Seated(Job):
    """A worker whose recipe needs a seat for its whole life."""

    world: "Sweeping"
    waits = False

    def act(self) -> None:
        waits = self.phase == "training" and not self.world.seats.ask(self)
        if waits != self.waits or (waits and self.world.clock.now >= self.beat_at):
            self.waits = waits  # workers report this at once
            self._beat()
        if not waits:
            super().act()
        if self.gone:
            self.world.seats.leave(self)

    def paused(self) -> dict[str, str] | None:
        held = self.phase == "training" and not self.world.seats.ask(self)
        return {"reason": "rate_limit", "since": self.began} if held else None


class Sweeping(World):
    """One of the sweeps, and its launcher, if one is running."""

    def __init__(self, root: Path, seed: int, seats: Seats, length: float, **options: Any) -> None:
        super().__init__(root, seed, service="tinker", **options)
        self.seats, self.length = seats, length
        self.never = (Kind.STALLED,)
        self.scheduler: Scheduler | None = None
        self.start_at = 0.0
        self.done = False

    def job(self, run: str, attempt: int, ending: str) -> Job:
        job = Seated(self, run, attempt, ending)
        job.seconds *= self.length
        return job

    @property
    def at_work(self) -> int:
        """Return the number of submitted jobs that have not ended."""
        return len({job.token for job in self.jobs if not job.gone})


class Account:
    """The sweeps, each with a weight and a number of runs. `slots` is the user's limit for the
    service; `deal` returns the faults of each new launcher; `length` is a factor of the runs'
    duration."""

    def __init__(
        self,
        root: Path,
        seed: int,
        sweeps: Sequence[tuple[float, int]],
        *,
        cap: int,
        slots: int | None = None,
        deal: Callable[[], Faults] = Faults,
        most: int = 100,
        length: float = 1.0,
    ) -> None:
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.seats = Seats(cap)
        self.place = LocalStore(str(root / "quota"))
        self._slots, self._deal = slots, deal
        self.sweeps = [
            Sweeping(
                root / str(number),
                seed + number,
                self.seats,
                length,
                runs=runs,
                clock=self.clock,
                max_parallel=most,
                priority=weight,
            )
            for number, (weight, runs) in enumerate(sweeps)
        ]
        self.kills = 0
        self.had = [0.0] * len(sweeps)
        """Seconds of jobs at work, by sweep, while all sweeps have more to start."""
        self.ticks = 0
        self.most_over = 0
        self.over = slots or cap

    def run(self, until: Callable[[], bool] | None = None, *, most: float = 20_000.0) -> None:
        """Let time pass until all sweeps are done, or `until` returns true."""
        deadline = self.clock.now + most
        while not all(sweep.done for sweep in self.sweeps):
            assert self.clock.now < deadline, "stuck"
            self.tick()
            if until is not None and until():
                return

    def tick(self) -> None:
        """Simulate half a second of each launcher and each job."""
        self.clock.sleep(TICK)
        for sweep in self.random.sample(self.sweeps, len(self.sweeps)):
            if not sweep.done:
                self._step(sweep)
        for sweep in self.sweeps:
            sweep.act()
        work = [sweep.at_work for sweep in self.sweeps]
        self.most_over = max(self.most_over, sum(work) - self.over)
        if all(len(set(sweep.backend.submitted)) < len(sweep.ids) for sweep in self.sweeps):
            self.ticks += 1
            for number, jobs in enumerate(work):
                self.had[number] += jobs * TICK

    def _step(self, sweep: Sweeping) -> None:
        if sweep.scheduler is None and self.clock.now < sweep.start_at:
            return
        try:
            if sweep.scheduler is None:
                sweep.scheduler = self._launcher(sweep)
            if sweep.scheduler.step().finished and not sweep.jobs:
                sweep.scheduler.run()  # it ends at once, and gives its slots back
                sweep.done = True
        except (Killed, StoreError) as error:
            self.kills += isinstance(error, Killed)
            sweep.scheduler, sweep.start_at = None, self.clock.now + self.random.uniform(0, 10)

    def _launcher(self, sweep: Sweeping) -> Scheduler:
        faults = self._deal()
        settings = account.Quota(self.place.root, self._slots)
        record = FaultyStore(self.place, faults)
        with (
            mock.patch.object(parallelism, "quota_settings", lambda: settings),
            mock.patch.object(parallelism, "open_store", lambda _: record),
        ):
            return sweep.launcher(faults)

    def verdicts(self) -> list[Verdict]:
        return [sweep.result(once=True).verdict for sweep in self.sweeps]


DEADLY = (Fault.KILL, Fault.KILL_AFTER, Fault.POWER)


def dealing(chance: random.Random, kills: int) -> Callable[[], Faults]:
    """Return a function that gives each launcher a call at which it is killed, up to a number of
    kills, and some earlier calls that fail or whose reply is lost."""
    left = [kills]

    def deal() -> Faults:
        if not left[0]:
            return Faults()
        left[0] -= 1
        last = chance.randint(1, 200)
        chosen = {
            n: chance.choice(list(Fault)[:3]) for n in range(1, last) if chance.random() < 0.01
        }
        return Faults(chosen | {last: chance.choice(DEADLY)})

    return deal
