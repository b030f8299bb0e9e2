"""Sweeps on a real Slurm of four nodes, with a ledger of what was executed."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from harness.real import until
from support.toy_sweep import ToySweep

pytestmark = pytest.mark.e2e

_until = partial(until, seconds=120)


class Sweep(ToySweep):
    """A toy sweep on the Slurm of the tests."""

    def __init__(self, folder: Path, cluster: Any) -> None:
        super().__init__(folder)
        self.cluster = cluster

    def write(
        self, runs: int, steps: int, seconds: float, mode: str = "plain", **launch: Any
    ) -> None:
        more = {"backend": "slurm", "max_parallel": runs}
        super().write(runs, steps, seconds, mode, **(more | launch))

    def states(self) -> dict[str, dict[str, Any]]:
        output, _ = self.start("status", "toys", "--json").communicate(timeout=60)
        return {run["id"]: run for run in json.loads(output)["runs"]}

    def tables(self) -> int:
        """Return the number of recorded submissions."""
        return len(list(self.folder.glob("sweeps/toys/slurm/*.json")))

    def claimed(self, attempt: int) -> int:
        """Return the number of runs that have reached an attempt."""
        return len(list(self.folder.glob(f"sweeps/toys/state/*/{attempt}.claimed.json")))

    def queue(self, *fields: str) -> list[str]:
        lines = self.cluster.run("squeue", "-h", "-r", "-o", " ".join(fields))
        return lines.splitlines()


@pytest.fixture
def sweep(tmp_path: Path, slurm: Any) -> Iterator[Sweep]:
    slurm.until_idle()  # jobs of earlier tests may still be ending
    yield Sweep(tmp_path, slurm)
    slurm.run("scancel", "--me")


def test_a_sweep_on_four_nodes_to_its_end(sweep: Sweep) -> None:
    sweep.environment["CANARY_TOKEN"] = "canary-value-of-a-secret"
    sweep.write(8, 3, 0.3, slurm={"throttle": 6, "time": "10m", "cpus": 1})
    grid = yaml.safe_load((sweep.folder / "grid.yaml").read_text()) | {"secrets": ["CANARY_TOKEN"]}
    (sweep.folder / "grid.yaml").write_text(yaml.safe_dump(grid))
    sweep.run("launch", "grid.yaml", "--wait")
    sweep.judge(once=True)
    hosts = {path.read_text().split()[2] for path in sweep.folder.glob("sweeps/toys/slurm/*.out")}
    assert hosts <= {f"n{number}" for number in range(4)} and len(hosts) > 0
    # After the sweep, the secret is in no file, no job script and no state of Slurm.
    for place in (sweep.folder / "sweeps", sweep.folder / "home", sweep.cluster.top):
        matches = subprocess.run(
            ["grep", "-rl", "canary-value-of-a-secret", place], capture_output=True, check=False
        )
        assert matches.stdout == b"", matches.stdout


def test_a_partition_that_takes_nothing_for_now(sweep: Sweep) -> None:
    sweep.write(1, 1, 0.1, slurm={"partition": "urgent", "time": "5m"})
    look = ("doctor", "--backend", "slurm", "--grid", "grid.yaml")
    sweep.cluster.run("scontrol", "update", "partitionname=urgent", "state=inactive")
    try:
        assert "inactive or drain" in sweep.run("launch", "grid.yaml", "--wait", code=6)
        assert "inactive or drain" in sweep.run(*look, code=6)
    finally:
        sweep.cluster.run("scontrol", "update", "partitionname=urgent", "state=up")
    output = sweep.run(*look)
    assert "Slurm would accept a job with partition, time" in output
    assert "main* (of 4 nodes 0 busy, 4 idle; limit infinite)" in output


PREFLIGHT = 'case "$*" in *--test-only*) exec $real "$@";; esac\n'
REFUSED = 'echo "sbatch: error: Batch job submission failed: %s" >&2\nexit 1\n'


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_launcher_killed_while_it_submits(sweep: Sweep, when: str) -> None:
    sweep.write(6, 2, 0.2)
    kill = "kill -9 $PPID"
    submit = f"{kill}; exit 1" if when == "before" else f'$real "$@"\n{kill}'
    switch = sweep.wrap("sbatch", PREFLIGHT + submit)
    switch.touch()
    sweep.run("launch", "grid.yaml", "--wait", code=-signal.SIGKILL)
    switch.unlink()
    sweep.run("launch", "grid.yaml", "--wait")
    sweep.judge(once=True)
    # Before: the array was never submitted. After: it was submitted and found.
    assert sweep.tables() == (2 if when == "before" else 1)


def test_a_submission_that_was_accepted_and_timed_out(sweep: Sweep) -> None:
    sweep.write(6, 2, 0.2)
    again = 'if [ -e $once.again ]; then echo "$*" >> $once.again; exec $real "$@"; fi\n'
    submit = 'touch $once.again; $real "$@" >/dev/null\n'
    timeout = REFUSED % "Socket timed out on send/recv"
    switch = sweep.wrap("sbatch", PREFLIGHT + again + submit + timeout)
    switch.touch()
    sweep.run("launch", "grid.yaml", "--wait")
    sweep.judge(once=True)
    assert Path(f"{switch}.again").read_text() == ""  # it was not submitted again


def test_a_limit_on_submitted_jobs(sweep: Sweep) -> None:
    sweep.write(4, 2, 0.2)
    limit = "AssocMaxSubmitJobLimit"
    note = f'echo "$*" >> $once\necho "sbatch: error: {limit}" >&2\n'
    full = sweep.wrap("sbatch", note + REFUSED % "Job violates the policy")
    full.touch()
    launcher = sweep.launch()
    _until(lambda: limit in sweep.unreachable())
    time.sleep(3)  # many polls without a call of sbatch
    launcher.kill()
    assert launcher.communicate()[0].count(limit) == 1
    calls = full.read_text().splitlines()
    assert ["--array=0-3" in calls[1], "--array=0-1" in calls[2], len(calls)] == [True, True, 4]
    assert "--test-only" in calls[0] and sweep.tables() == 0
    full.unlink()
    sweep.run("launch", "grid.yaml", "--wait")
    sweep.judge(once=True)


def test_squeue_down_for_longer_than_a_lease(sweep: Sweep) -> None:
    """While squeue fails, a suspended worker looks like a dead one."""
    sweep.write(4, 5, 0.5, "holds-2", lease="15s")
    message = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    down = sweep.wrap("squeue", f'echo "{message}" >&2; exit 1')
    launcher = sweep.launch()
    _until(lambda: len(sweep.done()) == 8)
    down.touch()
    still = sweep.cluster.steps()[0].children(recursive=True)
    for process in still:
        process.suspend()
    sweep.go_on()
    _until(lambda: len(sweep.done()) == 17)
    _until(lambda: "Unable to contact" in sweep.unreachable())
    time.sleep(18)
    assert {run["state"] for run in sweep.states().values()} == {"running", "succeeded"}
    for process in still:
        process.resume()
    _until(lambda: len(sweep.done()) == 20)
    down.unlink()
    sweep.end(launcher)
    sweep.judge(once=True)


def test_the_controller_restarted(sweep: Sweep) -> None:
    sweep.write(12, 4, 3.0, slurm={"throttle": 6})
    launcher = sweep.launch()
    _until(lambda: len(sweep.done()) >= 4)
    sweep.cluster.kill("slurmctld", signal.SIGTERM)
    time.sleep(1.5)
    sweep.cluster.start_controller()
    sweep.end(launcher)
    sweep.judge(once=True)


def _node_of(sweep: Sweep, run: str) -> int:
    """Return the number of the node of a run's first attempt."""
    token = f"{run}-a1"
    for path in sweep.folder.glob("sweeps/toys/slurm/*.out"):
        for line in path.read_text().splitlines():
            if line.startswith(f"{token} on n"):
                return int(line.rpartition("n")[2])
    raise LookupError(run)


