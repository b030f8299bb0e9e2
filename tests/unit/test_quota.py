"""What launchers of one account may have at work together: what is learned of the limit, whose turn
it is, and that the record of it is true whatever happens to who writes it."""

import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import EnvironmentFailure, StoreError
from sweeper.scheduler import account, parallelism
from sweeper.scheduler.account import (
    Claim,
    Limiter,
    Load,
    PrivateRecord,
    StoredRecord,
    grant,
    shares,
)
from sweeper.scheduler.parallelism import Governor, Jobs
from sweeper.store import opening
from sweeper.store.base import Store
from sweeper.store.documents import encode
from sweeper.store.local import LocalStore
from sweeper.sweep import process
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.launcher import Who
from sweeper.sweep.quota import Learned, Member, Page
from sweeper.sweep.states import Event
from sweeper.testing import FakeClock, Fault, Faults, FaultyStore

pytestmark = pytest.mark.usefixtures("no_sync")


class Service:
    """A service that takes `cap` jobs at once and holds the others back, as a launcher sees it that
    starts as many as it may."""

    def __init__(self, cap: int) -> None:
        self.clock, self.cap, self.learned = FakeClock(), cap, Learned()
        self.limiter = Limiter(self.clock)

    def after(self, seconds: float, most: int = 100) -> list[int]:
        """The limits of so many seconds."""
        limits: list[int] = []
        for _ in range(int(seconds)):
            self.clock.sleep(1)
            busy = most if self.learned.limit is None else min(most, self.learned.limit)
            load = Load(busy, max(0, busy - self.cap), most - busy)
            self.learned = self.limiter.see(self.learned, load)
            limits.append(self.learned.limit or most)
        return limits


def test_a_limit_is_found_kept_and_followed() -> None:
    service = Service(60)
    assert service.after(3)[-1] == 60  # at once what is not held back, if that is half or more
    assert set(service.after(300)) <= {60, 61}
    service.cap = 10
    assert service.after(120)[-1] in (10, 11)
    assert set(service.after(200)) <= {10, 11}
    service.cap = 80
    service.after(200)
    assert set(service.after(200)) <= {80, 81}


def test_a_limit_is_not_cut_twice_for_one_reason() -> None:
    clock = FakeClock()
    limiter = Limiter(clock)
    halved = limiter.see(Learned(), Load(8, 8))
    assert halved.limit == 4
    clock.sleep(1)
    assert limiter.see(halved, Load(8, 8)) == halved
    clock.sleep(20)
    assert limiter.see(halved, Load(4, refused="machine")) == Learned(2, 1, 2, "machine")


def test_what_keeps_nothing_from_starting_does_not_grow() -> None:
    clock = FakeClock()
    limiter = Limiter(clock)
    for _ in range(100):
        clock.sleep(1)
        assert (
            limiter.see(Learned(4), Load(3, 0, 5)) == limiter.see(Learned(4), Load(4)) == Learned(4)
        )


def test_a_launcher_that_comes_later_keeps_the_same_time() -> None:
    """What another one has changed begins a window for all of them."""
    clock = FakeClock()
    limiter = Limiter(clock)
    limiter.see(Learned(10), Load(10, 0, 5))
    clock.sleep(100)
    assert limiter.see(Learned(12, 4), Load(12, 0, 5)) == Learned(12, 4)
    assert limiter.see(Learned(7, 1, 1), Load(12, 5)) == Learned(7, 1, 1)


def test_shares_are_by_weight_and_nobody_gets_more_than_it_can_use() -> None:
    claims = {"a": Claim(1, 0, 99), "b": Claim(1, 0, 99), "c": Claim(2, 0, 99)}
    assert shares(48, claims) == {"a": 12, "b": 12, "c": 24}
    claims["b"] = Claim(1, 2, 1)
    assert shares(48, claims) == {"a": 15, "b": 3, "c": 30}
    claims["c"] = Claim(2, 0, 0)
    assert shares(48, claims) == {"a": 45, "b": 3, "c": 0}


