"""A world in one process: the real launcher, a fake backend, a fake clock, modelled workers.

The launcher is killed by an exception that abandons it, at a call of its store or backend; a new
one then takes over. Jobs do to the store what `sweeper.worker.main` does (claim, send heartbeats,
give way to a newer attempt, record an outcome) but train in fake time. A seed decides everything.

The launcher's host and the workers' have different times of day, which are repeatedly set forward
and back, by a second as well as by a year.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from harness.ledger import Row, Verdict, judge
from sweeper.backends import registered
from sweeper.errors import AlreadyExists, NoRoom, NotFound, StoreError
from sweeper.scheduler.context import Context
from sweeper.scheduler.loop import Scheduler
from sweeper.store.documents import encode, read_json
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.launcher import read_observations
from sweeper.sweep.observation import Kind
from sweeper.sweep.states import Event, State, fold
from sweeper.testing import (
    FAKE,
    FakeBackend,
    FakeClock,
    Fault,
    Faults,
    FaultyBackend,
    FaultyStore,
    Killed,
)

SWEEP = "s"
STEPS = 3
LEASE = 30.0
BEAT = 5.0
DAY = 86_400.0
NOON = 1_800_000_000.0
YEAR = 365 * DAY
STEPS_OF_CLOCKS = (1.0, 60.0, 3600.0, DAY, YEAR)
DEADLY = (Fault.KILL, Fault.KILL_AFTER, Fault.POWER)


class Result(NamedTuple):
    verdict: Verdict
    launcher_kills: int
    worker_kills: int
    calls: int
    most_at_work: int
    submitted_again: int


class Job:
    """A worker as other processes see it. `ending` is how it will end."""

    def __init__(self, world: "World", run: str, attempt: int, ending: str) -> None:
        self.world, self.run, self.attempt, self.ending = world, run, attempt, ending
        self.token = token(run, attempt)
        self.phase = "starting"
        self.at = world.clock.now + world.random.uniform(0, 4)
        self.beat_at = 0.0
        self.step = 0
        self.seconds = world.random.uniform(0.3, 4)
        self.began = world.workers_time()
        self.nonce = f"{world.random.getrandbits(64):x}"
        self.backend = world.backend

    @property
    def gone(self) -> bool:
        return self.phase == "gone"

    def act(self) -> None:
        """Do what is due."""
        now = self.world.clock.now
        if self.gone or now < self.at:
            return
        if self.phase == "starting":
            self._claim()
            return
        if now >= self.beat_at and not self._beat():
            return
        if self.step == 1 and self.ending not in ("succeed", "fail"):
            self._strike()
            return
        if self.step == STEPS:
            self._finish(Event.FAILED if self.ending == "fail" else Event.SUCCEEDED)
            return
        self.world.rows.append((self.run, self.attempt, self.step))
        self.step += 1
        self.at = now + self.seconds

    def _claim(self) -> None:
        world, folder = self.world, self.world.folder
        nothing_newer = not world.store.exists(
            folder.event(self.run, self.attempt + 1, Event.INTENT)
        )
        try:
            if nothing_newer:
                self._record(Event.CLAIMED, nonce=self.nonce)
        except AlreadyExists:
            claim = read_json(world.store, folder.event(self.run, self.attempt, Event.CLAIMED))
            nothing_newer = claim["nonce"] == self.nonce
        if not nothing_newer:
            self.phase = "gone"
            if world.random.random() < 0.5:  # the backend may answer for either copy
                self.backend.end(self.token, 0)
                if self.token in world.vanished:  # only its death can be known now
                    world.truth(self, failed=True)
            return
        self.phase = "training"
        world.begun(self)
        self._beat()

    def _beat(self) -> bool:
        """Send a heartbeat; returns whether to continue."""
        world, folder = self.world, self.world.folder
        self.beat_at = world.clock.now + BEAT
        body = {"schema": 1, "counter": world.clock.now, "pid": 1, "paused": self.paused()}
        world.store.replace(
            folder.heartbeat(self.run, self.attempt), encode(body | {"time": world.workers_time()})
        )
        if world.store.exists(folder.event(self.run, self.attempt + 1, Event.INTENT)):
            self._finish(Event.PREEMPTED, "superseded")
            return False
        lost = folder.event(self.run, self.attempt, Event.LOST)
        returned = folder.event(self.run, self.attempt, Event.RETURNED)
        if world.store.exists(lost) and not world.store.exists(returned):
            self._record(Event.RETURNED)
        return True

    def paused(self) -> dict[str, str] | None:
        """Return why the service delays it."""
        return None

    def _strike(self) -> None:
        """Apply this attempt's interference, once."""
        world = self.world
        world.worker_kills += 1
        ending, self.ending = self.ending, "succeed"
        if ending == "preempted":
            self._finish(Event.PREEMPTED, "terminated")
        elif ending == "killed":
            self.phase = "gone"
            world.truth(self, failed=True)
            self.backend.end(self.token, None)
        elif ending == "vanish":
            self.phase = "gone"
            world.silent.add((self.run, self.attempt))
            world.vanished.add(self.token)
            self.backend.jobs.pop(self.token, None)
        else:
            world.silent.add((self.run, self.attempt))
            self.backend.jobs.pop(self.token, None)
            self.at = world.clock.now + world.random.uniform(0.5, 3) * LEASE

    def _finish(self, event: Event, reason: str | None = None) -> None:
        code = {Event.SUCCEEDED: 0, Event.FAILED: 1}.get(event)
        reason = "error" if event is Event.FAILED else reason
        times = {"started": self.began, "ended": self.world.workers_time(), "wall_s": 1.0}
        usage = {"max_rss_bytes": 1, "host": "here"}
        outcome = {"code": code, "signal": None, "reason": reason, "detail": None}
        with suppress(AlreadyExists):  # this worker's event, if the reply was lost
            self._record(event, **outcome, **times, **usage)
        self.phase = "gone"
        self.world.truth(self, failed=event is Event.FAILED)
        if self.token in self.backend.jobs:
            self.backend.end(self.token, code)

    def _record(self, event: Event, **body: Any) -> None:
        path = self.world.folder.event(self.run, self.attempt, event)
        head = {"schema": 1, "time": self.world.workers_time()}
        self.world.store.create(path, encode(head | body))


