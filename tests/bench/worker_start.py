"""Measures the cost of a worker: a whole attempt of a recipe that does nothing (`true`), against
`python -c pass` in the same interpreter, in turns.

    python tests/bench/worker_start.py [ROUNDS]

Processor time is that of the worker and the two processes it waits for (the recipe, the guard).
Waiting for the disk (the claim and the outcome are synced) affects only the wall time, so the store
is in memory for one row and in the current folder for the other.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from attempts import attempts

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class Cost(NamedTuple):
    """Milliseconds."""

    wall: float
    processor: float


def cost(command: list[str]) -> Cost:
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    wall = time.perf_counter() - begun
    return Cost(wall * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    memory = os.path.join(os.sep, "dev", "shm")
    bare: list[Cost] = []
    found: dict[str, list[Cost]] = {"in memory": [], "on this disk": []}
    with (
        tempfile.TemporaryDirectory(dir=memory if os.path.isdir(memory) else None) as fast,
        tempfile.TemporaryDirectory(dir=os.getcwd()) as slow,
    ):
        ready = {"in memory": attempts(fast, rounds), "on this disk": attempts(slow, rounds)}
        for number in range(rounds):
            bare.append(cost([sys.executable, "-c", "pass"]))
            for where, costs in found.items():
                costs.append(cost(ready[where][number].argv))
    base = Cost(*(statistics.median(values) for values in zip(*bare, strict=True)))
    print(f"python -c pass: {base.processor:.1f} ms of processor, {base.wall:.1f} ms in all")
    result = {}
    for where, costs in found.items():
        mine = Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))
        ratios = {"processor": mine.processor / base.processor, "wall": mine.wall / base.wall}
        print(
            f"worker, store {where}: {mine.processor:.1f} ms of processor "
            f"({ratios['processor']:.1f} times), {mine.wall:.1f} ms in all ({ratios['wall']:.1f})"
        )
        result[where] = {name: round(value, 2) for name, value in ratios.items()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
