"""Launchers of several sweeps that share a quota, killed at any call: no run is lost or doubled,
each sweep gets its share, and the service never has more than its limit."""

import random
from pathlib import Path

import pytest
from harness.shared import Account, dealing

from sweeper.scheduler.account import StoredRecord


def test_slots_are_shared_by_weight_and_none_is_idle(memory: Path) -> None:
    account = Account(memory, 1, [(1, 60), (1, 60), (2, 120)], cap=12, slots=12)
    account.run()
    assert all(verdict.good for verdict in account.verdicts())
    assert account.most_over <= 0
    seconds = account.ticks * 0.5
    assert sum(account.had) >= 0.95 * 12 * seconds
    for had, weight in zip(account.had, (1, 1, 2), strict=True):
        assert had == pytest.approx(12 * seconds * weight / 4, rel=0.2)


@pytest.mark.parametrize("seed", range(3))
def test_killed_launchers_take_no_more_than_there_is(memory: Path, seed: int) -> None:
    deal = dealing(random.Random(seed), 25)
    account = Account(memory, seed, [(1, 20), (3, 30), (2, 20)], cap=6, slots=6, deal=deal)
    account.run()
    assert account.kills > 10
    assert all(verdict.good for verdict in account.verdicts())
    assert account.most_over <= 0
    assert StoredRecord(account.place, _only_account(account)).check().held == 0


def _only_account(account: Account) -> str:
    [name] = {path.partition("/")[0] for path in account.place.names("")}
    return name


def test_a_limit_that_moves_is_followed(memory: Path) -> None:
    """The limit is not configured, and changes during the sweeps."""
    account = Account(memory, 2, [(1, 150), (2, 250)], cap=12, most=24, length=6)

    def learned() -> int:
        return StoredRecord(account.place, _only_account(account)).check().learned.limit or 24

    def busy(seconds: float) -> float:
        """Return the share of the seats that were taken, over some time."""
        until = account.clock.now + seconds
        taken: list[int] = []

        def note() -> bool:
            taken.append(len(account.seats.taken))
            return account.clock.now >= until

        account.run(note)
        return sum(taken) / len(taken) / account.seats.cap

    busy(100)
    assert busy(60) >= 0.9
    assert 10 <= learned() <= 16
    account.seats.cap = 4
    busy(120)
    assert busy(60) >= 0.9
    assert learned() <= 6
    account.seats.cap = 20
    busy(120)
    assert busy(60) >= 0.9
    assert 18 <= learned() <= 26
    assert not any(verdict.doubled for verdict in account.verdicts())
