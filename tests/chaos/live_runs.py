"""Runs hundreds of runs of `sft` at once on this machine, in panes of tmux, on a separate engine:

    python tests/chaos/live_runs.py --runs 300 --steps 60

The fork server of the recipes is killed when a third of them train, the launcher and the tmux
server when all of them do. It prints the cost of the runs, and waits for their end. Exit code 1
when not all succeed, when a step is missing or repeated in a run's metrics, or when runs that are
repeated one at a time and undisturbed reach other values.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from harness.processes import end_all_of_home, of_home, private

from sweeper.backends.tmux.server import socket_name

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.own_tmux import own_tmux

GRID = """
name: {name}
recipe: sft
service: local
base: {{max_steps: {steps}, batch_size: 1, eval_every: 0, save_every: 20, test_size: 4}}
seeds: {seeds}
metric: {{name: test/nll, goal: minimize, at: last}}
launch: {{backend: {backend}, max_parallel: {abreast}, timeout: 1h}}
"""


def sweeper(folder: Path, *arguments: str) -> str:
    """Return the output of `sweeper`."""
    command = [sys.executable, "-m", "sweeper", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(0.5)


def training(sweep: Path) -> set[str]:
    """Return the attempts that have a row of metrics, and no end."""
    rows = {path.parent.name for path in sweep.glob("runs/*/metrics.jsonl") if path.stat().st_size}
    ends = ("succeeded", "failed", "lost", "preempted", "cancelled")
    over = {
        f"{path.parent.name}.{path.name.partition('.')[0]}"
        for end in ends
        for path in sweep.glob(f"state/*/*.{end}.json")
    }
    return rows - over


def kill_fork_servers(home: str) -> int:
    """Kill the fork servers of this home, not their forks; returns how many there were. Each is
    named in a file, which it removes when it ends by itself."""
    servers = [json.loads(path.read_text()) for path in Path(home, "warm").glob("*.json")]
    for server in servers:
        os.kill(server["pid"], signal.SIGKILL)
    return len(servers)


class Trial:
    """One sweep of this many runs."""

    def __init__(self, folder: Path, runs: int, steps: int) -> None:
        self.folder, self.runs, self.steps = folder, runs, steps
        self.sweep = folder / "sweeps" / "live"
        self._write("first", 1, "local", 1)  # it tells the fork server what to import
        self._write("live", runs, "tmux", runs)

    def _write(self, name: str, seeds: Any, backend: str, abreast: int) -> None:
        settings = {"name": name, "seeds": seeds, "backend": backend, "abreast": abreast}
        (self.folder / f"{name}.yaml").write_text(GRID.format(steps=self.steps, **settings))

    def launch(self) -> None:
        """Launch, or launch again."""
        sweeper(self.folder, "launch", "live.yaml")

    def go(self, home: str) -> None:
        """Run from the first launch to the end of all runs."""
        sweeper(self.folder, "launch", "first.yaml", "--wait")
        began = time.monotonic()
        self.launch()
        until(lambda: len(training(self.sweep)) >= self.runs // 3, 1800, "too few train")
        killed = kill_fork_servers(home)
        print(f"killed: {killed} fork server, while others are about to start")
        assert killed
        until(lambda: len(training(self.sweep)) == self.runs, 1800, "not all train at once")
        summary = f"{self.runs} train at once after {time.monotonic() - began:.0f} s"
        each = sum(private(process.pid) for process in of_home(home)) / self.runs / 1e6
        load, memory = os.getloadavg()[0], psutil.virtual_memory()
        used = (memory.total - memory.available) / 1e9
        print(
            f"{summary}; {each:.1f} MB a run, all processes; in use {used:.1f} GB; load {load:.0f}"
        )
        observations = json.loads((self.sweep / "launcher" / "observations.json").read_text())
        os.kill(observations["pid"], signal.SIGKILL)
        subprocess.run(["tmux", "-L", socket_name(), "kill-server"], check=True)
        print("killed: the launcher and the tmux server")
        self.launch()
        until(lambda: self.states().get("succeeded", 0) + self.bad() >= self.runs, 3000, "no end")
        print(f"all over after {time.monotonic() - began:.0f} s: {self.states()}")

    def states(self) -> dict[str, int]:
        """Return the number of runs in each state."""
        command = [sys.executable, "-m", "sweeper", "status", "live", "--json"]
        status = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False
        )
        counts: dict[str, int] = {}
        for run in json.loads(status.stdout)["runs"]:
            counts[run["state"]] = counts.get(run["state"], 0) + 1
        return counts

    def bad(self) -> int:
        return self.states().get("failed", 0)

    def wrong(self) -> list[str]:
        """Return errors in the files of the runs."""
        errors = [] if self.states() == {"succeeded": self.runs} else [str(self.states())]
        attempts = list(self.sweep.glob("runs/*.[0-9]*"))
        for run in {path.name.rpartition(".")[0] for path in attempts}:
            last = max(
                (path for path in attempts if path.name.startswith(f"{run}.")),
                key=lambda path: int(path.name.rpartition(".")[2]),
            )
            steps = [json.loads(line)["step"] for line in (last / "metrics.jsonl").open()]
            if steps != list(range(self.steps + 1)):
                errors.append(f"{last.name}: steps {steps}")
        claims = len(list(self.sweep.glob("state/*/*.claimed.json")))
        print(f"{claims} attempts of {self.runs} runs")
        return errors

    def values(self, name: str) -> dict[int, float]:
        """Return the value of each seed."""
        listed = json.loads(sweeper(self.folder, "ls", name, "--json"))["runs"]
        return {run["seed"]: run["value"] for run in listed}

    def compare(self, some: int) -> list[str]:
        """Repeat some seeds, one at a time; returns those that reach other values."""
        seeds = random.Random(1).sample(range(self.runs), some)
        self._write("again", seeds, "local", 1)
        sweeper(self.folder, "launch", "again.yaml", "--wait")
        live, again = self.values("live"), self.values("again")
        spread = statistics.stdev(live.values())
        print(f"done again: {some} seeds; values differ by {spread:.3g} between seeds")
        return [f"seed {s}: {live[s]}, then {again[s]}" for s in seeds if live[s] != again[s]]


def main() -> int:
    """Run the trial. Exit code 1 if something is wrong."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    options.add_argument("--runs", type=int, default=300)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--again", type=int, default=6)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place, own_tmux():
        folder = Path(place)
        home = str(folder / "home")
        os.environ["SWEEPER_HOME"] = home
        os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        try:
            sweeper(folder, "engine", "start", "--max-sessions", str(given.runs + 100))
            trial = Trial(folder, given.runs, given.steps)
            trial.go(home)
            wrong = [*trial.wrong(), *trial.compare(given.again)]
        finally:
            sweeper(folder, "engine", "stop", "--force")
            end_all_of_home(home)
    print(*(wrong or ["nothing is wrong"]), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
