"""The stored record of an account: each page is based on the last, despite races and faults."""

import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import StoreError
from sweeper.scheduler.account import StoredRecord
from sweeper.store.documents import encode
from sweeper.store.local import LocalStore
from sweeper.sweep import process
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.process import Who
from sweeper.sweep.quota import Member, Page
from sweeper.testing import Fault, Faults, FaultyStore

pytestmark = pytest.mark.usefixtures("no_sync")


def _member(sweep: str, **about: object) -> Member:
    return Member("/root", sweep, Who("elsewhere", 1, None))._replace(**about)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def _slots(page: Page) -> dict[str, int]:
    return {name: member.slots for name, member in page.members.items()}


def _with(sweep: str, slots: int) -> Callable[[Page], Page]:
    return lambda page: page._replace(members={**page.members, sweep: _member(sweep, slots=slots)})


def test_a_page_follows_from_the_one_before(store: LocalStore) -> None:
    first, second = StoredRecord(store, "a"), StoredRecord(store, "a")
    for n in range(60):
        (first, second)[n % 2].write(_with(f"s{n % 3}", n))
    assert first.check() == second.check()
    assert _slots(first.check()) == {"s0": 57, "s1": 58, "s2": 59}
    assert len(list(store.names("a/pages"))) < 30
    same = first.check()
    assert first.write(_with("s0", 57)) == same  # no change, so no page is written


def test_two_writers_at_once_both_count(store: LocalStore) -> None:
    """The slower writer reads the other's page and decides again."""
    first, second = StoredRecord(store, "a"), StoredRecord(store, "a")
    first.write(_with("x", 1))

    def late(page: Page) -> Page:
        if "y" not in page.members:
            second.write(_with("y", 2))
        return _with("x", 3)(page)

    assert _slots(first.write(late)) == {"x": 3, "y": 2}


def test_a_writer_that_slept_over_many_pages_rereads_them(store: LocalStore) -> None:
    """The page number that it would write was removed, so it could be created again."""
    first, second = StoredRecord(store, "a"), StoredRecord(store, "a")
    first.write(_with("x", 1))

    def asleep(page: Page) -> Page:
        if "y" not in page.members:
            for n in range(50):
                second.write(_with("y", n))
        return _with("x", 2)(page)

    first.write(asleep)
    assert _slots(second.check()) == {"x": 2, "y": 49}


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REPLY, Fault.TWICE])
def test_a_record_survives_a_fault_at_any_call(store: LocalStore, fault: Fault) -> None:
    number = 0
    for number in itertools.count(1):
        faults = Faults({number: fault})
        record = StoredRecord(FaultyStore(store, faults), "a")
        try:
            record.write(_with("x", number))
        except StoreError:
            record.write(_with("x", number))
        assert StoredRecord(store, "a").check().members["x"].slots == number
        if not faults.struck:
            break
    assert number > 3


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"schema": 1, "mark": "x", "learned": {"limit": "many"}}']
)
def test_a_record_whose_only_page_is_damaged_starts_anew(store: LocalStore, damage: bytes) -> None:
    """Otherwise all launchers would wait forever for a valid page."""
    store.replace("a/pages/3.json", damage)
    record = StoredRecord(store, "a")
    assert (record.check().number, record.check().members) == (3, {})
    StoredRecord(store, "a").write(_with("y", 2))
    record.write(_with("x", 1))
    assert _slots(StoredRecord(store, "a").check()) == {"y": 2, "x": 1}


def test_a_damaged_page_is_skipped(store: LocalStore) -> None:
    """The page before it counts; a page of a newer sweeper is an error."""
    StoredRecord(store, "a").write(_with("x", 1))
    for damage in (b"", b"{", b'{"schema": 1}'):
        newest = StoredRecord(store, "a").check().number
        store.replace(f"a/pages/{newest + 1}.json", damage)
        assert StoredRecord(store, "a").check().members["x"].slots == newest
        StoredRecord(store, "a").write(_with("x", newest + 2))
        page = StoredRecord(store, "a").check()
        assert (page.number, page.members["x"].slots) == (newest + 2, newest + 2)
    store.replace(f"a/pages/{page.number + 1}.json", b'{"schema": 99}')
    with pytest.raises(StoreError, match="newer sweeper"):
        StoredRecord(store, "a").check()


def test_an_unreadable_page_is_not_a_damaged_one(store: LocalStore) -> None:
    for number in (1, 2):
        StoredRecord(store, "a").write(_with("x", number))
    faults = Faults(lambda _, what: Fault.FAIL if what.endswith("/2.json") else None)
    with pytest.raises(StoreError, match="injected"):
        StoredRecord(FaultyStore(store, faults), "a").check()


def test_a_damaged_member_is_left_out_of_its_page(store: LocalStore) -> None:
    record = StoredRecord(store, "a")
    page: Any = record.write(_with("x", 1)).document()
    page["members"]["x"]["slots"] = 2
    page["members"] |= {"bad": {"root": 7}, "worse": None}
    store.replace("a/pages/2.json", encode(page))
    assert _slots(StoredRecord(store, "a").check()) == {"x": 2}


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


def test_a_hidden_process_of_another_user_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    here = process.machine()
    nobody = 2**22 + 1  # above the largest PID of Linux

    def kill(_pid: int, _signal: int) -> None:
        raise PermissionError

    assert process.is_gone(Who(here, nobody, "1"))
    monkeypatch.setattr(os, "kill", kill)
    assert not process.is_gone(Who(here, nobody, "1"))
    assert process.is_gone(Who(here, os.getpid(), "1"))  # another process has the PID now
