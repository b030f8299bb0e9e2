"""Disks: the power fails at every write, sync, link and rename; the disk is full in every write;
the store does not answer for a while, or at launch; it vanishes and comes back."""

import json
import os
from pathlib import Path

import pytest
from harness.disk import Disk
from harness.real import Sweeps, until
from harness.simulation import World

from sweeper.store.local import LocalStore
from sweeper.testing import Faults, Killed


def _power_cut(root: Path, number: int, *, jobs_survive: bool) -> tuple[World, Disk]:
    """Run a sweep whose store loses its power at system call `number`, and launch it again."""
    world = World(root, seed=number, runs=2)
    disk = Disk(str(root), cut_at=number)
    with disk.installed():
        try:
            world.relaunch_until_done(Faults)
        except Killed:
            disk.restart()
            assert all(_is_json(path) for path in root.rglob("*.json")), f"torn at {number}"
            if not jobs_survive:
                world.lose_jobs()
            world.relaunch_until_done(Faults)
    return world, disk


@pytest.mark.parametrize("jobs_survive", [True, False])
def test_the_power_goes_at_every_system_call(memory: Path, jobs_survive: bool) -> None:
    """Unsynced data are lost, and the rest is whole. If the jobs ran on other machines and
    continue, no run is started again; if they died with the machine, no succeeded run is."""
    number, cut = 0, True
    while cut:
        number += 1
        world, disk = _power_cut(memory / str(number), number, jobs_survive=jobs_survive)
        cut = disk.calls >= number
        result = world.result(once=jobs_survive)
        assert result.verdict.good, f"system call {number}: {result}"
        for run, ended in world.failed.items():
            done = [attempt for attempt, failed in ended.items() if not failed]
            trained = {attempt for row, attempt, _ in world.rows if row == run}
            assert max(trained) <= min(done), f"system call {number}: {run} trained again"
    assert number > 60


def test_the_disk_keeps_what_was_synced(memory: Path) -> None:
    """Checks the model of the disk: an unsynced file is missing or empty."""
    disk = Disk(str(memory))
    with disk.installed():
        store = LocalStore(str(memory))
        store.create("a/one", b"1")
        store.replace("a/two", b"2", durable=False)
        store.append("a/log", b"3")
        disk.restart()
        assert sorted(entry.path for entry in store.list("")) == ["a/one"]
        store.append("a/one", b"more")
        disk.restart()
        assert store.read("a/one") == b"1"


def test_the_disk_is_full_in_every_write_of_the_launcher(make_sweep: Sweeps) -> None:
    """Three writes from the Nth on fail, the first of them half done. The launcher either ends
    with one line, and continues when it is started again, or waits by itself."""
    number, code = 0, 1
    while code or number < 3:
        number += 1
        sweep = make_sweep(runs=2, steps=2, seconds=0.05)
        code = sweep.start(no_space=number).wait()
        log = sweep.log.read_text()
        assert "Traceback" not in log, log
        if "No space left" not in log:
            assert number > 8
            break
        sweep.finish_well(once=True)
        code = 1


def test_the_disk_is_full_in_every_write_of_a_worker(make_sweep: Sweeps) -> None:
    """Three writes from the Nth on fail. A worker that could not claim, or not write its recipe's
    configuration, ends, and the next attempt succeeds; one that trains continues to its end."""
    for number in (1, 3, 6):
        sweep = make_sweep(runs=2, steps=2, mode="say-hello", seconds=0.05, launch={"retries": 3})
        sweep.finish_well(worker={"beat": 0.05, "no_space": number})
        assert not [path for path in sweep.root.rglob("*.json") if not _is_json(path)]


def _is_json(path: Path) -> bool:
    json.loads(path.read_bytes())
    return True


def test_a_store_that_does_not_answer_for_a_while(make_sweep: Sweeps) -> None:
    """Thirty calls in a row fail, from several starting points: the launcher reports it and waits,
    or ends."""
    for first in range(8, 60, 17):
        sweep = make_sweep(runs=2)
        faults = {str(number): "fail" for number in range(first, first + 30)}
        code = sweep.start(faults=faults).wait()
        assert code == 0 or "injected" in sweep.log.read_text()
        sweep.finish_well(once=True)


def test_a_store_that_does_not_answer_a_worker(make_sweep: Sweeps) -> None:
    """Eight of a worker's calls in a row fail after its claim: the run is not stopped."""
    sweep = make_sweep(runs=2, seconds=0.6)
    faults = {str(number): "fail" for number in range(5, 13)}
    sweep.finish_well(worker={"beat": 0.1, "faults": faults}, once=True)


def test_a_store_that_is_not_there_at_launch(make_sweep: Sweeps) -> None:
    """One line, exit code 6, and nothing left behind."""
    sweep = make_sweep()
    sweep.root.write_text("a file where the folder should be")
    assert sweep.start().wait() == 6
    (line,) = sweep.log.read_text().splitlines()
    assert line.startswith("sweeper: ")
    assert not sweep.ledger.exists()


def test_a_store_that_vanishes_and_comes_back(make_sweep: Sweeps) -> None:
    """The folder is moved away during the sweep, as when a disk is unmounted, an empty one replaces
    it, and the old one comes back: no run is started a second time. (A recipe that writes into its
    folder in that time fails; this one does not.)"""
    sweep = make_sweep(runs=4, steps=4, seconds=1.6, mode="silent:holds-1")
    launching = sweep.start()
    until(lambda: len(sweep.rows()) == 2)  # one step of each of two runs, which then wait
    away = sweep.root.with_name("away")
    sweep.root.rename(away)
    sweep.root.mkdir()
    until(lambda: "waiting" in sweep.log.read_text() or launching.poll() is not None)
    Path(f"{sweep.ledger}.go").touch()
    until(lambda: len(sweep.rows()) >= 6)  # the recipes continue, and their workers send heartbeats
    put = [entry.path for entry in os.scandir(sweep.root)]
    assert not put, f"written where the disk was: {put}"
    sweep.root.rmdir()
    away.rename(sweep.root)
    launching.wait()
    sweep.finish_well(once=True)
