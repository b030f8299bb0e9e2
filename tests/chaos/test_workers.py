"""Real workers: killed alone, with their recipe, before and after each of their store calls;
preempted; stopped; out of memory; ended without their final record; and unrelated processes that
reuse the pid of a worker."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from harness.memory import memory_group
from harness.real import NAME, Sweep, Sweeps, until

from sweeper import Registry
from sweeper.backends import open_backend
from sweeper.backends.base import JobState
from sweeper.store.documents import read_json
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.states import Event, State

STEPS = 4


def _body(sweep: Sweep, event: Event, attempt: int = 1) -> dict[str, object]:
    """Return the body of an event of the only run."""
    (run,) = sweep.states()
    return read_json(sweep.store, sweep.sweep_folder.event(run, attempt, event))


@pytest.mark.parametrize("kind", ["kill", "kill_after"])
def test_sigkill_at_calls_of_the_workers_store(make_sweep: Sweeps, kind: str) -> None:
    """Kills at every fourth store call of the worker, before or after it is done: the next attempt
    does the run. (`run.py` kills at every call.)"""
    number, killed = (1 if kind == "kill" else 3), True
    while killed:
        sweep = make_sweep(runs=2, seconds=0.05, launch={"retries": 2})
        sweep.finish_well(worker={"beat": 0.2, "faults": {str(number): kind}})
        killed = any(attempt > 1 for events in _events(sweep) for attempt, _ in events)
        number += 4
    assert number > 8


def _events(sweep: Sweep) -> list[set[tuple[int, Event]]]:
    return list(SweepFolder(sweep.store, NAME).read_events().values())


@pytest.mark.parametrize("kind", ["worker", "both", "recipe", "preempt"])
def test_workers_are_struck_at_any_moment(make_sweep: Sweeps, kind: str, tmp_path: Path) -> None:
    """SIGKILL for the worker alone (its recipe must end too), for worker and recipe, for the
    recipe alone; SIGTERM. At most twice per run; each run is resumed from its last checkpoint."""
    diary = tmp_path / "diary"
    strikes = {"seed": 5, "kinds": [kind], "within": 0.5, "most": 2, "diary": str(diary)}
    sweep = make_sweep(
        runs=5,
        steps=STEPS,
        seconds=0.8,
        mode="resume",
        launch={"retries": 4, "max_parallel": 5},
        spec={"worker": {"beat": 0.2, "strikes": strikes}},
    )
    sweep.finish_well(resumes=True)
    assert len(diary.read_text().splitlines()) >= 3
    _each_step_once(sweep)


def _each_step_once(sweep: Sweep) -> None:
    """Check the steps as readers see them, and in the folder of the last attempt."""
    registry = Registry(str(sweep.root))
    for record in registry.records(NAME):
        steps = registry.metrics(record["id"], keys=["loss"])["step"].tolist()
        assert steps == list(range(sweep.steps)), record["name"]


def test_a_stopped_worker_goes_on(make_sweep: Sweeps, tmp_path: Path) -> None:
    """SIGSTOP for three leases: the job exists, so no other attempt is started."""
    diary = tmp_path / "d"
    strikes = {"seed": 1, "kinds": ["stop"], "within": 0, "most": 9, "diary": str(diary)}
    sweep = make_sweep(runs=1, seconds=0.5, lease=1.0, mode="waits")
    launching = sweep.start(worker={"beat": 0.2, "strikes": strikes})
    until(diary.exists)
    Path(f"{sweep.ledger}.go").touch()  # otherwise a run could end before the assassin acts
    sweep.end_well(launching, once=True)


def test_exit_0_without_the_final_record(make_sweep: Sweeps) -> None:
    """It is a failure, with its reason; the next attempt resumes from the last checkpoint."""
    sweep = make_sweep(runs=1, mode="incomplete", launch={"retries": 1})
    assert sweep.finish() == 3
    assert _body(sweep, Event.FAILED, 1)["reason"] == "incomplete"
    assert _body(sweep, Event.FAILED, 2)["reason"] == "incomplete"
    assert len(sweep.rows()) == sweep.steps  # the second attempt had nothing left to train


def test_a_kill_at_every_byte_of_a_metrics_append(make_sweep: Sweeps) -> None:
    """One run for each number of bytes that the recipe wrote before it died. The torn line does
    not harm readers, and the next attempt does not inherit it."""
    line = len('{"step": 1, "loss": 0.5, "note": "\\u00e9\\u00e9\\u00e9"}\n')
    sweep = make_sweep(steps=3, seconds=0, launch={"retries": 1, "max_parallel": 6})
    del sweep.spec["grid"]["base"]["mode"]
    sweep.spec["grid"]["grid"] = {"mode": [f"resume:first:torn-{size}" for size in range(line + 1)]}
    assert sweep.finish() == 0
    assert len(sweep.states()) == line + 1
    assert sweep.verdict(resumes=True).good
    _each_step_once(sweep)
    for run in sweep.states():
        first = Path(
            sweep.store.root, sweep.sweep_folder.log_path(run, 1), "metrics.jsonl"
        ).read_bytes()
        second = Path(
            sweep.store.root, sweep.sweep_folder.log_path(run, 2), "metrics.jsonl"
        ).read_bytes()
        assert second.startswith(first[: first.rfind(b"\n") + 1])
        assert second.endswith(b"}\n")
        assert second.count(b"\n") in (3, 4)  # step 1 occurs twice if its first line was not torn


def _into(procs: Path) -> list[str]:
    """Return a command prefix that starts a program inside a control group. If it were moved there
    later, it might already have started others, which could take all the memory of the machine."""
    return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(procs)]


def test_out_of_memory_in_a_control_group(make_sweep: Sweeps) -> None:
    """The kernel kills the recipe, the largest process; its worker survives and records the
    reason."""
    sweep = make_sweep(runs=1, mode="memory")
    with memory_group(96 << 20) as procs:
        launching = sweep.start(fork=False, through=_into(procs))
        launching.wait()
        sweep.rest()
    body = _body(sweep, Event.FAILED)
    assert (body["reason"], body["signal"]) == ("oom", "SIGKILL")
    assert sweep.states().popitem()[1] is State.FAILED


def test_a_worker_is_out_of_memory(make_sweep: Sweeps) -> None:
    """The kernel kills the worker itself, which is in its launcher's control group, as in a
    container: the launcher reports the reason, and starts the run again. A later SIGKILL that is
    not the kernel's is not reported as out of memory."""
    sweep = make_sweep(runs=1, mode="first:waits:memory", seconds=1.5, launch={"retries": 2})
    # The second attempt sleeps until it is killed, however late that is.
    second = 'test "$SWEEPER_ATTEMPT" != 2 || exec sleep 600; exec "$@"'
    sweep.spec["grid"]["command"] = ["sh", "-c", second, "sh", *sweep.spec["grid"]["command"]]
    with memory_group(160 << 20) as procs:
        launching = sweep.start(fork=False, through=_into(procs))
        until(sweep.rows)
        Path(f"/proc/{_body(sweep, Event.CLAIMED)['pid']}/oom_score_adj").write_text("1000")
        Path(f"{sweep.ledger}.go").touch()
        (run,) = sweep.states()
        again = sweep.sweep_folder.event(run, 2, Event.CLAIMED)
        until(lambda: sweep.store.exists(again), why="it is not done again")
        os.kill(int(str(_body(sweep, Event.CLAIMED, 2)["pid"])), signal.SIGKILL)
        assert launching.wait() == 0, sweep.log.read_text()
        sweep.rest()
    assert _body(sweep, Event.FAILED)["reason"] == "oom"
    assert _body(sweep, Event.FAILED, 2)["reason"] == "killed"
    assert sweep.verdict().good


