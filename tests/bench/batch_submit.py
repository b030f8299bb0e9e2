"""Measures submitting jobs to AWS Batch and polling them: requests and seconds.

It uses moto over HTTP on this machine, whose jobs are held and never start. Amazon's own service
answers more slowly; the number of requests is the same.

    python tests/bench/batch_submit.py [--jobs 1000] [--many 10000]
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sweeper.backends.aws_batch.backend import AwsBatchBackend, open_backend
from sweeper.backends.base import JobSpec
from sweeper.terminal import print_table

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.batch import Batch

Row = tuple[str, int, str, str]


def jobs(folder: str, count: int) -> list[JobSpec]:
    argv = ["python", "-P", "-m", "sweeper.worker.main", folder]
    tokens = [f"{number:012x}-a1" for number in range(count)]
    return [JobSpec(token, token, [*argv, token], "/", {}) for token in tokens]


def measured(what: str, backend: AwsBatchBackend, count: int, act: Callable[[], object]) -> Row:
    before = sum(backend.aws.calls.values())
    begun = time.perf_counter()
    act()
    seconds = time.perf_counter() - begun
    calls = sum(backend.aws.calls.values()) - before
    return what, count, str(calls), f"{seconds:.2f}"


def submitted(batch: Batch, root: str, sweep: str, count: int, array: int) -> tuple[Any, list[Row]]:
    """Submit a sweep of `count` jobs, as one array or one by one; returns the cost."""
    folder = f"{root}/{sweep}"
    backend = open_backend(sweep, folder, batch.options(array=array))
    how = "an array" if array else "one by one"
    specs = jobs(folder, count)
    tokens = [job.token for job in specs]
    rows = [measured(f"submit, {how}", backend, count, lambda: backend.submit(specs))]
    # Another launcher, without any state.
    other = open_backend(sweep, folder, batch.options(array=array))
    rows.append(measured(f"find again, {how}", other, count, lambda: other.find(tokens)))
    rows.append(measured(f"poll, all waiting, {how}", other, count, lambda: other.poll(tokens)))
    return (other, tokens), rows


def moved(batch: Batch, name: str, states: dict[str, int]) -> None:
    """Set the states of the first children of the newest array."""
    children = iter([job for job in batch.jobs() if job._child_jobs][-1]._child_jobs)
    for state, count in states.items():
        for _ in range(count):
            next(children).status = state


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--many", type=int, default=10_000)
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, Batch(Path(folder)) as batch:
        os.environ |= batch.environment
        batch.held = True
        root = str(Path(folder) / "root")
        _, figures = submitted(batch, root, "single", arguments.jobs, 0)
        rows += figures
        _, figures = submitted(batch, root, "array", arguments.jobs, 2)
        rows += figures
        (backend, tokens), figures = submitted(batch, root, "many", arguments.many, 2)
        rows += figures
        count = arguments.many
        moved(batch, "many", {"RUNNING": count // 10, "SUCCEEDED": count // 100})
        for what in ("some have started", "the same, the next poll", "until nothing is new"):
            rows.append(measured(f"poll, {what}", backend, count, lambda: backend.poll(tokens)))
        for _ in range(10):
            backend.poll(tokens)
        rows.append(measured("poll, as before", backend, count, lambda: backend.poll(tokens)))
        rows.append(measured("cancel all", backend, count, lambda: backend.cancel(tokens)))
    print_table(("what", "jobs", "requests", "seconds"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
