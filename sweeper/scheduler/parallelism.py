"""Decides how many jobs of a sweep may run: the requested number, or fewer if the account's quota
(`account.py`) or this machine requires it."""

import hashlib
import math
import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError, Unreachable
from sweeper.scheduler.account import (
    AccountRecord,
    Claim,
    Limiter,
    Load,
    PrivateRecord,
    Quota,
    StoredRecord,
    account_of,
    grant,
    quota_settings,
    shares,
)
from sweeper.scheduler.context import Context
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.heartbeats import Heartbeats
from sweeper.sweep.launcher import Service
from sweeper.sweep.process import is_gone, this_process
from sweeper.sweep.quota import Learned, Member, Page
from sweeper.sweep.states import fold

BEAT_SECONDS = 5.0
LEASE_SECONDS = 30.0
"""Seconds without a heartbeat after which a launcher on another machine gets no more slots."""
_REMOTE_SECONDS = 2.0
"""Seconds between two reads of a remote record, where each costs money."""
_SEEK_SECONDS = 5.0
"""Seconds between two checks of the runs of a sweep without a launcher."""
_FORGET_SECONDS = 900.0
"""Seconds that a sweep without a launcher keeps its slots if it cannot be read from here, counted
from when it was first found or last read."""
_NEVER = "never"
"""The start time that stands for a process that does not exist."""


class Jobs(NamedTuple):
    """The load of a sweep: `busy` jobs run, the service delays `paused` of the running jobs, and
    `wanted` more could start now. At most `most` may run at the same time. `refused`: the service
    rejected a job."""

    busy: int
    wanted: int
    most: int
    paused: int = 0
    refused: bool = False


class Allowance(NamedTuple):
    """The slots of a sweep; each slot allows one job. The sweep holds `slots` and can count on
    `share`. `why` is the reason why `share` is not larger, a key of `labels.LOWERED`."""

    slots: int
    share: int
    why: str = "service"