@pytest.mark.parametrize(("limit", "weights"), [(1, (1, 9)), (2, (1, 1, 2)), (7, (1, 2, 3, 5))])
def test_a_slot_that_cannot_be_shared_goes_round(limit: int, weights: tuple[int, ...]) -> None:
    """Runs that end and begin again: over time each member has what is due to it by its weight,
    also where that is no whole number of slots, or less than one."""
    held, turns = dict.fromkeys(range(len(weights)), 0), dict.fromkeys(range(len(weights)), 0.0)
    had = dict.fromkeys(held, 0)
    ends: list[tuple[int, int]] = []
    rounds = 1500
    for now in range(rounds):
        for ended in [who for end, who in ends if end == now]:
            held[ended] -= 1
        ends = [each for each in ends if each[0] > now]
        for who in sorted(held, key=lambda n: (n + now) % len(weights)):  # nobody is always first
            claims = {str(n): Claim(weights[n], held[n], 50, turns[n]) for n in range(len(weights))}
            got = grant(limit, claims, str(who))
            held[who] += got.slots
            turns[who] = got.turn
            ends += [(now + 3, who)] * got.slots
        assert sum(held.values()) <= limit
        for who in held:
            had[who] += held[who]
    assert sum(had.values()) > 0.99 * limit * rounds
    for who, weight in enumerate(weights):
        due = limit * rounds * weight / sum(weights)
        assert had[who] == pytest.approx(due, rel=0.2)


def _member(sweep: str, **about: object) -> Member:
    return Member("/root", sweep, Who("elsewhere", 1, None))._replace(**about)  # type: ignore[arg-type]


def _with(sweep: str, slots: int) -> Callable[[Page], Page]:
    return lambda page: page._replace(members={**page.members, sweep: _member(sweep, slots=slots)})


def test_a_page_follows_from_the_one_before(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    first, second = StoredRecord(store, "a"), StoredRecord(store, "a")
    for n in range(60):
        (first, second)[n % 2].write(_with(f"s{n % 3}", n))
    assert first.look() == second.look()
    assert {name: m.slots for name, m in first.look().members.items()} == {
        "s0": 57,
        "s1": 58,
        "s2": 59,
    }
    assert len(list(store.names("a/pages"))) < 30
    same = first.look()
    assert first.write(_with("s0", 57)) == same  # nothing is written that changes nothing


def test_two_who_write_at_once_both_count(tmp_path: Path) -> None:
    """The one whose page comes second reads the first, and thinks again."""
    store = LocalStore(str(tmp_path))
    first, second = StoredRecord(store, "a"), StoredRecord(store, "a")
    first.write(_with("x", 1))

    def late(page: Page) -> Page:
        if "y" not in page.members:
            second.write(_with("y", 2))
        return _with("x", 3)(page)

    written = first.write(late)
    assert {name: member.slots for name, member in written.members.items()} == {"x": 3, "y": 2}


def test_who_slept_over_many_pages_is_not_believed(tmp_path: Path) -> None:
    """The number that it writes has been removed meanwhile, and so can be created again."""
    store = LocalStore(str(tmp_path))
    first, second = StoredRecord(store, "a"), StoredRecord(store, "a")
    first.write(_with("x", 1))

    def asleep(page: Page) -> Page:
        if "y" not in page.members:
            for n in range(50):
                second.write(_with("y", n))
        return _with("x", 2)(page)

    first.write(asleep)
    assert {name: member.slots for name, member in second.look().members.items()} == {
        "x": 2,
        "y": 49,
    }


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REPLY, Fault.TWICE])
def test_a_book_whose_store_fails_now_and_then(tmp_path: Path, fault: Fault) -> None:
    store = LocalStore(str(tmp_path))
    number = 0
    for number in itertools.count(1):
        faults = Faults({number: fault})
        record = StoredRecord(FaultyStore(store, faults), "a")
        try:
            record.write(_with("x", number))
        except StoreError:
            record.write(_with("x", number))
        assert StoredRecord(store, "a").look().members["x"].slots == number
        if not faults.struck:
            break
    assert number > 3


