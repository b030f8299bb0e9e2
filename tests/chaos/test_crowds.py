"""Many quick runs, and machines that cannot start more: no process is left behind, no run is
blamed, and a waiting launcher says why."""

import os
import shutil
import sys

import pytest
from harness.real import HERE, NAME, Sweeps
from harness.zombies import Sampled

from sweeper.store.documents import read_json
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import ENDED, Event


def test_quick_runs_leave_no_zombies(make_sweep: Sweeps) -> None:
    """A launcher reaps every job that has ended, also when none is open at a poll. Between two
    polls, at most twice `max_parallel` jobs end: those that ran, and those whose outcome was
    recorded but which had not exited, so that others took their place. (`crowd.py` has 2,000
    runs.)"""
    sweep = make_sweep(runs=24, seconds=0, launch={"max_parallel": 6}, spec={"poll": 1.5})
    launching = sweep.start()
    with Sampled(launching.pid) as sampled:
        assert launching.wait() == 0
    assert sampled.looks > 10
    assert sampled.most <= 2 * 6
    assert sweep.verdict(once=True).good


def test_a_user_with_too_few_processes(make_sweep: Sweeps) -> None:
    """Twelve runs at once would need several times the processes and threads that this user may
    have. The launcher waits, slows down and says why; no run fails because of it."""
    if os.getuid() or not (shutil.which("setpriv") and shutil.which("prlimit")):
        pytest.skip("it takes root to be another user, whose processes are counted by themselves")
    # By `env`: permission to execute is checked for the user alone, without the privileges that
    # setpriv adds.
    toy = ["/usr/bin/env", sys.executable, "-I", "-S", str(HERE / "toy.py")]
    command = [*toy, "{ledger}", "3", "0.1", "{mode}", "{log_path}"]
    sweep = make_sweep(runs=16, launch={"max_parallel": 12}, command=command)
    user = str(60_000 + os.getpid() % 4_000)
    reads = "+dac_override,+dac_read_search"
    another = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
    another += [f"--inh-caps={reads}", f"--ambient-caps={reads}", "prlimit", "--nproc=10"]
    assert sweep.start(fork=False, through=another).wait() == 0, sweep.log.read_text()
    sweep.rest()
    assert sweep.verdict().good
    log = sweep.log.read_text()
    assert "this machine has no more processes or threads" in log
    assert "at once: this machine cannot run more" in log
    for run, happened in SweepFolder(sweep.store, NAME).read_events().items():
        for attempt, event in [(n, e) for n, e in happened if e in ENDED]:
            outcome = read_json(sweep.store, sweep.sweep_folder.event(run, attempt, event))
            assert event is Event.SUCCEEDED or outcome["reason"] == "limit", outcome