def name_of(root: str, sweep: str, identity: str = "") -> str:
    """Return the key of a sweep in the quota that the sweeps of a service account share. Without
    `identity`, return the key that version 0.1 used."""
    text = f"{root}/{sweep}\n{identity}" if identity else f"{root}/{sweep}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Governor:
    """The part of a launcher that takes slots for its sweep; each slot allows one job. `record` has
    the slots of all sweeps of a service account, and `member` is this sweep's entry. `most` is the
    number of jobs that the service runs at the same time (None: the launchers learn it)."""

    def __init__(
        self,
        record: AccountRecord,
        member: Member,
        *,
        clock: Callable[[], float],
        most: int | None = None,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self._beat_seconds = beat_seconds
        self._record, self._clock, self._most = record, clock, most
        self._name = name_of(member.root, member.sweep, member.id)
        self._member = member
        self._limiter = Limiter(clock)
        self._seen: dict[str, tuple[int, float]] = {}
        self._abandoned: dict[str, _Abandoned] = {}
        self._beat_at = self._seek_at = self._look_at = clock()
        self._keeper: threading.Thread | None = None
        self._entered = False
        """Whether some page may list this sweep."""
        self._joined = False
        self._refused = False
        self._allowance = Allowance(0, 0)

    @contextmanager
    def holding(self) -> Generator[None]:
        """Send heartbeats to the account's record while the block runs. After the block, the sweep
        keeps the slots of its running jobs."""
        if not self._record.is_shared:
            yield
            return
        ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, args=(ended,), daemon=True)
        self._keeper.start()
        try:
            yield
        finally:
            ended.set()
            self._keeper.join()
            self._keeper = None
            self._let_go()

    def _keep(self, ended: threading.Event) -> None:
        while not ended.wait(self._beat_seconds):
            with suppress(StoreError):  # The next heartbeat may succeed.
                self._record.beat(self._name)

    def check(self, jobs: Jobs) -> Allowance:
        """Report the load of the sweep, and take the slots that it may have. Raises
        `StoreError`."""
        now = self._clock()
        self._refused |= jobs.refused
        jobs = jobs._replace(refused=self._refused)
        if self._joined and self._record.is_remote and now < self._look_at:
            return self._allowance
        if not self._joined or (self._keeper is None and now >= self._beat_at):
            self._record.beat(self._name)
            self._beat_at = now + self._beat_seconds
        self._seek()
        self._entered = True
        page = self._record.write(lambda page: self._changed(page, jobs))
        self._joined, self._refused = True, False
        # The allowance is set only now, so that a failed check allows nothing.
        self._look_at = now + _REMOTE_SECONDS
        self._allowance = self._allowed(page, jobs)
        self._forget(page)
        return self._allowance

    def leave(self) -> None:
        """Give all slots back to the account. Called when no job of the sweep is running."""
        self._joined = self._entered = False
        with suppress(StoreError):  # Other launchers notice that nothing runs.
            page = self._record.write(self._without_us)
            if self._name not in page.members:
                self._record.forget([self._name])

    def _forget(self, page: Page) -> None:
        gone = self._abandoned.keys() - page.members.keys()
        if gone:
            with suppress(StoreError):
                self._record.forget(gone)
        for name in gone:
            del self._abandoned[name]
        self._seen = {name: seen for name, seen in self._seen.items() if name in page.members}

    def _let_go(self) -> None:
        """Record that the sweep has no launcher any more."""
        if not self._entered:
            return
        self._entered = self._joined = False
        with suppress(StoreError):
            self._record.write(self._without_launcher)

    def _without_launcher(self, page: Page) -> Page:
        entry = page.members.get(self._name)
        if entry is None or entry.who != self._member.who:
            return page
        abandoned = entry._replace(who=entry.who._replace(began=_NEVER), wants=0, paused=0)
        return page._replace(members={**page.members, self._name: abandoned})

    def _without_us(self, page: Page) -> Page:
        entry = page.members.get(self._name)
        if entry is None or entry.who != self._member.who:
            return page  # another launcher drives the sweep now
        return page._replace(members={k: v for k, v in page.members.items() if k != self._name})

    def _changed(self, page: Page, jobs: Jobs) -> Page:
        """Return a new version of the account's record, with the sweep's load, the learned limit,
        and the slots that the sweep takes."""
        gone = self._gone(page)
        members = dict(page.members)
        for name, slots in self._slots_needed(page, gone).items():
            members[name] = members[name]._replace(slots=slots)
            if not slots:
                del members[name]
        turn = self._turn(members, gone, jobs)
        now = {"slots": jobs.busy, "wants": jobs.wanted, "paused": jobs.paused, "turn": turn}
        members[self._name] = self._member._replace(**now)
        learned = self._learned(page.learned, members, gone, refused=jobs.refused)
        taken = grant(self._limit(learned), self._claims(members, gone), self._name)
        entry = members[self._name]
        members[self._name] = entry._replace(
            slots=entry.slots + taken.slots, wants=entry.wants - taken.slots, turn=taken.turn
        )
        return page._replace(learned=learned, members=members)

    def _turn(self, members: Mapping[str, Member], gone: set[str], jobs: Jobs) -> float:
        """Return the sweep's `turn`. The sweep with the lowest turn gets the next slot. If this
        sweep wanted no slots for a while, it gets at least the lowest turn of the others."""
        before = members.get(self._name)
        if before is not None and (before.slots or before.wants or not jobs.wanted):
            return before.turn
        others = [member for name, member in members.items() if name not in gone | {self._name}]
        sharing = [member.turn for member in others if member.slots or member.wants]
        lowest = min(sharing) if sharing else max((member.turn for member in others), default=0.0)
        return lowest if before is None else max(before.turn, lowest)

    def _learned(
        self, learned: Learned, members: Mapping[str, Member], gone: set[str], *, refused: bool
    ) -> Learned:
        present = [member for name, member in members.items() if name not in gone]
        load = Load(
            sum(member.slots for member in members.values()),
            sum(member.paused for member in present),
            sum(member.wants for member in present),
            "service" if refused else None,
        )
        limits = self._limiter.see(learned, load)
        if self._most is not None and limits.limit is not None and limits.limit > self._most:
            return limits._replace(limit=self._most, step=1)
        return limits

    def _limit(self, learned: Learned) -> int | None:
        limits = [limit for limit in (learned.limit, self._most) if limit is not None]
        return min(limits, default=None)

    def _claims(self, members: Mapping[str, Member], gone: set[str]) -> dict[str, Claim]:
        """Return how many slots each sweep holds and wants. A sweep without a launcher wants 0."""
        return {
            name: Claim(
                member.weight, member.slots, 0 if name in gone else member.wants, member.turn
            )
            for name, member in members.items()
        }

    def _allowed(self, page: Page, jobs: Jobs) -> Allowance:
        slots, limit = page.members[self._name].slots, self._limit(page.learned)
        if limit is None:
            return Allowance(slots, jobs.most)
        claims = self._claims(page.members, self._gone(page))
        claims[self._name] = claims[self._name]._replace(wants=max(0, jobs.most - slots))
        share = math.ceil(shares(limit, claims)[self._name] - 1e-9)
        why = "quota" if limit == self._most else page.learned.why
        return Allowance(slots, share, why if limit < jobs.most else "shared")

    def _gone(self, page: Page) -> set[str]:
        """Return the keys of the sweeps without a launcher. On this machine the launcher's process
        is checked, on other machines its heartbeats."""
        now, stamps = self._clock(), self._record.stamps()
        gone: set[str] = set()
        for name, member in page.members.items():
            stamp, seen = stamps.get(name, 0), self._seen.get(name)
            if seen is None or seen[0] != stamp:
                seen = self._seen[name] = (stamp, now)
            is_here = member.who.host == self._member.who.host
            over = is_gone(member.who) if is_here else now - seen[1] > LEASE_SECONDS
            if over and name != self._name:
                gone.add(name)
        return gone

    def _seek(self) -> None:
        """Check the sweeps without a launcher, at most every `_SEEK_SECONDS`."""
        now = self._clock()
        if now < self._seek_at:
            return
        self._seek_at = now + _SEEK_SECONDS
        page = self._record.check()
        gone = self._gone(page)
        for name in self._abandoned.keys() - gone:
            del self._abandoned[name]
        for name in gone:
            member, abandoned = page.members[name], self._abandoned.get(name)
            if abandoned is None or abandoned.member.who != member.who:
                is_here = member.who.host == self._member.who.host
                abandoned = self._abandoned[name] = _Abandoned(member, self._clock, is_here=is_here)
            abandoned.check()

    def _slots_needed(self, page: Page, gone: set[str]) -> dict[str, int]:
        """Return how many slots each sweep without a launcher still needs. Leave out sweeps that
        need all their slots, and sweeps that were not checked yet."""
        jobs: dict[str, int] = {}
        for name in gone:
            member, abandoned = page.members[name], self._abandoned.get(name)
            if abandoned is None or abandoned.member.who != member.who:
                continue  # not checked yet
            if abandoned.at_work < member.slots or not abandoned.at_work:
                jobs[name] = min(member.slots, abandoned.at_work)
        return jobs