class Account:
    """An account with a limit of `slots` that launchers of several sweeps share."""

    def __init__(self, folder: Path, slots: int | None) -> None:
        self.clock, self.slots = FakeClock(), slots
        self.store = LocalStore(str(folder / "quota"))
        self.root = LocalStore(str(folder / "sweeps"))

    def launcher(
        self,
        sweep: str,
        weight: float = 1.0,
        *,
        store: Store | None = None,
        identity: str = "",
        who: Who | None = None,
        beat_seconds: float = parallelism.BEAT_SECONDS,
    ) -> Governor:
        record = StoredRecord(store or self.store, "a")
        itself = Member(self.root.root, sweep, who or process.this_process(), weight, id=identity)
        return Governor(
            record, itself, clock=self.clock, most=self.slots, beat_seconds=beat_seconds
        )

    def elsewhere(self, sweep: str, beat_seconds: float = parallelism.BEAT_SECONDS) -> Governor:
        """A launcher on another machine."""
        who = Who("elsewhere", 1, None)
        return self.launcher(sweep, who=who, beat_seconds=beat_seconds)

    def name(self, sweep: str) -> str:
        return parallelism.name_of(self.root.root, sweep)

    def held(self) -> dict[str, int]:
        members = StoredRecord(self.store, "a").look().members.values()
        return {member.sweep: member.slots for member in members}

    def begin(self, sweep: str, runs: int) -> None:
        """The sweep is on record, with so many runs at work."""
        folder = SweepFolder(self.root, sweep)
        self.root.replace(folder.plan, b"{}")
        for n in range(runs):
            self.root.create(folder.event(f"{n:012x}", 1, Event.CLAIMED), b"{}")


def test_a_launcher_has_all_slots_while_it_is_alone(tmp_path: Path) -> None:
    shared = Account(tmp_path, 10)
    first, second = shared.launcher("one"), shared.launcher("two", 4.0)
    assert first.look(Jobs(0, 20, 20)) == (10, 10, "quota")
    assert second.look(Jobs(0, 20, 20)).slots == 0  # what runs is left alone
    assert first.look(Jobs(9, 11, 20)).slots == 9  # one has ended: it is the other's turn
    assert second.look(Jobs(0, 20, 20)) == (1, 8, "quota")
    first.look(Jobs(2, 18, 20))
    assert second.look(Jobs(1, 19, 20)).slots == 8
    assert first.look(Jobs(2, 18, 5)) == (2, 2, "shared")
    second.leave()
    assert first.look(Jobs(2, 18, 20)).slots == 10
    assert shared.held() == {"one": 10}


def test_the_slots_of_a_killed_launcher_stay_with_its_runs(tmp_path: Path) -> None:
    shared = Account(tmp_path, 10)
    shared.begin("killed", 6)
    shared.elsewhere("killed").look(Jobs(0, 6, 6))
    other = shared.launcher("other")
    for _ in range(20):  # its runs do not beat: they count for as long as a lease
        assert other.look(Jobs(4, 9, 9)).slots == 4
        shared.clock.sleep(1)
    folder = SweepFolder(shared.root, "killed")
    for n in range(2):
        shared.root.create(folder.event(f"{n:012x}", 1, Event.SUCCEEDED), b"{}")
    # It may live: nobody takes what a launcher holds before its lease is over.
    assert other.look(Jobs(4, 9, 9)).slots == 4
    for _ in range(20):
        shared.clock.sleep(1)
        for n in range(2, 6):
            beat = encode({"counter": shared.clock.now})
            shared.root.replace(folder.heartbeat(f"{n:012x}", 1), beat, durable=False)
        other.look(Jobs(4, 9, 9))
    assert other.look(Jobs(4, 9, 9)).slots == 6
    again = shared.elsewhere("killed")  # and somebody starts it again
    assert again.look(Jobs(4, 0, 6)).slots == 4
    shared.clock.sleep(200)
    again.look(Jobs(0, 0, 6))
    assert other.look(Jobs(4, 9, 9)).slots == 10


GONE = process.this_process()._replace(began="never")
"""A process of this machine that has ended: its number is another's by now."""


