"""Measures quick runs with a root on S3, compared with the same runs with a local root.

    python tests/bench/remote_runs.py [--runs 60 300] [--milliseconds 0]

Each run executes `true`, six at once, on the backend `local`. Prints the seconds from `launch
--wait` to its end, the processor seconds of all processes (except moto's S3, which is the store),
and the requests: those of a run from its intent to its success, and all others. Their price is that
of S3 Standard in us-east-1: 0.005 dollars for 1,000 PUT or LIST, 0.0004 for 1,000 GET or HEAD,
nothing for DELETE.
"""

import argparse
import ctypes
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from remote import delayed
from sync import BUCKET, Server, s3

GRID = """\
name: q
command: ["true"]
service: none
seeds: {runs}
launch: {{backend: local, max_parallel: 6}}
"""
DOLLARS = {"PUT": 5e-6, "LIST": 5e-6, "GET": 4e-7, "HEAD": 4e-7, "DELETE": 0.0}
_SUBREAPER = 36
_RUN = re.compile(r"\b[0-9a-f]{12}\b(\.\d+)?")


class Cost(NamedTuple):
    """Seconds until the launcher ended, and processor seconds of every process."""

    wall: float
    processor: float


def reap(root: str) -> None:
    """Launch the grid in this folder, wait until all processes that it started have ended, and
    print what they took."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    begun, wall = time.perf_counter(), 0.0
    command = [sys.executable, "-m", "sweeper", "launch", "grid.yaml", "--wait", "--root", root]
    launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break
        if pid == launcher.pid:
            wall = time.perf_counter() - begun
            if status:
                raise SystemExit(f"launch ended with {os.waitstatus_to_exitcode(status)}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps(Cost(wall, used.ru_utime + used.ru_stime)))


def cost(runs: int, root: str, folder: str) -> Cost:
    """Launch `runs` runs with this root, from a new folder and with a new home."""
    os.makedirs(f"{folder}/home")
    Path(folder, "grid.yaml").write_text(GRID.format(runs=runs))
    done = subprocess.run(
        [sys.executable, __file__, "--reap", root], cwd=folder, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"SWEEPER_HOME": f"{folder}/home"}, check=True,
    )  # fmt: skip
    return Cost(*json.loads(done.stdout))


def measure(server: Server, runs: int, milliseconds: float) -> None:
    """Print what the runs take on both roots, and the requests to the remote one."""
    with tempfile.TemporaryDirectory() as folder, delayed(server.address, milliseconds) as far:
        here = cost(runs, f"{folder}/root", f"{folder}/local")
        if milliseconds:
            os.environ["AWS_ENDPOINT_URL"] = far.address
        server.log.clear()
        there = cost(runs, f"s3://{BUCKET}/{runs}-{milliseconds:g}", f"{folder}/remote")
        os.environ["AWS_ENDPOINT_URL"] = server.address
        time.sleep(0.3)  # for lines that are still in the pipe
    more = (there.processor - here.processor) / runs
    print(
        f"{runs} runs, {milliseconds:g} ms a request: local {here.wall:.1f} s, "
        f"{here.processor:.1f} s of processor; S3 {there.wall:.1f} s "
        f"({there.wall / here.wall:.2f} times), {there.processor:.1f} s of processor "
        f"({more:.3f} s more for each run), {len(server.log)} requests"
    )
    _print_requests(server.log, runs)


def _print_requests(log: list[tuple[str, str]], runs: int) -> None:
    """Print a table of the requests of one run, and a line about all others."""
    of_runs: Counter[tuple[str, str]] = Counter()
    others: Counter[str] = Counter()
    for method, path in log:
        plain, count = _RUN.subn("RUN", path)
        if count and not plain.startswith("code/"):
            of_runs[method, plain] += 1
        else:
            others[method] += 1
    for (method, path), count in sorted(of_runs.items(), key=lambda item: (-item[1], item[0])):
        if count >= runs // 20:
            print(f"  {count / runs:5.2f}  {method:6} {path}")
    each = sum(of_runs.values()) / runs
    dollars = sum(DOLLARS[method] * count for (method, _), count in of_runs.items()) / runs
    print(f"  {each:5.2f}  requests of a run: {1000 * dollars:.3f} dollars for 1,000 runs")
    counts = ", ".join(f"{count} {method}" for method, count in sorted(others.items()))
    dollars = sum(DOLLARS[method] * count for method, count in others.items())
    print(f"  and of the whole sweep: {counts}: {dollars:.5f} dollars", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--runs", type=int, nargs="*", default=[60, 300])
    parser.add_argument("--milliseconds", type=float, nargs="*", default=[0])
    parser.add_argument("--reap", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.reap:
        reap(given.reap)
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with s3() as server:
        for runs in given.runs:
            for milliseconds in given.milliseconds:
                measure(server, runs, milliseconds)


if __name__ == "__main__":
    main()