class _Abandoned:
    """A sweep without a launcher. `at_work` is the number of its runs that still run. `is_here`:
    its launcher ran on this machine."""

    def __init__(self, member: Member, clock: Callable[[], float], *, is_here: bool) -> None:
        self.member, self._clock, self._since = member, clock, clock()
        self._is_here = is_here
        self._folder: SweepFolder | None = None
        self._heartbeats: Heartbeats | None = None
        self.at_work = member.slots

    def check(self) -> None:
        """Count the running runs again. If the sweep cannot be read, keep the last count; after
        `_FORGET_SECONDS`, set the count to 0."""
        try:
            self.at_work = self._count()
            self._since = self._clock()
        except StoreError:
            if self._clock() - self._since > _FORGET_SECONDS:
                self.at_work = 0

    def _count(self) -> int:
        """Count the running attempts that have sent a heartbeat recently. Raises `StoreError`."""
        if self._folder is None:
            self._folder = SweepFolder.open(self.member.root, self.member.sweep)
        folder, store = self._folder, self._folder.store
        try:
            events = folder.read_events()
        except NotFound as error:
            if store.is_remote or (self._is_here and os.path.isdir(store.root)):
                return 0  # The sweep was removed.
            raise StoreError(str(error)) from error  # The sweep's disk is not mounted here.
        if (folder.read_identity() or "") != self.member.id:
            return self._another(folder)
        states = {run: fold(happened) for run, happened in events.items()}
        opened = [(run, state.opened) for run, state in states.items() if state.at_work]
        if self._heartbeats is None:
            self._heartbeats = Heartbeats(folder, self._clock)
        self._heartbeats.check(opened)
        return sum(self._heartbeats.quiet(*attempt) <= LEASE_SECONDS for attempt in opened)

    def _another(self, folder: SweepFolder) -> int:
        """Return 0 if this sweep is gone, since `folder` now has another sweep. Raises `StoreError`
        if this sweep may still exist on another machine."""
        if folder.store.is_remote or self._is_here:
            return 0  # The other sweep has replaced this one.
        raise StoreError(f"{folder.address} is another sweep")


