"""Measures the cost of a live run, forked from a fork server and started without one.

    python tests/bench/warm_start.py [--runs N] [--recipe sft]

Starts N runs on the local backend against the engine (in a new home), with and without
`launch: {warm: false}`. Prints the processor time of each recipe until it begins its first step (it
then writes `config.json`) and until its first row of metrics, with the evaluation of that step. At
the first row it also measures the private memory of the recipe, its keeper, its worker and the
guard. The very first run makes the list of imports, and is not counted.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

GRID = """
name: {name}
recipe: {recipe}
service: local
base: {{max_steps: {steps}, eval_every: 1000}}
seeds: {runs}
launch: {{backend: local, max_parallel: {runs}, warm: {warm}}}
"""
_TICKS = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """The cost of one run: processor seconds until its first step and until its first row, and
    private bytes of its processes."""

    ready: float
    row: float
    recipe: int
    others: int


def private(pid: int) -> int:
    """Return the private bytes of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def worker_of(run: str) -> int:
    """Return the worker of the run with this token."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if command[-2:-1] == [run] and "sweeper.worker.main" in command:
            return int(folder.name)
    raise LookupError(run)


def processor(pid: int) -> float:
    """Return the processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def cost(token: str, recipe: int, ready: float) -> Cost:
    worker = worker_of(token)
    others = {worker, *children(worker), parent(recipe)} - {recipe}
    return Cost(
        ready,
        processor(recipe),
        private(recipe),
        sum(map(private, others)),
    )


def measure(folder: Path, given: argparse.Namespace, name: str) -> tuple[list[Cost], float]:
    """Return the costs of the runs, and the time until all had their first row."""
    grid = folder / f"{name}.yaml"
    text = GRID.format(
        name=name,
        recipe=given.recipe,
        steps=100_000,
        runs=given.runs,
        warm=str(name != "alone").lower(),
    )
    grid.write_text(text)
    sweeper = [sys.executable, "-m", "sweeper"]
    begun = time.monotonic()
    subprocess.run([*sweeper, "launch", str(grid)], cwd=folder, check=True, capture_output=True)
    sweep = folder / "sweeps" / name
    ready: dict[str, float] = {}
    costs: dict[str, Cost] = {}
    deadline = begun + 500
    while len(costs) < given.runs:
        for written in sweep.glob("runs/*/config.json"):
            token = written.parent.name
            recipe = recipe_of(sweep, token)
            if recipe is None or token in costs:
                continue
            ready.setdefault(token, processor(recipe))
            rows = written.with_name("metrics.jsonl")
            if rows.exists() and rows.stat().st_size:
                run, _, attempt = token.rpartition(".")
                costs[token] = cost(f"{run}-a{attempt}", recipe, ready[token])
        if time.monotonic() > deadline or ended(sweep):
            raise SystemExit(f"only {len(costs)} of {given.runs} runs had a row")
        time.sleep(0.01)
    seconds = time.monotonic() - begun
    subprocess.run([*sweeper, "cancel", name], cwd=folder, check=True, capture_output=True)
    while ended(sweep) < given.runs:
        time.sleep(0.2)
    return list(costs.values()), seconds


def recipe_of(sweep: Path, token: str) -> int | None:
    """Return the pid of an attempt's recipe, which is the name of its usage file."""
    counted = list((sweep / "attempts" / token / "usage").glob("*.json"))
    return int(counted[0].stem) if counted else None


def ended(sweep: Path) -> int:
    """Return how many runs have an outcome."""
    ends = ("cancelled", "succeeded", "failed")
    return sum(len(list(sweep.glob(f"state/*/1.{end}.json"))) for end in ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--recipe", default="sft")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["SWEEPER_HOME"] = str(folder / "home")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        try:
            measure(folder, argparse.Namespace(runs=1, recipe=given.recipe), "first")
            print(
                f"{'':<8} {'to step 0, s':>13} {'to row, s':>10} {'recipe, MB':>11}"
                f" {'others, MB':>11} {'all, s':>7}"
            )
            for name in ("alone", "forked"):
                costs, seconds = measure(folder, given, name)
                middle = Cost(*map(statistics.median, zip(*costs, strict=True)))
                print(
                    f"{name:<8} {middle.ready:>13.2f} {middle.row:>10.2f}"
                    f" {middle.recipe / 1e6:>11.1f} {middle.others / 1e6:>11.1f} {seconds:>7.1f}"
                )
        finally:
            stop = [sys.executable, "-m", "sweeper", "engine", "stop", "--force"]
            subprocess.run(stop, check=False, cwd=folder, capture_output=True)


if __name__ == "__main__":
    main()