def test_out_of_address_space(make_sweep: Sweeps) -> None:
    """A limit that the recipe notices: Python's own error, in the log, and exit code 1."""
    sweep = make_sweep(runs=1, mode="memory")
    toy = sweep.spec["grid"]["command"]
    sweep.spec["grid"]["command"] = ["sh", "-c", 'ulimit -v 400000; exec "$@"', "sh", *toy]
    assert sweep.finish() == 3
    body = _body(sweep, Event.FAILED)
    assert (body["reason"], body["code"]) == ("error", 1)
    (run,) = sweep.states()
    assert b"MemoryError" in sweep.store.read(sweep.sweep_folder.log(run, 1))


def _process_with_pid(pid: int) -> "subprocess.Popen[bytes] | None":
    """Start another process with a pid that was used before; None if the kernel does not allow
    it."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    sleep = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
    for _ in range(300):
        if psutil.pid_exists(pid):
            time.sleep(0.01)
            continue
        try:
            last.write_text(str(pid - 1))
        except OSError:
            return None
        process = subprocess.Popen(sleep)
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    return None


def test_a_pid_that_is_used_again(make_sweep: Sweeps) -> None:
    """A worker dies, and an unrelated process gets its pid (requested from the kernel). It is not
    taken for the job, and is not signalled when the job is cancelled."""
    sweep = make_sweep(runs=1, seconds=30)
    launching = sweep.start()
    until(sweep.rows)
    launching.kill()
    (run,) = [run.id for run in SweepFolder(sweep.store, NAME).read_plan().runs]
    job = token(run, 1)
    backend = open_backend("local", NAME, f"{sweep.store.root}/{NAME}")
    assert backend.poll([job])[job].state is JobState.RUNNING
    pid = int(_body(sweep, Event.CLAIMED)["pid"])  # type: ignore[call-overload]
    assert backend.find([job]) == {job: str(pid)}
    os.kill(pid, signal.SIGKILL)
    sweep.rest()
    stranger = _process_with_pid(pid)
    if stranger is None:
        pytest.skip("only root can choose the pid of the next process")
    try:
        assert backend.poll([job])[job].state is JobState.ABSENT
        backend.cancel([job])
        time.sleep(0.3)
        assert stranger.poll() is None, "a stranger was signalled"
    finally:
        stranger.kill()
        stranger.wait()