def test_a_launcher_that_is_dead_for_sure_is_not_waited_for(tmp_path: Path) -> None:
    shared = Account(tmp_path, 10)
    shared.begin("killed", 2)
    shared.launcher("killed", who=GONE).look(Jobs(2, 50, 50))
    other = shared.launcher("other")
    shared.clock.sleep(6)
    assert other.look(Jobs(0, 20, 20)).slots == 8


def test_what_cannot_be_looked_at_is_forgotten_at_last(tmp_path: Path) -> None:
    shared = Account(tmp_path, 10)
    record = StoredRecord(shared.store, "a")
    there = _member("elsewhere", root="s3://nowhere?", slots=7)
    record.write(lambda page: page._replace(members={"far": there}))
    other = shared.launcher("other")
    for _ in range(100):
        assert other.look(Jobs(3, 7, 10)).slots == 3
        shared.clock.sleep(6)
    slots = 0
    for _ in range(100):
        slots = other.look(Jobs(3, 7, 10)).slots
        shared.clock.sleep(6)
    assert slots == 10


def test_a_sweep_whose_disk_is_not_here_keeps_its_slots(tmp_path: Path) -> None:
    """Of another machine's sweep a folder of that name, or none, says nothing; nor of ours while
    the root is not there. Only who sees the root without the sweep knows that it was removed."""
    shared = Account(tmp_path, 10)
    os.makedirs(shared.root.root)
    away = {
        "far": _member("s", root=shared.root.root, slots=3),
        "unmounted": _member("s", root=str(tmp_path / "away"), slots=2, who=GONE),
    }
    gone = {"removed": _member("s", root=shared.root.root, slots=4, who=GONE)}
    record = StoredRecord(shared.store, "a")
    record.write(lambda page: page._replace(members=away | gone))
    other = shared.launcher("other")
    other.look(Jobs(0, 10, 10))
    for _ in range(20):
        assert other.look(Jobs(0, 10, 10)).slots == 5
        shared.clock.sleep(6)
    assert set(record.look().members) - {shared.name("other")} == set(away)


def test_a_look_that_worked_is_believed_as_long_as_the_first(tmp_path: Path) -> None:
    shared = Account(tmp_path, 10)
    shared.begin("killed", 4)
    shared.elsewhere("killed").look(Jobs(0, 4, 4))
    other = shared.launcher("other")

    def for_minutes(minutes: float) -> int:
        slots = 0
        for _ in range(int(minutes * 2.4)):
            beat = encode({"counter": shared.clock.now})
            for run in range(4) if os.path.exists(shared.root.root) else ():
                path = SweepFolder(shared.root, "killed").heartbeat(f"{run:012x}", 1)
                shared.root.replace(path, beat, durable=False)
            slots = other.look(Jobs(0, 10, 10)).slots
            shared.clock.sleep(25)
        return slots

    assert for_minutes(30) == 6
    os.rename(shared.root.root, f"{shared.root.root}.away")
    assert for_minutes(10) == 6
    assert for_minutes(10) == 10


def test_a_launcher_whose_step_takes_long_keeps_its_slots(tmp_path: Path) -> None:
    """On this machine its process says that it lives, on another its beats do, which a thread
    sends."""
    shared = Account(tmp_path, 10)
    shared.begin("slow", 0)
    slow, other = shared.launcher("slow"), shared.launcher("other")
    slow.look(Jobs(0, 6, 6))
    for _ in range(20):
        assert other.look(Jobs(0, 10, 10)).slots == 4
        shared.clock.sleep(6)
    record = StoredRecord(shared.store, "a")
    far = shared.elsewhere("far", beat_seconds=0.001)
    with far.kept():
        far.look(Jobs(0, 6, 6))
        record.look()
        before = record.stamps()[shared.name("far")]
        deadline = time.monotonic() + 20
        while record.stamps()[shared.name("far")] == before:
            assert time.monotonic() < deadline
            record.look()
    assert not [each for each in threading.enumerate() if each.name.endswith("(_keep)")]


