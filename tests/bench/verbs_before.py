"""Compares the cost of the verbs with another commit: `plan`, `launch`, `status`, `watch`, `ls`,
metrics.

    git worktree add --detach /tmp/before COMMIT
    python tests/bench/verbs_before.py /tmp/before [--runs 100] [--rounds 5]

The other commit's program runs in this interpreter, with the same packages. Both read one sweep,
which the other commit has launched: each run has 1,000 rows of 20 keys. "First" starts with an
empty cache, "again" is right after it. Seconds are processor time of the verb and its finished
children; each ratio is the median of the rounds, in which both take turns.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HERE = str(Path(__file__).parents[2])
GRID = """
name: {name}
command: [{python}, {program}, "{rows}", "{{log_path}}"]
grid: {{x: {values}, y: [1, 2]}}
metric: {{name: key0, goal: maximize}}
launch: {{backend: local, max_parallel: 4}}
"""
PROGRAM = """
import json, sys
rows = int(sys.argv[1])
with open(sys.argv[2] + "/metrics.jsonl", "w") as file:
    for step in range(rows):
        row = {f"key{i}": (step * 7919 + i) % 1000 / 7 for i in range(20)}
        print(json.dumps({"step": step, **row}), file=file)
"""


class Side(NamedTuple):
    """A checkout, and the folder in which its commands run."""

    checkout: str
    folder: Path

    def cost(self, *command: str, home: str = "home") -> float:
        """Return the processor seconds of a verb, with its cache in a home of that name."""
        environment = {
            **os.environ,
            "PYTHONPATH": self.checkout,
            "SWEEPER_HOME": str(self.folder / home),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled once, as if it were installed
        before = _used()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sweeper", *command],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{' '.join(command)} in {self.checkout}:\n{done.stdout}")
        return _used() - before


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def grid(folder: Path, name: str, runs: int, rows: int) -> None:
    """Write a grid of this many runs, and their program."""
    program = folder / f"{name}.py"
    program.write_text(PROGRAM)
    values = list(range(1, runs // 2 + 1))
    text = GRID.format(name=name, python=sys.executable, program=program, rows=rows, values=values)
    (folder / f"{name}.yaml").write_text(text)


def cases(root: str, runs: int) -> list[tuple[str, Callable[[Side, int], float]]]:
    """Return the measured cases: a name, and its cost on a side in a round."""
    query = "SELECT count(*), avg(key0) FROM metrics"

    def reading(*command: str) -> list[tuple[str, Callable[[Side, int], float]]]:
        whole = (*command, "--root", root)
        name = f"`{' '.join(command[:2])}`"

        def first(side: Side, number: int) -> float:
            home = f"home{abs(hash(command))}-{number}"
            shutil.rmtree(side.folder / home, ignore_errors=True)
            return side.cost(*whole, home=home)

        def again(side: Side, number: int) -> float:
            return side.cost(*whole, home=f"home{abs(hash(command))}-{number}")

        return [(f"{name}, first", first), (f"{name}, again", again)]

    def launch(side: Side, number: int) -> float:
        made = str(side.folder / f"root{number}")
        return side.cost("launch", "small.yaml", "--wait", "--root", made)

    return [
        (f"`plan` of {runs} runs", lambda side, _: side.cost("plan", "small.yaml")),
        (f"`launch --wait` of {runs} runs, with them", launch),
        *reading("status"),
        *reading("status", "large"),
        *reading("watch", "large"),
        *reading("ls", "large"),
        *reading("sql", query),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("before", help="a checkout of the other commit")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sides = [Side(path, Path(folder) / str(n)) for n, path in enumerate((given.before, HERE))]
        for side in sides:
            side.folder.mkdir()
            grid(side.folder, "small", given.runs, 3)
        grid(sides[0].folder, "large", given.runs, 1000)
        root = str(Path(folder) / "sweeps")
        sides[0].cost("launch", "large.yaml", "--wait", "--root", root)
        print("| processor, s | before | now | ratio |")
        print("|---|---|---|---|")
        for name, cost in cases(root, given.runs):
            found: list[tuple[float, float]] = []
            for number in range(given.rounds):
                turn = {side: cost(side, number) for side in sides[:: 1 if number % 2 else -1]}
                found.append((turn[sides[0]], turn[sides[1]]))
            before, now = (statistics.median(one[i] for one in found) for i in (0, 1))
            ratio = statistics.median(b / a for a, b in found)
            print(f"| {name} | {before:.2f} | {now:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
