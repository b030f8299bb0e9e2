"""How many jobs of a sweep may be at work: as many as it holds slots of its account.

An account's launchers share its slots through a book (`book.py`). Each takes slots when it is about
to start runs and gives them back when runs have ended, in the same step in which it says how it
stands. What was learned of the service's limit (`limiter.py`) belongs to all of them.

A sweep whose launcher was killed keeps its slots for as long as its runs are at work, which any
other launcher of the account may find out; its next launcher takes them over. Nothing is taken by
waiting: a slot that nobody else may have is held by a run.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.model.quota import Learned, Member, Page
from sweeper.model.states import fold
from sweeper.scheduler.book import Book
from sweeper.scheduler.limiter import Limiter, Load
from sweeper.scheduler.shares import Claim, grant, shares
from sweeper.storage.files import open_store
from sweeper.storage.heartbeats import Heartbeats
from sweeper.storage.layout import Layout
from sweeper.storage.process import is_gone, this_process
from sweeper.storage.sweeps import read_events

__all__ = ["Allowance", "Governor", "Jobs", "name_of"]

BEAT_SECONDS = 5.0
LEASE_SECONDS = 30.0
"""How long a launcher on another machine may be silent before it asks for nothing any more."""
_REMOTE_SECONDS = 2.0
"""Between two looks at a book that is elsewhere, where each costs."""
_SEEK_SECONDS = 5.0
"""Between two looks at the runs of a sweep without a launcher."""
_FORGET_SECONDS = 900.0
"""How long a sweep that cannot be looked at from here keeps its slots without a launcher."""


class Jobs(NamedTuple):
    """How a sweep stands: `busy` jobs at work, `wanted` more that could be started now, of `most`
    at once; `paused` of those at work are held back by the service, `refused`: one was turned away
    by it."""

    busy: int
    wanted: int
    most: int
    paused: int = 0
    refused: bool = False


class Allowance(NamedTuple):
    """What a sweep may have: it holds `slots`. `share` is what it can count on, up to what it would
    have at most, and `why` it is no more, a key of `labels.LOWERED`."""

    slots: int
    share: int
    why: str = "service"


def name_of(root: str, sweep: str) -> str:
    """What a sweep is called beside others of its account."""
    return hashlib.sha256(f"{root}/{sweep}".encode()).hexdigest()[:16]


class Governor:
    """The part of one sweep's launcher. `most`: what the user knows that the service takes at
    once (None: that is learned)."""

    def __init__(
        self,
        book: Book,
        root: str,
        sweep: str,
        *,
        clock: Callable[[], float],
        weight: float = 1.0,
        most: int | None = None,
    ) -> None:
        self._book, self._clock, self._most = book, clock, most
        self._name = name_of(root, sweep)
        self._own = Member(root, sweep, this_process(), weight)
        self._limiter = Limiter(clock)
        self._seen: dict[str, tuple[int, float]] = {}
        self._abandoned: dict[str, _Abandoned] = {}
        self._beat_at = self._seek_at = self._look_at = clock()
        self._joined = False
        self._allowance = Allowance(0, 0)

    def look(self, jobs: Jobs) -> Allowance:
        """Say how the sweep stands, and take what slots it may have. Raises `StoreError`."""
        now = self._clock()
        if self._joined and self._book.is_remote and now < self._look_at:
            return self._allowance
        self._look_at = now + _REMOTE_SECONDS
        if not self._joined or now >= self._beat_at:
            self._book.beat(self._name)
            self._beat_at = now + BEAT_SECONDS
        page = self._book.write(lambda page: self._changed(page, jobs))
        self._joined = True
        self._allowance = self._allowed(page, jobs)
        return self._allowance

    def leave(self) -> None:
        """Give all slots back: nothing of the sweep is at work any more."""
        with suppress(StoreError):  # then others find out that nothing runs
            self._book.write(self._without_us)

    def _without_us(self, page: Page) -> Page:
        own = page.members.get(self._name)
        if own is None or own.who != self._own.who:
            return page  # another launcher has the sweep by now
        return page._replace(members={k: v for k, v in page.members.items() if k != self._name})

    def _changed(self, page: Page, jobs: Jobs) -> Page:
        """The page with how we stand, what follows for the limit, and the slots that we take."""
        gone = self._gone(page)
        members = dict(page.members)
        for name, slots in self._left_by(page, gone).items():
            members[name] = members[name]._replace(slots=slots)
            if not slots:
                del members[name]
        before = members.get(self._name)
        turns = [one.turn for name, one in members.items() if name not in gone]
        turn = min(turns, default=0.0) if before is None else before.turn
        now = {"slots": jobs.busy, "wants": jobs.wanted, "paused": jobs.paused, "turn": turn}
        members[self._name] = self._own._replace(**now)
        learned = self._learned(page.learned, members, gone, refused=jobs.refused)
        taken = grant(self._limit(learned), self._claims(members, gone), self._name)
        own = members[self._name]
        members[self._name] = own._replace(
            slots=own.slots + taken.slots, wants=own.wants - taken.slots, turn=taken.turn
        )
        return page._replace(learned=learned, members=members)

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
        found = self._limiter.see(known, load)
        if self._most is not None and found.limit is not None and found.limit > self._most:
            return found._replace(limit=self._most, step=1)
        return found

    def _limit(self, learned: Learned) -> int | None:
        known = [limit for limit in (learned.limit, self._most) if limit is not None]
        return min(known, default=None)

    def _claims(self, members: Mapping[str, Member], gone: set[str]) -> dict[str, Claim]:
        """What each member asks for; one without a launcher asks for nothing."""
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
        """The members without a launcher, as far as can be told from here."""
        now, stamps = self._clock(), self._book.stamps()
        found: set[str] = set()
        for name, member in page.members.items():
            stamp, known = stamps.get(name, 0), self._seen.get(name)
            if known is None or known[0] != stamp:
                known = self._seen[name] = (stamp, now)
            if name != self._name and (now - known[1] > LEASE_SECONDS or is_gone(member.who)):
                found.add(name)
        return found

    def _left_by(self, page: Page, gone: set[str]) -> dict[str, int]:
        """How many slots each of the members without a launcher still has to have, where that is
        fewer than it holds."""
        for name in self._abandoned.keys() - gone:
            del self._abandoned[name]
        now = self._clock()
        is_time = now >= self._seek_at
        if is_time:
            self._seek_at = now + _SEEK_SECONDS
        found: dict[str, int] = {}
        for name in gone:
            member = page.members[name]
            kept = self._abandoned.get(name)
            if kept is None:
                kept = self._abandoned[name] = _Abandoned(member, self._clock)
            if is_time:
                kept.look()
            if kept.at_work < member.slots or not kept.at_work:
                found[name] = min(member.slots, kept.at_work)
        return found


class _Abandoned:
    """A sweep without a launcher, whose runs may go on. `at_work`: how many of them do."""

    def __init__(self, member: Member, clock: Callable[[], float]) -> None:
        self._member, self._clock, self._since = member, clock, clock()
        self._heartbeats: Heartbeats | None = None
        self.at_work = member.slots

    def look(self) -> None:
        """Count again. What cannot be looked at is believed for a while."""
        try:
            self.at_work = self._count()
        except NotFound:
            self.at_work = 0  # the sweep was removed
        except StoreError:
            if self._clock() - self._since > _FORGET_SECONDS:
                self.at_work = 0

    def _count(self) -> int:
        store, sweep = open_store(self._member.root), self._member.sweep
        states = {run: fold(events) for run, events in read_events(store, sweep).items()}
        opened = [(run, state.opened) for run, state in states.items() if state.at_work]
        if self._heartbeats is None:
            self._heartbeats = Heartbeats(store, Layout(sweep), self._clock)
        self._heartbeats.look(opened)
        return sum(self._heartbeats.quiet(*one) <= LEASE_SECONDS for one in opened)