def test_a_launcher_that_ends_in_a_process_that_lives_on_leaves_its_slots_to_its_runs(
    tmp_path: Path,
) -> None:
    shared = Account(tmp_path, 10)
    shared.begin("ended", 2)
    ended, other = shared.launcher("ended"), shared.launcher("other")
    with pytest.raises(KeyboardInterrupt), ended.kept():
        assert ended.look(Jobs(2, 8, 10)).slots == 10
        raise KeyboardInterrupt
    assert other.look(Jobs(0, 10, 10)).slots == 8
    assert ended.look(Jobs(2, 8, 10)).slots == 2  # and it goes on


def test_sweeps_without_a_launcher_are_looked_at_once_and_not_while_a_page_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Account(tmp_path, 10)
    shared.begin("killed", 4)
    shared.launcher("killed", who=GONE).look(Jobs(0, 4, 4))
    opened: list[str] = []
    writing: list[bool] = []

    class Watched(StoredRecord):
        def write(self, change: Callable[[Page], Page]) -> Page:
            writing.append(True)
            try:
                return super().write(change)
            finally:
                writing.clear()

    itself = Member(shared.root.root, "other", process.this_process())
    other = Governor(Watched(shared.store, "a"), itself, clock=shared.clock, most=10)

    def opens(root: str) -> FaultyStore:
        opened.append(root)
        return FaultyStore(LocalStore(root), Faults(lambda *_: Fault.FAIL if writing else None))

    monkeypatch.setattr(opening, "open_store", opens)
    for _ in range(10):
        other.look(Jobs(0, 10, 10))
        shared.clock.sleep(3)
    assert opened == [shared.root.root]


def test_what_a_book_elsewhere_allowed_does_not_hold_once_it_cannot_be_asked(
    tmp_path: Path,
) -> None:
    shared, failing = Account(tmp_path, 10), [False]
    faults = Faults(lambda *_: Fault.FAIL if failing[0] else None)
    far = shared.launcher("far", store=FaultyStore(shared.store, faults, remote=True))
    assert far.look(Jobs(0, 6, 6)).slots == 6
    calls = len(faults.calls)
    assert far.look(Jobs(1, 0, 6)).slots == 6
    assert len(faults.calls) == calls  # each look costs
    shared.clock.sleep(3)
    failing[0] = True
    for _ in range(3):
        with pytest.raises(StoreError):
            far.look(Jobs(1, 0, 6))
    failing[0] = False
    assert far.look(Jobs(1, 0, 6)).slots == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_refusal_is_told_to_a_book_elsewhere_as_soon_as_that_can_be(
    tmp_path: Path, fails: bool
) -> None:
    shared, failing = Account(tmp_path, None), [False]
    faults = Faults(lambda *_: Fault.FAIL if failing[0] else None)
    far = shared.launcher("far", store=FaultyStore(shared.store, faults, remote=True))
    far.look(Jobs(8, 0, 8))
    if fails:
        shared.clock.sleep(3)
        failing[0] = True
        with pytest.raises(StoreError):
            far.look(Jobs(8, 0, 8, refused=True))
        failing[0] = False
    else:
        far.look(Jobs(8, 0, 8, refused=True))
    shared.clock.sleep(3)
    assert far.look(Jobs(7, 1, 8)).share == 3
    shared.clock.sleep(16)
    assert far.look(Jobs(7, 1, 8)).share == 3  # it is told once


@pytest.mark.parametrize(("busy", "least"), [({"wants": 9}, 80), ({"slots": 1}, 80), ({}, 100)])
@pytest.mark.parametrize("present", [True, False])
def test_who_had_no_part_in_the_sharing_does_not_make_up_for_it(
    tmp_path: Path, busy: dict[str, int], least: float, present: bool
) -> None:
    """Else all others would wait until it has had as many turns as they."""
    shared = Account(tmp_path, 1)
    idle, record = shared.launcher("idle"), StoredRecord(shared.store, "a")
    others = {"one": _member("one", turn=100.0), "two": _member("two", turn=80.0, **busy)}
    name = shared.name("idle")
    mine = Member(shared.root.root, "idle", process.this_process(), turn=7.0)
    itself = {name: mine} if present else {}
    record.write(lambda page: page._replace(members=others | itself))
    idle.look(Jobs(0, 0, 9))
    assert not present or record.look().members[name].turn == 7.0
    idle.look(Jobs(0, 9, 9))
    assert least <= record.look().members[name].turn <= least + 2
    turn = record.look().members[name].turn
    record.write(lambda page: page._replace(members={**page.members, **others}))
    idle.look(Jobs(0, 9, 9))
    assert record.look().members[name].turn - turn <= 2  # and it continues from there


