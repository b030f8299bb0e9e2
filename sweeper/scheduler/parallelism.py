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
"""A launcher on another machine that is silent for longer than this gets no more slots."""
_REMOTE_SECONDS = 2.0
"""The interval between two reads of a remote record, where each costs."""
_SEEK_SECONDS = 5.0
"""The interval between two looks at the runs of a sweep without a launcher."""
_FORGET_SECONDS = 900.0
"""How long a sweep without a launcher that cannot be read from here keeps its slots, from when it
was first found, or from the last successful read."""
_NEVER = "never"
"""The start time of a process that does not exist."""


class Jobs(NamedTuple):
    """The load of a sweep: `busy` running jobs, `wanted` more that could start now, and `most` at
    once. `paused` of the running jobs are held back by the service. `refused`: the service
    rejected one."""

    busy: int
    wanted: int
    most: int
    paused: int = 0
    refused: bool = False


class Allowance(NamedTuple):
    """What a sweep may use: it holds `slots`. `share` is the number that it can count on, up to
    the number that it wants, and `why` is the reason if it is less, a key of `labels.LOWERED`."""

    slots: int
    share: int
    why: str = "service"


def name_of(root: str, sweep: str, identity: str = "") -> str:
    """Return the name of a sweep among those of its account. Without `identity`: its name in
    version 0.1."""
    text = f"{root}/{sweep}\n{identity}" if identity else f"{root}/{sweep}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Governor:
    """The part of a launcher that decides how many slots its sweep holds. `own` is its first entry
    in the record. `most` is how many jobs the service takes at once, if the user knows it; with
    None the launchers learn it."""

    def __init__(
        self,
        record: AccountRecord,
        own: Member,
        *,
        clock: Callable[[], float],
        most: int | None = None,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self._beat_seconds = beat_seconds
        self._record, self._clock, self._most = record, clock, most
        self._name = name_of(own.root, own.sweep, own.id)
        self._own = own
        self._limiter = Limiter(clock)
        self._seen: dict[str, tuple[int, float]] = {}
        self._abandoned: dict[str, _Abandoned] = {}
        self._beat_at = self._seek_at = self._look_at = clock()
        self._keeper: threading.Thread | None = None
        self._entered = False
        """Whether some page may list us as a member."""
        self._joined = False
        self._refused = False
        self._allowance = Allowance(0, 0)

    @contextmanager
    def kept(self) -> Generator[None]:
        """Send heartbeats from a thread, since a step of the launcher may take minutes. When the
        launcher ends, its slots stay with its running jobs."""
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
            with suppress(StoreError):  # the next beat may succeed
                self._record.beat(self._name)

    def look(self, jobs: Jobs) -> Allowance:
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
        self._look_at = now + _REMOTE_SECONDS  # set only now, because a failed check allows nothing
        self._allowance = self._allowed(page, jobs)
        self._forget(page)
        return self._allowance

    def leave(self) -> None:
        """Give all slots back when nothing of the sweep is running."""
        self._joined = self._entered = False
        with suppress(StoreError):  # other launchers notice that nothing runs
            page = self._record.write(self._without_us)
            if self._name not in page.members:
                self._record.forget([self._name])

    def _forget(self, page: Page) -> None:
        """Remove former members."""
        gone = self._abandoned.keys() - page.members.keys()
        if gone:
            with suppress(StoreError):
                self._record.forget(gone)
        for name in gone:
            del self._abandoned[name]
        self._seen = {name: seen for name, seen in self._seen.items() if name in page.members}

    def _let_go(self) -> None:
        """Record that the sweep has no launcher, if this process may continue to exist."""
        if not self._entered:
            return
        self._entered = self._joined = False
        with suppress(StoreError):
            self._record.write(self._without_launcher)

    def _without_launcher(self, page: Page) -> Page:
        own = page.members.get(self._name)
        if own is None or own.who != self._own.who:
            return page
        left = own._replace(who=own.who._replace(began=_NEVER), wants=0, paused=0)
        return page._replace(members={**page.members, self._name: left})

    def _without_us(self, page: Page) -> Page:
        own = page.members.get(self._name)
        if own is None or own.who != self._own.who:
            return page  # another launcher has taken over the sweep
        return page._replace(members={k: v for k, v in page.members.items() if k != self._name})

    def _changed(self, page: Page, jobs: Jobs) -> Page:
        """Return the page with our load, the resulting limit, and the slots that we take."""
        gone = self._gone(page)
        members = dict(page.members)
        for name, slots in self._left_by(page, gone).items():
            members[name] = members[name]._replace(slots=slots)
            if not slots:
                del members[name]
        turn = self._turn(members, gone, jobs)
        now = {"slots": jobs.busy, "wants": jobs.wanted, "paused": jobs.paused, "turn": turn}
        members[self._name] = self._own._replace(**now)
        learned = self._learned(page.learned, members, gone, refused=jobs.refused)
        taken = grant(self._limit(learned), self._claims(members, gone), self._name)
        own = members[self._name]
        members[self._name] = own._replace(
            slots=own.slots + taken.slots, wants=own.wants - taken.slots, turn=taken.turn
        )
        return page._replace(learned=learned, members=members)

    def _turn(self, members: Mapping[str, Member], gone: set[str], jobs: Jobs) -> float:
        """Return our turn. A member that was away does not catch up on its turns, which would
        block all others."""
        before = members.get(self._name)
        if before is not None and (before.slots or before.wants or not jobs.wanted):
            return before.turn
        others = [one for name, one in members.items() if name not in gone | {self._name}]
        sharing = [one.turn for one in others if one.slots or one.wants]
        least = min(sharing) if sharing else max((one.turn for one in others), default=0.0)
        return least if before is None else max(before.turn, least)

    def _learned(
        self, known: Learned, members: Mapping[str, Member], gone: set[str], *, refused: bool
    ) -> Learned:
        there = [one for name, one in members.items() if name not in gone]
        load = Load(
            sum(one.slots for one in members.values()),
            sum(one.paused for one in there),
            sum(one.wants for one in there),
            "service" if refused else None,
        )
        limits = self._limiter.see(known, load)
        if self._most is not None and limits.limit is not None and limits.limit > self._most:
            return limits._replace(limit=self._most, step=1)
        return limits

    def _limit(self, learned: Learned) -> int | None:
        known = [limit for limit in (learned.limit, self._most) if limit is not None]
        return min(known, default=None)

    def _claims(self, members: Mapping[str, Member], gone: set[str]) -> dict[str, Claim]:
        """Return the claims of the members. A member without a launcher claims nothing."""
        return {
            name: Claim(one.weight, one.slots, 0 if name in gone else one.wants, one.turn)
            for name, one in members.items()
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
        """Return the members without a launcher, as far as can be told from here: by the process on
        this machine, by heartbeats elsewhere."""
        now, stamps = self._clock(), self._record.stamps()
        gone: set[str] = set()
        for name, member in page.members.items():
            stamp, known = stamps.get(name, 0), self._seen.get(name)
            if known is None or known[0] != stamp:
                known = self._seen[name] = (stamp, now)
            is_here = member.who.host == self._own.who.host
            over = is_gone(member.who) if is_here else now - known[1] > LEASE_SECONDS
            if over and name != self._name:
                gone.add(name)
        return gone

    def _seek(self) -> None:
        """Check sweeps without a launcher from time to time, but never while writing a page,
        because each check may take long."""
        now = self._clock()
        if now < self._seek_at:
            return
        self._seek_at = now + _SEEK_SECONDS
        page = self._record.look()
        gone = self._gone(page)
        for name in self._abandoned.keys() - gone:
            del self._abandoned[name]
        for name in gone:
            member, abandoned = page.members[name], self._abandoned.get(name)
            if abandoned is None or abandoned.member.who != member.who:
                is_here = member.who.host == self._own.who.host
                abandoned = self._abandoned[name] = _Abandoned(member, self._clock, is_here=is_here)
            abandoned.look()

    def _left_by(self, page: Page, gone: set[str]) -> dict[str, int]:
        """Return how many slots each member without a launcher still needs, if that is fewer than
        it holds."""
        jobs: dict[str, int] = {}
        for name in gone:
            member, abandoned = page.members[name], self._abandoned.get(name)
            if abandoned is None or abandoned.member.who != member.who:
                continue  # not checked yet
            if abandoned.at_work < member.slots or not abandoned.at_work:
                jobs[name] = min(member.slots, abandoned.at_work)
        return jobs


class _Abandoned:
    """A sweep without a launcher, whose runs may still be running. `at_work`: how many are.
    `is_here`: its launcher was on this machine."""

    def __init__(self, member: Member, clock: Callable[[], float], *, is_here: bool) -> None:
        self.member, self._clock, self._since = member, clock, clock()
        self._is_here = is_here
        self._folder: SweepFolder | None = None
        self._heartbeats: Heartbeats | None = None
        self.at_work = member.slots

    def look(self) -> None:
        """Count again. An unreadable sweep keeps its count for a while."""
        try:
            self.at_work = self._count()
            self._since = self._clock()
        except StoreError:
            if self._clock() - self._since > _FORGET_SECONDS:
                self.at_work = 0

    def _count(self) -> int:
        """Count the attempts that send heartbeats, or were silent only for a short time. Raises
        `StoreError`."""
        if self._folder is None:
            self._folder = SweepFolder.open(self.member.root, self.member.sweep)
        folder, store = self._folder, self._folder.store
        try:
            events = folder.read_events()
        except NotFound as error:
            if store.is_remote or (self._is_here and os.path.isdir(store.root)):
                return 0  # the sweep was removed
            raise StoreError(str(error)) from error  # its disk is not mounted here
        if (folder.read_identity() or "") != self.member.id:
            return self._another(folder)
        states = {run: fold(happened) for run, happened in events.items()}
        opened = [(run, state.opened) for run, state in states.items() if state.at_work]
        if self._heartbeats is None:
            self._heartbeats = Heartbeats(folder, self._clock)
        self._heartbeats.look(opened)
        return sum(self._heartbeats.quiet(*one) <= LEASE_SECONDS for one in opened)

    def _another(self, folder: SweepFolder) -> int:
        """Return whether the sweep found under that name is a different one. Raises
        `StoreError`."""
        if folder.store.is_remote or self._is_here:
            return 0  # it replaced this one
        raise StoreError(f"{folder.address}: is another sweep")


def governor_of(context: Context, service: Service) -> Governor:
    """Return the governor of a sweep's launcher. Raises `EnvironmentFailure`, `StoreError`."""
    plan = context.plan
    settings = Quota("") if plan.service == "none" else quota_settings()
    account = account_of(plan, service, settings)
    record: AccountRecord = PrivateRecord()
    if account is not None:
        record = StoredRecord(open_store(settings.place), account)
    own = Member(
        context.store.root,
        context.sweep,
        this_process(),
        plan.launch.priority,
        id="" if account is None else context.folder.ensure_identity(),
    )
    return Governor(record, own, clock=context.clock, most=settings.slots)


class Lowered(NamedTuple):
    """The limit when it is below the requested number of jobs at once. `why` is a key of
    `labels.LOWERED`."""

    limit: int
    why: str


class Parallelism:
    """The limits of one launcher. `most` is the number in the plan or in a later request.
    `needed`: whether the launcher starts anything; if not, it takes no slots."""

    def __init__(self, context: Context, service: Service, *, needed: bool) -> None:
        self._planned = self.most = context.plan.launch.max_parallel
        self._governor = governor_of(context, service) if needed else None
        self._machine = Limiter(context.clock)
        self._borne = Learned()
        self._slots = 0
        self.lowered: Lowered | None = None

    @property
    def here(self) -> int:
        """The number of jobs that this launcher would run, regardless of the quota."""
        return self.most if self._borne.limit is None else min(self.most, self._borne.limit)

    @property
    def jobs(self) -> int:
        """The number of jobs that may run, as of the last check."""
        return min(self.here, self._slots)

    def ask(self, most: int | None) -> None:
        """Set the number of jobs at once; None means the number in the plan."""
        self.most = self._planned if most is None else most

    def look(
        self, busy: int, startable: int, *, paused: int = 0, refused: str | None = None
    ) -> None:
        """Adapt to the load: `busy` jobs run, the service holds back `paused` of them, and
        `startable` more could start. `refused` is what rejected a job: the service or the
        machine. Raises `Unreachable` if the place of the quota does not answer; then nothing
        more may start."""
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
            share = self._governor.look(
                Jobs(busy, wanted, self.most, paused, refused=refused == "service")
            )
        except StoreError as error:
            raise Unreachable(f"the quota's place: {error}") from error
        self._slots = share.slots
        if share.share < self.here:
            self.lowered = Lowered(share.share, share.why)

    def lower(self, limit: int) -> None:
        """Record that no more than `limit` jobs fit on the machines now."""
        if self.lowered is None or limit < self.lowered.limit:
            self.lowered = Lowered(limit, "room")

    @contextmanager
    def kept(self) -> Generator[None]:
        """Hold the slots meanwhile, however long a step takes."""
        with nullcontext() if self._governor is None else self._governor.kept():
            yield

    def leave(self) -> None:
        """Give the slots back when nothing of the sweep is running."""
        if self._governor is not None:
            self._governor.leave()