class World:
    """A sweep of `runs` runs. `endings` maps a run's number to the endings of its first, second,
    ... attempt; others succeed. `spare`: it has a second place, and `trouble` sets the state of
    both places in each tick."""

    def __init__(
        self,
        root: Path,
        seed: int,
        *,
        runs: int = 3,
        endings: Mapping[int, list[str]] | None = None,
        clock: FakeClock | None = None,
        service: str = "none",
        spare: bool = False,
        trouble: Callable[["World"], object] = lambda _: None,
        **launch: Any,
    ) -> None:
        self.random = random.Random(seed)
        self.store = LocalStore(str(root))
        self.folder = SweepFolder(self.store, SWEEP)
        self.backend = FakeBackend()
        self.backends = {"fake": self.backend} | ({"spare": FakeBackend()} if spare else {})
        self._trouble = trouble
        if spare:
            shares = [{"backend": place} for place in self.backends]
            launch = {"backend": "fake+spare", "backends": shares, **launch}
        self.clock = clock or FakeClock()
        self._chance = random.Random(f"clocks of {seed}")
        self.walls = {"launcher": 0.0, "workers": 0.0}
        self.silent: set[tuple[str, int]] = set()
        self.never = (Kind.STALLED, Kind.PAUSED)
        self.lies: list[str] = []
        self.rows: list[Row] = []
        self.jobs: list[Job] = []
        self.most_at_work = 0
        self.worker_kills = 0
        self.launcher_kills = 0
        self.calls = 0
        self.failed: dict[str, dict[int, bool]] = {}
        self.vanished: set[str] = set()
        self.ids = [f"{index:012x}" for index in range(runs)]
        self._endings = {self.ids[n]: list(chosen) for n, chosen in (endings or {}).items()}
        self._seen: Counter[str] = Counter()
        self.store.replace(self.folder.plan, encode(_plan(self.ids, launch, service)))
        self.store.replace(self.folder.service, encode({"schema": 1, "env_file": None}))

    def sleep(self, seconds: float) -> None:
        """Let time pass while the jobs act."""
        self.clock.sleep(seconds)
        self.act()

    def act(self) -> None:
        """Let the jobs do what is due."""
        for host in self.walls:
            if self._chance.random() < 0.05:
                step = self._chance.choice(STEPS_OF_CLOCKS)
                self.walls[host] = self._chance.choice((0.0, -step, step))
        if self.clock.now > DAY:
            raise AssertionError(f"stuck: {SweepFolder(self.store, SWEEP).read_events()}")
        self._trouble(self)
        for place, backend in self.backends.items():
            for submitted in backend.submitted[self._seen[place] :]:
                run, _, attempt = submitted.rpartition("-a")
                chosen = self._endings.get(run, [])
                number = int(attempt)
                ending = chosen[number - 1] if number <= len(chosen) else "succeed"
                job = self.job(run, number, ending)
                job.backend = backend
                self.jobs.append(job)
            self._seen[place] = len(backend.submitted)
        self._hear()
        self.jobs = [job for job in self.jobs if not job.gone]
        self.random.shuffle(self.jobs)
        for job in self.jobs:
            job.act()

    def job(self, run: str, attempt: int, ending: str) -> Job:
        """Start a worker."""
        return Job(self, run, attempt, ending)

    def lose_jobs(self) -> None:
        """Lose the jobs with their machine."""
        for job in self.backend.jobs:
            run, _, attempt = job.rpartition("-a")
            self.silent.add((run, int(attempt)))
        self.jobs.clear()
        self.backend.jobs.clear()

    def _hear(self) -> None:
        """Record wrong reports of launchers."""
        with suppress(NotFound):
            path = self.folder.observations
            observed = read_observations(read_json(self.store, path), path).observed
            quiet = {run for run, _ in (*self.silent, *self._withdrawn())}
            for run, (kind, *_) in observed.items():
                if kind in self.never or (kind is Kind.STALE and run not in quiet):
                    self.lies.append(f"{run}: was told to be {kind}")

    def _withdrawn(self) -> set[tuple[str, int]]:
        """Return the attempts that a launcher has claimed itself, so that no worker does."""
        if len(self.backends) == 1:
            return set()
        events = SweepFolder(self.store, SWEEP).read_events()
        claims = [(r, n) for r, e in events.items() for n, event in e if event is Event.CLAIMED]
        path = self.folder.event
        return {c for c in claims if "by" in read_json(self.store, path(*c, Event.CLAIMED))}

    def wall(self) -> float:
        """Return the time of day on the launcher's host."""
        return NOON + self.clock.now + self.walls["launcher"]

    def workers_time(self) -> str:
        """Return the time of day on the workers' host, as documents have it."""
        moment = NOON + self.clock.now + self.walls["workers"]
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))

    def begun(self, job: Job) -> None:
        """Record that a job begins to train."""
        training = sum(other.phase == "training" for other in self.jobs)
        self.most_at_work = max(self.most_at_work, training)

    def truth(self, job: Job, *, failed: bool) -> None:
        """Record that an attempt has ended for good, or has been stopped."""
        self.failed.setdefault(job.run, {})[job.attempt] = failed

    def launcher(self, faults: Faults) -> Scheduler:
        """Make a launcher whose store and backend fail according to `faults`."""
        store = FaultyStore(self.store, faults)
        backends = {
            place: FaultyBackend(backend, faults) for place, backend in self.backends.items()
        }
        clocks = {"clock": self.clock, "sleep": self.sleep, "wall": self.wall}
        return Scheduler(Context(SweepFolder(store, SWEEP), backends, **clocks))

    def launch(self, faults: Faults) -> bool:
        """Run a launcher until it has ended or is killed; returns whether it reports
        completion."""
        try:
            self.launcher(faults).run()
        except Killed:
            if not faults.struck:
                raise  # not a planned kill: the power is off
            self.launcher_kills += 1
            self.sleep(self.random.uniform(0, 10))
            return False
        except StoreError:  # it ended with a message: the user starts it again
            self.sleep(1.0)
            return False
        finally:
            self.calls += len(faults.calls)
        return True

    def relaunch_until_done(self, faults: Callable[[], Faults], most: int = 200) -> None:
        """Start launchers, with the faults that `faults` deals out, until one has ended and every
        run has ended."""
        for _ in range(most):
            if self.launch(faults()) and self.settled():
                return
        raise AssertionError(f"not done: {SweepFolder(self.store, SWEEP).read_events()}")

    def settled(self) -> bool:
        """Return whether everything has ended, also abandoned workers, which still write to the
        ledger."""
        for _ in range(1000):
            if not self.jobs:
                break
            self.sleep(1.0)
        events = SweepFolder(self.store, SWEEP).read_events()
        final = (State.SUCCEEDED, State.FAILED)
        return all(fold(events.get(run, ())).state in final for run in self.ids)

    def result(self, *, once: bool = False) -> Result:
        """Return the verdict: a run fails if, and only if, its last attempt did."""
        failing = [run for run, ended in self.failed.items() if ended[max(ended)]]
        expected = dict.fromkeys(failing, State.FAILED)
        verdict = judge(self.store, SWEEP, self.rows, STEPS, once=once, expected=expected)
        for run, happened in SweepFolder(self.store, SWEEP).read_events().items():
            lost = {attempt for attempt, event in happened if event is Event.LOST}
            quiet = (*self.silent, *self._withdrawn())
            alive = lost - {attempt for silent_run, attempt in quiet if silent_run == run}
            self.lies += [f"{run}: attempt {attempt} was thought lost" for attempt in alive]
        there = [set(backend.submitted) for backend in self.backends.values()]
        twice = set[str]().union(*(a & b for a, b in combinations(there, 2)))
        self.lies += [f"{job}: was submitted to two places" for job in sorted(twice)]
        verdict = verdict._replace(wrong=verdict.wrong + tuple(self.lies))
        kills = (self.launcher_kills, self.worker_kills)
        submitted = [job for backend in self.backends.values() for job in backend.submitted]
        again = len(submitted) - len(set(submitted))
        return Result(verdict, *kills, self.calls, self.most_at_work, again)


