"""Real launchers, killed with SIGKILL, and the real local backend and worker; two launchers at
once; and failing submissions: accepted but timed out, or carried out twice."""

import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from harness.memory import memory_group
from harness.real import NAME, Sweeps, until

from sweeper.results import annotations
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event


@pytest.mark.timeout(1200)  # on a slow machine each launch takes longer, and has more calls
@pytest.mark.parametrize("kind", ["kill", "kill_after"])
def test_sigkill_at_calls_of_store_and_backend(make_sweep: Sweeps, kind: str) -> None:
    """Kills at every eleventh call of a launch, from the first to the last, before or after the
    call is done. (`run.py` and the simulation kill at every call.)"""
    number, code = (1 if kind == "kill" else 6), -9
    while code == -9:
        sweep = make_sweep()
        code = sweep.start(faults={number: kind}).wait()
        assert code in (0, -9), sweep.log.read_text()
        sweep.finish_well(once=True)
        number += 11
    assert number > 25  # a launch makes more calls, and a slow one makes even more


def test_sigkill_again_and_again(make_sweep: Sweeps) -> None:
    """Thirty launchers of one sweep, each killed at a random call."""
    sweep, chance = make_sweep(runs=6, seconds=0.4), random.Random(7)
    for _ in range(30):
        fault = chance.choice(["kill", "kill_after"])
        if sweep.start(faults={chance.randint(1, 40): fault}).wait() == 0:
            break
    sweep.finish_well(once=True)


def test_sigkill_at_any_moment(make_sweep: Sweeps) -> None:
    """Kills at any moment, not only between two calls: the launcher is a new interpreter each
    time."""
    sweep, chance = make_sweep(runs=4, seconds=0.6), random.Random(8)
    for _ in range(8):
        launching = sweep.start(fork=False)
        time.sleep(chance.uniform(0.1, 0.7))
        launching.kill()
    sweep.finish_well(once=True)


def test_out_of_memory(make_sweep: Sweeps) -> None:
    """The kernel kills the launcher: running jobs continue, and the next launcher
    loses nothing."""
    sweep = make_sweep(runs=3, mode="waits")
    with memory_group(1 << 16) as procs:
        launching = sweep.start(fork=False)
        # First both workers start: one that starts in the group would be killed too.
        until(lambda: len(sweep.rows()) == 2)
        procs.write_text(str(launching.pid))  # from now on it uses too much memory
        assert launching.wait() == -9
    Path(f"{sweep.ledger}.go").touch()
    sweep.finish_well(once=True)


def test_two_launches_at_once(make_sweep: Sweeps) -> None:
    """One becomes the launcher; the others end at once with exit code 6 and say why."""
    sweep = make_sweep(runs=4)
    launching = [sweep.start(fork=False) for _ in range(4)]
    codes = sorted(launch.wait() for launch in launching)
    assert codes[0] == 0
    # A launch after the end finds everything done.
    assert set(codes) <= {0, 6}
    assert codes.count(6) == sweep.log.read_text().count("another launcher is running")
    sweep.rest()
    assert sweep.verdict(once=True).good