def test_two_sweeps_that_are_called_the_same_are_two(tmp_path: Path) -> None:
    """On two machines the same folder may be another. Nor does one that was removed and made anew
    answer for the runs of the first."""
    shared = Account(tmp_path, 10)
    first = shared.launcher("s", identity="one")
    assert first.look(Jobs(4, 0, 4)).slots == 4
    shared.begin("s", 6)
    folder = SweepFolder(shared.root, "s")
    shared.root.create(folder.identity, b"two\n")
    second = shared.launcher("s", identity=folder.ensure_identity())
    assert second.look(Jobs(0, 10, 10)).slots == 6
    with first.kept():
        first.look(Jobs(4, 0, 4))
    shared.clock.sleep(6)
    assert second.look(Jobs(6, 4, 10)).slots == 10


def test_an_identity_is_made_once(tmp_path: Path) -> None:
    folder = SweepFolder(LocalStore(str(tmp_path)), "s")
    assert folder.read_identity() is None
    for fault in Fault.LOSE_REPLY, Fault.TWICE:
        folder.store.remove([folder.identity])
        with suppress(StoreError):
            folder.at(FaultyStore(folder.store, Faults({2: fault}))).ensure_identity()
        made = folder.read_identity()
        assert made
        assert folder.ensure_identity() == made


def test_a_place_keeps_nothing_of_who_left(tmp_path: Path) -> None:
    shared = Account(tmp_path, 10)
    gone, other = shared.launcher("one"), shared.launcher("other")
    gone.look(Jobs(0, 2, 2))
    gone.leave()
    shared.elsewhere("killed").look(Jobs(0, 2, 2))
    shared.begin("killed", 0)
    for _ in range(12):
        other.look(Jobs(0, 2, 2))
        shared.clock.sleep(6)
    assert list(shared.store.names("a/beats")) == [f"a/beats/{shared.name('other')}"]
    for n in range(50):
        shared.store.replace(f"a/spent/{n}.json", b"{}")
    faults = Faults()
    StoredRecord(FaultyStore(shared.store, faults), "a").look()
    assert [each for each in faults.calls if "spent" in each or each.endswith(" a")] == []


def test_a_sweep_begins_with_what_was_learned_last(tmp_path: Path) -> None:
    shared = Account(tmp_path, None)
    first = shared.launcher("first")
    assert first.look(Jobs(0, 40, 40)).slots == 40
    shared.clock.sleep(1)
    assert first.look(Jobs(40, 0, 40, paused=10)) == (40, 30, "service")
    first.leave()
    shared.clock.now = 0.0  # another day, another machine
    assert shared.launcher("second").look(Jobs(0, 40, 40)) == (30, 30, "service")


def test_who_shares_with_nobody_needs_no_place() -> None:
    clock = FakeClock()
    alone = Governor(PrivateRecord(), Member("/root", "s", process.this_process()), clock=clock)
    assert alone.look(Jobs(0, 4, 4)) == (4, 4, "service")
    assert alone.look(Jobs(4, 0, 4, paused=4)) == (4, 2, "service")