_offered = ExitStack()  # for as long as the process lives
for name in ("fake", "spare"):
    _offered.enter_context(registered(FAKE._replace(name=name)))


def _plan(ids: list[str], launch: Mapping[str, Any], service: str) -> dict[str, Any]:
    defaults = {
        "backend": "fake",
        "max_parallel": 2,
        "retries": 0,
        "timeout_s": None,
        "grace_s": 30.0,
        "lease_s": LEASE,
        "resume": "auto",
        "env": {},
        "window": None,
    }
    recipe = {"cwd": "/", "kind": "command", "command": ["true"], "python": "python"}
    runs = [
        {"id": run, "name": f"x={n}", "cell": f"x={n}", "seed": None, "config": {"x": n}}
        for n, run in enumerate(ids)
    ]
    head = {"schema": 1, "name": SWEEP, "recipe": recipe, "secrets": [], "service": service}
    return head | {"launch": defaults | launch, "runs": runs}


def one_fault(
    root: Path, number: int, fault: Fault, *, once: bool = True, **options: Any
) -> tuple[Result, bool]:
    """Run a sweep in which the launcher's call `number` fails; also returns whether it was reached.
    `once`: no run may have had a second attempt because of it."""
    world = World(root, seed=number, **options)
    first = [Faults({number: fault})]
    made = list(first)
    world.relaunch_until_done(lambda: first.pop() if first else Faults())
    return world.result(once=once), bool(made[0].struck)


