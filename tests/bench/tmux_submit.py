"""Measures submitting many jobs that end at once to tmux: sweeper's backend, against one `tmux
source-file` of the same worker commands, and against tinker-cookbook's xmux.

    python tests/bench/tmux_submit.py [--jobs 1000] [--xmux .venv-cookbook/bin/python]

Each has its own tmux server; the next begins when the jobs of the last have ended. On a small
machine most of the time goes to the jobs that start meanwhile: sweeper's worker, xmux's runner. So
xmux is measured unchanged, with a function that sleeps for 3 s (with shorter jobs it fails), and a
second time with `sleep 3` as its runner; and so is sweeper's backend, with `sleep 3` as its worker.
Then a whole sweep: the same number of runs of `true`, by `sweeper launch`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attempts import attempts

from sweeper.backends.tmux.backend import open_backend
from sweeper.backends.tmux.server import argument, socket_name
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import State

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.own_tmux import own_tmux

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

XMUX = """
import os, sys, time
import tinker_cookbook.xmux.core as core
from tinker_cookbook.xmux import JobSpec, SwarmConfig, launch_swarm
def command(config_path, *a, **k):
    return core.JobCommand(command="sleep 3", env=dict(os.environ))
if sys.argv[2] == "sleep":
    core._create_job_command = command
core.get_symbol_path = lambda function: "time:sleep"
jobs = [JobSpec(main_fn=time.sleep, log_relpath=f"s/{n}", entrypoint_config=3)
        for n in range(int(sys.argv[1]))]
begun = time.perf_counter()
launch_swarm(jobs, SwarmConfig(sweep_name="s", control_window_cmd="sleep 600"))
print(time.perf_counter() - begun)
"""
GRID = """
name: many
command: ["true"]
grid: {{n: {numbers}}}
service: none
launch: {{backend: tmux, max_parallel: {parallel}}}
"""


class Sweep:
    """Runs of `true` that are ready for their workers, and a tmux server for them."""

    def __init__(self, folder: str, count: int) -> None:
        self.folder = os.path.join(folder, "s")
        self.store, self.count = LocalStore(folder), count
        self.jobs = attempts(folder, count)

    def tmux(self, *arguments: str) -> None:
        subprocess.run(["tmux", "-L", socket_name(), *arguments], check=True)

    def raw(self) -> float:
        """Return the seconds of one `source-file` of the bare commands."""
        self.tmux("new-session", "-d", "-s", "s", "-x", "200", "-y", "50", "sleep 600")
        self.tmux("set-option", "-g", "remain-on-exit", "on")
        with tempfile.NamedTemporaryFile("w", suffix=".tmux") as file:
            for job in self.jobs:
                words = " ".join(map(argument, job.argv))
                file.write(f"new-window -d -t s: -n {argument(job.token)} {words}\n")
            file.flush()
            begun = time.perf_counter()
            self.tmux("source-file", file.name)
            return time.perf_counter() - begun

    def ours(self) -> float:
        """Return the seconds of the backend's `submit`, with the server's start."""
        backend = open_backend("s", self.folder)
        begun = time.perf_counter()
        backend.submit(self.jobs)
        taken = time.perf_counter() - begun
        assert len(backend.find([job.token for job in self.jobs])) == self.count
        return taken

    def slept(self) -> float:
        """Return the same with `sleep 3` in place of the workers."""
        for number, job in enumerate(self.jobs):
            argv = ["sh", "-c", "exec sleep 3", job.token]
            self.jobs[number] = job._replace(argv=argv)
        taken = self.ours()
        time.sleep(4)
        return taken

    def settle(self) -> None:
        """Wait until every run is recorded as done."""
        deadline = time.monotonic() + 600
        while True:
            states = [state.state for state in SweepFolder(self.store, "s").read_states().values()]
            if states.count(State.SUCCEEDED) == self.count:
                break
            assert time.monotonic() < deadline, f"{self.count} jobs: {states}"
            time.sleep(0.5)


def xmux(python: str, count: int, runner: str) -> float:
    """Return the seconds of xmux's `launch_swarm`, with its own runner or with "sleep" in its
    place."""
    with tempfile.TemporaryDirectory() as home, own_tmux():
        done = subprocess.run(
            [python, "-c", XMUX, str(count), runner],
            env=os.environ | {"HOME": home},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return float(done.stdout.split()[-1])


def launched(folder: str, count: int, parallel: int) -> float:
    """Return the seconds of a whole sweep of `count` runs, with its interpreter's start."""
    variables = {"SWEEPER_HOME": os.path.join(folder, "home")}
    Path(folder, "grid.yaml").write_text(GRID.format(numbers=[*range(count)], parallel=parallel))
    begun = time.perf_counter()
    command = [sys.executable, "-P", "-m", "sweeper", "launch", "grid.yaml", "--wait"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    taken = time.perf_counter() - begun
    states = SweepFolder(LocalStore(os.path.join(folder, "sweeps")), "many").read_states()
    succeeded = sum(state.state is State.SUCCEEDED for state in states.values())
    assert (done.returncode, succeeded) == (0, count), done.stdout[-500:] + done.stderr[-500:]
    return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--parallel", type=int, default=50)
    parser.add_argument("--xmux", default=".venv-cookbook/bin/python")
    options = parser.parse_args()
    result: dict[str, float] = {}

    def tell(name: str, seconds: float, other: str | None = None) -> None:
        result[name] = seconds
        ratio = f": {seconds / result[other]:.2f} times `{other}`" if other else ""
        print(f"{name}: {options.jobs} jobs in {seconds:.2f} s{ratio}", flush=True)

    for name in ("raw", "ours"):
        with tempfile.TemporaryDirectory() as folder, own_tmux():
            sweep = Sweep(folder, options.jobs)
            taken = getattr(sweep, name)()
            sweep.settle()
        tell(name, taken, "raw" if name == "ours" else None)
    with tempfile.TemporaryDirectory() as folder, own_tmux():
        tell("ours, sleep 3", Sweep(folder, options.jobs).slept())
    if shutil.which(options.xmux):
        tell("xmux, sleep 3", xmux(options.xmux, options.jobs, "sleep"), "ours, sleep 3")
        tell("xmux", xmux(options.xmux, options.jobs, "own"), "ours")
    else:
        print(f"no xmux: there is no {options.xmux}")
    with tempfile.TemporaryDirectory() as folder, own_tmux():
        result["launch"] = launched(folder, options.jobs, options.parallel)
    print(f"sweeper launch --wait: {options.jobs} runs recorded in {result['launch']:.1f} s")
    print(json.dumps({name: round(value, 2) for name, value in result.items()}))


if __name__ == "__main__":
    main()
