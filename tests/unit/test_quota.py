"""What launchers of one account may have at work together: what is learned of the limit, whose turn
it is, and that the book of it is true whatever happens to who writes it."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.errors import EnvironmentFailure, StoreError
from sweeper.model.launcher import Who
from sweeper.model.quota import Learned, Member, Page
from sweeper.model.states import Event
from sweeper.scheduler import account, governor
from sweeper.scheduler.book import OwnBook, StoredBook
from sweeper.scheduler.governor import Governor, Jobs
from sweeper.scheduler.limiter import Limiter, Load
from sweeper.scheduler.shares import Claim, grant, shares
from sweeper.storage.documents import encode
from sweeper.storage.files import LocalStore
from sweeper.storage.layout import Layout
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
        found: list[int] = []
        for _ in range(int(seconds)):
            self.clock.sleep(1)
            busy = most if self.learned.limit is None else min(most, self.learned.limit)
            load = Load(busy, max(0, busy - self.cap), most - busy)
            self.learned = self.limiter.see(self.learned, load)
            found.append(self.learned.limit or most)
        return found


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
        for one in [who for end, who in ends if end == now]:
            held[one] -= 1
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
    one, two = StoredBook(store, "a"), StoredBook(store, "a")
    for n in range(60):
        (one, two)[n % 2].write(_with(f"s{n % 3}", n))
    assert one.look() == two.look()
    assert {name: m.slots for name, m in one.look().members.items()} == {
        "s0": 57,
        "s1": 58,
        "s2": 59,
    }
    assert len(list(store.names("a/pages"))) < 30
    same = one.look()
    assert one.write(_with("s0", 57)) == same  # nothing is written that changes nothing


def test_two_who_write_at_once_both_count(tmp_path: Path) -> None:
    """The one whose page comes second reads the first, and thinks again."""
    store = LocalStore(str(tmp_path))
    one, two = StoredBook(store, "a"), StoredBook(store, "a")
    one.write(_with("x", 1))

    def late(page: Page) -> Page:
        if "y" not in page.members:
            two.write(_with("y", 2))
        return _with("x", 3)(page)

    found = one.write(late)
    assert {name: member.slots for name, member in found.members.items()} == {"x": 3, "y": 2}


def test_who_slept_over_many_pages_is_not_believed(tmp_path: Path) -> None:
    """The number that it writes has been removed meanwhile, and so can be created again."""
    store = LocalStore(str(tmp_path))
    one, two = StoredBook(store, "a"), StoredBook(store, "a")
    one.write(_with("x", 1))

    def asleep(page: Page) -> Page:
        if "y" not in page.members:
            for n in range(50):
                two.write(_with("y", n))
        return _with("x", 2)(page)

    one.write(asleep)
    assert {name: member.slots for name, member in two.look().members.items()} == {"x": 2, "y": 49}


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REPLY, Fault.TWICE])
def test_a_book_whose_store_fails_now_and_then(tmp_path: Path, fault: Fault) -> None:
    store = LocalStore(str(tmp_path))
    for number in itertools.count(1):
        faults = Faults({number: fault})
        book = StoredBook(FaultyStore(store, faults), "a")
        try:
            book.write(_with("x", number))
        except StoreError:
            book.write(_with("x", number))
        assert StoredBook(store, "a").look().members["x"].slots == number
        if not faults.struck:
            break
    assert number > 3


class Account:
    """An account with a limit of `slots` that launchers of several sweeps share."""

    def __init__(self, folder: Path, slots: int | None) -> None:
        self.clock, self.slots = FakeClock(), slots
        self.store = LocalStore(str(folder / "quota"))
        self.root = LocalStore(str(folder / "sweeps"))

    def launcher(self, sweep: str, weight: float = 1.0) -> Governor:
        book = StoredBook(self.store, "a")
        options = {"weight": weight, "most": self.slots}
        return Governor(book, self.root.root, sweep, clock=self.clock, **options)  # type: ignore[arg-type]

    def held(self) -> dict[str, int]:
        members = StoredBook(self.store, "a").look().members.values()
        return {member.sweep: member.slots for member in members}

    def begin(self, sweep: str, runs: int) -> None:
        """The sweep is on record, with so many runs at work."""
        self.root.replace(Layout(sweep).plan, b"{}")
        for n in range(runs):
            self.root.create(Layout(sweep).event(f"{n:012x}", 1, Event.CLAIMED), b"{}")


def test_a_launcher_has_all_slots_while_it_is_alone(tmp_path: Path) -> None:
    shared = Account(tmp_path, 10)
    one, two = shared.launcher("one"), shared.launcher("two", 4.0)
    assert one.look(Jobs(0, 20, 20)) == (10, 10, "quota")
    assert two.look(Jobs(0, 20, 20)).slots == 0  # what runs is left alone
    assert one.look(Jobs(9, 11, 20)).slots == 9  # one has ended: it is the other's turn
    assert two.look(Jobs(0, 20, 20)) == (1, 8, "quota")
    one.look(Jobs(2, 18, 20))
    assert two.look(Jobs(1, 19, 20)).slots == 8
    assert one.look(Jobs(2, 18, 5)) == (2, 2, "shared")
    two.leave()
    assert one.look(Jobs(2, 18, 20)).slots == 10
    assert shared.held() == {"one": 10}


def test_the_slots_of_a_killed_launcher_stay_with_its_runs(tmp_path: Path) -> None:
    shared = Account(tmp_path, 10)
    shared.begin("killed", 6)
    shared.launcher("killed").look(Jobs(0, 6, 6))
    other = shared.launcher("other")
    for _ in range(20):  # its runs do not beat: they count for as long as a lease
        assert other.look(Jobs(4, 9, 9)).slots == 4
        shared.clock.sleep(1)
    for n in range(2):
        shared.root.create(Layout("killed").event(f"{n:012x}", 1, Event.SUCCEEDED), b"{}")
    # It may live: nobody takes what a launcher of this very process holds before its lease is over.
    assert other.look(Jobs(4, 9, 9)).slots == 4
    for _ in range(20):
        shared.clock.sleep(1)
        for n in range(2, 6):
            beat = encode({"counter": shared.clock.now})
            shared.root.replace(Layout("killed").heartbeat(f"{n:012x}", 1), beat, durable=False)
        other.look(Jobs(4, 9, 9))
    assert other.look(Jobs(4, 9, 9)).slots == 6
    again = shared.launcher("killed")  # and somebody starts it again
    assert again.look(Jobs(4, 0, 6)).slots == 4
    shared.clock.sleep(200)
    again.look(Jobs(0, 0, 6))
    assert other.look(Jobs(4, 9, 9)).slots == 10


def test_a_launcher_that_is_dead_for_sure_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Account(tmp_path, 10)
    shared.begin("killed", 2)
    shared.launcher("killed").look(Jobs(2, 50, 50))
    other = shared.launcher("other")
    monkeypatch.setattr(governor, "is_gone", lambda who: True)
    shared.clock.sleep(6)
    assert other.look(Jobs(0, 20, 20)).slots == 8


def test_what_cannot_be_looked_at_is_forgotten_at_last(tmp_path: Path) -> None:
    shared = Account(tmp_path, 10)
    book = StoredBook(shared.store, "a")
    there = _member("elsewhere", root="s3://nowhere?", slots=7)
    book.write(lambda page: page._replace(members={"far": there}))
    other = shared.launcher("other")
    for _ in range(100):
        assert other.look(Jobs(3, 7, 10)).slots == 3
        shared.clock.sleep(6)
    for _ in range(100):
        found = other.look(Jobs(3, 7, 10)).slots
        shared.clock.sleep(6)
    assert found == 10


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
    alone = Governor(OwnBook(), "/root", "s", clock=clock)
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
    file.write_text("[quota]\nslot = 50\nslots = 0\n")
    with pytest.raises(EnvironmentFailure) as told:
        account.quota_settings()
    assert f"{file}: quota.slot: unknown key 'slot' in quota (did you mean 'slots'?)" in str(
        told.value
    )
    assert f"{file}: quota.slots: " in str(told.value)


def test_a_damaged_page_is_named(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.replace("a/pages/3.json", b'{"schema": 1, "mark": "x", "learned": {"limit": "many"}}')
    with pytest.raises(StoreError) as told:
        StoredBook(store, "a").look()
    assert str(told.value) == (
        f'{tmp_path}/a/pages/3.json: learned.limit: should be a number, and is "many"'
    )
    assert os.path.exists(tmp_path / "a/pages/3.json")