@pytest.mark.parametrize("alone", [False, True])
def test_a_node_that_dies(sweep: Sweep, alone: bool) -> None:
    """If only slurmd dies, its jobs continue while Slurm restarts them elsewhere."""
    # Jobs that continue must last until Slurm has restarted them, even on a busy machine. Jobs that
    # die with their node wait for that.
    steps, seconds, mode = (96, 48.0, "resume") if alone else (32, 8.0, "resume:holds-3")
    sweep.write(6, steps, seconds, mode)
    launcher = sweep.launch()
    _until(lambda: len(sweep.done()) >= (12 if alone else 18))
    node = _node_of(sweep, sweep.done()[0][0])
    if alone:
        sweep.cluster.kill(f"n{node}")
    else:
        sweep.cluster.kill_node(node)
    # Slurm itself would notice this only after a while, and then take the jobs from the node.
    where = f"nodename=n{node}"
    sweep.cluster.run("scontrol", "update", where, "state=down", "reason=silent")
    sweep.go_on()
    try:
        sweep.end(launcher)
    finally:
        sweep.cluster.end_jobs(f"n{node}")
        sweep.cluster.start_node(node)
        sweep.cluster.run("scontrol", "update", where, "state=resume", check=False)
        sweep.cluster.until_idle()
    sweep.judge(resumes=True)
    rows = sweep.done()
    again = {run for run, attempt, _ in rows if attempt == 2}
    assert again and max(attempt for _, attempt, _ in rows) == 2
    if alone:  # both trained for a while, then the first stopped because of the newer attempt
        for run in again:
            begun = rows.index(next(row for row in rows if row[:2] == (run, 2)))
            assert any(row[:2] == (run, 1) for row in rows[begun:])
            assert sum(row[:2] == (run, 1) for row in rows) < steps