def governor_of(context: Context, service: Service) -> Governor:
    """Return the governor of a sweep's launcher. Raises `EnvironmentFailure`, `StoreError`."""
    plan = context.plan
    settings = Quota("") if plan.service == "none" else quota_settings()
    account = account_of(plan, service, settings)
    record: AccountRecord = PrivateRecord()
    if account is not None:
        record = StoredRecord(open_store(settings.place), account)
    member = Member(
        context.store.root,
        context.sweep,
        this_process(),
        plan.launch.priority,
        id="" if account is None else context.folder.ensure_identity(),
    )
    return Governor(record, member, clock=context.clock, most=settings.slots)


class Lowered(NamedTuple):
    """A limit on parallel jobs that differs from the plan's `max_parallel`. `why` is the reason, a
    key of `labels.LOWERED`."""

    limit: int
    why: str


class Parallelism:
    """The limits of one launcher. `most` is the largest number of parallel jobs, from the plan or a
    later request. With `needed=False` the launcher takes no slots, because it starts no runs."""

    def __init__(self, context: Context, service: Service, *, needed: bool) -> None:
        self._planned = self.most = context.plan.launch.max_parallel
        self._governor = governor_of(context, service) if needed else None
        self._machine = Limiter(context.clock)
        self._machine_limit = Learned()
        self._slots = 0
        self.lowered: Lowered | None = None

    @property
    def here(self) -> int:
        """The number of jobs that may run at the same time before the account's quota is
        applied."""
        return (
            self.most
            if self._machine_limit.limit is None
            else min(self.most, self._machine_limit.limit)
        )

    @property
    def jobs(self) -> int:
        """The number of jobs that may run, as of the last check."""
        return min(self.here, self._slots)

    def ask(self, most: int | None) -> None:
        """Set the largest number of jobs that may run at the same time; None restores the plan's
        number."""
        self.most = self._planned if most is None else most

    def check(
        self, busy: int, startable: int, *, paused: int = 0, refused: str | None = None
    ) -> None:
        """Adapt to the load: `busy` jobs run, the service delays `paused` of them, and `startable`
        more could start. `refused` is what rejected a job: the service or the machine. Raises
        `Unreachable` if the account's quota cannot be read; then no run may start."""
        crowded = "machine" if refused == "machine" else None
        self._machine_limit = self._machine.see(
            self._machine_limit, Load(busy, 0, startable, crowded)
        )
        if self._machine_limit.limit is not None and self._machine_limit.limit >= self.most:
            self._machine_limit = self._machine_limit._replace(limit=None, step=1)
        self.lowered = None
        if self.here != self._planned:
            self.lowered = Lowered(self.here, "machine" if self.here < self.most else "asked")
        if self._governor is None:
            return
        self._slots = busy
        wanted = max(0, min(startable, self.here - busy))
        try:
            share = self._governor.check(
                Jobs(busy, wanted, self.most, paused, refused=refused == "service")
            )
        except StoreError as error:
            raise Unreachable(f"cannot read the account's quota: {error}") from error
        self._slots = share.slots
        if share.share < self.here:
            self.lowered = Lowered(share.share, share.why)

    def lower(self, limit: int) -> None:
        """Record that the machines now have room for no more than `limit` jobs."""
        if self.lowered is None or limit < self.lowered.limit:
            self.lowered = Lowered(limit, "room")

    @contextmanager
    def holding(self) -> Generator[None]:
        """Hold the sweep's slots while the block runs."""
        with nullcontext() if self._governor is None else self._governor.holding():
            yield

    def leave(self) -> None:
        """Give the sweep's slots back. Called when no job of the sweep is running."""
        if self._governor is not None:
            self._governor.leave()
