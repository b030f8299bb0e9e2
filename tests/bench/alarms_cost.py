"""Measures the cost of one check of the alarms, in milliseconds of CPU.

python tests/bench/alarms_cost.py [--runs 1000]
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable

from sweeper.alarms.watcher import Criteria, Seen, Watcher
from sweeper.common.alarm_thresholds import resolve
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder

ROW = {f"some/key_{n}": 0.1 * n for n in range(17)} | {
    "train_mean_nll": 1.0,
    "optim/entropy": 1.0,
    "env/all/reward/total": 0.3,
}


def write(sweep: SweepFolder, run: str, steps: range) -> None:
    folder = f"{sweep.store.root}/{sweep.log_path(run, 1)}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/metrics.jsonl", "a", encoding="utf-8") as file:
        file.writelines(json.dumps({"step": step} | ROW) + "\n" for step in steps)


def cost(act: Callable[[], object]) -> float:
    begun = time.process_time()
    act()
    return 1000 * (time.process_time() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    count = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as root:
        ids = [f"{n:012x}" for n in range(count)]
        sweep = SweepFolder(LocalStore(root), "s")
        for run in ids:
            write(sweep, run, range(3))
        later = 0.0
        watcher = Watcher(
            sweep,
            Criteria(resolve(), lease=60.0, is_command=False),
            set(),
            clock=lambda: time.monotonic() + later,
            tell=print,
        )
        seen = [Seen(run, 1, True, 1.0, {"paused": None}) for run in ids]
        for _ in range(5):
            watcher.check(seen)
        idle = min(cost(lambda: watcher.check(seen)) for _ in range(5))
        print(f"{count} runs, none with a new row: {idle:.1f} ms")
        for run in ids[:10]:
            write(sweep, run, range(3, 4))
        print(f"{count} runs, 10 with a new row: {cost(lambda: watcher.check(seen)):.1f} ms")
        later = 1e6
        watcher.check(seen)
        still = min(cost(lambda: watcher.check(seen)) for _ in range(5))
        print(f"{len(watcher.stalled)} runs, all stalled: {still:.1f} ms")
        write(sweep, ids[0], range(3, 20_000))
        most = max(cost(lambda: watcher.check(seen[:1])) for _ in range(3))
        print(f"one run with 20,000 new rows, of which one check reads a part: {most:.1f} ms")


if __name__ == "__main__":
    main()