def test_signalled_requeued_cancelled_and_resumed(sweep: Sweep) -> None:
    """Tasks of one array: one is signalled, one requeued, one cancelled with Slurm's tools."""
    sweep.write(4, 10, 6.0, "resume:holds-3", grace="5s")
    launcher = sweep.launch()
    _until(lambda: len(sweep.done()) == 12)
    tasks = sorted(set(sweep.queue("%i")))
    assert len(tasks) == 4
    sweep.cluster.run("scontrol", "requeue", tasks[1])
    sweep.cluster.run("scancel", "-b", "-s", "TERM", tasks[3])
    sweep.cluster.run("scancel", tasks[0])
    _until(lambda: sweep.claimed(2) == 3)
    sweep.go_on()
    sweep.end(launcher)
    sweep.judge(resumes=True)
    attempts = {run: max(a for r, a, _ in sweep.done() if r == run) for run, _, _ in sweep.done()}
    assert sorted(attempts.values()) == [1, 2, 2, 2]
    assert len(sweep.done()) <= 4 * 10 + 3  # each resumed from its checkpoint
    assert sweep.tables() == 2


def test_preempted_and_resumed(sweep: Sweep) -> None:
    """By a job in a partition with higher priority."""
    sweep.write(3, 20, 10.0, "resume:holds-3", grace="5s")
    launcher = sweep.launch()
    _until(lambda: len(sweep.done()) == 9)
    urgent = ["-p", "urgent", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1"]
    sweep.cluster.run("sbatch", *urgent)
    _until(lambda: sweep.claimed(2) == 3)
    sweep.go_on()
    sweep.end(launcher)
    sweep.judge(resumes=True)
    assert {max(a for r, a, _ in sweep.done() if r == run) for run, _, _ in sweep.done()} == {2}
    assert len(sweep.done()) <= 3 * 20 + 3
    assert sweep.tables() == 1


@pytest.fixture
def enforcing(
    slurm_support: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Any]:
    """Yield a cluster that measures memory every second and kills jobs with too much."""
    more = (
        "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=task=1\n"
        "JobAcctGatherParams=OverMemoryKill\nSelectTypeParameters=CR_CPU_Memory\n"
    )
    with slurm_support.Cluster(nodes=1, cpus=8, more=more) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.config))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        yield cluster


def test_out_of_memory_and_out_of_time(enforcing: Any, tmp_path: Path) -> None:
    """Each kills the worker with all its processes, so only Slurm knows the reason."""
    program = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[2], 'w').close()\ntaken = b'x' * (int(sys.argv[1]) << 20)\ntime.sleep(600)"
    )
    sweep = Sweep(tmp_path, enforcing)
    grid = {
        "name": "toys",
        "command": [sys.executable, "-c", program, "{megabytes}", "{log_path}/there"],
        "service": "none",
        "grid": {"megabytes": [1, 400]},
        "launch": {"backend": "slurm", "grace": "1m", "slurm": {"mem": "200M", "time": "5m"}},
    }
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    launcher = sweep.launch()
    _until(lambda: len(list(tmp_path.glob("sweeps/toys/runs/*/there"))) == 2)
    _until(lambda: len(sweep.queue("%i")) == 1)
    (job,) = sweep.queue("%i")

    def is_timed_out() -> bool:
        try:
            enforcing.run("scontrol", "update", f"jobid={job}", "endtime=now")
        except RuntimeError as error:
            assert "Invalid time" in str(error)  # in the second of its start
            return False
        return True

    _until(is_timed_out)
    sweep.end(launcher, code=3)
    runs = {run["config"]["megabytes"]: run for run in sweep.states().values()}
    assert {run["state"] for run in runs.values()} == {"failed"}
    assert [runs[megabytes]["reason"] for megabytes in (1, 400)] == ["timeout", "oom"]
