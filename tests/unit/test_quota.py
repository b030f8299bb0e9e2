"""What launchers of one account may run together: the learned limit and the turns."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

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
from sweeper.sweep.process import Who
from sweeper.sweep.quota import Learned, Member, Page
from sweeper.sweep.states import Event
from sweeper.testing import FakeClock, Fault, Faults, FaultyStore

pytestmark = pytest.mark.usefixtures("no_sync")


class Service:
    """A service that runs `cap` jobs at once, as seen by a launcher that starts all jobs it may."""

    def __init__(self, cap: int) -> None:
        self.clock, self.cap, self.learned = FakeClock(), cap, Learned()
        self.limiter = Limiter(self.clock)

    def after(self, seconds: float, most: int = 100) -> list[int]:
        """Return the limit at each of these seconds."""
        limits: list[int] = []
        for _ in range(int(seconds)):
            self.clock.sleep(1)
            busy = most if self.learned.limit is None else min(most, self.learned.limit)
            load = Load(busy, max(0, busy - self.cap), most - busy)
            self.learned = self.limiter.see(self.learned, load)
            limits.append(self.learned.limit or most)
        return limits


def test_the_limit_of_a_service_is_learned_and_followed() -> None:
    service = Service(60)
    # The limit is at once the number of jobs not held back, if that is half or more.
    assert service.after(3)[-1] == 60
    assert set(service.after(300)) <= {60, 61}
    service.cap = 10
    assert service.after(120)[-1] in (10, 11)
    assert set(service.after(200)) <= {10, 11}
    service.cap = 80
    service.after(200)
    assert set(service.after(200)) <= {80, 81}


def test_one_refusal_lowers_the_limit_once() -> None:
    clock = FakeClock()
    limiter = Limiter(clock)
    halved = limiter.see(Learned(), Load(8, 8))
    assert halved.limit == 4
    clock.sleep(1)
    assert limiter.see(halved, Load(8, 8)) == halved
    clock.sleep(20)
    assert limiter.see(halved, Load(4, refused="machine")) == Learned(2, 1, 2, "machine")


def test_a_limit_that_holds_nothing_back_does_not_grow() -> None:
    clock = FakeClock()
    limiter = Limiter(clock)
    for _ in range(100):
        clock.sleep(1)
        assert (
            limiter.see(Learned(4), Load(3, 0, 5)) == limiter.see(Learned(4), Load(4)) == Learned(4)
        )


def test_a_change_by_another_launcher_begins_a_window_for_all() -> None:
    clock = FakeClock()
    limiter = Limiter(clock)
    limiter.see(Learned(10), Load(10, 0, 5))
    clock.sleep(100)
    assert limiter.see(Learned(12, 4), Load(12, 0, 5)) == Learned(12, 4)
    assert limiter.see(Learned(7, 1, 1), Load(12, 5)) == Learned(7, 1, 1)


def test_slots_are_shared_by_weight_up_to_what_each_can_use() -> None:
    claims = {"a": Claim(1, 0, 99), "b": Claim(1, 0, 99), "c": Claim(2, 0, 99)}
    assert shares(48, claims) == {"a": 12, "b": 12, "c": 24}
    claims["b"] = Claim(1, 2, 1)
    assert shares(48, claims) == {"a": 15, "b": 3, "c": 30}
    claims["c"] = Claim(2, 0, 0)
    assert shares(48, claims) == {"a": 45, "b": 3, "c": 0}


@pytest.mark.parametrize(("limit", "weights"), [(1, (1, 9)), (2, (1, 1, 2)), (7, (1, 2, 3, 5))])
def test_members_take_turns_when_slots_do_not_divide(limit: int, weights: tuple[int, ...]) -> None:
    """Over time each member gets its share by weight, even below one slot."""
    held, turns = dict.fromkeys(range(len(weights)), 0), dict.fromkeys(range(len(weights)), 0.0)
    had = dict.fromkeys(held, 0)
    ends: list[tuple[int, int]] = []
    rounds = 1500
    for now in range(rounds):
        for ended in [who for end, who in ends if end == now]:
            held[ended] -= 1
        ends = [each for each in ends if each[0] > now]
        # No member is always first.
        for who in sorted(held, key=lambda n: (n + now) % len(weights)):
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


def _slots(page: Page) -> dict[str, int]:
    return {name: member.slots for name, member in page.members.items()}


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

    def with_remote_record(self) -> tuple[Governor, Faults, list[bool]]:
        """Return a launcher whose record is remote, its calls, and a list: the record fails while
        it is not empty."""
        failing: list[bool] = []
        faults = Faults(lambda *_: Fault.FAIL if failing else None)
        far = self.launcher("far", store=FaultyStore(self.store, faults, remote=True))
        return far, faults, failing

    def elsewhere(self, sweep: str, beat_seconds: float = parallelism.BEAT_SECONDS) -> Governor:
        """Return a launcher on another machine."""
        who = Who("elsewhere", 1, None)
        return self.launcher(sweep, who=who, beat_seconds=beat_seconds)

    def name(self, sweep: str) -> str:
        return parallelism.name_of(self.root.root, sweep)

    def looks(self, governor: Governor, jobs: Jobs, times: int, seconds: float) -> set[int]:
        """Let a launcher look repeatedly; return the slots that it got."""
        slots: set[int] = set()
        for _ in range(times):
            slots.add(governor.check(jobs).slots)
            self.clock.sleep(seconds)
        return slots

    def begin(self, sweep: str, runs: int) -> None:
        """Record the sweep with this many running runs."""
        folder = SweepFolder(self.root, sweep)
        self.root.replace(folder.plan, b"{}")
        for n in range(runs):
            self.root.create(folder.event(f"{n:012x}", 1, Event.CLAIMED), b"{}")


@pytest.fixture
def shared(tmp_path: Path) -> Account:
    """Return an account with a limit of 10 slots."""
    return Account(tmp_path, 10)


def test_a_launcher_has_all_slots_while_it_is_alone(shared: Account) -> None:
    first, second = shared.launcher("one"), shared.launcher("two", 4.0)
    assert first.check(Jobs(0, 20, 20)) == (10, 10, "quota")
    assert second.check(Jobs(0, 20, 20)).slots == 0  # running jobs are not stopped
    assert first.check(Jobs(9, 11, 20)).slots == 9  # one run has ended: its slot goes to the other
    assert second.check(Jobs(0, 20, 20)) == (1, 8, "quota")
    first.check(Jobs(2, 18, 20))
    assert second.check(Jobs(1, 19, 20)).slots == 8
    assert first.check(Jobs(2, 18, 5)) == (2, 2, "shared")
    second.leave()
    assert first.check(Jobs(2, 18, 20)).slots == 10
    assert _slots(StoredRecord(shared.store, "a").check()) == {shared.name("one"): 10}


def test_the_slots_of_a_killed_launcher_stay_with_its_runs(shared: Account) -> None:
    shared.begin("killed", 6)
    shared.elsewhere("killed").check(Jobs(0, 6, 6))
    other = shared.launcher("other")
    # Its runs have no heartbeats: they count until a lease has passed.
    assert shared.looks(other, Jobs(4, 9, 9), 20, 1) == {4}
    folder = SweepFolder(shared.root, "killed")
    for n in range(2):
        shared.root.create(folder.event(f"{n:012x}", 1, Event.SUCCEEDED), b"{}")
    # The launcher may be alive: it keeps its slots until its lease ends.
    assert other.check(Jobs(4, 9, 9)).slots == 4
    for _ in range(20):
        shared.clock.sleep(1)
        for n in range(2, 6):
            beat = encode({"counter": shared.clock.now})
            shared.root.replace(folder.heartbeat(f"{n:012x}", 1), beat, durable=False)
        other.check(Jobs(4, 9, 9))
    assert other.check(Jobs(4, 9, 9)).slots == 6
    again = shared.elsewhere("killed")  # the sweep is launched again
    assert again.check(Jobs(4, 0, 6)).slots == 4
    shared.clock.sleep(200)
    again.check(Jobs(0, 0, 6))
    assert other.check(Jobs(4, 9, 9)).slots == 10


GONE = process.this_process()._replace(began="never")
"""A process of this machine that has ended; another process has its PID now."""


def test_a_dead_launcher_of_this_machine_is_not_waited_for(shared: Account) -> None:
    shared.begin("killed", 2)
    shared.launcher("killed", who=GONE).check(Jobs(2, 50, 50))
    other = shared.launcher("other")
    shared.clock.sleep(6)
    assert other.check(Jobs(0, 20, 20)).slots == 8


def test_a_member_whose_root_is_unreadable_is_forgotten_at_last(shared: Account) -> None:
    record = StoredRecord(shared.store, "a")
    there = _member("elsewhere", root="s3://nowhere?", slots=7)
    record.write(lambda page: page._replace(members={"far": there}))
    other = shared.launcher("other")
    assert shared.looks(other, Jobs(3, 7, 10), 100, 6) == {3}
    shared.looks(other, Jobs(3, 7, 10), 100, 6)
    assert other.check(Jobs(3, 7, 10)).slots == 10


def test_a_sweep_whose_disk_is_not_here_keeps_its_slots(shared: Account, tmp_path: Path) -> None:
    """Only a root that is readable and lacks the sweep proves that it was removed."""
    os.makedirs(shared.root.root)
    away = {
        "far": _member("s", root=shared.root.root, slots=3),
        "unmounted": _member("s", root=str(tmp_path / "away"), slots=2, who=GONE),
    }
    gone = {"removed": _member("s", root=shared.root.root, slots=4, who=GONE)}
    record = StoredRecord(shared.store, "a")
    record.write(lambda page: page._replace(members=away | gone))
    other = shared.launcher("other")
    other.check(Jobs(0, 10, 10))
    assert shared.looks(other, Jobs(0, 10, 10), 20, 6) == {5}
    assert set(record.check().members) - {shared.name("other")} == set(away)


def test_slots_of_a_sweep_on_a_lost_disk_are_kept_for_a_while(shared: Account) -> None:
    shared.begin("killed", 4)
    shared.elsewhere("killed").check(Jobs(0, 4, 4))
    other = shared.launcher("other")

    def for_minutes(minutes: float) -> int:
        slots = 0
        for _ in range(int(minutes * 2.4)):
            beat = encode({"counter": shared.clock.now})
            for run in range(4) if os.path.exists(shared.root.root) else ():
                path = SweepFolder(shared.root, "killed").heartbeat(f"{run:012x}", 1)
                shared.root.replace(path, beat, durable=False)
            slots = other.check(Jobs(0, 10, 10)).slots
            shared.clock.sleep(25)
        return slots

    assert for_minutes(30) == 6
    os.rename(shared.root.root, f"{shared.root.root}.away")
    assert for_minutes(10) == 6
    assert for_minutes(10) == 10


def test_a_launcher_whose_step_takes_long_keeps_its_slots(shared: Account) -> None:
    """On this machine its process shows that it is alive, elsewhere the beats of a thread."""
    shared.begin("slow", 0)
    slow, other = shared.launcher("slow"), shared.launcher("other")
    slow.check(Jobs(0, 6, 6))
    assert shared.looks(other, Jobs(0, 10, 10), 20, 6) == {4}
    record = StoredRecord(shared.store, "a")
    far = shared.elsewhere("far", beat_seconds=0.001)
    with far.holding():
        far.check(Jobs(0, 6, 6))
        record.check()
        before = record.stamps()[shared.name("far")]
        deadline = time.monotonic() + 20
        while record.stamps()[shared.name("far")] == before:
            assert time.monotonic() < deadline
            record.check()
    assert not [each for each in threading.enumerate() if each.name.endswith("(_keep)")]


def test_a_launcher_that_ended_leaves_its_slots_to_its_runs(shared: Account) -> None:
    shared.begin("ended", 2)
    ended, other = shared.launcher("ended"), shared.launcher("other")
    with pytest.raises(KeyboardInterrupt), ended.holding():
        assert ended.check(Jobs(2, 8, 10)).slots == 10
        raise KeyboardInterrupt
    assert other.check(Jobs(0, 10, 10)).slots == 8
    assert ended.check(Jobs(2, 8, 10)).slots == 2  # the slots of its runs


def test_sweeps_without_a_launcher_are_opened_once_and_never_during_a_write(
    shared: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.begin("killed", 4)
    shared.launcher("killed", who=GONE).check(Jobs(0, 4, 4))
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
    shared.looks(other, Jobs(0, 10, 10), 10, 3)
    assert opened == [shared.root.root]


def test_slots_of_a_remote_record_expire_while_it_fails(shared: Account) -> None:
    far, faults, failing = shared.with_remote_record()
    assert far.check(Jobs(0, 6, 6)).slots == 6
    calls = len(faults.calls)
    assert far.check(Jobs(1, 0, 6)).slots == 6
    assert len(faults.calls) == calls  # no call: each one costs
    shared.clock.sleep(3)
    failing.append(True)
    for _ in range(3):
        with pytest.raises(StoreError):
            far.check(Jobs(1, 0, 6))
    failing.clear()
    assert far.check(Jobs(1, 0, 6)).slots == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_refusal_reaches_a_remote_record_once_it_answers(tmp_path: Path, fails: bool) -> None:
    shared = Account(tmp_path, None)
    far, _, failing = shared.with_remote_record()
    far.check(Jobs(8, 0, 8))
    if fails:
        shared.clock.sleep(3)
        failing.append(True)
        with pytest.raises(StoreError):
            far.check(Jobs(8, 0, 8, refused=True))
        failing.clear()
    else:
        far.check(Jobs(8, 0, 8, refused=True))
    shared.clock.sleep(3)
    assert far.check(Jobs(7, 1, 8)).share == 3
    shared.clock.sleep(16)
    assert far.check(Jobs(7, 1, 8)).share == 3  # the refusal counts once


@pytest.mark.parametrize(("busy", "least"), [({"wants": 9}, 80), ({"slots": 1}, 80), ({}, 100)])
@pytest.mark.parametrize("present", [True, False])
def test_an_idle_member_does_not_catch_up_on_turns(
    tmp_path: Path, busy: dict[str, int], least: float, present: bool
) -> None:
    """Otherwise all others would wait until it has had as many turns."""
    shared = Account(tmp_path, 1)
    idle, record = shared.launcher("idle"), StoredRecord(shared.store, "a")
    others = {"one": _member("one", turn=100.0), "two": _member("two", turn=80.0, **busy)}
    name = shared.name("idle")
    mine = Member(shared.root.root, "idle", process.this_process(), turn=7.0)
    itself = {name: mine} if present else {}
    record.write(lambda page: page._replace(members=others | itself))
    idle.check(Jobs(0, 0, 9))
    assert not present or record.check().members[name].turn == 7.0
    idle.check(Jobs(0, 9, 9))
    assert least <= record.check().members[name].turn <= least + 2
    turn = record.check().members[name].turn
    record.write(lambda page: page._replace(members={**page.members, **others}))
    idle.check(Jobs(0, 9, 9))
    assert record.check().members[name].turn - turn <= 2  # and it continues from there


def test_sweeps_of_one_name_are_told_apart_by_identity(shared: Account) -> None:
    """The same path may be another folder on another machine, or a recreated sweep."""
    first = shared.launcher("s", identity="one")
    assert first.check(Jobs(4, 0, 4)).slots == 4
    shared.begin("s", 6)
    folder = SweepFolder(shared.root, "s")
    shared.root.create(folder.identity, b"two\n")
    second = shared.launcher("s", identity=folder.ensure_identity())
    assert second.check(Jobs(0, 10, 10)).slots == 6
    with first.holding():
        first.check(Jobs(4, 0, 4))
    shared.clock.sleep(6)
    assert second.check(Jobs(6, 4, 10)).slots == 10


def test_beats_of_members_that_left_are_removed(shared: Account) -> None:
    gone, other = shared.launcher("one"), shared.launcher("other")
    gone.check(Jobs(0, 2, 2))
    gone.leave()
    shared.elsewhere("killed").check(Jobs(0, 2, 2))
    shared.begin("killed", 0)
    shared.looks(other, Jobs(0, 2, 2), 12, 6)
    assert list(shared.store.names("a/beats")) == [f"a/beats/{shared.name('other')}"]
    for n in range(50):
        shared.store.replace(f"a/spent/{n}.json", b"{}")
    faults = Faults()
    StoredRecord(FaultyStore(shared.store, faults), "a").check()
    assert [each for each in faults.calls if "spent" in each or each.endswith(" a")] == []


def test_a_new_sweep_begins_with_the_learned_limit(tmp_path: Path) -> None:
    shared = Account(tmp_path, None)
    first = shared.launcher("first")
    assert first.check(Jobs(0, 40, 40)).slots == 40
    shared.clock.sleep(1)
    assert first.check(Jobs(40, 0, 40, paused=10)) == (40, 30, "service")
    first.leave()
    shared.clock.now = 0.0  # another day, another machine
    assert shared.launcher("second").check(Jobs(0, 40, 40)) == (30, 30, "service")


def test_a_launcher_alone_needs_no_stored_record() -> None:
    clock = FakeClock()
    alone = Governor(PrivateRecord(), Member("/root", "s", process.this_process()), clock=clock)
    assert alone.check(Jobs(0, 4, 4)) == (4, 4, "service")
    assert alone.check(Jobs(4, 0, 4, paused=4)) == (4, 2, "service")


def test_the_user_sets_the_place_slots_and_account_of_the_quota(
    tmp_path: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEPER_HOME", "/home/of/mine")
    monkeypatch.delenv(account.PLACE, raising=False)
    assert account.quota_settings() == ("/home/of/mine/quota", None, None)
    config_file.write_text('[quota]\nplace = "s3://bucket/quota"\nslots = 50\naccount = "team"\n')
    assert account.quota_settings() == ("s3://bucket/quota", 50, "team")
    monkeypatch.setenv(account.PLACE, "/elsewhere")
    assert account.quota_settings().place == "/elsewhere"
    xdg = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert account.handed_on() == {account.PLACE: "/elsewhere", **xdg}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(account.PLACE, "shared/quota")
    there = f"{tmp_path}/shared/quota"
    assert account.quota_settings().place == account.handed_on()[account.PLACE] == there
    monkeypatch.delenv(account.PLACE)
    config_file.write_text('[quota]\nplace = "quota"\n')
    monkeypatch.chdir("/")
    assert account.quota_settings().place == f"{config_file.parent}/quota"
    assert account.handed_on() == xdg
    config_file.write_text("[quota]\nslot = 50\nslots = 0\n")
    with pytest.raises(EnvironmentFailure) as caught:
        account.quota_settings()
    unknown = "quota.slot: unknown key 'slot' in quota; did you mean 'slots'?"
    assert f"{config_file}: {unknown}" in str(caught.value)
    assert f"{config_file}: quota.slots: " in str(caught.value)
