"""Launchers killed at every call, in a simulated world: the real launcher, a fake backend, a fake
clock, modelled workers (`harness/simulation.py`). Thousands of kills take a minute."""

from pathlib import Path
from typing import Any

import pytest
from harness.simulation import World, by_seed, one_fault

from sweeper.testing import Fault, Faults

SEEDS = 30


@pytest.mark.parametrize("places", [1, 2])
@pytest.mark.parametrize("fault", list(Fault))
def test_one_fault_at_every_call(memory: Path, fault: Fault, places: int) -> None:
    """Each of the launcher's store and backend calls fails in turn, until a launcher ends before
    the fault. Every run has one attempt and has succeeded; with two places, no attempt is at both,
    and no run is lost or doubled."""
    number, struck, options = 0, True, dict[str, Any]()
    if places == 2:
        shares = [{"backend": name, "max_parallel": 1} for name in ("fake", "spare")]
        options = {"once": False, "spare": True, "backends": shares}
    while struck:
        number += 1
        result, struck = one_fault(memory / str(number), number, fault, **options)
        assert result.verdict.good, f"{fault} at call {number}: {result}"
        assert result.most_at_work <= 2
        # Jobs that the backend has accepted are found there, and not submitted again.
        assert fault is Fault.TWICE or not result.submitted_again
    assert number > 60  # the calls are those of a whole sweep


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_everything_at_once(memory: Path, seed: int, spare: bool) -> None:
    """Launchers killed 4 to 14 times, calls that fail or answer twice, workers killed, preempted,
    stalled past the lease, lost by the backend: each run ends as its last attempt did. `spare`: at
    two places, each of which repeatedly refuses jobs and does not answer."""
    result = by_seed(memory, seed, spare=spare)
    assert result.verdict.good, result
    assert result.launcher_kills


def test_a_backend_that_starts_every_job_twice(memory: Path) -> None:
    """Every submission is carried out twice: the second copy finds the attempt claimed."""
    world = World(memory, 1, runs=6)
    twice = Faults(lambda _, what: Fault.TWICE if what == "backend.submit" else None)
    world.relaunch_until_done(lambda: twice)
    assert len(world.backend.submitted) == 12
    assert world.result(once=True).verdict.good


def test_two_launchers_that_do_not_know_of_each_other(memory: Path) -> None:
    """Only one launcher holds the lock. If a shared disk's locks do not work, two at once still
    double nothing: they alternate here, step by step."""
    world = World(memory, 2, runs=6)
    first, second = (world.launcher(Faults()) for _ in range(2))
    for _ in range(2000):
        world.sleep(0.5)
        if first.step().finished and second.step().finished:
            break
    assert world.result(once=True).verdict.good


def test_the_check_can_fail(memory: Path) -> None:
    """Checks the verdict on worlds in which something did go wrong."""
    world = World(memory / "lost", 3)
    assert len(world.result().verdict.lost) == 3
    world.relaunch_until_done(Faults)
    assert world.result().verdict.good
    world.rows.append(world.rows[-1])
    assert world.result().verdict.doubled
    world.rows[-1] = (world.ids[0], 2, 0)
    verdict = world.result().verdict
    assert verdict.doubled
    assert verdict.wrong
    world.rows[:] = world.rows[1:-1]
    assert world.result().verdict.wrong