def test_the_place_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SWEEPER_HOME", "/home/of/mine")
    monkeypatch.delenv(account.PLACE, raising=False)
    assert account.quota_settings() == ("/home/of/mine/quota", None, None)
    (tmp_path / "sweeper").mkdir()
    file = tmp_path / "sweeper" / "config.toml"
    file.write_text('[quota]\nplace = "s3://bucket/quota"\nslots = 50\naccount = "team"\n')
    assert account.quota_settings() == ("s3://bucket/quota", 50, "team")
    monkeypatch.setenv(account.PLACE, "/elsewhere")
    assert account.quota_settings().place == "/elsewhere"
    assert account.handed_on() == {
        account.PLACE: "/elsewhere",
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(account.PLACE, "shared/quota")
    there = f"{tmp_path}/shared/quota"
    assert account.quota_settings().place == account.handed_on()[account.PLACE] == there
    monkeypatch.delenv(account.PLACE)
    file.write_text('[quota]\nplace = "quota"\n')
    monkeypatch.chdir("/")
    assert account.quota_settings().place == f"{tmp_path}/sweeper/quota"
    assert account.handed_on() == {"XDG_CONFIG_HOME": str(tmp_path)}
    file.write_text("[quota]\nslot = 50\nslots = 0\n")
    with pytest.raises(EnvironmentFailure) as caught:
        account.quota_settings()
    assert f"{file}: quota.slot: unknown key 'slot' in quota; did you mean 'slots'?" in str(
        caught.value
    )
    assert f"{file}: quota.slots: " in str(caught.value)


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"schema": 1, "mark": "x", "learned": {"limit": "many"}}']
)
def test_an_account_whose_only_page_is_damaged_starts_anew(tmp_path: Path, damage: bytes) -> None:
    """All launchers of the account would wait for ever for a page that nobody mends."""
    store = LocalStore(str(tmp_path))
    store.replace("a/pages/3.json", damage)
    record = StoredRecord(store, "a")
    assert (record.look().number, record.look().members) == (3, {})
    StoredRecord(store, "a").write(_with("y", 2))
    record.write(_with("x", 1))
    page = StoredRecord(store, "a").look()
    assert {name: member.slots for name, member in page.members.items()} == {"y": 2, "x": 1}


def test_a_damaged_page_is_passed_over(tmp_path: Path) -> None:
    """The one before it counts, and the next takes its place. A newer sweeper's is left alone."""
    store = LocalStore(str(tmp_path))
    StoredRecord(store, "a").write(_with("x", 1))
    for damage in (b"", b"{", b'{"schema": 1}'):
        newest = StoredRecord(store, "a").look().number
        store.replace(f"a/pages/{newest + 1}.json", damage)
        assert StoredRecord(store, "a").look().members["x"].slots == newest
        StoredRecord(store, "a").write(_with("x", newest + 2))
        page = StoredRecord(store, "a").look()
        assert (page.number, page.members["x"].slots) == (newest + 2, newest + 2)
    store.replace(f"a/pages/{page.number + 1}.json", b'{"schema": 99}')
    with pytest.raises(StoreError, match="newer sweeper"):
        StoredRecord(store, "a").look()


def test_a_page_that_cannot_be_read_now_is_not_damaged(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    for number in (1, 2):
        StoredRecord(store, "a").write(_with("x", number))
    faults = Faults(lambda _, what: Fault.FAIL if what.endswith("/2.json") else None)
    with pytest.raises(StoreError, match="injected"):
        StoredRecord(FaultyStore(store, faults), "a").look()


def test_a_member_that_cannot_be_read_costs_nobody_else_a_page(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    record = StoredRecord(store, "a")
    page: Any = record.write(_with("x", 1)).document()
    page["members"]["x"]["slots"] = 2
    page["members"] |= {"bad": {"root": 7}, "worse": None}
    store.replace("a/pages/2.json", encode(page))
    members = StoredRecord(store, "a").look().members
    assert {name: member.slots for name, member in members.items()} == {"x": 2}


def test_a_process_of_another_user_that_is_not_shown_is_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = process.machine()
    nobody = 2**22 + 1  # above the largest that Linux gives

    def kill(_pid: int, _signal: int) -> None:
        raise PermissionError

    assert process.is_gone(Who(here, nobody, "1"))
    monkeypatch.setattr(os, "kill", kill)
    assert not process.is_gone(Who(here, nobody, "1"))
    assert process.is_gone(Who(here, os.getpid(), "1"))  # it is another by now
