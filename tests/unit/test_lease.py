"""One launcher per sweep on a remote store (here a folder that is used as one)."""

import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from sweeper.errors import AnotherLauncher, NotFound, StoreError
from sweeper.store.local import LocalStore
from sweeper.sweep import lease
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.process import this_process
from sweeper.testing import FakeClock, Fault, Faults, FaultyStore


class Clock(FakeClock):
    """A clock that counts calls of `sleep`."""

    slept = 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept += 1


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(str(tmp_path))
    store.create("s/sweep.json", b"{}")
    return store


@pytest.fixture
def folder(store: LocalStore) -> SweepFolder:
    return SweepFolder(store, "s")


def _elsewhere(store: LocalStore, epoch: int, beat: int = 1) -> None:
    """Write the lease of a launcher on another machine."""
    store.replace(f"s/launcher/{epoch}", json.dumps({"host": "h", "pid": 1, "began": "1"}).encode())
    store.replace(f"s/launcher/{epoch}.beat", b"%d" % beat)


def test_leases_follow_each_other(store, folder):
    assert not lease.is_leased(folder)
    for epoch in (1, 2):
        with lease.holding_lease(folder, 0.0) as check:
            check()
            assert store.exists(f"s/launcher/{epoch}")
            assert lease.is_leased(folder)
        assert not lease.is_leased(folder)


def test_only_a_beat_before_our_eyes_shows_life(store, folder):
    clock = Clock()

    def alive(since: float) -> bool:
        assert lease.is_leased(folder, clock=clock)
        return lease.is_alive(folder, since)

    _elsewhere(store, 1)
    assert not alive(0.0)  # the beat may be old
    clock.sleep(5)
    _elsewhere(store, 1, 2)
    assert alive(0.0)
    clock.sleep(5)
    assert alive(5.0) and not alive(6.0)


def test_a_living_launcher_keeps_its_lease(store, folder):
    _elsewhere(store, 1)
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.slept % 10 == 0:
            _elsewhere(store, 1, clock.slept)

    with (
        pytest.raises(AnotherLauncher, match="another launcher is running on 's'"),
        lease.holding_lease(folder, 0.5, clock=clock, sleep=sleep),
    ):
        pass
    assert not store.exists("s/launcher/2")


def test_a_silent_launcher_is_replaced_and_notices(store, folder):
    _elsewhere(store, 4)
    clock = Clock()
    assert lease.is_leased(folder, clock=clock)
    with lease.holding_lease(folder, 0.5, clock=clock, sleep=clock.sleep) as check:
        assert clock.now > lease.LEASE_SECONDS
        assert store.exists("s/launcher/5")
        check()
        _elsewhere(store, 6)  # another launcher has taken over
        with pytest.raises(AnotherLauncher, match="taken over"):
            check()


def test_a_dead_process_of_this_machine_is_not_waited_for(store, folder):
    who = this_process()._replace(began="0")._asdict()  # its pid belongs to another process now
    store.create("s/launcher/1", json.dumps(who).encode())
    store.create("s/launcher/1.beat", b"1")
    assert not lease.is_leased(folder)
    clock = Clock()
    with lease.holding_lease(folder, 0.0, clock=clock, sleep=clock.sleep):
        assert clock.slept == 0


def test_a_lost_reply_does_not_lose_the_lease(store):
    twice = Faults(lambda _, what: Fault.TWICE if what == "store.create s/launcher/1" else None)
    with lease.holding_lease(SweepFolder(FaultyStore(store, twice), "s"), 0.0) as check:
        check()
    assert twice.struck


def test_a_race_has_one_winner(store, folder):
    _elsewhere(store, 1)
    store.create("s/launcher/1.released", b"")
    won: list[int] = []
    together, over = threading.Barrier(8), threading.Barrier(8)

    def race(number: int) -> None:
        together.wait()
        with suppress(AnotherLauncher), lease.holding_lease(folder, 0.0):
            won.append(number)
            over.wait()
            return
        over.wait()

    racers = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(won) == 1


def test_a_lease_on_another_machine_is_recognised(store, folder):
    with lease.holding_lease(folder, 0.0):
        assert not lease.is_elsewhere(folder)
        _elsewhere(store, 2)
        assert lease.is_elsewhere(folder)
    with pytest.raises(StoreError):
        lease.is_elsewhere(SweepFolder(store, "none"))


def test_a_lease_of_a_sweep_that_was_deleted_leaves_nothing_behind(store, folder):
    for _ in range(2):
        with lease.holding_lease(folder, 0.0):
            pass
    with lease.holding_lease(folder, 0.0):
        store.remove(["s/sweep.json"])
    assert list(store.names("s")) == []
    with pytest.raises(NotFound), lease.holding_lease(folder, 0.0, existing=True):
        pass
    assert list(store.names("s")) == []


def test_an_epoch_after_one_that_was_deleted_is_not_taken(store, folder):
    """Between two steps of a launcher, the sweep is deleted and launched anew."""

    class Slow(LocalStore):
        def create(self, path: str, data: bytes) -> None:
            if path == "s/launcher/2":
                store.remove(["s/launcher/1", "s/launcher/1.beat", "s/launcher/1.released"])
            super().create(path, data)

    with lease.holding_lease(folder, 0.0):
        pass
    with lease.holding_lease(SweepFolder(Slow(store.root), "s"), 0.0):
        assert not store.exists("s/launcher/2")  # there must be no holder beside that of epoch 1
        assert store.exists("s/launcher/1")


def test_a_launch_says_that_it_waits_for_a_lease(store, folder):
    """Its launcher died on another machine, which only a timeout can show."""
    _elsewhere(store, 1)
    clock, notices = Clock(), list[str]()
    with lease.holding_lease(folder, 0.5, clock=clock, sleep=clock.sleep, tell=notices.append):
        assert clock.now > lease.LEASE_SECONDS
    assert len(notices) == 1
    assert "waiting: the last launcher of 's' sends no heartbeats" in notices[0]