def test_a_launch_during_a_deletion(make_sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits, or is refused: no run trains whose records are then removed."""
    sweep = make_sweep(runs=3)
    assert sweep.finish() == 0
    sweep.ledger.unlink()
    clear, begun = annotations.clear, threading.Event()

    def slow(folder: SweepFolder) -> None:
        begun.set()
        time.sleep(4.0)
        clear(folder)

    monkeypatch.setattr(annotations, "clear", slow)
    with ThreadPoolExecutor() as pool:
        deleting = pool.submit(annotations.delete, NAME, root=str(sweep.root))
        assert begun.wait(60)
        code = sweep.start(fork=False).wait()
        deleting.result()
    sweep.rest()
    assert code in (0, 6), sweep.log.read_text()
    assert (sweep.root / NAME).exists() is (code == 0), sweep.log.read_text()
    assert (code == 0) is bool(sweep.rows())
    sweep.finish_well(once=True)


@pytest.mark.parametrize("fault", ["lose_reply", "twice", "fail"])
def test_submissions_that_go_wrong(make_sweep: Sweeps, fault: str) -> None:
    """Each submission is accepted and times out, or starts two jobs, or is not accepted."""
    sweep = make_sweep(runs=4)
    faults = dict.fromkeys(range(1, 50) if fault != "fail" else range(1, 4), fault)
    sweep.finish_well(faults=faults, only="backend.submit", once=True)


@pytest.mark.parametrize("fault", ["lose_reply", "twice", "fail"])
@pytest.mark.parametrize("event", ["intent", "submitted"])
def test_the_reply_to_an_exclusive_create_is_lost(
    make_sweep: Sweeps, fault: str, event: str
) -> None:
    """`twice`: the launcher's request is sent again, and finds the launcher's own file."""
    sweep = make_sweep(runs=4)
    faults = dict.fromkeys(range(1, 40, 2), fault)
    # A launcher gives up, with a message, only if its first round fails.
    assert sweep.start(faults=faults, only=f"{event}.json").wait() in (0, 6)
    sweep.finish_well(once=True)


@pytest.mark.parametrize("fault", ["lose_reply", "twice", "fail"])
@pytest.mark.parametrize("event", ["claimed", "succeeded"])
def test_the_reply_to_a_workers_create_is_lost(make_sweep: Sweeps, fault: str, event: str) -> None:
    """The worker recognizes its own claim, and an outcome that is recorded."""
    sweep = make_sweep(runs=2)
    worker = {"beat": 0.2, "faults": {"1": fault}, "only": f"store.create {NAME}/state/"}
    if event == "succeeded":
        worker["only"] = f"{event}.json"
    sweep.finish_well(worker=worker, once=True)


def test_a_plan_that_is_added_to_while_launchers_are_killed(make_sweep: Sweeps) -> None:
    """The sweep grows by a run at each launch; the launcher is killed soon after its start."""
    sweep = make_sweep(runs=2)
    for number in range(3, 7):
        sweep.spec["grid"]["grid"]["x"] = list(range(number))
        sweep.start(faults={number * 5: "kill"}).wait()
    assert sweep.finish() == 0
    assert len(sweep.states()) == 6
    assert sweep.verdict(once=True).good


def test_never_more_than_max_parallel(make_sweep: Sweeps) -> None:
    """However often the launcher is killed and started again, at most two jobs run."""
    sweep, chance, most = make_sweep(runs=8, seconds=0.5), random.Random(9), [0]

    def watch() -> None:
        while not stop:
            workers = [p for p in sweep.workers() if _is_worker(p)]
            most[0] = max(most[0], len(workers))
            time.sleep(0.02)

    stop: list[bool] = []
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            for _ in range(12):
                launching = sweep.start(fork=False)
                time.sleep(chance.uniform(0.3, 0.6))
                launching.kill()
            assert sweep.finish(fork=False) == 0
        finally:
            stop.append(True)
        watching.result()
    assert most[0] in (1, 2)
    assert sweep.verdict(once=True).good


def _is_worker(process: psutil.Process) -> bool:
    """Return whether a process is a worker: not its guard, which has the same command line and a
    worker as its parent; nor a worker whose outcome is recorded, and which is about to exit."""
    try:
        words, parent = process.cmdline(), process.parent()
        guard = parent is not None and parent.cmdline() == words
    except psutil.Error:
        return False
    if guard or len(words) < 2 or not re.fullmatch(r"[0-9a-f]{12}-a\d+", words[-1]):
        return False
    run, _, attempt = words[-1].rpartition("-a")
    endings = (Event.SUCCEEDED, Event.FAILED, Event.PREEMPTED)
    state = Path(words[-2], "state", run)
    return not any((state / f"{attempt}.{event.value}.json").exists() for event in endings)
