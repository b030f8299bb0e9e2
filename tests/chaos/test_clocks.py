"""Clocks that are wrong: an hour off on one side or the other, and losing time with every look."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from harness.real import NAME, Sweep, until

from sweeper import Registry
from sweeper.states import Event
from sweeper.store.sweeps import read_events

Sweeps = Callable[..., Sweep]
HOUR = 3600.0


@pytest.mark.parametrize(
    ("launcher", "worker"),
    [
        ({"clock": HOUR}, {"clock": -HOUR}),
        ({"clock": -HOUR}, {"clock": HOUR}),
        ({"step_back": 5.0}, {"step_back": 7.0}),
    ],
    ids=["ahead", "behind", "back"],
)
def test_the_time_of_day_decides_nothing(
    sweep: Sweeps, launcher: dict[str, float], worker: dict[str, float]
) -> None:
    """With a launcher killed on the way: no run is started twice, none is thought lost."""
    one = sweep(runs=4, seconds=0.8, lease=1.5)
    told = {"beat": 0.2, **worker}
    first = one.start(worker=told, **launcher)
    until(lambda: len(one.rows()) >= 3)
    first.kill()
    assert one.finish(worker=told, **launcher) == 0
    assert one.verdict(once=True).good
    for record in Registry(str(one.root)).records(NAME):
        assert record["state"] == "succeeded"
        assert 0 < record["wall_s"] < 60  # by the monotonic clock
    command = [sys.executable, "-m", "sweeper", "status", NAME, "--root", str(one.root), "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {run["state"] for run in json.loads(shown)["runs"]} == {"succeeded"}


@pytest.mark.parametrize("clock", [{"clock": HOUR}, {"step_back": 5.0}], ids=["ahead", "back"])
def test_a_lost_worker_is_found_whatever_the_time_is(
    sweep: Sweeps, clock: dict[str, float]
) -> None:
    """Leases run by the launcher's own monotonic clock: they end, and not at once."""
    one = sweep(runs=2, seconds=0.8, lease=1.0)
    first = one.start(**clock)
    until(lambda: len(one.rows()) >= 2)
    first.kill()
    for process in one.workers():
        process.kill()
    assert one.finish(**clock) == 0
    assert one.verdict().good
    assert all((1, Event.LOST) in events for events in read_events(one.store, NAME).values())
