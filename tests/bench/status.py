"""Compares `sweeper status` of a sweep of many runs with its minimum: one `tmux list-panes -a` and
one listing of the state files with their sizes and times.

    python tests/bench/status.py [RUNS]

Each run has four events and a pane in a private tmux server. The start of a bare interpreter is
measured too, and subtracted; sweeper's imports are not.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sweeper.backends.base import JobSpec
from sweeper.backends.tmux.backend import open_backend
from sweeper.backends.tmux.server import socket_name
from sweeper.store.documents import encode, timestamp
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.states import Event

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.own_tmux import own_tmux

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
ROUNDS = 25


def sweep(folder: str, count: int) -> list[JobSpec]:
    """Write a sweep of `count` runs on disk, all of which have succeeded."""
    store = LocalStore(folder)
    many = SweepFolder(store, "many")
    runs = []
    jobs: list[JobSpec] = []
    for number in range(count):
        run = f"{number:012x}"
        config = {"learning_rate": number / 1e6}
        name = f"lr={number / 1e6:g}"
        runs.append({"id": run, "name": name, "cell": name, "seed": None, "config": config})
        body = {"schema": 1, "time": timestamp(), "started": timestamp(), "ended": timestamp()}
        body |= {"code": 0, "signal": None, "reason": None, "detail": None, "wall_s": 1.5}
        for event in (Event.INTENT, Event.SUBMITTED, Event.CLAIMED, Event.SUCCEEDED):
            store.replace(many.event(run, 1, event), encode(body), durable=False)
        jobs.append(JobSpec(token(run, 1), name, ["true", token(run, 1)], folder, {}))
    launch = {"backend": "tmux", "retries": 0, "max_parallel": 8, "lease_s": 60}
    plan = {"schema": 1, "name": "many", "recipe": {"reference": "true"}, "metric": None}
    store.replace(many.plan, encode(plan | {"launch": launch, "axes": {}, "runs": runs}))
    return jobs


def measured(actions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median milliseconds of each action. They run in turns, so that other load on the
    machine affects them alike."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS):
        for name, action in actions.items():
            begun = time.perf_counter()
            action()
            times[name].append((time.perf_counter() - begun) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder, own_tmux():
        open_backend("many", f"{folder}/many").submit(sweep(folder, count))
        store = LocalStore(folder)
        python = [sys.executable, "-P"]
        status = [*python, "-m", "sweeper", "status", "many", "--root", folder]
        tmux = ["tmux", "-L", socket_name()]
        form = "#{window_id} #{pane_dead} #{pane_pid} #{@sweeper_token}"

        def run(*command: str) -> None:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

        run(*status)
        found = measured(
            {
                "list-panes": lambda: run(*tmux, "list-panes", "-a", "-F", form),
                "listing": lambda: sum(1 for _ in store.list("many/state")),
                "interpreter": lambda: run(*python, "-c", "pass"),
                "status": lambda: run(*status),
            }
        )
    least = found["list-panes"] + found["listing"]
    own = found["status"] - found["interpreter"]
    print(f"status of {count} runs: {own:.0f} ms and the interpreter's {found['interpreter']:.0f}")
    print(f"list-panes -a and the listing of {4 * count} state files: {least:.0f} ms")
    print(f"ratio: {own / least:.2f}")
    print(json.dumps({name: round(value, 1) for name, value in found.items()}))


if __name__ == "__main__":
    main()
