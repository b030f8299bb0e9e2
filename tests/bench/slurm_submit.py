"""Measures submitting many jobs to Slurm, and polling them: sweeper's backend, against plain
`sbatch` in a loop, one array by hand, and submitit.

    python tests/bench/slurm_submit.py [--jobs 1000] [--held 10000] [--submitit VENV/bin/python]

It starts its own real Slurm on loopback, whose partition is down: jobs wait, and none takes
processor time from the measurement.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sweeper.backends.base import JobSpec, JobState
from sweeper.backends.slurm.backend import SlurmBackend
from sweeper.backends.slurm.commands import Slurm
from sweeper.common.sweeper_argv import worker_command

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.slurm import Cluster, missing

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"

SUBMITIT = """
import sys, time
import submitit
count, folder, array = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "array"
executor = submitit.SlurmExecutor(folder)
executor.update_parameters(time=5, partition="main")
begun = time.perf_counter()
if array:
    executor.map_array(time.sleep, [1] * count)
else:
    for _ in range(count):
        executor.submit(time.sleep, 1)
print(time.perf_counter() - begun)
"""


def jobs_of(folder: str, count: int, **options: object) -> list[JobSpec]:
    tokens = [f"{number:012x}-a1" for number in range(count)]
    return [JobSpec(t, t, worker_command(folder, t), folder, options) for t in tokens]


def backend(folder: str) -> SlurmBackend:
    os.makedirs(folder, exist_ok=True)
    return SlurmBackend(Slurm(), "bench", folder)


def timed(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def by_hand(cluster: Cluster, count: int) -> float:
    command = ("sbatch", "--parsable", "--export=NONE", "-o", "/dev/null", "--wrap", "true")
    return timed(lambda: [cluster.run(*command) for _ in range(count)])


def one_array(cluster: Cluster, count: int) -> float:
    command = ["sbatch", "--export=NONE", "-o", "/dev/null", f"--array=0-{count - 1}"]
    return timed(lambda: cluster.run(*command, "--wrap", "true"))


def submitit(cluster: Cluster, python: str, count: int, how: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, "-c", SUBMITIT, str(count), folder, how],
            env=cluster.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--held", type=int, default=10_000)
    parser.add_argument("--submitit", help="the Python of an environment with submitit")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the cluster ends with this process
    result: dict[str, float] = {}

    def tell(name: str, seconds: float) -> None:
        result[name] = round(seconds, 3)
        print(f"{name}: {seconds:.3f} s", flush=True)

    if missing():
        print("no Slurm here: `make slurm` gets it")
        return
    with Cluster(nodes=4, cpus=4) as cluster, tempfile.TemporaryDirectory() as top:
        os.environ["SLURM_CONF"] = str(cluster.config)
        cluster.run("scontrol", "update", "partitionname=main", "state=down")

        def cleared() -> None:
            cluster.run("scancel", "--me")

        tell("sbatch in a loop", by_hand(cluster, options.jobs))
        cleared()
        tell("one array by hand", one_array(cluster, options.jobs))
        cleared()
        jobs = jobs_of(f"{top}/array", options.jobs)
        tell("ours", timed(lambda: backend(f"{top}/array").submit(jobs)))
        cleared()
        alone = jobs_of(f"{top}/alone", options.jobs, array=1)
        tell("ours, array: 1", timed(lambda: backend(f"{top}/alone").submit(alone)))
        cleared()
        for how in ("array", "loop") if options.submitit else ():
            tell(f"submitit, {how}", submitit(cluster, options.submitit, options.jobs, how))
            cleared()
        held = jobs_of(f"{top}/held", options.held)
        ours = backend(f"{top}/held")
        tell(f"ours, {options.held} jobs", timed(lambda: ours.submit(held)))
        tokens = [job.token for job in held]
        squeue = ("squeue", "-h", "-r", "-t", "all", "-o", "%i %T")
        tell(f"squeue -r of {options.held}", timed(lambda: cluster.run(*squeue)))
        again = backend(f"{top}/held")
        tell(f"ours, poll of {options.held}", timed(lambda: again.poll(tokens)))
        assert {status.state for status in again.poll(tokens).values()} == {JobState.PENDING}
        tell(f"ours, find of {options.held}", timed(lambda: again.find(tokens)))
        tell(f"ours, cancel of {options.held}", timed(lambda: again.cancel(tokens)))
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