def by_seed(root: Path, seed: int, *, spare: bool = False) -> Result:
    """Run a sweep with every kind of trouble: launchers killed again and again, stores and backends
    that fail or answer twice, workers killed, preempted, stalled. `spare`: it has two places, each
    of which repeatedly refuses jobs and does not answer for a while."""
    chance = random.Random(seed)
    runs = chance.randint(2, 5)
    endings = {n: _endings(chance) for n in range(runs)}
    most = chance.randint(1, 4)
    trouble = _Trouble(chance) if spare else lambda _: None
    world = World(
        root, seed, runs=runs, endings=endings, max_parallel=most, spare=spare, trouble=trouble
    )
    kills = chance.randint(4, 14)

    def deal() -> Faults:
        if world.launcher_kills >= kills:
            return Faults()
        last = chance.randint(1, 90)
        chosen = {
            n: chance.choice(list(Fault)[:3]) for n in range(1, last) if chance.random() < 0.03
        }
        return Faults(chosen | {last: chance.choice(DEADLY)})

    world.relaunch_until_done(deal)
    return world.result()


class _Trouble:
    """Places that refuse submissions, and do not answer, for up to 3 minutes each."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = random.Random(chance.random())
        self._until: dict[str, float] = {}

    def __call__(self, world: World) -> None:
        for place, backend in world.backends.items():
            if world.clock.now < self._until.get(place, 0.0):
                continue
            kind = self._chance.choice(("fine", "fine", "full", "away"))
            backend.reachable = kind != "away"
            backend.refusal = NoRoom(f"{place} is full") if kind == "full" else None
            self._until[place] = world.clock.now + self._chance.uniform(1, 180)


def _endings(chance: random.Random) -> list[str]:
    """Draw the endings of a run's attempts: some that cause a restart, then one that decides.
    There are no retries: a failure is the end.

    `killed` leaves an ended job without an outcome, `vanish` leaves nothing; `stall` stops for
    longer than a lease, unseen by the backend, and then continues."""
    again = [chance.choice(("preempted", "vanish", "stall")) for _ in range(chance.randint(0, 2))]
    return [*again, chance.choice(("succeed", "succeed", "succeed", "fail", "killed"))]
