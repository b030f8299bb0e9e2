"""Measures the cost of following the output of many runs: `sweeper logs -f` against `tail -F` of
the same files, in one run. Ten of the runs print a line per second.

    python tests/bench/logs.py [SECONDS]

CPU is in percent of one core, of the process with its children, after its first 3 seconds.
"""

import os
import subprocess
import sys
import tempfile
import time

import psutil

from sweeper.store.documents import encode, timestamp
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

SPEAKING = 10
LINE = b"step 17 of 1000: loss 0.1234, 31 tokens/s\n"


def sweep(folder: str, count: int) -> list[str]:
    """Write a sweep of `count` running runs; returns the paths of their logs."""
    store = LocalStore(folder)
    many = SweepFolder(store, "many")
    runs = []
    logs: list[str] = []
    for number in range(count):
        run, name = f"{number:012x}", f"lr={number / 1e6:g}"
        runs.append({"id": run, "name": name, "cell": name, "seed": None, "config": {}})
        body = encode({"schema": 1, "time": timestamp(), "started": timestamp()})
        for event in (Event.INTENT, Event.SUBMITTED, Event.CLAIMED):
            store.replace(many.event(run, 1, event), body, durable=False)
        store.append(many.log(run, 1), LINE)
        logs.append(store.local_path(many.log(run, 1)) or "")
    launch = {"backend": "local", "retries": 0, "max_parallel": count, "lease_s": 60}
    plan = {"schema": 1, "name": "many", "recipe": {"reference": "true"}, "metric": None}
    store.replace(many.plan, encode(plan | {"launch": launch, "axes": {}, "runs": runs}))
    return logs


def cost(command: list[str], logs: list[str], seconds: float) -> tuple[float, int]:
    """Return CPU in percent, and the number of lines printed meanwhile."""
    with tempfile.TemporaryFile() as output, subprocess.Popen(command, stdout=output) as process:
        time.sleep(3)
        watched = psutil.Process(process.pid)
        before, size = watched.cpu_times(), output.seek(0, os.SEEK_END)
        begun = time.monotonic()
        while time.monotonic() < begun + seconds:
            for path in logs[:SPEAKING]:
                with open(path, "ab") as file:
                    file.write(LINE)
            time.sleep(1)
        time.sleep(1)  # until the last lines are printed
        after, spent = watched.cpu_times(), time.monotonic() - begun
        process.kill()
        output.seek(size)
        lines = output.read().count(b"step 17")
    return 100 * (after.user + after.system - before.user - before.system) / spent, lines


def main(seconds: float) -> None:
    written = int(seconds) * min(SPEAKING, 10)
    print(f"{'runs':>5}  {'sweeper logs -f':>16}  {'tail -F':>8}   (% of a core)")
    for count in (10, 50, 1000):
        with tempfile.TemporaryDirectory() as folder:
            logs = sweep(folder, count)
            ours = [sys.executable, "-m", "sweeper", "logs", "-f", "many", "--root", folder]
            mine, lines = cost([*ours, "-n", "0"], logs, seconds)
            theirs, _ = cost(["tail", "-n", "0", "-F", *logs], logs, seconds)
        print(f"{count:>5}  {mine:>16.2f}  {theirs:>8.2f}   {lines} of {written} lines or more")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20)
